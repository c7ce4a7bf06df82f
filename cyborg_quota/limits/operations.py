# SPDX-License-Identifier: Apache-2.0
"""The operations on the project tree, on overrides, on the history of limits, and on resources."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any, Final

from cyborg_quota import exceptions, policy, validation
from cyborg_quota.surface import arguments, formats, paging
from cyborg_quota.surface.operations import (
    INTEGER,
    NAME,
    TEXT,
    TIME,
    Argument,
    Column,
    OneOf,
    Operation,
    Route,
    Table,
    columns,
    nullable,
    part,
)
from cyborg_quota.types import (
    SUBJECTS,
    TOTAL,
    UNLIMITED,
    LimitOverride,
    RecordedChange,
    Resource,
    ResourceKey,
)

_QUOTA: Final = "/v2/quotas/{project_id}"


def set_parent(caller: Any, project_id: str, parent_id: str | None, reason: str | None) -> None:
    """Add a project to the tree, or move it with all that is below it."""
    limits = caller.engine.limits
    try:
        limits.list_projects(caller.elevated, limit=1, after=project_id)
        change = limits.move_project
    except exceptions.MarkerNotFound:
        change = limits.add_project
    change(caller.elevated, project_id, parent_id, reason=reason)


def _add(caller: Any, child_id: str, project_id: str, reason: str | None) -> tuple[str, str]:
    caller.engine.limits.add_project(caller.context, child_id, project_id, reason=reason)
    return child_id, project_id


def delete_limits(caller: Any, project_id: str, pod: str | None, reason: str | None) -> None:
    """Remove all limits of a project, or those in one pod."""
    limits = caller.engine.limits
    if pod is not None:
        own = {limit.resource for limit in limits.list_pod_limits(caller.elevated, project_id, pod)}
    else:
        own = {limit.resource for limit in limits.list_limits(caller.elevated, project_id) if limit.is_own}
        own.update(caller.engine.resources)
    limits.set_limits(caller.context, dict.fromkeys(own), project_id, pod=pod, reason=reason)


def beyond_capacity(caller: Any, resources: Iterable[str]) -> list[str]:
    """A sentence for each of these resources of which the limits promise more than exists, if its capacity is known.

    For an admin only: they tell what all projects may have.
    """
    capacity = caller.engine.subjects.get("capacity")
    if capacity is None or not validation.is_admin(caller.context):
        return []
    return [
        f"{row.resource}: the limits {'are unlimited' if row.promised == UNLIMITED else f'add up to {row.promised}'}; "
        f"{row.capacity} exist"
        for row in capacity.report(caller.elevated, list(resources))
        if not 0 <= row.promised <= row.capacity
    ]


def set_minimums(
    caller: Any, project_id: str, minimums: Mapping[str, int], *, reason: str | None, dry_run: bool
) -> tuple[list[RecordedChange], exceptions.LimitRefused | None, list[str]]:
    """Set minimums. Returns the changes, the error of a dry run, and the warnings."""
    refusal: exceptions.LimitRefused | None = None
    try:
        changes = caller.engine.limits.set_minimums(
            caller.context, minimums, project_id, reason=reason, dry_run=dry_run
        )
    except exceptions.LimitRefused as refused:
        if not dry_run:
            raise
        changes, refusal = refused.changes, refused
    return changes, refusal, _warnings_of_minimums(caller, project_id, minimums)


def _warnings_of_minimums(caller: Any, project_id: str, minimums: Mapping[str, int]) -> list[str]:
    """A sentence for each of these minimums that may not be reached: no limit bounds the siblings, or only one that is
    above the capacity. (The latter is for an admin only.)
    """
    capacity = caller.engine.subjects.get("capacity") if validation.is_admin(caller.context) else None
    bounds = caller.engine.limits.bounds_of_minimums(caller.elevated, project_id, list(minimums))
    exists = {row.resource: row.capacity for row in capacity.report(caller.elevated, list(bounds))} if capacity else {}
    warnings = []
    for resource, bound in bounds.items():
        if not minimums[resource]:
            continue
        if bound is None:
            warnings.append(
                f"{resource}: no limit bounds what other projects take, so that this minimum promises nothing; set a "
                "limit of a project above, or a total"
            )
        elif bound[1] > exists.get(resource, bound[1]):
            owner = "all projects" if bound[0] == TOTAL else f"project {bound[0]}"
            warnings.append(
                f"{resource}: the limit of {owner} is {bound[1]}, and {exists[resource]} exist, so that capacity may "
                "refuse what this minimum promises"
            )
    return warnings


def preview(
    caller: Any,
    limits: Mapping[str, int],
    project_id: str | None,
    pod: str | None,
    span: tuple[datetime.datetime | None, datetime.datetime] | None,
    *,
    total: bool,
    force: bool,
) -> tuple[list[RecordedChange], exceptions.LimitRefused | None]:
    """The changes that setting these limits would make, and the error that would refuse them. ``span``: of overrides.

    Without a span, it is the dry run of an import of a document that has these limits only, at the project's place in
    the tree. Raises InvalidRequest for what cannot be combined.
    """
    if (total and (project_id or pod or span)) or (pod and (span or project_id is None)) or (span and not project_id):
        raise exceptions.InvalidRequest(
            "A total has no project, pod and span of time; a limit in a pod needs a project, and has no span; a span "
            "needs a project."
        )
    interface = caller.engine.limits
    refusal: exceptions.LimitRefused | None = None
    try:
        if total:
            changes = interface.set_total_limits(caller.elevated, limits, force=force, dry_run=True)
        elif span is not None:
            start, until = span
            made = interface.set_overrides(
                caller.elevated, limits, project_id, until, start=start, dry_run=True, force=force
            )
            changes = [RecordedChange.of_override(override) for override in made]
        else:
            wanted = _document(interface.list_projects(caller.elevated), limits, project_id, pod)
            changes = interface.import_limits(caller.elevated, wanted, dry_run=True, force=force)
    except exceptions.LimitRefused as error:
        changes, refusal = error.changes, error
    # (An import would also add a project that is not in the tree yet.)
    return [change for change in changes if change.action in ("set limit", "unset limit", "set override")], refusal


def _document(
    edges: Iterable[tuple[str, str | None]], limits: Mapping[str, int], project_id: str | None, pod: str | None
) -> dict[str, Any]:
    if project_id is None:
        return {"defaults": limits}
    parents = dict(edges)
    own: dict[str, Any] = {"limits": limits} if pod is None else {"pods": {pod: limits}}
    entry: dict[str, Any] = {"id": validation.check_name("project_id", project_id), **own}
    while (parent_id := parents.get(entry["id"])) is not None:
        entry = {"id": parent_id, "children": [entry]}
    return {"projects": [entry]}


# --- overrides ---

_OVERRIDE: Final = (
    *columns("id", "project_id", "resource", schema=NAME),
    Column("limit", formats.Limit, schema=INTEGER),
    Column("from", formats.timestamp, lambda override: override.starts_at, TIME, "start"),
    Column("until", formats.timestamp, schema=TIME),
    Column("reason", formats.Optional, schema=nullable(TEXT)),
)


def read_overrides(caller: Any, **given: Any) -> tuple[list[LimitOverride], datetime.datetime | None]:
    """The overrides that have not ended, and the time. For users of the REST API, another limit driver has none."""
    try:
        return caller.engine.limits.list_overrides(caller.elevated, **given)  # type: ignore[no-any-return]
    except exceptions.LimitsReadOnly:
        if caller.is_host:
            raise
        return [], None


def _overrides(caller: Any, **given: Any) -> Table:
    overrides, now = read_overrides(caller, **given)
    is_active = Column("is_active", value=lambda override: now is not None and override.starts_at <= now)
    return Table((*_OVERRIDE[:-1], is_active, _OVERRIDE[-1]), overrides)


def _cancel(caller: Any, override_id: list[str], project_id: str | None, reason: str | None) -> None:
    if project_id is not None:
        unknown = set(override_id).difference(
            override.id for override in read_overrides(caller, project_id=project_id)[0]
        )
        if unknown:
            raise exceptions.OverrideNotFound(min(unknown))
    caller.engine.limits.cancel_overrides(caller.context, override_id, reason=reason)


# --- the history ---


def _action(row: Mapping[str, Any]) -> str:
    """What was done; with the provider or the pod, if it was done to that."""
    owner = row.get("provider") or (row["pod"] if row["action"].partition(" (")[0].endswith(" pod") else None)
    return f"{row['action']} {owner}" if owner else str(row["action"])


def _project(row: Mapping[str, Any]) -> str:
    is_limit = row["action"].partition(" (")[0].endswith(" limit")
    return (formats.Default if is_limit else formats.Optional)(row["project_id"]).human_readable()


def _after(row: Mapping[str, Any]) -> str:
    """The value after a change; of an override, with its end, and with its start if that was later."""
    at, start, until = (formats.brief(row[name]) for name in ("at", "from", "until"))
    span = f"{f' from {start}' if start > at else ''} until {until}" if until and row["after"] is not None else ""
    return _value(row["after"], row["before"]) + span


def _value(value: Any, other: Any) -> str:
    """Of the values of a provider, an inventory or a pod: those that differ from ``other``."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items() if item != (other or {}).get(name))
    return formats.OptionalLimit(value).human_readable()


