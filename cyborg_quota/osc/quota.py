# SPDX-License-Identifier: Apache-2.0
"""The commands ``openstack accelerator quota ...``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, Final

from osc_lib import exceptions
from osc_lib.cli import format_columns

from cyborg_quota.osc.base import Run, generate
from cyborg_quota.osc.client import OWN_PROJECT, PROJECT, quoted
from cyborg_quota.surface import parsing
from cyborg_quota.surface.operations import Argument, Arguments, Column, OneOf, Table, entries

_REASON: Final = Argument("--reason", metavar="<reason>", help="Reason for the change, which the history shows.")


def _pod(help_text: str) -> Argument:
    return Argument("--pod", metavar="<pod>", help=help_text)


def _paging(what: str, marker: str) -> Arguments:
    return (
        Argument("--limit", metavar="<limit>", type=parsing.positive, help=f"Maximum number of {what}."),
        Argument("--marker", metavar="<marker>", help=f"The {marker} after which the list begins."),
    )


def _bound(bound: Mapping[str, Any] | None) -> str | None:
    """The project, the scope and the pod of the limit that determines what fits.

    The limit over all projects has no project.
    """
    if bound is None:
        return None
    project = "all projects" if bound["project_id"] is None else bound["project_id"]
    pod = bound.get("pod")
    return f"{project} ({bound['scope']}{'' if pod is None else f', pod {pod}'})"


_PROJECT_ID: Final = entries(project_id="Project ID")
_LIMITS: Final = entries(resource="Resource", limit="Limit")
_DETAILS: Final = (
    *_LIMITS,
    *entries(in_use="In Use", reserved="Reserved", fits="Fits"),
    Column("Bound By", _bound, itemgetter("bound_by")),
)
_TOTALS: Final = (*_LIMITS, *entries(held="Held"))


def _resources(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of an answer, or of an entry of a list: one for each resource, with the figures of its quota."""
    for resource, one in sorted(entry["quota"].items()):
        yield {**entry, "resource": resource, **(one if isinstance(one, dict) else {"limit": one})}


def _show(run: Run, *, usage: bool, default: bool, total: bool, pod: str | None, **owner: Any) -> Table:
    if total:
        if pod is not None or owner["project"] is not None:
            raise exceptions.CommandError("--total cannot be combined with a project or with --pod.")
        return Table(_TOTALS, _resources(run.client.call("GET", "/quota_totals")))
    if default and pod is not None:
        raise exceptions.CommandError("--default cannot be combined with --pod: a pod has no default limits.")
    part = "/detail" if usage else "/defaults" if default else ""
    found = run.client.call("GET", f"{run.client.path(**owner)}{part}", pod=pod)
    return Table(_DETAILS if usage else _LIMITS, _resources(found))


