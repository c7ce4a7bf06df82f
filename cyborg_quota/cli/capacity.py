# SPDX-License-Identifier: Apache-2.0
"""Commands on providers, inventories and allocations."""

from __future__ import annotations

from typing import Any, Final

from cyborg_quota import exceptions
from cyborg_quota.cli import arguments, base, formats, paging
from cyborg_quota.cli.errors import BadUsage
from cyborg_quota.surface import parsing
from cyborg_quota.surface.operations import Argument, Column, OneOf, Operation, columns
from cyborg_quota.types.capacity import Inventory, InventoryRecord, Provider

PROVIDER_COLUMNS: Final = (
    *columns("name", "uuid"),
    Column("parent", formats.Optional),
    Column("can_host"),
    Column("pod", formats.Optional),
    Column("generation"),
)
INVENTORY_COLUMNS: Final = (
    *columns("provider", "resource", "total", "reserved", "min_unit", "max_unit", "step_size"),
    Column("allocation_ratio", str),
    *columns("used", "free", "generation", "used_elsewhere"),
)
DRIFT_COLUMNS: Final = (
    *columns("provider", "resource"),
    Column("recorded", formats.Optional),
    Column("expected"),
)

_PROVIDER: Final = Argument("provider", metavar="PROVIDER", help="the provider's name or UUID")
_OF_PROVIDER: Final = Argument("--provider", metavar="PROVIDER", help="only of this provider: a name or UUID")

ProviderAdd = base.generate(
    Operation(
        """Add a provider: a node, a device of a node, or a shared pool.

        It has no inventory yet: see `capacity inventory set`.
        """,
        "cyborg-quota capacity provider add node1",
        lambda run, **given: run.engine.capacity.add_provider(run.context, **given),
        (
            Argument("name", metavar="NAME", help="the name of the provider"),
            Argument("--uuid", metavar="UUID", help="its UUID (default: a random one)"),
            Argument("--parent", metavar="PROVIDER", help="the provider that contains it: a name or UUID"),
            Argument("--pod", metavar="POD", help="the pod to which it belongs"),
            Argument(
                "--shared",
                action="store_false",
                dest="can_host",
                help="a shared pool: only claims that name it use its capacity",
            ),
            arguments.CAPACITY_REASON,
        ),
        PROVIDER_COLUMNS,
        is_list=False,
    )
)

ProviderList = base.generate(
    Operation(
        "List all providers.",
        "cyborg-quota capacity provider list -f csv",
        lambda run, **given: run.engine.capacity.list_providers(run.context, **given),
        (paging.LIMIT, paging.marker("NAME", "start after the provider with this name")),
        PROVIDER_COLUMNS,
    )
)

ProviderShow = base.generate(
    Operation(
        "Show one provider.",
        "cyborg-quota capacity provider show node1",
        lambda run, provider: run.engine.capacity.show_provider(run.context, provider),
        (_PROVIDER,),
        PROVIDER_COLUMNS,
        is_list=False,
    )
)


def _set_provider(
    run: base.Run, provider: str, pod: str | None, *, no_pod: bool, can_host: bool | None, reason: str | None
) -> Provider:
    has_pod = no_pod or pod is not None
    if has_pod == (can_host is not None):
        raise BadUsage("Give either --pod or --no-pod, or --shared or --no-shared.")
    if has_pod:
        return run.engine.capacity.set_pod(run.context, provider, pod, reason=reason)
    return run.engine.capacity.set_can_host(run.context, provider, can_host=bool(can_host), reason=reason)


ProviderSet = base.generate(
    Operation(
        """Put a provider into a pod, or make it a shared pool.

        A provider that has claims stays in its pod. --provider any does not choose a
        shared pool; claims that a provider has when it becomes one stay there.
        """,
        "cyborg-quota capacity provider set node1 --pod pod1",
        _set_provider,
        (
            _PROVIDER,
            OneOf(
                Argument("--pod", metavar="POD", help="the pod to which it belongs"),
                Argument("--no-pod", action="store_true", help="it belongs to no pod"),
            ),
            OneOf(
                Argument(
                    "--shared",
                    action="store_false",
                    dest="can_host",
                    default=None,
                    help="a shared pool: only claims that name it use it",
                ),
                Argument("--no-shared", action="store_true", dest="can_host", default=None, help="no shared pool"),
            ),
            arguments.CAPACITY_REASON,
        ),
        PROVIDER_COLUMNS,
        is_list=False,
    )
)

ProviderRemove = base.generate(
    Operation(
        "Remove a provider that has no claims, together with its inventories.",
        "cyborg-quota capacity provider remove node1",
        lambda run, **given: run.engine.capacity.remove_provider(run.context, **given),
        (_PROVIDER, arguments.CAPACITY_REASON),
    )
)


