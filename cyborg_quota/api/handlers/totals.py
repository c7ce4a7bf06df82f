# SPDX-License-Identifier: Apache-2.0
"""The total limits over all projects."""

from __future__ import annotations

from cyborg_quota.api.call import Call, Json
from cyborg_quota.api.errors import Refused
from cyborg_quota.api.handlers.quotas import with_warnings
from cyborg_quota.types import TotalLimit


def get_totals(call: Call) -> Json:
    """GET /v2/quota_totals: none if another service or a file stores the limits."""
    after = call.marker or ""
    totals = [one for one in call.engine.limits.list_total_limits(call.elevated) if one.resource > after]
    totals.sort(key=lambda one: one.resource)
    page = call.page("quota", totals, _total, lambda one: one.resource)
    return {**page, "quota": {name: total for one in page["quota"] for name, total in one.items()}}


def _total(one: TotalLimit) -> Json:
    return {one.resource: {"limit": one.limit, "held": one.held}}


def set_totals(call: Call) -> Json:
    """PUT /v2/quota_totals"""
    limits = call.body["quota"]
    if not call.body.get("force", False):
        _refuse_below_usage(call, limits)
    call.engine.limits.set_total_limits(call.elevated, limits, reason=call.body.get("reason"))
    return with_warnings(call, get_totals(call), call.body["quota"])


def _refuse_below_usage(call: Call, limits: dict[str, int]) -> None:
    """Raise Refused (409) for a limit below what all projects hold now; other calls may change that, as in PUT quotas.

    The call reads the counters of all projects once; a new limit reads and changes them anyway.
    """
    held = call.engine.limits.count_total_limits_held(call.elevated, limits)
    problems = [
        f"{resource}: {limit} is less than {held[resource]} in use and reserved by all projects"
        for resource, limit in sorted(limits.items())
        if limit < held[resource]
    ]
    if problems:
        raise Refused(
            409, f"{'; '.join(problems)}. Nothing was changed. Use force to set the limit.", "limit_below_usage"
        )


def unset_total(call: Call) -> None:
    """DELETE /v2/quota_totals/{resource}"""
    call.engine.limits.unset_total_limits(call.elevated, [call.path["resource"]], reason=call.query.get("reason"))