ShowQuota = generate(
    "Show the limits of a project, what it uses, and what fits.",
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


def _list(run: Run, *, detail: bool, pod: str | None, limit: int | None, marker: str | None) -> Table:
    found = run.client.pages("quotas", "/quotas", limit, marker=marker, pod=pod)
    if detail:
        found = (
            {**one, **run.client.call("GET", f"/quotas/{quoted(one['project_id'])}/detail", pod=pod)} for one in found
        )
    return Table((*_PROJECT_ID, *(_DETAILS if detail else _LIMITS)), (row for one in found for row in _resources(one)))


ListQuota = generate(
    "List the projects that have limits of their own, or limits in one pod (admin only).",
    _list,
    (
        Argument(
            "--detail",
            action="store_true",
            help="Also show the usage and what fits; one more request per project.",
        ),
        _pod("List the projects that have limits in this pod, with these limits."),
        *_paging("projects", marker="project ID"),
    ),
    _LIMITS,
)


def _set(
    run: Run,
    *,
    limit: list[tuple[str, int]],
    start: str | None,
    until: str | None,
    reason: str | None,
    force: bool,
    pod: str | None,
    **project: Any,
) -> None:
    quota = dict(limit)
    if until is None:
        if start is not None:
            raise exceptions.CommandError("--from needs --until.")
        changes = _given(quota=quota, force=force or None, reason=reason, pod=pod)
        run.client.call("PUT", run.client.path(**project), changes)
        return
    if pod is not None:
        raise exceptions.CommandError("--pod cannot be combined with --until: limits in a pod have no overrides.")
    if force:
        raise exceptions.CommandError("--force cannot be combined with --until, and is not needed with it.")
    override = _given(quota=quota, until=until, start=start)
    run.client.call("POST", f"{run.client.path(**project)}/overrides", _given(override=override, reason=reason))


def _given(**values: Any) -> dict[str, Any]:
    """The values that were given."""
    return {name: value for name, value in values.items() if value is not None}


SetQuota = generate(
    "Set limits of a project, permanently or (with --until) for a span of time; or its limits in one pod.",
    _set,
    (
        Argument(
            "--limit",
            metavar="<resource>=<limit>",
            type=parsing.limit,
            action="append",
            required=True,
            help="New limit of a resource; -1 means unlimited (repeat option to set several).",
        ),
        Argument("--from", dest="start", metavar="<time>", help="Start of the time span. Default: now."),
        Argument("--until", metavar="<time>", help="Set the limits until this time only, as in 2027-01-31T08:00:00Z."),
        _REASON,
        Argument("--force", action="store_true", help="Permit limits below what the project holds."),
        _pod("Set the limits in this pod."),
        *PROJECT,
    ),
)


def _delete(run: Run, *, override: str | None, pod: str | None, reason: str | None, **project: Any) -> None:
    part = "" if override is None else f"/overrides/{quoted(override)}"
    run.client.call("DELETE", f"{run.client.path(**project)}{part}", reason=reason, pod=pod)


DeleteQuota = generate(
    "Remove all limits of a project, so that the defaults apply; or those in one pod; or cancel one override.",
    _delete,
    (
        OneOf(
            Argument(
                "--override", metavar="<override>", help="Cancel this override instead (an ID; see quota history)."
            ),
            _pod("Remove the limits in this pod instead."),
        ),
        _REASON,
        *PROJECT,
    ),
)


def _check(run: Run, *, amount: list[tuple[str, int]], **owner: Any) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = run.client.call("POST", f"{run.client.path(**owner)}/check", {"check": dict(amount)})
    run.status = int(not answer["granted"])
    return answer


CheckQuota = generate(
    "Check whether a request would be granted now, and which limits would refuse it. Exit status 1: refused.",
    _check,
    (
        Argument(
            "--amount",
            metavar="<resource>=<amount>",
            type=parsing.amount,
            action="append",
            required=True,
            help="Amount of a resource (repeat option to request several together).",
        ),
        *OWN_PROJECT,
    ),
    (*entries(granted="granted"), Column("violations", format_columns.ListDictColumn, itemgetter("violations"))),
    is_list=False,
)


def _tree(run: Run, **owner: Any) -> Iterator[Mapping[str, Any]]:
    for node in run.client.pages("tree", f"{run.client.path(**owner)}/tree"):
        yield from _resources(node) if node["quota"] else [node]


ShowTree = generate(
    "Show a project and the projects below it, as far as the policy allows it.",
    _tree,
    OWN_PROJECT,
    (
        *entries(depth="Depth", project_id="Project ID", parent_id="Parent ID"),
        *_LIMITS,
        *entries(in_use="In Use", subtree="Subtree"),
    ),
)

_CHANGE: Final = entries(
    id="ID",
    at="At",
    action="Action",
    resource="Resource",
    pod="Pod",
    before="Before",
    after="After",
    start="From",
    until="Until",
    override_id="Override ID",
    reason="Reason",
    user_id="User ID",
)
_LONG: Final = entries(user_project_id="User Project ID", request_id="Request ID")


def _history(run: Run, *, since: str | None, long: bool, limit: int | None, marker: str | None, **owner: Any) -> Table:
    found = run.client.pages("history", f"{run.client.path(**owner)}/history", limit, since=since, marker=marker)
    return Table((*_CHANGE, *_LONG) if long else _CHANGE, found)


ShowHistory = generate(
    "List the changes of the limits of a project, newest first.",
    _history,
    (
        Argument("--since", metavar="<time>", help="Only changes since this time."),
        Argument(
            "--long", action="store_true", help="Also list the project and the request ID of the user (admin only)."
        ),
        *_paging("changes", marker="change ID"),
        *OWN_PROJECT,
    ),
    _CHANGE,
)
