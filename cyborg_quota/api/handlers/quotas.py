# SPDX-License-Identifier: Apache-2.0
"""The limits and usage of a project, over all pods and in one, the defaults, and what would be granted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cyborg_quota import exceptions, policy
from cyborg_quota.api.call import Call, Json, moment, render
from cyborg_quota.api.errors import Refused
from cyborg_quota.api.handlers.history import parse_time
from cyborg_quota.limits import operations
from cyborg_quota.surface import paging
from cyborg_quota.types import TOTAL, UNLIMITED, Headroom, UsageRecord
from cyborg_quota.types.limits import Holding, TreeRow


def list_quotas(call: Call) -> Json:
    """GET /v2/quotas: the projects that hold something or have limits, under every limit driver."""
    limits = call.engine.limits
    by_project: dict[str, list[Holding]]
    if "pod" in call.query:
        return _list_quotas_in_pod(call, call.query["pod"])
    following = None
    if "project_id" in call.query:
        project_ids, by_project = [call.query["project_id"]], {}
    else:
        project_ids, following = limits.list_holders(call.elevated, call.marker or "", call.limit)
        by_project = {project_id: [] for project_id in project_ids}  # (it may give back all meanwhile)
    for holding in limits.list_holdings(call.elevated, project_ids):
        by_project.setdefault(holding.key.project_id, []).append(holding)
    in_force = None
    if limits.read_only is not None:  # the stored limits and overrides do not apply
        by_project = {
            name: holdings
            for name, holdings in by_project.items()
            if any(holding.used + holding.reserved for holding in holdings)
        }
        in_force = limits.limits_in_force(call.elevated, list(by_project))
    quotas = [_project_quota(in_force, *project) for project in by_project.items()]
    return call.page("quotas", quotas, dict, lambda quota: str(quota["project_id"]), following=following)


def _project_quota(
    in_force: Mapping[str, Mapping[str, int]] | None, project_id: str, holdings: Sequence[Holding]
) -> Json:
    """The own limits of a project over all pods, the number of its overrides, and what it holds.

    ``in_force``: the limits by project, if they are not stored here.
    """
    whole = [holding for holding in holdings if holding.key.is_whole]
    own = {holding.key.resource: holding.limit for holding in whole if holding.limit is not None}
    return {
        "project_id": project_id,
        "quota": own if in_force is None else in_force.get(project_id, {}),
        "overrides": sum(holding.overrides for holding in holdings) if in_force is None else 0,
        "usage": {holding.key.resource: {"in_use": holding.used, "reserved": holding.reserved} for holding in whole},
        "in_force": {
            holding.key.resource: _in_force(is_overridden=holding.is_overridden, is_own=holding.limit is not None)
            for holding in whole
            if in_force is None
        },
    }


def _in_force(*, is_overridden: bool, is_own: bool) -> str:
    """What determines a limit of a project."""
    return "override" if is_overridden else "own" if is_own else "default"


def _list_quotas_in_pod(call: Call, pod: str) -> Json:
    """The projects that have limits in the pod. A pod that the caller may not see is answered as an unknown one."""
    if not call.allows(policy.SEE_PODS):
        raise Refused(404, str(exceptions.PodNotFound(pod)))
    by_project: dict[str, dict[str, int]] = {}
    records = call.engine.limits.list_pod_limits(
        call.elevated, call.query.get("project_id"), pod, projects=call.limit + 1, after=call.marker
    )
    for record in records:
        by_project.setdefault(str(record.project_id), {})[record.resource] = record.limit
    quotas = [
        {
            "project_id": project_id,
            "quota": limits,
            "overrides": 0,
            "usage": {},
            "in_force": {},
        }  # (limits in pods have no overrides)
        for project_id, limits in by_project.items()
    ]
    return call.page("quotas", quotas, lambda quota: quota, lambda quota: str(quota["project_id"]))


def list_over(call: Call) -> Json:
    """GET /v2/quota_over"""
    owner, resource = [*paging.in_words(call.query.get("marker", "")), ""][:2]
    rows, after = call.engine.limits.over_page(call.elevated, (owner, resource), call.limit)
    following = after and paging.in_one_word(after)
    return call.page(
        "over", rows, _over, lambda row: paging.in_one_word((row.project_id, row.resource)), following=following
    )


def _over(row: TreeRow) -> Json:
    return {
        "project_id": None if row.project_id == TOTAL else row.project_id,
        "resource": row.resource,
        "limit": row.limit,
        "in_use": row.used,
        "subtree": row.subtree,
        **nonzero(row, "promised"),
    }


def nonzero(record: Any, *names: str) -> Json:
    """The named amounts of a record that are not 0."""
    return {name: getattr(record, name) for name in names if getattr(record, name)}


def preview(call: Call) -> Json:
    """POST /v2/quota_preview"""
    body = call.body
    if "start" in body and "until" not in body:
        raise Refused(400, "start needs until.")
    span = (parse_time("start", body), parse_time("until", body)) if "until" in body else None
    flags = {name: body.get(name, False) for name in ("total", "force")}
    changes, refusal = operations.preview(call, body["quota"], body.get("project_id"), body.get("pod"), span, **flags)
    return {
        "changes": [
            render("PlannedChange", change, project_id=None if change.project_id == TOTAL else change.project_id)
            for change in changes
        ],
        "problems": [] if refusal is None else list(refusal.problems),
    }


def get_limits(call: Call) -> Json:
    """GET /v2/quotas/{project_id}"""
    pod = _pod(call, call.query)
    # The generation of the limits, for If-Match, for those who may set them. It is read before the limits.
    if call.allows(policy.RULE, call.project_id, call.parent_id):
        call.headers["ETag"] = f'"{call.engine.limits.generation_of(call.elevated, call.project_id)}"'
    if pod is not None:
        return _answer(pod, _limits_in(call, pod))
    return {"quota": _limits_of(call)}


def _limits_of(call: Call) -> dict[str, Any]:
    """The limits that apply to the project, over all pods."""
    return {resource: detail["limit"] for resource, detail in get_detail(call)["quota"].items()}


def _generation(call: Call) -> int | None:
    """The generation that the limits must have; None: any. Raises Refused."""
    if call.if_match in (None, "*"):
        return None
    match = re.fullmatch(r'"([0-9]{1,10})"', str(call.if_match), re.ASCII)
    if match is None:
        raise Refused(400, 'If-Match must be the ETag of an answer, as in "17", or *.')
    return int(match[1])


def get_detail(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/detail"""
    pod = _pod(call, call.query)
    if pod is not None:
        records = call.engine.get_detail(call.elevated, call.project_id, pod=pod)
        return _answer(pod, {record.resource: _detail(record, is_stored=False) for record in records})
    read_only = call.engine.limits.read_only
    records = call.engine.get_detail(call.as_project)
    quota = {record.resource: _detail(record, is_stored=read_only is None) for record in records}
    for resource in quota.keys() - set(call.engine.resources):  # (held, and registered no longer)
        quota[resource]["bound_by"] = {"project_id": call.project_id, "scope": "not_registered", "limit": None}
    return {"quota": quota, "read_only": read_only}