def _set_inventories(
    run: base.Run,
    provider: str,
    totals: list[tuple[str, int]],
    generation: int | None,
    reason: str | None,
    **units: Any,
) -> list[InventoryRecord]:
    inventories = {
        resource: Inventory(total=total, **units) for resource, total in arguments.once_each(totals, "totals").items()
    }
    return run.engine.capacity.set_inventories(run.context, provider, inventories, generation=generation, reason=reason)


InventorySet = base.generate(
    Operation(
        """Set how many of each resource a provider has, and in which units.

        The options apply to all resources of the command; a value that is not given
        is reset to its default. Other inventories of the provider stay unchanged. A
        claim takes the smallest unit, or a multiple of the step size above it up to
        the largest unit. The total may be lower than what is in use: claims are then
        refused until the use is below the capacity again.
        With --generation, nothing is changed if the provider has another generation.
        """,
        "cyborg-quota capacity inventory set node1 gpu=8 fpga=2 --reserved 1",
        _set_inventories,
        (
            _PROVIDER,
            Argument("totals", nargs="+", type=parsing.amount, metavar="RESOURCE=TOTAL", help="the total, as in gpu=8"),
            Argument("--reserved", type=int, default=0, metavar="N", help="set aside (default: 0)"),
            Argument("--min-unit", type=int, default=1, metavar="N", help="the smallest claim (default: 1)"),
            Argument("--max-unit", type=int, metavar="N", help="the largest claim (default: the total)"),
            Argument("--step-size", type=int, default=1, metavar="N", help="the step of claims (default: 1)"),
            Argument(
                "--allocation-ratio",
                default="1",
                metavar="RATIO",
                help="the capacity is (total - reserved) * RATIO, rounded down (default: 1)",
            ),
            Argument("--generation", type=int, metavar="N", help="the generation in `capacity inventory list`"),
            arguments.CAPACITY_REASON,
        ),
        INVENTORY_COLUMNS,
    )
)

InventoryList = base.generate(
    Operation(
        "List the inventories: what exists, what is in use, and what is free.",
        "cyborg-quota capacity inventory list --provider node1",
        lambda run, after, **given: run.engine.capacity.list_inventories(
            run.context, after=paging.position(after), **given
        ),
        (_OF_PROVIDER, *paging.paging("provider", "PROVIDER")),
        INVENTORY_COLUMNS,
    )
)


def _remove_inventory(run: base.Run, provider: str, resource: str, reason: str | None) -> None:
    capacity = run.engine.capacity
    if resource not in {one.resource for one in capacity.list_inventories(run.context, provider)}:
        raise exceptions.QuotaError(f"Provider {provider} has no inventory of {resource}. Nothing was changed.")
    capacity.remove_inventory(run.context, provider, resource, reason=reason)


InventoryRemove = base.generate(
    Operation(
        """Remove an inventory that has no claims.

        Exits with 1 if the provider has no such inventory.
        """,
        "cyborg-quota capacity inventory remove node1 fpga",
        _remove_inventory,
        (_PROVIDER, Argument("resource", metavar="RESOURCE", help="the resource"), arguments.CAPACITY_REASON),
    )
)

AllocationList = base.generate(
    Operation(
        "List the live claims that take capacity of a provider.",
        "cyborg-quota capacity allocation list --provider node1",
        lambda run, **given: run.engine.capacity.list_allocations(run.context, **given),
        (
            _OF_PROVIDER,
            paging.LIMIT,
            paging.marker("UUID", "start after the claim with this reservation"),
            paging.RESOURCE,
        ),
        (
            *columns("provider", "project_id"),
            Column("consumer", formats.Optional),
            *columns("resource", "used", "reservation"),
        ),
    )
)

Audit = base.generate(
    Operation(
        """Compare the counters of the inventories with the reservations; writes nothing.

        If there are differences, prints a row for each and exits with 1; otherwise
        prints nothing and exits with 0. `capacity heal` repairs the counters.
        """,
        "cyborg-quota capacity audit -f csv",
        lambda run: run.engine.capacity.audit(run.context),
        columns=DRIFT_COLUMNS,
        refuses=True,
    )
)

Heal = base.generate(
    Operation(
        """Correct the counters of the inventories that differ from the reservations.

        May run while other programs reserve and commit. Prints the old and new values.
        """,
        "cyborg-quota capacity heal",
        lambda run, progress: run.engine.capacity.heal(run.context, progress=progress),
        columns=DRIFT_COLUMNS,
        progress="inventories",
    )
)
