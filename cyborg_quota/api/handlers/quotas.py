# SPDX-License-Identifier: Apache-2.0
"""The limits and the usage of one project, and the default limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cyborg_quota import exceptions
from cyborg_quota.api.call import Call, Json
from cyborg_quota.api.errors import Refused
from cyborg_quota.api.handlers import pod_limits
from cyborg_quota.types import UNLIMITED, Headroom, UsageRecord

_DEFAULTS_UNKNOWN: Final = (
    "The default limits are not known here, because the limit driver cannot list them. "
    "Those of the driver keystone are Keystone's registered limits."
)


def get_limits(call: Call) -> Json:
    """GET /v2/quotas/{project_id}"""
    if "pod" in call.query:
        return pod_limits.get_limits(call, call.query["pod"])
    return {"quota": {resource: one["limit"] for resource, one in get_detail(call)["quota"].items()}}


def get_detail(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/detail"""
    if "pod" in call.query:
        return pod_limits.get_detail(call, call.query["pod"])
    quota = {record.resource: _detail(record) for record in call.engine.get_detail(call.as_project)}
    for resource in quota.keys() - set(call.engine.resources):  # (held, and registered no longer)
        quota[resource]["bound_by"] = {"project_id": call.project_id, "scope": "not_registered", "limit": None}
    return {"quota": quota}


def limit_of(record: UsageRecord) -> int | None:
    """The limit of a project; None if none is set and nothing may be reserved."""
    bound = record.headroom or Headroom(0)
    is_missing = bound.scope == "project" and bound.bound_by == record.project_id and bound.limit is None
    return None if is_missing else record.usage.limit


def _detail(record: UsageRecord) -> Json:
    project_id, usage, headroom = record.project_id, record.usage, record.headroom or Headroom(0)
    is_own = headroom.bound_by == project_id and headroom.scope in ("project", "subtree")
    bound: Any = None
    if headroom.scope == "total" or (headroom.bound_by is not None and not is_own):
        bound = {"project_id": headroom.bound_by, "scope": headroom.scope, "limit": headroom.limit}
    return {
        "limit": limit_of(record),
        "in_use": usage.used,
        "reserved": usage.reserved,
        "fits": UNLIMITED if headroom.fits is None else headroom.fits,
        "bound_by": bound,
    }


def get_defaults(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/defaults"""
    return _defaults(call, lambda: call.engine.default_limits(call.as_project))


def set_limits(call: Call) -> Json:
    """PUT /v2/quotas/{project_id}

    The answer has the limits that were set, also where an override applies instead at the moment.
    """
    limits = call.body["quota"]
    if "pod" in call.body:
        return pod_limits.set_limits(call, call.body["pod"])
    for resource, limit in limits.items():
        if limit is None:
            raise Refused(400, f"Invalid quota.{resource}: null removes a limit in a pod, and the body names no pod.")
    if not call.body.get("force", False):
        pod_limits.refuse_below_usage(limits, call.engine.get_usages(call.as_project))
    call.engine.administration.set_limits(call.context, limits, call.project_id, reason=call.body.get("reason"))
    return {"quota": {**get_limits(call)["quota"], **limits}}


def unset_limits(call: Call) -> None:
    """DELETE /v2/quotas/{project_id}"""
    if "pod" in call.query:
        return pod_limits.unset_limits(call, call.query["pod"])
    own = {
        record.resource
        for record in call.engine.administration.list_limits(call.elevated, call.project_id)
        if record.is_own
    }
    limits = dict.fromkeys(own.union(call.engine.resources))
    call.engine.administration.set_limits(call.context, limits, call.project_id, reason=call.query.get("reason"))
    return None


def get_all_defaults(call: Call) -> Json:
    """GET /v2/quota_defaults"""
    return _defaults(call, lambda: call.engine.list_defaults(call.elevated))


def _defaults(call: Call, read: Callable[[], Mapping[str, int]]) -> Json:
    try:
        limits = read()
    except exceptions.LimitsReadOnly:
        raise Refused(409, _DEFAULTS_UNKNOWN, "limits_read_only") from None
    return {"quota": {**dict.fromkeys(call.engine.resources, call.engine.limit_if_missing), **limits}}


def set_defaults(call: Call) -> Json:
    """PUT /v2/quota_defaults"""
    call.engine.administration.set_limits(call.elevated, call.body["quota"], reason=call.body.get("reason"))
    return get_all_defaults(call)
