# SPDX-License-Identifier: Apache-2.0
"""Commands on usage: list, check, audit, heal."""

from __future__ import annotations

from typing import Any, Final

from cyborg_quota import ANY, Headroom, QuotaEngine, exceptions
from cyborg_quota.cli import arguments, base, formats, paging
from cyborg_quota.cli.errors import REFUSED, BadUsage
from cyborg_quota.surface.operations import Argument, Column, Operation, Table, cells, columns
from cyborg_quota.types import MAX_AMOUNT, TOTAL, Counters, Drift, UsageRecord
from cyborg_quota.types.capacity import CapacityDrift
from cyborg_quota.validation import Context

_USAGE_COLUMNS: Final = ("resource", "limit", "used", "reserved", "available", "fits", "bound_by")
COLUMNS: Final = cells("project_id", *_USAGE_COLUMNS)
POD_COLUMNS: Final = cells("project_id", "pod", *_USAGE_COLUMNS)
OVER_COLUMNS: Final = (
    Column("project_id", formats.OptionalProject),
    *columns("resource", "scope"),
    Column("limit", formats.Limit),
    *columns("used", "reserved", "subtree", cell=formats.Optional),
    Column("requested"),
    Column("fits", formats.Available),
    Column("pod", formats.Optional),
)
HOW_MANY_COLUMNS: Final = cells("how_many", "resource", "fits", "bound_by", "pod")
_COUNTERS: Final = ("used", "reserved", "subtree")
DRIFT_COLUMNS: Final = cells(
    "project_id",
    "resource",
    *(f"{column}_{counter}" for counter in _COUNTERS for column in ("recorded", "expected")),
    "provider",
    "pod",
)


def _list(run: base.Run, project_id: str | None, after: list[str] | None, **given: Any) -> Table:
    in_pod, engine = given["pod"], run.engine
    if in_pod is None and project_id is not None:
        del given["pod"]
        records = _of_project(engine, run.context, project_id)
        records = paging.page(records, lambda one: (one.project_id, one.resource), after=after, **given)
    else:
        records = engine.list_usages(
            run.context,
            project_id,
            allow_unknown_limits=True,
            with_headroom=True,
            after=paging.position(after),
            **given,
        )
    return Table(COLUMNS if in_pod is None else POD_COLUMNS, map(_row, records))


def _of_project(engine: QuotaEngine, context: Context, project_id: str) -> list[UsageRecord]:
    try:
        return engine.get_detail(context, project_id)
    except (exceptions.LimitsUnavailable, exceptions.InvalidName):  # or a project that Keystone does not know
        usages = engine.get_usages(context, project_id, allow_unknown_limits=True)
        return [UsageRecord(project_id, resource, usage) for resource, usage in usages.items()]


def _row(record: UsageRecord) -> tuple[Any, ...]:
    usage, headroom, pod = record.usage, record.headroom, () if record.pod is None else (record.pod,)
    limit, available = formats.Limit(usage.limit), formats.Available(usage.available)
    if usage.limit is None:
        limit = available = formats.Unknown(None)
    elif headroom is not None and _is_missing(record.project_id, headroom):
        limit, available = formats.Limit(None), formats.Optional(None)
    amounts = limit, usage.used, usage.reserved, available
    return record.project_id, *pod, record.resource, *amounts, *_fits_columns(headroom)


def _is_missing(project_id: str, headroom: Headroom) -> bool:
    """Whether nothing fits because the project has no limit."""
    return headroom.bound_by == project_id and headroom.scope == "project" and headroom.limit is None


def _fits_columns(headroom: Headroom | None) -> tuple[Any, Any]:
    """``fits`` and ``bound_by``."""
    if headroom is None:
        return formats.Unknown(None), formats.Unknown(None)
    # The width of a counter is no project's limit.
    bound_by = TOTAL if headroom.scope == "total" else None if headroom.scope == "counter" else headroom.bound_by
    return formats.fits(headroom.fits, is_unlimited=_is_unlimited(headroom)), formats.OptionalProject(bound_by)


