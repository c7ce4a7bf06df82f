# SPDX-License-Identifier: Apache-2.0
"""The commands ``openstack accelerator quota ...``: those whose answers nest, and all that are generated."""

from __future__ import annotations

import datetime
import functools
import operator
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from osc_lib import exceptions

from cyborg_quota.osc.base import Run, each, generate, remote
from cyborg_quota.osc.client import DOMAIN, OWN_PROJECT, PROJECT, quoted
from cyborg_quota.surface import arguments, formats, table
from cyborg_quota.surface.operations import Argument, Column, Columns, OneOf, Operation, Table, entries, sentences
from cyborg_quota.types import is_unbounded

_REASON: Final = Argument("--reason", metavar="<reason>", help="Reason for the change, which the history shows.")


def _pod(help_text: str) -> Argument:
    return Argument("--pod", metavar="<pod>", help=help_text)


def _is_unlimited(detail: Mapping[str, Any]) -> bool:
    return is_unbounded(detail["fits"], detail["bound_by"] and detail["bound_by"]["scope"])


def _bound_by(detail: Mapping[str, Any]) -> str | None:
    """What determines what fits: the project, the scope and the pod of the limit.

    The limit over all projects has no project.
    """
    bound = detail["bound_by"]
    if _is_unlimited(detail):
        return None
    if bound is None:
        own = "the override" if detail["override"] else "the project's limit"
        return "no limit is set" if detail["limit"] is None else own
    project = "all projects" if bound["project_id"] is None else bound["project_id"]
    pod = bound.get("pod")
    return f"{project} ({bound['scope']}{'' if pod is None else f', pod {pod}'})"


_PROJECT_ID: Final = entries(project_id="Project ID")
_LIMITS: Final = (*entries(resource="Resource"), *entries(limit="Limit", cell=formats.Limit))
_OWN_LIMITS: Final = (*entries(resource="Resource"), *entries(limit="Limit", cell=formats.OptionalLimit))
_IN_FORCE: Final = Column("In Force", formats.Optional, operator.methodcaller("get", "in_force"), is_sparse=True)
_HELD: Final = entries(in_use="In Use", reserved="Reserved")
_MINIMUM: Final = Column("Minimum", formats.NonZero, operator.methodcaller("get", "minimum"), is_sparse=True)
_PROMISED: Final = Column("Promised", formats.NonZero, operator.methodcaller("get", "promised"), is_sparse=True)
_DETAILS: Final = (
    *_LIMITS,
    *_HELD,
    Column("Fits", value=lambda detail: formats.fits(detail["fits"], is_unlimited=_is_unlimited(detail))),
    Column("Bound By", formats.Optional, _bound_by),
    Column(
        "Override Until",
        formats.Optional,
        lambda detail: detail["override"] and detail["override"]["until"],
        is_sparse=True,
    ),
    Column(
        "Otherwise",
        lambda override: formats.Limit(override["otherwise"]) if override else formats.Optional(None),
        operator.itemgetter("override"),
        is_sparse=True,
    ),
    _MINIMUM,
)
_TOTALS: Final = (*_LIMITS, *entries(held="Held"), _PROMISED)
_SUBTREE: Final = (*_LIMITS, *entries(in_use="In Use", subtree="Subtree"), _PROMISED)
_NODES: Final = (
    *entries(depth="Depth", project_id="Project ID", parent_id="Parent ID"),
    *_LIMITS,
    *entries(in_use="In Use", hierarchical_usage="Hierarchical Usage", subtree="Subtree"),
    _MINIMUM,
    _PROMISED,
)
_CHANGES: Final = entries(
    action="Change", project_id="Project ID", resource="Resource", before="Before", after="After", pod="Pod"
)