def limit_of(record: UsageRecord) -> int | None:
    """The limit of a project; None if none is set and nothing may be reserved."""
    return None if record.lacks_limit else record.usage.limit


def _detail(record: UsageRecord, *, is_stored: bool) -> Json:
    usage, headroom, override = record.usage, record.headroom or Headroom(0), record.override
    # (The maximum of its subtree counter, MAX_COUNTED, is not its limit.)
    is_own = headroom.scope in ("project", "subtree") and (
        (headroom.bound_by, headroom.limit) == (record.project_id, limit_of(record))
    )
    bound: Any = None
    if headroom.scope is not None and not (is_own and headroom.pod == record.pod):
        bound = {"project_id": headroom.bound_by, "scope": headroom.scope, "limit": headroom.limit}
        if record.pod is not None:
            bound["pod"] = headroom.pod
    return {
        "limit": limit_of(record),
        "in_use": usage.used,
        "reserved": usage.reserved,
        "fits": UNLIMITED if headroom.fits is None else headroom.fits,
        "bound_by": bound,
        "override": override and {"until": moment(override.until), "otherwise": override.otherwise},
        "in_force": _in_force(is_overridden=override is not None, is_own=record.is_own) if is_stored else None,
        **nonzero(record, "minimum"),
    }


def get_defaults(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/defaults (those that apply to the project), and GET /v2/quota_defaults"""
    limits = call.engine.limits
    is_of_project = "project_id" in call.path
    stored = limits.default_limits(call.as_project) if is_of_project else limits.list_defaults(call.elevated)
    return {"quota": {**dict.fromkeys(call.engine.resources, limits.limit_if_missing), **stored}}


def set_limits(call: Call) -> Json:
    """PUT /v2/quotas/{project_id}

    The answer has the limits that were set, also where an override applies instead at the moment.
    """
    call.engine.limits.require_stored()
    limits, pod = call.body["quota"], _pod(call, call.body)
    if set(limits.values()) != {None}:
        call.require_project(call.project_id)
    own = {} if pod is None else _limits_in(call, pod)
    if not call.body.get("force", False) and set(limits.values()) != {None}:
        where = "" if pod is None else f" in pod {pod}"
        records = call.engine.get_detail(call.elevated, call.project_id, pod=pod)
        usages = {record.resource: record.usage for record in records}
        amounts = {
            name: (usage.used + usage.reserved, f"{usage.used} in use and {usage.reserved} reserved{where}")
            for name, usage in usages.items()
        }
        refuse_below_usage(limits, amounts)
    generation = call.engine.limits.set_limits(
        call.context,
        limits,
        call.project_id,
        pod=pod,
        reason=call.body.get("reason"),
        generation=_generation(call),
        force=call.body.get("force", False),
    )
    call.headers["ETag"] = f'"{generation}"'  # (not the newest one, which another call may have made)
    if pod is None:
        given = {resource: limit for resource, limit in limits.items() if limit is not None}
        return with_warnings(call, {"quota": {**_limits_of(call), **given}}, limits)
    return _answer(pod, {resource: limit for resource, limit in {**own, **limits}.items() if limit is not None})


def with_warnings(call: Call, answer: Json, limits: Mapping[str, Any]) -> Json:
    """The answer to a call that set limits, with a warning for each resource of which more is promised than exists."""
    warnings = operations.beyond_capacity(call, limits)
    return {**answer, "warnings": warnings} if warnings else answer


def unset_limits(call: Call) -> None:
    """DELETE /v2/quotas/{project_id}"""
    operations.delete_limits(call, call.project_id, _pod(call, call.query), call.query.get("reason"))


def check(call: Call) -> Json:
    """POST /v2/quotas/{project_id}/check"""
    pod = _pod(call, call.body)
    overs = call.engine.check(call.elevated, call.body["check"], call.project_id, pod=pod, redacted=not call.is_admin)
    violations = [
        {
            "project_id": None if over.scope == "total" else over.project_id,
            "resource": over.resource,
            "scope": over.scope,
            "limit": over.limit,
            "requested": over.requested,
            "in_use": over.used,
            "reserved": over.reserved,
            "subtree": over.subtree,
            "message": str(over),
            **nonzero(over, "promised"),
            **({"budget": render("BudgetUse", over.budget)} if over.budget else {}),
            **({} if pod is None else {"pod": over.pod}),
        }
        for over in overs
    ]
    return {"granted": not violations, "violations": violations}


def refuse_below_usage(limits: Mapping[str, int | None], held: Mapping[str, tuple[int, str]]) -> None:
    """Raise Refused (409) for a limit below what is held now; as in Nova, other calls may change that.

    ``held``: the sum and its parts in words, by resource.
    """
    problems = [
        f"{resource}: {limit} is less than {held[resource][1]}"
        for resource, limit in sorted(limits.items())
        if resource in held and limit not in (None, UNLIMITED) and limit < held[resource][0]
    ]
    if problems:
        raise Refused(
            409, f"{'; '.join(problems)}. Nothing was changed. Use force to set the limit.", "limit_below_usage"
        )


def _pod(call: Call, given: Mapping[str, Any]) -> str | None:
    """The pod that a call names. One that the caller may not see is answered (404) as one that does not exist."""
    pod: str | None = given.get("pod")
    if pod is not None and not call.allows(policy.SEE_PODS, call.project_id, call.parent_id):
        raise Refused(404, str(exceptions.PodNotFound(pod)))
    return pod


def _limits_in(call: Call, pod: str) -> dict[str, int]:
    """The limits of the project in the pod. Raises PodNotFound if it has none and no pod exists.

    A pod that was removed may have left limits, which can still be seen and removed.
    """
    limits = call.engine.limits.list_pod_limits(call.elevated, call.project_id, pod)
    return {record.resource: record.limit for record in limits}


def _answer(pod: str, quota: Mapping[str, Any]) -> Json:
    return {"pod": pod, "quota": dict(sorted(quota.items()))}


def set_defaults(call: Call) -> Json:
    """PUT /v2/quota_defaults"""
    given = {"reason": call.body.get("reason"), "force": call.body.get("force", False)}
    call.engine.limits.set_limits(call.elevated, call.body["quota"], **given)
    return with_warnings(call, get_defaults(call), call.body["quota"])