def _is_unlimited(headroom: Headroom) -> bool:
    """Whether no limit bounds what fits. (The width of the counter does not count until half of it is in use.)"""
    return headroom.fits is None or (headroom.scope == "counter" and headroom.fits > MAX_AMOUNT // 2)


List = base.generate(
    Operation(
        """List the usage of projects (used: attached; reserved: not yet attached) and limits.

        available: limit - (used + reserved). fits: the largest amount that a reserve
        would be granted now, considering the limits of all parents too; bound_by: the
        project whose limit determines it. A table shows unlimited if no limit does.
        With --project, lists also the resources of which the project has no usage. If
        the limit source is unavailable, limits are shown as unknown. A limit that is not
        set, so that reserves are refused, is shown as not set. (json: null for both.)

        With --pod, lists the usage in this pod, the limits per pod, and what fits there.
        """,
        "cyborg-quota usage list --project P -f json",
        _list,
        (
            *arguments.project(),
            Argument("--pod", metavar="POD", help="only what is held in this pod"),
            *paging.paging(),
        ),
        COLUMNS,
    )
)


def _check(
    run: base.Run, project_id: str, deltas: list[tuple[str, int]], how_many: dict[str, int] | None, **place: Any
) -> Table:
    if bool(deltas) == (how_many is not None):
        raise BadUsage("Give either amounts, as in gpu=2, or --how-many.")
    if how_many is not None:
        return Table(HOW_MANY_COLUMNS, [_how_many(run, how_many, project_id, **place)])
    if place["provider"] is not None:
        raise BadUsage("--provider needs --how-many.")
    amounts = arguments.once_each(deltas, "amounts")
    violations = run.engine.check(run.context, amounts, project_id, pod=place["pod"])
    run.status = REFUSED if violations else run.status
    return Table(OVER_COLUMNS, violations)


def _how_many(
    run: base.Run, bundle: dict[str, int], project_id: str, provider: str | None, pod: str | None
) -> tuple[Any, ...]:
    bundles = run.engine.how_many(run.context, bundle, project_id, provider=provider, pod=pod)
    resource = formats.Optional(bundles.resource)
    if bundles.headroom is None:
        where = "any provider" if provider == ANY else f"provider {provider}"
        return bundles.number, resource, formats.Optional(None), where, formats.Optional(None)
    number = formats.fits(bundles.number, is_unlimited=_is_unlimited(bundles.headroom))
    return number, resource, *_fits_columns(bundles.headroom), formats.Optional(bundles.headroom.pod)


Check = base.generate(
    Operation(
        """Check whether a reserve would be admitted now; writes nothing.

        If not, prints a row for each limit or other bound that refuses it and exits with 1;
        otherwise prints nothing and exits with 0. fits: the largest amount of the
        resource that would be admitted now. With --how-many, prints how many times
        these amounts would be admitted in one reserve, and the resource that bounds
        the number; another reserve may change it at any time. With --provider, each
        bundle is a claim of its own, which fits on one provider. With --pod, the
        limits in this pod apply too, and `any` provider is one of this pod. The column
        pod is empty for a limit over all pods.
        """,
        "cyborg-quota check --project P gpu=2",
        _check,
        (
            *arguments.project(required=True),
            arguments.amounts(nargs="*"),
            Argument(
                "--how-many",
                type=arguments.bundle,
                metavar="RESOURCE=AMOUNT[,...]",
                help="print how many such bundles fit, as in gpu=2,fpga=1",
            ),
            Argument(
                "--provider",
                metavar="PROVIDER",
                help="with --how-many: take capacity of this provider (a name or UUID), or of `any` that fit",
            ),
            Argument("--pod", metavar="POD", help="consider also the limits per pod of this pod"),
        ),
        OVER_COLUMNS,
    )
)


def _drift_row(drift: Drift | CapacityDrift) -> tuple[Any, ...]:
    values: list[formats.Cell] = []
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


Audit = base.generate(
    Operation(
        """Compare the usage counters with the reservations; writes nothing.

        If there are differences, prints a row for each (recorded: the counter;
        expected: the sum of the reservations) and exits with 1; otherwise prints
        nothing and exits with 0. A row with a provider is about an inventory of it; a row
        with a pod is about what the project holds in the pod. `usage heal` repairs the
        counters.
        """,
        "cyborg-quota usage audit -f csv",
        lambda run: map(_drift_row, run.engine.audit(run.context)),
        columns=DRIFT_COLUMNS,
        refuses=True,
    )
)

Heal = base.generate(
    Operation(
        """Correct the usage counters that differ from the reservations.

        May run while other programs reserve and commit. Prints a row for each
        corrected counter, with the old value (recorded) and the new one (expected).
        Includes the inventories of providers, as `capacity heal` does.
        """,
        "cyborg-quota usage heal",
        lambda run, progress: map(_drift_row, run.engine.heal(run.context, progress=progress)),
        columns=DRIFT_COLUMNS,
        progress="rows",
    )
)