def _resources(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of an answer, or of an entry of a list: one for each resource, with its quota and its usage."""
    quota, usage, in_force = entry["quota"], entry.get("usage", {}), entry.get("in_force", {})
    for resource in sorted({*quota, *usage}):
        detail = quota.get(resource)
        figures = detail if isinstance(detail, dict) else {"limit": detail}
        yield {**entry, "resource": resource, "in_force": in_force.get(resource), **figures, **usage.get(resource, {})}


def _list(
    run: Run,
    *,
    usage: bool,
    over: bool,
    tree: bool,
    pod: str | None,
    resource: str | None,
    limit: int | None,
    marker: str | None,
    **owner: Any,
) -> Table:
    if pod is not None and (usage or over or tree):
        raise exceptions.CommandError("--pod cannot be combined with --usage, --over and --tree.")
    if not tree and (owner["project"] is not None or owner["project_domain"] is not None):
        raise exceptions.CommandError("A project needs --tree.")
    if over and marker is not None:
        raise exceptions.CommandError("--marker cannot be combined with --over.")
    columns: Columns = _SUBTREE if over else _NODES if tree else _OWN_LIMITS if pod else (*_OWN_LIMITS, _IN_FORCE)
    if usage:
        columns = (*_OWN_LIMITS, *_HELD, _IN_FORCE)
    run.noun = "exceeded limit" if over else "project" if tree else "usage" if usage else "limit"
    if over:
        rows: Any = run.client.pages("over", "/quota_over", limit)
    elif tree:
        nodes = run.client.pages("tree", f"{run.client.path(**owner)}/tree", limit, marker=marker)
        rows = (row for node in nodes for row in (_resources(node) if node["quota"] else [node]))
    else:
        quotas = run.client.pages("quotas", "/quotas", limit, marker=marker, pod=pod)
        rows = (row for quota in quotas for row in _resources(quota) if usage or row["limit"] is not None)
    selected = (row for row in rows if resource in (None, row.get("resource")))
    return Table(columns if tree else (*_PROJECT_ID, *columns), selected)


ListQuota = generate(
    Operation(
        "List the projects that have limits of their own, or limits in one pod (admin only).",
        "",
        _list,
        (
            OneOf(
                Argument(
                    "--usage",
                    action="store_true",
                    help="List all projects that hold something or have limits of their own, and what they hold.",
                ),
                Argument("--over", action="store_true", help="List what exceeds a limit, after it was lowered."),
                Argument(
                    "--tree",
                    action="store_true",
                    help="List a project and the projects below it, as far as the policy allows it.",
                ),
            ),
            _pod("List the projects that have limits in this pod, with these limits."),
            Argument("--resource", metavar="<resource>", help="Only this resource."),
            Argument("--limit", metavar="<limit>", type=arguments.positive, help="Maximum number of projects."),
            Argument("--marker", metavar="<marker>", help="The project ID after which the list begins."),
            *OWN_PROJECT,
        ),
        _LIMITS,
    )
)


def _show(run: Run, *, usage: bool, default: bool, total: bool, pod: str | None, **owner: Any) -> Table:
    if total:
        if pod is not None or owner["project"] is not None:
            raise exceptions.CommandError("--total cannot be combined with a project or with --pod.")
        return Table(_TOTALS, _resources({"quota": dict(run.client.pages("quota", "/quota_totals"))}))
    if default and pod is not None:
        raise exceptions.CommandError("--default cannot be combined with --pod: a pod has no default limits.")
    part = "/detail" if usage else "/defaults" if default else ""
    entry = run.client.call("GET", f"{run.client.path(**owner)}{part}", pod=pod)
    return Table(_DETAILS if usage else _LIMITS, _resources(entry))


ShowQuota = generate(
    Operation(
        "Show the limits of a project, what it uses, and what fits.",
        "",
        _show,
        (
            OneOf(
                Argument(
                    "--usage",
                    action="store_true",
                    help="Also show the usage, what fits, and the limit that determines it.",
                ),
                Argument(
                    "--default",
                    action="store_true",
                    help="Show the limits that apply to a project without limits of its own.",
                ),
                Argument(
                    "--total",
                    action="store_true",
                    help="Show the limits over all projects, and what these hold (admin only).",
                ),
            ),
            _pod("Show the limits in this pod only."),
            *OWN_PROJECT,
        ),
        _LIMITS,
    )
)

_SCOPE: Final = (
    OneOf(
        Argument("--default", action="store_true", help="The default limits (admin only)."),
        Argument("--total", action="store_true", help="The limits over all projects together (admin only)."),
    ),
    _pod("The limits in this pod."),
    _REASON,
)


def _path(
    run: Run,
    project: str | None,
    domain: str | None,
    pod: str | None,
    *,
    default: bool,
    total: bool,
    force: bool = False,
) -> str:
    """The path of the limits of a project, of the defaults, or of the totals."""
    if default or total:
        if project is not None or pod is not None:
            raise exceptions.CommandError("--default and --total cannot be combined with a project or --pod.")
        return "/quota_defaults" if default else "/quota_totals"
    if project is None:
        raise exceptions.CommandError("Name a project, or give --default or --total.")
    return run.client.path(project, domain, force=force)


def _given(**values: Any) -> dict[str, Any]:
    """The values that were given."""
    return {name: value for name, value in values.items() if value is not None}


def _set(
    run: Run,
    *,
    limits: dict[str, int],
    project_id: str | None,
    project_domain: str | None,
    start: datetime.datetime | None,
    until: datetime.datetime | None,
    reason: str | None,
    force: bool,
    pod: str | None,
    minimum: bool,
    dry_run: bool,
    **scope: bool,
) -> list[Mapping[str, Any]]:
    path = _path(run, project_id, project_domain, pod, force=force, **scope)
    if not limits:
        raise exceptions.CommandError("Give a limit, as in gpu=20.")
    if minimum and ((pod, start, until) != (None, None, None) or project_id is None):
        raise exceptions.CommandError(
            "--minimum needs a project, and cannot be combined with --pod, --from and --until."
        )
    span = _given(start=start and start.isoformat(), until=until and until.isoformat())
    if span and (until is None or pod is not None or path.startswith("/quota_")):
        raise exceptions.CommandError("--from needs --until, which needs a project, and no --pod.")
    if minimum:
        body = _given(minimums=limits, dry_run=dry_run or None, force=force or None, reason=reason)
        changes = _planned(run, run.client.call("PUT", f"{path}/minimums", body))
        return changes if dry_run else []
    if dry_run:
        owner = urllib.parse.unquote(path.rpartition("/")[2]) if path.startswith("/quotas/") else None
        flags = {"total": scope["total"] or None, "force": force or None}
        wanted = _given(quota=limits, project_id=owner, pod=pod, **flags, **span)
        return _planned(run, run.client.call("POST", "/quota_preview", wanted))
    if span:
        override = {"quota": limits, **span}
        body = _given(override=override, force=force or None, reason=reason)
        answer = run.client.call("POST", f"{path}/overrides", body)
    else:
        answer = run.client.call("PUT", path, _given(quota=limits, force=force or None, reason=reason, pod=pod))
    _planned(run, answer)
    return []


def _planned(run: Run, answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The changes of an answer. Logs its problems and its warnings."""
    problems = answer.get("problems", ())
    run.status = int(bool(problems))
    for problem in problems:
        run.log.error("Not allowed: %s.", problem)
    for warning in answer.get("warnings", ()):
        run.log.warning(warning)
    changes: list[Mapping[str, Any]] = answer.get("changes", [])
    return changes


SetQuota = generate(
    Operation(
        "Set limits of a project, permanently or (with --until) for a span of time; its limits in one pod; or "
        "defaults.",
        "",
        _set,
        (
            arguments.operands(
                "limits",
                arguments.limit,
                "limit",
                "New limits of resources, as in gpu=20 (-1 means unlimited); and the project (name or ID).",
            ),
            DOMAIN,
            *_SCOPE,
            Argument(
                "--from",
                dest="start",
                metavar="<time>",
                type=arguments.moment,
                help="Start of the time span. Default: now.",
            ),
            Argument(
                "--until",
                metavar="<time>",
                type=arguments.moment,
                help="Set the limits until this time only, as in 2027-01-31T08:00:00Z.",
            ),
            Argument(
                "--force",
                action="store_true",
                help="Permit limits below what the project holds or what is promised to minimums, and the ID of a "
                "project that Keystone does not have.",
            ),
            Argument(
                "--minimum",
                action="store_true",
                help="The amounts are minimums: what the project, with all below it, can always reach.",
            ),
            Argument("--dry-run", action="store_true", help="Write nothing; show what would change (admin only)."),
        ),
        _CHANGES,
    )
)


def _unset(
    run: Run,
    *,
    resource: list[str],
    reason: str | None,
    pod: str | None,
    project: Any,
    project_domain: Any,
    **scope: bool,
) -> None:
    path = _path(run, project, project_domain, pod, **scope)
    if scope["total"]:
        if missing := ", ".join(sorted(set(resource) - dict(run.client.pages("quota", path)).keys())):
            raise exceptions.CommandError(f"There is no total limit for {missing}. Nothing was changed.")
        delete = functools.partial(run.client.call, "DELETE", reason=reason)
        each({name: functools.partial(delete, f"{path}/{quoted(name)}") for name in resource})
        return
    run.client.call("PUT", path, _given(quota=dict.fromkeys(resource), reason=reason, pod=pod))


UnsetQuota = generate(
    Operation(
        "Remove limits, so that the inherited ones apply.",
        "",
        _unset,
        (
            Argument(
                "--resource",
                metavar="<resource>",
                action="append",
                required=True,
                help="Resource whose limit is removed (repeat option to remove several).",
            ),
            *_SCOPE,
            Argument("project", metavar="<project>", nargs="?", help="Project (name or ID)."),
            DOMAIN,
        ),
    )
)


DeleteQuota = generate(
    Operation(
        "Remove all limits of a project, so that the defaults apply; or those in one pod.",
        "",
        lambda run, pod, reason, **project: run.client.call(
            "DELETE", run.client.path(**project), reason=reason, pod=pod
        ),
        (_pod("Remove the limits in this pod instead."), _REASON, *PROJECT),
    )
)


def _check(
    run: Run, *, deltas: dict[str, int], project_id: str | None, project_domain: str | None, pod: str | None
) -> Sequence[Mapping[str, Any]]:
    if not deltas:
        raise exceptions.CommandError("Give an amount, as in gpu=2.")
    path = run.client.path(project_id, project_domain)
    answer = run.client.call("POST", f"{path}/check", _given(check=deltas, pod=pod))
    run.status = int(not answer["granted"])
    violations: list[Mapping[str, Any]] = answer["violations"]
    return sentences(run, violations, operator.itemgetter("message"))


CheckQuota = generate(
    Operation(
        "Check whether a request would be granted now. If not: say which limits would refuse it, and exit with 1.",
        "",
        _check,
        (
            arguments.operands(
                "deltas",
                arguments.amount,
                "amount",
                "Amounts of resources that are requested together, as in gpu=2; and the project (name or ID; default: "
                "the project of the token).",
            ),
            DOMAIN,
            _pod("Consider also the limits in this pod."),
        ),
        (
            *entries(project_id="Project ID", resource="Resource", scope="Scope"),
            *entries(limit="Limit", cell=formats.Limit),
            *entries(requested="Requested", in_use="In Use", reserved="Reserved", subtree="Subtree", pod="Pod"),
        ),
        noun="violation",
    )
)


@functools.cache
def __getattr__(name: str) -> Any:
    """The command of an operation, by its words: ``pod_create``."""
    operation = table.operations().get(name.replace("_", " "))
    if operation is None or operation.route is None:
        raise AttributeError(name)
    return remote(operation)