_OPTIONAL: Final = nullable(TEXT)
_CHANGE: Final = tuple(
    column._replace(is_sparse=True)
    for column in (
        Column("id", schema=TEXT),
        Column("at", formats.timestamp, schema=nullable(TIME), text=lambda row: formats.brief(row["at"])),
        Column("user_id", formats.Optional, schema=_OPTIONAL),
        Column(
            "action",
            value=lambda entry: entry.action if entry.operation is None else f"{entry.action} ({entry.operation})",
            schema=TEXT,
            text=_action,
        ),
        Column("project_id", formats.Optional, schema=_OPTIONAL, text=_project),
        Column("provider", formats.Optional),
        Column(
            "resource",
            formats.Optional,
            schema=_OPTIONAL,
            text=lambda row: str(ResourceKey(row["resource"], row["pod"] or "")) if row["resource"] else "",
        ),
        Column("pod", formats.Optional, schema=_OPTIONAL),
        Column("before", schema=_OPTIONAL, text=lambda row: _value(row["before"], row["after"])),
        Column("after", schema=_OPTIONAL, text=_after),
        Column("from", formats.timestamp, lambda entry: entry.starts_at, nullable(TIME), "start"),
        Column("until", formats.timestamp, schema=nullable(TIME)),
        Column("override_id", None, schema=_OPTIONAL),
        *columns("reason", "user_project_id", "request_id", cell=formats.Optional, schema=_OPTIONAL),
    )
)


