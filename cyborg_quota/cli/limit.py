# SPDX-License-Identifier: Apache-2.0
"""Commands on limits: list, set, unset, show, tree, over."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any, Final

from cyborg_quota import exceptions, validation
from cyborg_quota.cli import arguments, base, formats, limit_file, paging, projects
from cyborg_quota.cli.errors import REFUSED, BadUsage
from cyborg_quota.surface import parsing
from cyborg_quota.surface.operations import Argument, Arguments, Column, OneOf, Operation, Table, cells, columns
from cyborg_quota.types import LimitRecord, RecordedChange
from cyborg_quota.types.limits import TreeRow

COLUMNS: Final = cells("project_id", "resource", "limit", "is_own", "source", "until")
TOTAL_COLUMNS: Final = (
    *columns("resource", "limit", "held"),
    Column("available", value=lambda one: one.limit - one.held),
)
POD_COLUMNS: Final = (*columns("project_id", "pod", "resource"), Column("limit", formats.Limit))
_TREE_POSITION: Final = (Column("parent_id", formats.Optional), Column("depth"))
_TREE_FIGURES: Final = (
    Column("resource"),
    Column("limit", formats.Limit),
    Column("used"),
    Column("subtree_used", value=lambda row: row.subtree),
    Column(
        "available",
        value=lambda row: (formats.Optional if row.limit is None else formats.Available)(row.available),
    ),
)
_TREE_HELP: Final = """

        used is what the project itself has attached. subtree_used is what the project
        and all its descendants have attached or reserved. available is the project's
        own limit minus subtree_used.
        """


def _list(run: base.Run, project_id: str | None, *, total: bool, after: list[str] | None, **given: Any) -> Table:
    in_pod = given.pop("pod")
    if total:
        if project_id is not None:
            raise BadUsage("--total cannot be combined with --project.")
        totals = run.engine.limits.totals.list(run.context)
        return Table(
            TOTAL_COLUMNS, paging.page(totals, lambda one: (one.resource,), ("resource",), after=after, **given)
        )
    if in_pod is not None:
        limits = run.engine.limits.list_pod_limits(run.context, project_id, in_pod or None)
        key = ("project", "pod", "resource")
        return Table(
            POD_COLUMNS,
            paging.page(limits, lambda one: (one.project_id, one.pod, one.resource), key, after=after, **given),
        )
    records = run.engine.limits.list_limits(run.context, project_id, after=paging.position(after), **given)
    return Table(COLUMNS, [_row(run.conf.limits.driver, record) for record in records])


def _row(driver: str, record: LimitRecord) -> tuple[Any, ...]:
    source = driver if driver != "database" else "own" if record.is_own else "inherited"
    if record.project_id is None and driver == "database":
        source = "default"
    until = None
    if record.override is not None:
        source, until = "override", record.override.until
    project_id, limit = formats.Default(record.project_id), formats.Limit(record.limit)
    return project_id, record.resource, limit, record.is_own, source, formats.timestamp(until)


List = base.generate(
    Operation(
        """List the limits that are set: first the defaults, then those of each project.

        With --project, list all limits that apply to the project. source says where
        each comes from: own (it was set for this project), inherited (the default, or
        the initial limit of a child), override (it applies until the time of the column
        until), or the limit driver if that is not `database`. is_own is true if a limit
        was set for this project, also while an override replaces it. The limit driver
        keystone needs --project.

        With --total, list the limits over all projects instead. held is used +
        reserved of all projects. Their --marker takes a resource.

        With --pod, list the limits in this pod, or without a name in all pods. Their
        --marker takes a project, a pod and a resource.
        """,
        "cyborg-quota limit list --project P -f json",
        _list,
        (
            *arguments.project(),
            OneOf(
                Argument("--total", action="store_true", help="list the limits over all projects"),
                Argument("--pod", metavar="POD", nargs="?", const="", help="list the limits in this pod, or in any"),
            ),
            *paging.paging(),
        ),
        COLUMNS,
    )
)

_SCOPE: Final[Arguments] = (
    OneOf(
        Argument(
            "--default",
            dest="project_id",
            action="store_const",
            const=None,
            help="the default, for projects without a limit of their own",
        ),
        Argument(
            "--project",
            dest="project_id",
            metavar="PROJECT",
            help=f"the limit of one project: {arguments.PROJECT_HELP}",
        ),
        Argument("--total", action="store_true", help="the limit over all projects together"),
        required=True,
    ),
    Argument("--pod", metavar="POD", help="with --project: its limit in this pod, in addition to that over all pods"),
    arguments.PROJECT_DOMAIN,
)


def _require_project(pod: str | None, project_id: str | None) -> None:
    if pod is not None and project_id is None:
        raise BadUsage("--pod needs --project: defaults and totals have no limits per pod.")


def _set(
    run: base.Run,
    *,
    project_id: str | None,
    limits: list[tuple[str, int]],
    pod: str | None,
    start: datetime.datetime | None,
    until: datetime.datetime | None,
    reason: str | None,
    total: bool,
    dry_run: bool,
) -> Sequence[RecordedChange]:
    """Set the limits. Returns the changes of a dry run."""
    run.notice = projects.new_project_notice(run.app, run.parsed)
    wanted = arguments.once_each(limits, "limits")
    _require_project(pod, project_id)
    has_span = until is not None or start is not None
    if total and has_span:
        raise BadUsage("--total cannot be combined with --from and --until.")
    if total:
        return _set_total(run, wanted, reason, dry_run=dry_run)
    if pod is not None and has_span:
        raise BadUsage("--pod cannot be combined with --from and --until: a limit per pod has no span of time.")
    if until is None and start is not None:
        raise BadUsage("--from needs --until.")
    if until is not None:
        if project_id is None:
            raise BadUsage("--until needs --project: a default cannot be set for a span of time.")
        return _override(run, project_id, wanted, reason, dry_run=dry_run, until=until, start=start)
    if not dry_run:
        run.engine.limits.set_limits(run.context, wanted, project_id, pod=pod, reason=reason)
        if run.notice is not None:
            run.notice += projects.remedy("limit unset" if pod is None else f"limit unset --pod {pod}")
        return []
    return _preview(run, project_id, wanted, pod)


def _preview(
    run: base.Run, project_id: str | None, limits: dict[str, int], pod: str | None
) -> Sequence[RecordedChange]:
    """The changes that setting these limits (of a project, in a pod, or defaults) would make. Sets the refusal.

    It is the dry run of an import of a document that has these limits only, at the project's place in the tree.
    """
    document: dict[str, Any] = {"defaults": limits}
    if project_id is not None:
        parents = dict(run.engine.limits.list_projects(run.context))
        own: dict[str, Any] = {"limits": limits} if pod is None else {"pods": {pod: limits}}
        entry: dict[str, Any] = {"id": validation.check_name("project_id", project_id), **own}
        while (parent_id := parents.get(entry["id"])) is not None:
            entry = {"id": parent_id, "children": [entry]}
        document = {"projects": [entry]}
    try:
        changes = run.engine.limits.import_limits(run.context, document, dry_run=True)
    except exceptions.LimitRefused as error:
        run.refusal, changes = error, error.changes
    # (An import would also add a project that is not in the tree yet; `limit set` does not.)
    return [change for change in changes if change.action in ("set limit", "unset limit")]


def _set_total(run: base.Run, limits: dict[str, int], reason: str | None, *, dry_run: bool) -> Sequence[RecordedChange]:
    totals = run.engine.limits.totals
    if dry_run:
        return totals.preview(run.context, limits)
    totals.set(run.context, limits, reason=reason)
    return []


def _override(
    run: base.Run, project_id: str, limits: dict[str, int], reason: str | None, *, dry_run: bool, **span: Any
) -> Sequence[RecordedChange]:
    try:
        made = run.engine.limits.set_overrides(run.context, limits, project_id, **span, dry_run=dry_run, reason=reason)
    except exceptions.LimitRefused as error:
        if not dry_run:
            raise
        run.refusal = error
        return error.changes
    if dry_run:
        return [RecordedChange("set override", one.project_id, one.resource, None, one.limit, one) for one in made]
    if run.notice is not None:
        run.notice += projects.remedy(f"limit override cancel {' '.join(one.id for one in made)}")
    return []


Set = base.generate(
    Operation(
        """Set limits of one project, of all projects together, or defaults.

        All of them are set, or none.

        A limit may be lower than the present usage: then new reservations are
        refused, and `limit over` lists the project. A limit that [limits]
        enforcement_model does not allow is refused. With --dry-run, prints what would
        change, and the reasons for which it would be refused.

        With --until (and --from), the limits apply only during that span, in place of
        the limits that are set without --until.

        With --total, the limits apply to what all projects hold together; they are
        enforced when the command ends.

        With --pod, the limits apply to what the project holds in this pod, in addition
        to the limits over all pods. What it holds there already counts.
        """,
        "cyborg-quota limit set --default gpu=10\n"
        "  cyborg-quota limit set --project P gpu=20 fpga=-1\n"
        "  cyborg-quota limit set --total gpu=2000\n"
        "  cyborg-quota limit set --project P --pod p1 gpu=4\n"
        "  cyborg-quota limit set --project P gpu=40 --from 2026-12-01T08:00Z --until 2026-12-05T18:00Z",
        _set,
        (
            *_SCOPE,
            arguments.FORCE_PROJECT,
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
                help="set the limits as overrides, which apply until this time; see `limit override list`",
            ),
            arguments.REASON,
            Argument(
                "limits",
                nargs="+",
                type=parsing.limit,
                metavar="RESOURCE=LIMIT",
                help="the limit of a resource, as in gpu=20; -1 is unlimited, 0 allows nothing",
            ),
            Argument("--dry-run", action="store_true", help="write nothing; print what would change"),
        ),
        limit_file.COLUMNS,
    )
)


def _unset(
    run: base.Run,
    *,
    project_id: str | None,
    resources: list[str],
    pod: str | None,
    reason: str | None,
    total: bool,
) -> None:
    if total:
        run.engine.limits.totals.unset(run.context, resources, reason=reason)
        return
    _require_project(pod, project_id)
    limits = {validation.check_name("resource", resource): None for resource in resources}
    if run.conf.limits.driver == "database":  # another driver refuses the change, and says where limits are set
        _require_set(run, project_id, limits, pod)
    run.engine.limits.set_limits(run.context, limits, project_id, pod=pod, reason=reason)


def _require_set(run: base.Run, project_id: str | None, resources: Iterable[str], pod: str | None) -> None:
    """Raise QuotaError if one of these limits is not set here. An override is no limit that can be unset."""
    if project_id is None:
        missing = sorted(set(resources).difference(run.engine.limits.list_defaults(run.context)))
        if missing:
            raise exceptions.QuotaError(f"There is no default limit for {', '.join(missing)}. Nothing was changed.")
        return
    if pod is None:
        records = run.engine.limits.list_limits(run.context, project_id)
    else:
        records = run.engine.limits.list_pod_limits(run.context, project_id, pod)
    missing = sorted(set(resources).difference(record.resource for record in records if record.is_own))
    if not missing:
        return
    overrides = [record.override for record in records if record.override is not None and record.resource in missing]
    hint = ""
    if overrides:
        ids = " ".join(one.id for one in overrides)
        hint = f" Its present limit for {overrides[0].resource} is an override: see `limit override cancel {ids}`."
    where = "" if pod is None else f" in pod {pod}"
    raise exceptions.QuotaError(
        f"Project {project_id} has no limit of its own for {', '.join(missing)}{where}. Nothing was changed.{hint}"
    )


Unset = base.generate(
    Operation(
        """Remove limits; the inherited limits apply again. All of them are removed, or none.

        Exits with 1 if one of them is not set.
        """,
        "cyborg-quota limit unset --project P gpu",
        _unset,
        (
            *_SCOPE,
            arguments.REASON,
            Argument("resources", nargs="+", metavar="RESOURCE", help="the resource whose limit is removed"),
        ),
    )
)


def _tree(run: base.Run, rows: Sequence[TreeRow], *, is_indented: bool = True, **given: Any) -> Table:
    """Rows of the project tree. A table indents by depth; other formats have the columns parent_id and depth."""
    project = Column("project_id", value=lambda row: formats.indented(row.project_id, row.depth if is_indented else 0))
    position = () if run.is_short else _TREE_POSITION
    return Table(
        (project, *position, *_TREE_FIGURES),
        paging.page(rows, lambda row: (row.project_id, row.resource), **given),
    )


Show = base.generate(
    Operation(
        f"Show the limits that apply to a project: its own, and those of each ancestor.{_TREE_HELP}",
        "cyborg-quota limit show --project P",
        lambda run, project_id, **given: _tree(run, run.engine.limits.path(run.context, project_id), **given),
        (*paging.paging(), *arguments.project(required=True)),
        (),
    )
)


def _subtree(run: base.Run, project_id: str | None, depth: int | None, **given: Any) -> Table:
    rows = run.engine.limits.tree(run.context, project_id)
    return _tree(run, [row for row in rows if depth is None or row.depth <= depth], **given)


Tree = base.generate(
    Operation(
        f"Show the project tree, or the subtree of one project, with limits and usage.{_TREE_HELP}",
        "cyborg-quota limit tree --project physics --depth 1",
        _subtree,
        (
            *paging.paging(),
            *arguments.project(),
            Argument(
                "--depth",
                type=paging.at_least_zero,
                metavar="N",
                help="only N levels below the first one, as in --depth 0 for the roots or the one project",
            ),
        ),
        (),
    )
)


def _over(run: base.Run, **given: Any) -> Table:
    exceeded = run.engine.limits.list_over(run.context)
    run.status = REFUSED if exceeded else run.status  # also if no row is on this page
    return _tree(run, exceeded, is_indented=False, **given)


Over = base.generate(
    Operation(
        """List projects whose usage exceeds a limit, for example after it was lowered.

        If there are any, prints a row for each limit and exits with 1; otherwise
        prints nothing and exits with 0. New reservations are refused there until the
        usage is below the limit again. The row (total) is a total limit over all
        projects; subtree_used is what all projects have attached or reserved.
        """,
        "cyborg-quota limit over -f csv",
        _over,
        paging.paging(),
        (),
    )
)
