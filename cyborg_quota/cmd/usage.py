# SPDX-License-Identifier: Apache-2.0
"""Commands on usage: list, check, audit, heal."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota import ANY, Headroom, Over, exceptions
from cyborg_quota.capacity_types import CapacityDrift
from cyborg_quota.cmd import arguments, base, formats, paging
from cyborg_quota.cmd.errors import REFUSED, BadUsage
from cyborg_quota.types import MAX_AMOUNT, TOTAL, Counters, Drift, UsageRecord

COLUMNS = ("project_id", "resource", "limit", "used", "reserved", "available", "fits", "bound_by")
POD_COLUMNS = ("project_id", "pod", "resource", "limit", "used", "reserved", "available", "fits", "bound_by")
OVER_COLUMNS = ("project_id", "resource", "scope", "limit", "used", "reserved", "subtree", "requested", "fits", "pod")
HOW_MANY_COLUMNS = ("how_many", "resource", "fits", "bound_by", "pod")
_COUNTERS = ("used", "reserved", "subtree")
DRIFT_COLUMNS = (
    "project_id",
    "resource",
    *(f"{column}_{counter}" for counter in _COUNTERS for column in ("recorded", "expected")),
    "provider",
    "pod",
)


class List(base.Lister):
    """List the usage of projects (used: attached; reserved: not yet attached) and limits.

    available: limit - (used + reserved). fits: the largest amount that a reserve
    would be granted now, considering the limits of all parents too; bound_by: the
    project whose limit determines it. A table shows unlimited if no limit does.
    With --project, lists also the resources of which the project has no usage. If
    the limit source is unavailable, limits are shown as unknown. A limit that is not
    set, so that reserves are refused, is shown as not set. (json: null for both.)

    With --pod, lists the usage in this pod, the limits per pod, and what fits there.
    """

    example = "cyborg-quota usage list --project P -f json"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser)
        parser.add_argument("--pod", metavar="POD", help="only what is held in this pod")
        paging.add_paging(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        if parsed_args.pod is not None:
            records = self.engine.list_usages(
                self.context,
                parsed_args.project,
                allow_unknown_limits=True,
                with_headroom=True,
                pod=parsed_args.pod,
                **paging.options(parsed_args),
            )
            return POD_COLUMNS, [
                (record.project_id, record.pod, record.resource, *_usage_columns(record)) for record in records
            ]
        if parsed_args.project is None:
            records = self.engine.list_usages(
                self.context, allow_unknown_limits=True, with_headroom=True, **paging.options(parsed_args)
            )
        else:
            records = self._of_project(parsed_args.project)
            records = paging.page(parsed_args, records, lambda record: (record.project_id, record.resource))
        return COLUMNS, [(record.project_id, record.resource, *_usage_columns(record)) for record in records]

    def _of_project(self, project_id: str) -> list[UsageRecord]:
        try:
            return self.engine.get_detail(self.context, project_id)
        except (exceptions.LimitsUnavailable, exceptions.InvalidName):  # or a project that Keystone does not know
            usages = self.engine.get_usages(self.context, project_id, allow_unknown_limits=True)
            return [UsageRecord(project_id, resource, usage) for resource, usage in usages.items()]


def _usage_columns(record: UsageRecord) -> tuple[Any, ...]:
    usage, headroom = record.usage, record.headroom
    limit: formats.Limit | formats.Unknown = formats.Limit(usage.limit)
    available: formats.Available | formats.Unknown | formats.Optional = formats.Available(usage.available)
    if usage.limit is None:
        limit = available = formats.Unknown(None)
    elif headroom is not None and _is_missing(record.project_id, headroom):
        limit, available = formats.Limit(None), formats.Optional(None)
    return limit, usage.used, usage.reserved, available, *_fits_columns(headroom)


def _is_missing(project_id: str, headroom: Headroom) -> bool:
    """Whether nothing fits because the project has no limit."""
    return headroom.bound_by == project_id and headroom.scope == "project" and headroom.limit is None


def _fits_columns(headroom: Headroom | None) -> tuple[Any, Any]:
    """``fits`` and ``bound_by``."""
    if headroom is None:
        return formats.Unknown(None), formats.Unknown(None)
    # The width of a counter is no project's limit.
    bound_by = TOTAL if headroom.scope == "total" else None if headroom.scope == "counter" else headroom.bound_by
    return formats.Fits(headroom.fits, is_unlimited=_is_unlimited(headroom)), formats.OptionalProject(bound_by)


def _is_unlimited(headroom: Headroom) -> bool:
    """Whether no limit bounds what fits. (The width of the counter does not count until half of it is in use.)"""
    return headroom.fits is None or (headroom.scope == "counter" and headroom.fits > MAX_AMOUNT // 2)


class Check(base.Lister):
    """Check whether a reserve would be admitted now; writes nothing.

    If not, prints a row for each limit or other bound that refuses it and exits with 1;
    otherwise prints nothing and exits with 0. fits: the largest amount of the
    resource that would be admitted now. With --how-many, prints how many times
    these amounts would be admitted in one reserve, and the resource that bounds
    the number; another reserve may change it at any time. With --provider, each
    bundle is a claim of its own, which fits on one provider. With --pod, the
    limits in this pod apply too, and `any` provider is one of this pod. The column
    pod is empty for a limit over all pods.
    """

    example = "cyborg-quota check --project P gpu=2"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_project(parser, required=True)
        arguments.add_amounts(parser, nargs="*")
        parser.add_argument(
            "--how-many",
            type=arguments.bundle,
            metavar="RESOURCE=AMOUNT[,...]",
            help="print how many such bundles fit, as in gpu=2,fpga=1",
        )
        parser.add_argument(
            "--provider",
            metavar="PROVIDER",
            help="with --how-many: take capacity of this provider (a name or UUID), or of `any` that fit",
        )
        parser.add_argument("--pod", metavar="POD", help="consider also the limits per pod of this pod")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        if bool(parsed_args.deltas) == (parsed_args.how_many is not None):
            raise BadUsage("Give either amounts, as in gpu=2, or --how-many.")
        if parsed_args.how_many is not None:
            return HOW_MANY_COLUMNS, [self._how_many(parsed_args)]
        if parsed_args.provider is not None:
            raise BadUsage("--provider needs --how-many.")
        deltas = arguments.once_each(parsed_args.deltas, "amounts")
        violations = self.engine.check(self.context, deltas, parsed_args.project, pod=parsed_args.pod)
        rows = [_over_row(violation) for violation in violations]
        if rows:
            self.status = REFUSED
        return OVER_COLUMNS, rows

    def _how_many(self, parsed_args: argparse.Namespace) -> tuple[Any, ...]:
        project_id, provider, pod = parsed_args.project, parsed_args.provider, parsed_args.pod
        bundles = self.engine.how_many(self.context, parsed_args.how_many, project_id, provider=provider, pod=pod)
        resource = formats.Optional(bundles.resource)
        if bundles.headroom is None:
            where = "any provider" if provider == ANY else f"provider {provider}"
            return bundles.number, resource, formats.Optional(None), where, formats.Optional(None)
        number = formats.Fits(bundles.number, is_unlimited=_is_unlimited(bundles.headroom))
        return number, resource, *_fits_columns(bundles.headroom), formats.Optional(bundles.headroom.pod)


def _over_row(over: Over) -> tuple[Any, ...]:
    return (
        formats.OptionalProject(over.project_id),
        over.resource,
        over.scope,
        formats.Limit(over.limit),
        formats.Optional(over.used),
        formats.Optional(over.reserved),
        formats.Optional(over.subtree),
        over.requested,
        formats.Available(over.fits),
        formats.Optional(over.pod),
    )


class Audit(base.Lister):
    """Compare the usage counters with the reservations; writes nothing.

    If there are differences, prints a row for each (recorded: the counter;
    expected: the sum of the reservations) and exits with 1; otherwise prints
    nothing and exits with 0. A row with a provider is about an inventory of it; a row
    with a pod is about what the project holds in the pod. `usage heal` repairs the
    counters.
    """

    example = "cyborg-quota usage audit -f csv"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        drifts = self.engine.audit(self.context)
        if drifts:
            self.status = REFUSED
        return DRIFT_COLUMNS, [_row(drift) for drift in drifts]


class Heal(base.Lister):
    """Correct the usage counters that differ from the reservations.

    May run while other programs reserve and commit. Prints a row for each
    corrected counter, with the old value (recorded) and the new one (expected).
    Includes the inventories of providers, as `capacity heal` does.
    """

    example = "cyborg-quota usage heal"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        with base.progress_bar(None, "rows") as progress:
            return DRIFT_COLUMNS, [_row(drift) for drift in self.engine.heal(self.context, progress=progress)]


def _row(drift: Drift | CapacityDrift) -> tuple[Any, ...]:
    values: list[formats.Optional] = []
    if isinstance(drift, CapacityDrift):
        for counter in _COUNTERS:
            pair = (drift.recorded, drift.expected) if counter == "used" else (None, None)
            values += [formats.Optional(value) for value in pair]
        return (formats.Optional(None), drift.resource, *values, drift.provider, formats.Optional(None))
    for counter in _COUNTERS:
        values += [formats.Optional(_counter(counters, counter)) for counters in (drift.recorded, drift.expected)]
    places = formats.Optional(None), formats.Optional(drift.key.pod or None)
    return (formats.OptionalProject(drift.key.project_id), drift.key.resource, *values, *places)


def _counter(counters: Counters | None, name: str) -> int | None:
    return None if counters is None else int(getattr(counters, name))
