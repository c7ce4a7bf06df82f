# SPDX-License-Identifier: Apache-2.0
"""The limits of a project in one pod. A pod that the caller may not see looks like one that does not exist."""

from __future__ import annotations

from collections.abc import Mapping

from cyborg_quota import exceptions
from cyborg_quota.api.call import Call, Json
from cyborg_quota.api.errors import Refused
from cyborg_quota.types import UNLIMITED, Headroom, Usage, UsageRecord


def get_limits(call: Call, pod: str) -> Json:
    """GET /v2/quotas/{project_id}?pod=POD"""
    return _answer(pod, _read_limits(call, pod))


def get_detail(call: Call, pod: str) -> Json:
    """GET /v2/quotas/{project_id}/detail?pod=POD"""
    require_pod(call, pod)
    records = call.engine.get_detail(call.elevated, call.project_id, pod=pod)
    return {"pod": pod, "quota": {record.resource: _detail(record) for record in records}}


def _detail(record: UsageRecord) -> Json:
    usage, headroom = record.usage, record.headroom or Headroom(0)
    bound = None
    is_own = headroom.pod is not None and headroom.bound_by == record.project_id
    if headroom.scope is not None and not is_own:
        bound = {
            "project_id": headroom.bound_by,
            "scope": headroom.scope,
            "limit": headroom.limit,
            "pod": headroom.pod,
        }
    return {
        "limit": usage.limit,
        "in_use": usage.used,
        "reserved": usage.reserved,
        "fits": UNLIMITED if headroom.fits is None else headroom.fits,
        "bound_by": bound,
    }


def set_limits(call: Call, pod: str) -> Json:
    """PUT /v2/quotas/{project_id}, with a pod in the body"""
    limits = call.body["quota"]
    _read_limits(call, pod)
    if not call.body.get("force", False) and any(limit is not None for limit in limits.values()):
        records = call.engine.get_detail(call.elevated, call.project_id, pod=pod)
        refuse_below_usage(limits, {record.resource: record.usage for record in records}, f" in pod {pod}")
    call.engine.administration.set_limits(
        call.context, limits, call.project_id, pod=pod, reason=call.body.get("reason")
    )
    return _answer(pod, _list(call, pod))


def unset_limits(call: Call, pod: str) -> None:
    """DELETE /v2/quotas/{project_id}?pod=POD"""
    limits = dict.fromkeys(_read_limits(call, pod))
    if limits:
        call.engine.administration.set_limits(
            call.context, limits, call.project_id, pod=pod, reason=call.query.get("reason")
        )


def require_pod(call: Call, pod: str) -> None:
    """Raise Refused (404) or PodNotFound unless the pod exists and the caller may see it."""
    _require_sight(call, pod)
    call.engine.pods.show(call.elevated, pod)


def refuse_below_usage(limits: Mapping[str, int | None], usages: Mapping[str, Usage], where: str = "") -> None:
    """Raise Refused (409) for a limit below what the project holds now; as in Nova, other calls may change that.

    ``where``: the place of the usage, for the message.
    """
    problems = []
    for resource, limit in sorted(limits.items()):
        usage = usages.get(resource)
        if usage is not None and limit not in (None, UNLIMITED) and limit < usage.used + usage.reserved:
            held = f"{usage.used} in use and {usage.reserved} reserved"
            problems.append(f"{resource}: {limit} is less than {held}{where}")
    if problems:
        raise Refused(
            409, f"{'; '.join(problems)}. Nothing was changed. Use force to set the limit.", "limit_below_usage"
        )


def _require_sight(call: Call, pod: str) -> None:
    """Raise Refused, with the answer for a pod that does not exist, unless the caller may see the names of pods."""
    if not call.sees_pods:
        raise Refused(404, str(exceptions.PodNotFound(pod)))


def _read_limits(call: Call, pod: str) -> dict[str, int]:
    """The limits of the project in the pod. Raises Refused (404), or PodNotFound if it has none and no pod exists.

    A pod that was removed may have left limits, which can still be seen and removed.
    """
    _require_sight(call, pod)
    limits = _list(call, pod)
    if not limits:
        call.engine.pods.show(call.elevated, pod)
    return limits


def _list(call: Call, pod: str) -> dict[str, int]:
    limits = call.engine.administration.list_pod_limits(call.elevated, call.project_id)
    return {one.resource: one.limit for one in limits if one.pod == pod}


def _answer(pod: str, limits: Mapping[str, int]) -> Json:
    return {"pod": pod, "quota": dict(sorted(limits.items()))}
