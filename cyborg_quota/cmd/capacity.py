# SPDX-License-Identifier: Apache-2.0
"""Commands on providers, inventories and allocations, and on the switch that permits claims with a provider."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.capacity_types import CapacityDrift, Inventory, InventoryRecord, Provider
from cyborg_quota.cmd import arguments, base, formats, paging
from cyborg_quota.cmd.errors import REFUSED, BadUsage

PROVIDER_COLUMNS = ("name", "uuid", "parent", "can_host", "pod", "generation")
INVENTORY_COLUMNS = (
    "provider", "resource", "total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio", "used",
    "free", "generation", "used_elsewhere",
)  # fmt: skip
ALLOCATION_COLUMNS = ("provider", "project_id", "consumer", "resource", "used", "reservation")
DRIFT_COLUMNS = ("provider", "resource", "recorded", "expected")


def provider_values(provider: Provider) -> tuple[Any, ...]:
    """The values of PROVIDER_COLUMNS."""
    parent, pod = formats.Optional(provider.parent), formats.Optional(provider.pod)
    return provider.name, provider.uuid, parent, provider.can_host, pod, provider.generation


def inventory_values(record: InventoryRecord) -> tuple[Any, ...]:
    """The values of INVENTORY_COLUMNS."""
    return (
        record.provider,
        record.resource,
        record.total,
        record.reserved,
        record.min_unit,
        record.max_unit,
        record.step_size,
        str(record.allocation_ratio),
        record.used,
        record.free,
        record.generation,
        record.used_elsewhere,
    )


def _drift_values(drift: CapacityDrift) -> tuple[Any, ...]:
    return drift.provider, drift.resource, formats.Optional(drift.recorded), drift.expected


def _add_provider(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("provider", metavar="PROVIDER", help="the provider's name or UUID")


def _add_provider_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", metavar="PROVIDER", help="only of this provider: a name or UUID")


class ProviderAdd(base.ShowOne):
    """Add a provider: a node, a device of a node, or a shared pool.

    It has no inventory yet: see `capacity inventory set`.
    """

    example = "cyborg-quota capacity provider add node1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="the name of the provider")
        parser.add_argument("--uuid", metavar="UUID", help="its UUID (default: a random one)")
        parser.add_argument("--parent", metavar="PROVIDER", help="the provider that contains it: a name or UUID")
        parser.add_argument("--pod", metavar="POD", help="the pod to which it belongs")
        parser.add_argument(
            "--shared", action="store_true", help="a shared pool: only claims that name it use its capacity"
        )
        arguments.add_capacity_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        provider = self.engine.capacity.add_provider(
            self.context,
            parsed_args.name,
            uuid=parsed_args.uuid,
            parent=parsed_args.parent,
            can_host=not parsed_args.shared,
            pod=parsed_args.pod,
            reason=parsed_args.reason,
        )
        return PROVIDER_COLUMNS, provider_values(provider)


class ProviderList(base.Lister):
    """List all providers."""

    example = "cyborg-quota capacity provider list -f csv"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        paging.add_limit(parser)
        parser.add_argument("--marker", metavar="NAME", help="start after the provider with this name")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        providers = self.engine.capacity.list_providers(self.context, limit=parsed_args.limit, after=parsed_args.marker)
        return PROVIDER_COLUMNS, [provider_values(provider) for provider in providers]


class ProviderShow(base.ShowOne):
    """Show one provider."""

    example = "cyborg-quota capacity provider show node1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_provider(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        provider = self.engine.capacity.show_provider(self.context, parsed_args.provider)
        return PROVIDER_COLUMNS, provider_values(provider)


class ProviderSet(base.ShowOne):
    """Put a provider into a pod, or make it a shared pool.

    A provider that has claims stays in its pod. --provider any does not choose a
    shared pool; claims that a provider has when it becomes one stay there.
    """

    example = "cyborg-quota capacity provider set node1 --pod pod1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_provider(parser)
        pod = parser.add_mutually_exclusive_group()
        pod.add_argument("--pod", metavar="POD", help="the pod to which it belongs")
        pod.add_argument("--no-pod", action="store_true", help="it belongs to no pod")
        shared = parser.add_mutually_exclusive_group()
        shared.add_argument(
            "--shared", action="store_true", default=None, help="a shared pool: only claims that name it use it"
        )
        shared.add_argument("--no-shared", action="store_false", dest="shared", help="no shared pool")
        arguments.add_capacity_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        has_pod = parsed_args.no_pod or parsed_args.pod is not None
        if has_pod == (parsed_args.shared is not None):
            raise BadUsage("Give either --pod or --no-pod, or --shared or --no-shared.")
        capacity, name, reason = self.engine.capacity, parsed_args.provider, parsed_args.reason
        if has_pod:
            provider = capacity.set_pod(self.context, name, parsed_args.pod, reason=reason)
        else:
            provider = capacity.set_can_host(self.context, name, can_host=not parsed_args.shared, reason=reason)
        return PROVIDER_COLUMNS, provider_values(provider)


class ProviderRemove(base.Command):
    """Remove a provider that has no claims, together with its inventories."""

    example = "cyborg-quota capacity provider remove node1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_provider(parser)
        arguments.add_capacity_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.capacity.remove_provider(self.context, parsed_args.provider, reason=parsed_args.reason)


class InventorySet(base.Lister):
    """Set how many of each resource a provider has, and in which units.

    The options apply to all resources of the command; a value that is not given
    is reset to its default. Other inventories of the provider stay unchanged. A
    claim takes the smallest unit, or a multiple of the step size above it up to
    the largest unit. The total may be lower than what is in use: claims are then
    refused until the use is below the capacity again.
    With --generation, nothing is changed if the provider has another generation.
    """

    example = "cyborg-quota capacity inventory set node1 gpu=8 fpga=2 --reserved 1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_provider(parser)
        parser.add_argument(
            "totals", nargs="+", type=arguments.amount, metavar="RESOURCE=TOTAL", help="the total, as in gpu=8"
        )
        parser.add_argument("--reserved", type=int, default=0, metavar="N", help="set aside (default: 0)")
        parser.add_argument("--min-unit", type=int, default=1, metavar="N", help="the smallest claim (default: 1)")
        parser.add_argument("--max-unit", type=int, metavar="N", help="the largest claim (default: the total)")
        parser.add_argument("--step-size", type=int, default=1, metavar="N", help="the step of claims (default: 1)")
        parser.add_argument(
            "--allocation-ratio",
            default="1",
            metavar="RATIO",
            help="the capacity is (total - reserved) * RATIO, rounded down (default: 1)",
        )
        parser.add_argument("--generation", type=int, metavar="N", help="the generation in `capacity inventory list`")
        arguments.add_capacity_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        inventories = {
            resource: Inventory(
                total=total,
                reserved=parsed_args.reserved,
                min_unit=parsed_args.min_unit,
                max_unit=parsed_args.max_unit,
                step_size=parsed_args.step_size,
                allocation_ratio=parsed_args.allocation_ratio,
            )
            for resource, total in arguments.once_each(parsed_args.totals, "totals").items()
        }
        records = self.engine.capacity.set_inventories(
            self.context,
            parsed_args.provider,
            inventories,
            generation=parsed_args.generation,
            reason=parsed_args.reason,
        )
        return INVENTORY_COLUMNS, [inventory_values(record) for record in records]


class InventoryList(base.Lister):
    """List the inventories: what exists, what is in use, and what is free."""

    example = "cyborg-quota capacity inventory list --provider node1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_provider_filter(parser)
        paging.add_paging(parser, owner="provider", metavar="PROVIDER")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        records = self.engine.capacity.list_inventories(
            self.context, parsed_args.provider, **paging.options(parsed_args)
        )
        return INVENTORY_COLUMNS, [inventory_values(record) for record in records]


class InventoryRemove(base.Command):
    """Remove an inventory that has no claims.

    Exits with 1 if the provider has no such inventory.
    """

    example = "cyborg-quota capacity inventory remove node1 fpga"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_provider(parser)
        parser.add_argument("resource", metavar="RESOURCE", help="the resource")
        arguments.add_capacity_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        provider, resource = parsed_args.provider, parsed_args.resource
        if resource not in {one.resource for one in self.engine.capacity.list_inventories(self.context, provider)}:
            raise exceptions.QuotaError(f"Provider {provider} has no inventory of {resource}. Nothing was changed.")
        self.engine.capacity.remove_inventory(self.context, provider, resource, reason=parsed_args.reason)


class AllocationList(base.Lister):
    """List the live claims that take capacity of a provider."""

    example = "cyborg-quota capacity allocation list --provider node1"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_provider_filter(parser)
        paging.add_limit(parser)
        parser.add_argument("--marker", metavar="UUID", help="start after the claim with this reservation")
        paging.add_resource(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        allocations = self.engine.capacity.list_allocations(
            self.context,
            parsed_args.provider,
            limit=parsed_args.limit,
            after=parsed_args.marker,
            resource=parsed_args.resource,
        )
        return ALLOCATION_COLUMNS, [
            (one.provider, one.project_id, formats.Optional(one.consumer), one.resource, one.used, one.reservation)
            for one in allocations
        ]


class Audit(base.Lister):
    """Compare the counters of the inventories with the reservations; writes nothing.

    If there are differences, prints a row for each and exits with 1; otherwise
    prints nothing and exits with 0. `capacity heal` repairs the counters.
    """

    example = "cyborg-quota capacity audit -f csv"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        drifts = self.engine.capacity.audit(self.context)
        if drifts:
            self.status = REFUSED
        return DRIFT_COLUMNS, [_drift_values(drift) for drift in drifts]


class Heal(base.Lister):
    """Correct the counters of the inventories that differ from the reservations.

    May run while other programs reserve and commit. Prints the old and new values.
    """

    example = "cyborg-quota capacity heal"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        with base.progress_bar(None, "inventories") as progress:
            drifts = self.engine.capacity.heal(self.context, progress=progress)
        return DRIFT_COLUMNS, [_drift_values(drift) for drift in drifts]
