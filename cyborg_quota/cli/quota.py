# SPDX-License-Identifier: Apache-2.0
"""The commands on limits and usage: list, show, set, unset, delete, check."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from cyborg_quota import ANY, Headroom, QuotaEngine, exceptions, validation
from cyborg_quota.cli import base, limit_file, projects
from cyborg_quota.cli.errors import REFUSED, BadUsage, printable
from cyborg_quota.limits import operations
from cyborg_quota.surface import arguments, formats, paging
from cyborg_quota.surface.operations import (
    Argument,
    Column,
    OneOf,
    Operation,
    Table,
    cells,
    columns,
    is_table,
    numbered,
    sentences,
)
from cyborg_quota.types import HIDDEN_LIMITS, TOTAL, LimitRecord, RecordedChange, UsageRecord, is_unbounded
from cyborg_quota.types.limits import TreeRow
from cyborg_quota.validation import Context

COLUMNS: Final = cells("project_id", "resource", "limit", "is_own", "source", "until")
TOTAL_COLUMNS: Final = (
    *columns("resource", "limit", "held"),
    Column("available", value=lambda total: total.limit - total.held - total.promised),
    Column("promised", formats.NonZero, is_sparse=True),
)
POD_COLUMNS: Final = (*columns("project_id", "pod", "resource"), Column("limit", formats.Limit))
_TREE_POSITION: Final = (Column("parent_id", formats.Optional), Column("depth"))
_TREE_FIGURES: Final = (
    Column("resource"),
    Column("limit", formats.Limit),
    Column("used"),
    Column("hierarchical_usage"),
    Column("subtree_used", value=lambda row: row.subtree),
    Column(
        "available",
        value=lambda row: (formats.Optional if row.limit is None else formats.Available)(row.available),
    ),
    *[column._replace(is_sparse=True) for column in columns("minimum", "promised", cell=formats.NonZero)],
)
_USAGE: Final = ("resource", "limit", "used", "reserved", "available", "fits", "bound_by")
USAGE_COLUMNS: Final = cells("project_id", *_USAGE)
USAGE_OF_PROJECT_COLUMNS: Final = numbered(
    *USAGE_COLUMNS,
    *(Column(name, is_sparse=True) for name in ("override_until", "otherwise", "minimum", "promised")),
)
USAGE_IN_POD_COLUMNS: Final = cells("project_id", "pod", *_USAGE)
OVER_COLUMNS: Final = (
    Column("project_id", formats.OptionalProject),
    *columns("resource", "scope"),
    Column("limit", formats.Limit),
    *columns("used", "reserved", "subtree", cell=formats.Optional),
    Column("promised"),
    Column("requested"),
    Column("fits", formats.Available),
    Column("pod", formats.Optional),
    Column("message", value=lambda over: printable(str(over))),
)
HOW_MANY_COLUMNS: Final = cells("how_many", "resource", "fits", "bound_by", "pod")


# --- list and show ---


def _limits(run: base.Run, project_id: str | None, after: list[str] | None, **page: Any) -> Table:
    records = run.engine.limits.list_limits(run.context, project_id, after=paging.position(after), **page)
    return Table(COLUMNS, [_limit_row(run.conf.limits.driver, record) for record in records])


def _limit_row(driver: str, record: LimitRecord) -> tuple[Any, ...]:
    source = driver if driver != "database" else "own" if record.is_own else "inherited"
    if record.project_id is None and driver == "database":
        source = "default"
    until = None
    if record.override is not None:
        source, until = "override", record.override.until
    project_id, limit = formats.Default(record.project_id), formats.Limit(record.limit)
    return project_id, record.resource, limit, record.is_own, source, formats.timestamp(until)


def _limits_in_pods(run: base.Run, project_id: str | None, pod: str, **page: Any) -> Table:
    limits = run.engine.limits.list_pod_limits(run.context, project_id, pod or None)
    key = ("project", "pod", "resource")
    return Table(
        POD_COLUMNS, paging.page(limits, lambda record: (record.project_id, record.pod, record.resource), key, **page)
    )


def _tree(run: base.Run, rows: Sequence[TreeRow], *, is_indented: bool = True, **page: Any) -> Table:
    """Rows of the project tree. A table indents by depth; other formats have the columns parent_id and depth."""
    project = Column("project_id", value=lambda row: formats.indented(row.project_id, row.depth if is_indented else 0))
    position = () if is_table(run.parsed) else _TREE_POSITION
    return Table(
        (project, *position, *_TREE_FIGURES), paging.page(rows, lambda row: (row.project_id, row.resource), **page)
    )


def _usages(run: base.Run, project_id: str | None, pod: str | None, after: list[str] | None, **page: Any) -> Table:
    records = run.engine.list_usages(
        run.context,
        project_id,
        with_headroom=True,
        pod=pod,
        after=paging.position(after),
        **page,
    )
    return Table(USAGE_COLUMNS if pod is None else USAGE_IN_POD_COLUMNS, map(_usage_row, records))


def _usage_of_project(engine: QuotaEngine, context: Context, project_id: str) -> list[UsageRecord]:
    try:
        return engine.get_detail(context, project_id)
    except exceptions.InvalidName:  # a project that Keystone does not know
        usages = engine.get_usages(context, project_id)
        return [UsageRecord(project_id, resource, usage) for resource, usage in usages.items()]


def _usage_row(record: UsageRecord) -> tuple[Any, ...]:
    """The cells of a row; behind those of the list, the end of the override that applies now, the limit without
    it, the minimum, and what is promised.
    """
    usage, override, pod = record.usage, record.override, () if record.pod is None else (record.pod,)
    limit, available = formats.Limit(usage.limit), formats.Available(usage.available)
    if record.lacks_limit:
        limit, available = formats.Limit(None), formats.Optional(None)
    amounts = limit, usage.used, usage.reserved, available
    ends = formats.timestamp(override and override.until)
    otherwise = formats.Limit(override.otherwise) if override else formats.Optional(None)
    kept = formats.NonZero(record.minimum), formats.NonZero(record.promised)
    return record.project_id, *pod, record.resource, *amounts, *_fits_columns(record.headroom), ends, otherwise, *kept


def _fits_columns(headroom: Headroom | None) -> tuple[Any, Any]:
    """``fits`` and ``bound_by``."""
    if headroom is None:
        return formats.Unknown(None), formats.Unknown(None)
    # The width of a counter is no project's limit.
    bound_by = TOTAL if headroom.scope == "total" else None if headroom.scope == "counter" else headroom.bound_by
    shown = formats.OptionalProject(bound_by)
    if headroom.scope in HIDDEN_LIMITS:
        shown = formats.Cell(bound_by, f"{bound_by} ({headroom.scope})")
    return formats.fits(headroom.fits, is_unlimited=is_unbounded(headroom.fits, headroom.scope)), shown


def _list(
    run: base.Run,
    project_id: str | None,
    pod: str | None,
    depth: int | None,
    *,
    usage: bool,
    over: bool,
    tree: bool,
    **page: Any,
) -> Table:
    if depth is not None and not tree:
        raise BadUsage("--depth needs --tree.")
    run.noun = "" if over else "project" if tree else "usage" if usage else "limit"
    if (over or tree) and pod is not None:
        raise BadUsage("--pod cannot be combined with --over and --tree.")
    if over and project_id is not None:
        raise BadUsage("--project cannot be combined with --over.")
    if over:
        exceeded = run.engine.limits.list_over(run.context)
        run.status = REFUSED if exceeded else run.status  # also if no row is on this page
        return _tree(run, exceeded, is_indented=False, **page)
    if tree:
        rows = run.engine.limits.tree(run.context, project_id)
        return _tree(run, [row for row in rows if depth is None or row.depth <= depth], **page)
    if usage and pod == "":
        raise BadUsage("--usage needs the name of a pod with --pod.")
    if usage:
        return _usages(run, project_id, pod, **page)
    return _limits(run, project_id, **page) if pod is None else _limits_in_pods(run, project_id, pod, **page)


List = base.generate(
    Operation(
        """List the limits that are set: first the defaults, then those of each project.

        source says where each comes from: default, own (it was set for this project),
        inherited (the default, or the initial limit of a child), override (it applies
        until the time of the column until), or the limit driver if that is not
        `database`. is_own is true if a limit was set for this project, also while an
        override replaces it. The limit driver keystone needs --project, which lists all
        limits that apply to the project.

        With --usage, list the usage of projects instead (used: attached; reserved: not
        yet attached). available: limit - (used + reserved). fits: the largest amount
        that a reserve would be granted now, considering the limits of all parents too;
        bound_by: the project whose limit determines it. A table shows unlimited if no
        limit does, unknown if the limit source is unavailable, and not set for a limit
        that is not set, so that reserves are refused. (json: null for both.)

        With --over, list what exceeds a limit, for example after it was lowered: if
        there is anything, exits with 1. The row (total) is a total limit over all
        projects.

        With --tree, show the project tree, or the subtree of one project, with limits
        and usage. used is what the project itself has attached. hierarchical_usage is
        what its descendants have attached or reserved, and subtree_used is that
        together with what the project itself has attached or reserved. available is the
        project's own limit minus subtree_used.

        With --pod, list the limits in this pod, or without a name in all pods; with
        --usage, the usage in this pod, the limits there, and what fits.
        """,
        "cyborg-quota list --usage -f json\n  cyborg-quota list --tree --project physics --depth 1",
        _list,
        (
            arguments.project(),
            OneOf(
                Argument("--usage", action="store_true", help="list the usage"),
                Argument("--over", action="store_true", help="list what exceeds a limit"),
                Argument("--tree", action="store_true", help="show the project tree"),
            ),
            Argument("--pod", metavar="POD", nargs="?", const="", help="only in this pod; without a name, in any"),
            Argument(
                "--depth",
                type=arguments.at_least_zero,
                metavar="N",
                help="with --tree: only N levels below the first one, as in --depth 0 for the roots or the one project",
            ),
            *paging.paging(),
        ),
        (),
    )
)


def _show(
    run: base.Run,
    project_id: str | None,
    pod: str | None,
    *,
    default: bool,
    total: bool,
    usage: bool,
    ancestors: bool,
    **page: Any,
) -> Table:
    _check_scope(project_id, pod, default=default, total=total)
    run.noun = "usage" if usage else "limit"
    if total:
        totals = run.engine.limits.list_total_limits(run.context)
        return Table(TOTAL_COLUMNS, paging.page(totals, lambda record: (record.resource,), ("resource",), **page))
    if default:
        defaults = sorted(run.engine.limits.list_defaults(run.context).items())
        records = [LimitRecord(None, resource, limit) for resource, limit in defaults]
        rows = paging.page(records, lambda record: (record.project_id, record.resource), **page)
        return Table(COLUMNS, [_limit_row(run.conf.limits.driver, record) for record in rows])
    assert project_id is not None  # as _check_scope has found out
    if pod == "":
        raise BadUsage("--pod needs the name of a pod.")
    if ancestors and pod is not None:
        raise BadUsage("--pod cannot be combined with --ancestors.")
    if ancestors:
        return _tree(run, run.engine.limits.path(run.context, project_id), **page)
    if not usage:
        return _limits(run, project_id, **page) if pod is None else _limits_in_pods(run, project_id, pod, **page)
    if pod is not None:
        return _usages(run, project_id, pod, **page)
    records_of_usage = _usage_of_project(run.engine, run.context, project_id)
    usages = paging.page(records_of_usage, lambda record: (record.project_id, record.resource), **page)
    return Table(USAGE_OF_PROJECT_COLUMNS, map(_usage_row, usages))


Show = base.generate(
    Operation(
        """Show all limits that apply to a project, and where each comes from (see `list`).

        With --usage, show its usage and what fits, for each resource; if an override
        applies, also its end (override_until) and the limit without it (otherwise). With --ancestors,
        show its limits and those of each ancestor, with their usage, as `list --tree`
        does. With --pod, show its limits or its usage in this pod. With --default,
        show the default limits, and with --total those over all projects: held is used +
        reserved of all projects.
        """,
        "cyborg-quota show --usage P\n  cyborg-quota show --total",
        _show,
        (
            Argument("project_id", nargs="?", metavar="PROJECT", help=arguments.PROJECT_HELP),
            OneOf(
                Argument("--usage", action="store_true", help="show the usage and what fits"),
                Argument("--ancestors", action="store_true", help="also show the limits of its ancestors"),
                Argument("--default", action="store_true", help="show the default limits"),
                Argument("--total", action="store_true", help="show the limits over all projects"),
            ),
            Argument("--pod", metavar="POD", help="only in this pod"),
            *paging.paging(),
        ),
        (),
    )
)

# --- set, unset and delete ---

_SCOPE: Final = (
    OneOf(
        Argument("--default", action="store_true", help="the default, for projects without a limit of their own"),
        Argument("--total", action="store_true", help="the limit over all projects together"),
    ),
    Argument("--pod", metavar="POD", help="the limit of the project in this pod, in addition to that over all pods"),
)


def _check_scope(project_id: str | None, pod: str | None, *, default: bool, total: bool) -> None:
    flag = "--default" if default else "--total" if total else None
    if flag and (project_id is not None or pod is not None):
        raise BadUsage(f"{flag} cannot be combined with a project or --pod.")
    if not flag and project_id is None:
        raise BadUsage("Name a project, or give --default or --total.")


def _check_span(
    project_id: str | None, pod: str | None, start: datetime.datetime | None, until: datetime.datetime | None
) -> None:
    if until is None and start is not None:
        raise BadUsage("--from needs --until.")
    if until is not None and (pod is not None or project_id is None):
        raise BadUsage("--until needs a project, and no --pod: only a limit over all pods has a span of time.")


def _set(
    run: base.Run,
    *,
    project_id: str | None,
    limits: dict[str, int],
    pod: str | None,
    start: datetime.datetime | None,
    until: datetime.datetime | None,
    reason: str | None,
    default: bool,
    total: bool,
    minimum: bool,
    dry_run: bool,
) -> Sequence[RecordedChange]:
    """Set the limits. Returns the changes of a dry run."""
    _check_scope(project_id, pod, default=default, total=total)
    if not limits:
        raise BadUsage("Give a limit, as in gpu=20.")
    if minimum:
        if project_id is None or (pod, start, until) != (None, None, None):
            raise BadUsage("--minimum needs a project, and cannot be combined with --pod, --from and --until.")
        run.notice = projects.new_project_notice(run.app, run.parsed) if any(limits.values()) else None
        return _set_minimums(run, project_id, limits, reason=reason, dry_run=dry_run)
    run.notice = projects.new_project_notice(run.app, run.parsed)
    remedy = "unset" if pod is None else f"unset --pod {pod}"
    _check_span(project_id, pod, start, until)
    force = run.parsed.force_project
    if dry_run:
        span = None if until is None else (start, until)
        changes, run.refusal = operations.preview(run, limits, project_id, pod, span, total=total, force=force)
        return changes
    if total:
        run.engine.limits.set_total_limits(run.context, limits, reason=reason, force=force)
    elif until is not None and project_id is not None:
        made = run.engine.limits.set_overrides(
            run.context, limits, project_id, until, start=start, reason=reason, force=force
        )
        remedy = f"override delete {' '.join(override.id for override in made)}"
    else:
        run.engine.limits.set_limits(run.context, limits, project_id, pod=pod, reason=reason, force=force)
    if run.notice is not None:
        run.notice += f" If the id is wrong, remove the limit with `{remedy}`."
    if pod is None:
        for line in operations.beyond_capacity(run, limits):
            run.print_message(line)
    return []


def _set_minimums(
    run: base.Run, project_id: str, minimums: dict[str, int], *, reason: str | None, dry_run: bool
) -> Sequence[RecordedChange]:
    changes, run.refusal, warnings = operations.set_minimums(run, project_id, minimums, reason=reason, dry_run=dry_run)
    for line in warnings:
        run.print_message(line)
    return changes if dry_run else []


Set = base.generate(
    Operation(
        """Set limits of one project, of all projects together, or defaults.

        All of them are set, or none.

        A limit may be lower than the present usage: then new reservations are
        refused, and `list --over` lists the project. A limit that [limits]
        enforcement_model does not allow is refused. With --dry-run, prints what would
        change, and the reasons for which it would be refused.

        With --until (and --from), the limits apply only during that span, in place of
        the limits that are set without --until.

        With --total, the limits apply to what all projects hold together; they are
        enforced when the command ends.

        With --pod, the limits apply to what the project holds in this pod, in addition
        to the limits over all pods. What it holds there already counts.

        With --minimum, the amounts are minimums: what the project, with all below it,
        can always reach, whatever its siblings do. A minimum is refused if a limit above,
        or the total, could not keep it beside what is used and promised; 0 removes it.

        A limit may be above what exists: a line on stderr then says what the limits add
        up to, if there are providers (see `capacity show`).
        """,
        "cyborg-quota set --default gpu=10\n"
        "  cyborg-quota set gpu=20 fpga=-1 P\n"
        "  cyborg-quota set --total gpu=2000\n"
        "  cyborg-quota set --pod p1 gpu=4 P\n"
        "  cyborg-quota set --minimum gpu=4 P\n"
        "  cyborg-quota set gpu=40 P --from 2026-12-01T08:00Z --until 2026-12-05T18:00Z",
        _set,
        (
            *_SCOPE,
            Argument(
                "--force",
                action="store_true",
                rest="force",
                dest="force_project",
                help="permit a limit below a minimum, or below what is used and promised to minimums; and an ID of a "
                "project that Keystone does not have",
            ),
            Argument("--minimum", action="store_true", help="the amounts are minimums, not limits"),
            Argument(
                "--from",
                dest="start",
                type=arguments.moment,
                metavar="TIME",
                help="with --until: the limits apply from this time, as in 2026-12-01T08:00Z (default: now)",
            ),
            Argument(
                "--until",
                type=arguments.moment,
                metavar="TIME",
                help="set the limits as overrides, which apply until this time; see `override list`",
            ),
            arguments.REASON,
            arguments.operands(
                "limits",
                arguments.limit,
                "limit",
                "the limit of a resource, as in gpu=20 (-1 is unlimited, 0 allows nothing); and the project",
            ),
            Argument("--dry-run", action="store_true", help="write nothing; print what would change"),
        ),
        limit_file.COLUMNS,
    )
)


def _unset(
    run: base.Run, *, resource: list[str], project_id: str | None, pod: str | None, reason: str | None, **scope: bool
) -> None:
    _check_scope(project_id, pod, **scope)
    interface = run.engine.limits
    if scope["total"]:
        interface.unset_total_limits(run.context, resource, reason=reason)
        return
    limits = {validation.check_name("resource", name): None for name in resource}
    if run.conf.limits.driver == "database":  # another driver refuses the change, and says where limits are set
        if project_id is None:
            own = set(interface.list_defaults(run.context))
        elif pod is None:  # (An override cannot be unset.)
            own = {record.resource for record in interface.list_limits(run.context, project_id) if record.is_own}
        else:
            own = {record.resource for record in interface.list_pod_limits(run.context, project_id, pod)}
        owner = f"Project {project_id} has no limit of its own" if project_id else "There is no default limit"
        if missing := ", ".join(sorted(limits.keys() - own)):
            where = "" if pod is None else f" in pod {pod}"
            raise exceptions.QuotaError(f"{owner} for {missing}{where}. Nothing was changed.")
    interface.set_limits(run.context, limits, project_id, pod=pod, reason=reason)


Unset = base.generate(
    Operation(
        """Remove limits; the inherited limits apply again. All of them are removed, or none.

        Exits with 1 if one of them is not set.
        """,
        "cyborg-quota unset --resource gpu P\n  cyborg-quota unset --default --resource gpu --resource fpga",
        _unset,
        (
            Argument("project_id", nargs="?", metavar="PROJECT", help=arguments.PROJECT_HELP),
            *_SCOPE,
            arguments.REASON,
            Argument(
                "--resource",
                action="append",
                required=True,
                metavar="NAME",
                help="the resource whose limit is removed; may be repeated",
            ),
        ),
    )
)

Delete = base.generate(
    Operation(
        """Remove all limits of a project, so that the defaults apply; or those in one pod.

        Its overrides stay, and without --pod, its limits in pods too.
        """,
        "cyborg-quota delete P",
        operations.delete_limits,
        (
            arguments.PROJECT,
            Argument("--pod", metavar="POD", help="remove its limits in this pod instead"),
            arguments.REASON,
        ),
    )
)

# --- check ---


def _check(
    run: base.Run, project_id: str | None, deltas: dict[str, int], how_many: dict[str, int] | None, **where: Any
) -> Table:
    if project_id is None:
        raise BadUsage("Name a project.")
    if bool(deltas) == (how_many is not None):
        raise BadUsage("Give either amounts, as in gpu=2, or --how-many.")
    if how_many is not None:
        return Table(HOW_MANY_COLUMNS, [_how_many(run, how_many, project_id, **where)])
    if where["provider"] is not None:
        raise BadUsage("--provider needs --how-many.")
    violations = run.engine.check(run.context, deltas, project_id, pod=where["pod"])
    run.status = REFUSED if violations else run.status
    return Table(OVER_COLUMNS, sentences(run, violations, lambda over: printable(str(over))))


def _how_many(
    run: base.Run, bundle: dict[str, int], project_id: str, provider: str | None, pod: str | None
) -> tuple[Any, ...]:
    bundles = run.engine.how_many(run.context, bundle, project_id, provider=provider, pod=pod)
    resource = formats.Optional(bundles.resource)
    if bundles.headroom is None:
        where = "any provider" if provider == ANY else f"provider {provider}"
        return bundles.number, resource, formats.Optional(None), where, formats.Optional(None)
    number = formats.fits(bundles.number, is_unlimited=is_unbounded(bundles.headroom.fits, bundles.headroom.scope))
    return number, resource, *_fits_columns(bundles.headroom), formats.Optional(bundles.headroom.pod)


Check = base.generate(
    Operation(
        """Check whether a reserve would be admitted now; writes nothing.

        If not, prints a sentence for each limit or other bound that refuses it (in other
        formats than a table, a row, whose message is the sentence) and exits with 1;
        otherwise prints nothing and exits with 0. fits: the largest amount of the resource
        that would be admitted now. pod: that of a limit per pod. With --how-many, prints
        how many times these amounts would be admitted in one reserve, and the resource
        that bounds the number; another reserve may change it at any time. With --provider,
        each bundle is a claim of its own, which fits on one provider. With --pod, the
        limits in this pod apply too, and `any` provider is one of this pod.
        """,
        "cyborg-quota check gpu=2 P",
        _check,
        (
            arguments.operands(
                "deltas", arguments.amount, "amount", "the amount of a resource, as in gpu=2; and the project"
            ),
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