_EDGE: Final = (
    Column("project_id", value=itemgetter(0), schema=NAME),
    Column("parent_id", formats.Optional, itemgetter(1), nullable(NAME)),
)


# --- resources ---

_RESOURCE: Final = (
    Column("resource", value=attrgetter("name"), schema=NAME, rest="name"),
    *columns("description", "unit", cell=formats.Optional, schema=nullable(TEXT)),
)
_LISTED: Final = (
    *part(0, _RESOURCE),
    Column("limit", formats.OptionalLimit, itemgetter(1)),
    Column("limit_source", value=itemgetter(2)),
)
"""The columns of (Resource, default limit, its source)."""
_RESOURCES: Final = "/v2/quota_resources"


def _resources(caller: Any, **page: Any) -> list[tuple[Resource, int | None, str | None]]:
    resources = paging.page(caller.engine.list_resources(), lambda resource: (resource.name, resource.name), **page)
    if not caller.is_host:
        return [(resource, None, None) for resource in resources]
    from cyborg_quota.limits.limit_tree import InitialLimits

    options, initial = caller.conf.limits, None
    if options.driver == "database":  # (only this driver uses it; None: the default applies)
        initial = InitialLimits.parse(options.child_initial_limit, options.root_initial_limit).root
    limits: Mapping[str, int] = {} if initial is None else dict.fromkeys(caller.engine.resources, initial)
    if initial is None and options.driver != "keystone":  # (this command does not read Keystone's registered limits)
        with contextlib.suppress(exceptions.LimitsReadOnly):  # the limit driver cannot list them
            limits = caller.engine.limits.list_defaults(caller.context)
    return [
        (resource, limits.get(resource.name), _limit_source(options, initial, is_set=resource.name in limits))
        for resource in resources
    ]


def _limit_source(options: Any, initial: int | None, *, is_set: bool) -> str:
    """The place at which the default limit of a resource is set, or what applies if it is not set."""
    if initial is not None:
        return "[limits] root_initial_limit"
    return {
        "noop": "none: [limits] driver is noop",
        "config": "[limits] limits" if is_set else "none: not in [limits] limits",
        "database": "set --default" if is_set else f"not set: [limits] missing = {options.missing}",
        "keystone": "registered limits in Keystone",
    }.get(options.driver, f"[limits] driver {options.driver}")


def _create_resource(caller: Any, name: str, **details: Any) -> Any:
    caller.engine.register_resource(Resource(name, **details))
    return next(resource for resource in caller.engine.list_resources() if resource.name == name)


OPERATIONS: Final = (
    Operation(
        """List the counted resources, with what describes them.

        On the host, also limit, which is that of a project without a parent, if none is
        set for the project: the default, or [limits] root_initial_limit. It is empty
        (json: null) if none is set, or if it is set in Keystone.
        """,
        "cyborg-quota resource list -f json",
        _resources,
        paging.BY_RESOURCE,
        _LISTED,
        has_names=False,
        words="resource list",
        route=Route("GET", _RESOURCES, policy.RESOURCES, "resources", "Resource", lambda row: row[0].name),
    ),
    Operation(
        """Add a resource, or change the description and the unit of one that is counted.

        All processes count it, beside those of [quota] resources. A description or a unit
        that is not given stays as it is.
        """,
        "cyborg-quota resource create storage --unit GB --description 'Block storage'",
        _create_resource,
        (
            Argument("name", metavar="RESOURCE", help="the name of the resource"),
            Argument("--description", metavar="TEXT", help="what it is"),
            Argument("--unit", metavar="UNIT", help="what an amount of 1 is, as in GB"),
        ),
        _RESOURCE,
        is_list=False,
        words="resource create",
        route=Route("POST", _RESOURCES, policy.CREATE_RESOURCES, "resource", "Resource"),
    ),
    Operation(
        """List every known project with its parent.

        A project is known once it was added or charged. `list --tree` shows the
        projects as a tree, with limits and usage.
        """,
        "cyborg-quota project list -f csv",
        lambda caller, **given: caller.engine.limits.list_projects(caller.elevated, **given),
        (paging.LIMIT, paging.marker("ID", "start after this project, the last row of the previous page")),
        _EDGE,
        words="project list",
        route=Route("GET", "/v2/quota_projects", policy.LIST, "projects", "Project", itemgetter(0), errors=(409,)),
    ),
    Operation(
        """Add a new project below another one, such as a customer of it.

        Until a limit is set for it, [limits] child_initial_limit applies. Through the
        REST API, a manager of the parent may do this with a project that Keystone has
        below it, that is not in the tree, and never had a usage or a limit.
        """,
        "cyborg-quota project create customer --parent sme",
        _add,
        (
            Argument("child_id", metavar="PROJECT", rest="project_id", schema=NAME, help=arguments.PROJECT_HELP),
            arguments.FORCE_PROJECT,
            Argument(
                "--parent",
                dest="project_id",
                metavar="PROJECT",
                required=True,
                help="the parent, which must be known; `project set --no-parent` adds a project without one",
            ),
            arguments.REASON,
        ),
        _EDGE,
        is_list=False,
        words="project create",
        route=Route("POST", f"{_QUOTA}/children", policy.ADD_CHILD, "project", "Project", status=201, errors=(409,)),
    ),
    Operation(
        """Add a project to the tree, or move it, with its descendants and all their usage.

        The project may have usage already. Until a limit is set for a new one, the
        initial limit of [limits] child_initial_limit or root_initial_limit applies.
        May run while these projects reserve and commit. A move is refused if the
        limits do not allow the new place, or if the new parent is the project itself
        or one of its descendants.
        """,
        "cyborg-quota project set higgs --parent physics",
        set_parent,
        (
            arguments.PROJECT,
            arguments.FORCE_PROJECT,
            OneOf(
                Argument("--parent", dest="parent_id", metavar="PROJECT", help="the parent, which must be known"),
                Argument(
                    "--no-parent",
                    rest=None,
                    dest="parent_id",
                    action="store_const",
                    const=None,
                    help="make it a root, without a parent",
                ),
                required=True,
            ),
            arguments.REASON,
        ),
        words="project set",
        route=Route("PUT", f"{_QUOTA}/tree", policy.SET_PARENT),
    ),
    Operation(
        "Remove a project that has no usage and no children, together with its limits.",
        "cyborg-quota project delete higgs",
        lambda caller, **given: caller.engine.limits.remove_project(caller.elevated, **given),
        (arguments.PROJECT, arguments.REASON),
        words="project delete",
        route=Route("DELETE", f"{_QUOTA}/tree", policy.SET_PARENT, status=204, errors=(409,)),
    ),
    Operation(
        """List the overrides that have not ended, in the order in which they were made.

        Where several overrides of a limit are active, the last one in the list
        applies. is_active is true between from and until, by the database's clock.
        """,
        "cyborg-quota override list --project P",
        _overrides,
        (
            arguments.project(),
            paging.LIMIT,
            paging.marker("ID", "start after the override with this id"),
            paging.RESOURCE,
        ),
        _OVERRIDE,
        words="override list",
        route=Route("GET", f"{_QUOTA}/overrides", policy.GET, "overrides", "Override", attrgetter("id"), errors=(409,)),
    ),
    Operation(
        """Cancel overrides.

        On the host, all of them are cancelled, or none; through the REST API, one after
        the other. The limits that are set without --until apply again. The project
        keeps what it holds.
        """,
        "cyborg-quota override delete 42-0 --reason 'workshop is over'",
        _cancel,
        (
            Argument(
                "override_id", nargs="+", load=lambda text: [text], metavar="ID", help="the id, as in `override list`"
            ),
            arguments.project(),
            arguments.REASON,
        ),
        words="override delete",
        route=Route("DELETE", f"{_QUOTA}/overrides/{{override_id}}", policy.RULE, status=204, errors=(409,)),
    ),
    Operation(
        """Show who changed what, when and why; newest first.

        Limits, overrides, the project tree, providers, inventories and pods. pod is the pod, or that of a limit per
        pod. before and after are a limit, the parent of a project, or the values of a provider, an inventory or a pod;
        a table shows those that differ. from and until are the span of an override. user_project_id and request_id are
        those of the context in which the change was made.

        A table shows id, provider, pod, from, until, user_project_id and request_id as
        columns only with --long: without it, the action has the provider or the pod, the
        resource the pod, and after the span of an override. A column that is empty in all
        rows is left out. The other formats always have all columns.
        """,
        "cyborg-quota history list --project P --since 30d --long\n"
        "  cyborg-quota history list --subject inventory --provider node1\n"
        "  cyborg-quota history list --since 2026-12-01T08:00Z --until 2026-12-02 -f csv",
        lambda caller, project_id, user, **given: caller.engine.limits.history(
            caller.elevated, project_id, user_id=user, **given
        ),
        (
            Argument("--subject", rest=None, choices=SUBJECTS, help="only changes of this"),
            arguments.project(),
            Argument("--resource", rest=None, metavar="NAME", help="only this resource"),
            Argument("--provider", rest=None, metavar="PROVIDER", help="only of this provider: a name or UUID"),
            Argument("--pod", rest=None, metavar="NAME", help="only of this pod, and of limits in it"),
            Argument("--user", rest=None, metavar="ID", help="only changes by this user"),
            Argument(
                "--since",
                type=arguments.moment_or_age,
                metavar="TIME",
                help="only changes since this time (2026-12-01T08:00Z), or this age (12h, 30d)",
            ),
            Argument(
                "--until",
                rest=None,
                type=arguments.moment_or_age,
                metavar="TIME",
                help="only changes before this time (2026-12-01T08:00Z), or this age (12h, 30d)",
            ),
            paging.LIMIT,
            Argument("--marker", metavar="ID", help="start after the entry with this id"),
        ),
        _CHANGE,
        words="history list",
        route=Route("GET", f"{_QUOTA}/history", policy.GET, "history", "Change"),
        long=("id", "provider", "pod", "from", "until", "user_project_id", "request_id"),
    ),
)
