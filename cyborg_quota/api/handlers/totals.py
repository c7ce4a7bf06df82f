# SPDX-License-Identifier: Apache-2.0
"""The total limits over all projects."""

from __future__ import annotations

from cyborg_quota.api.call import Call, Json
from cyborg_quota.api.handlers.quotas import nonzero, refuse_below_usage, with_warnings


def get_totals(call: Call) -> Json:
    """GET /v2/quota_totals: none if another service or a file stores the limits."""
    after = call.marker or ""
    totals = [total for total in call.engine.limits.list_total_limits(call.elevated) if total.resource > after]
    totals.sort(key=lambda total: total.resource)
    page = call.page(
        "quota",
        totals,
        lambda total: {total.resource: {"limit": total.limit, "held": total.held, **nonzero(total, "promised")}},
        lambda total: total.resource,
    )
    return {**page, "quota": {name: total for quota in page["quota"] for name, total in quota.items()}}


def set_totals(call: Call) -> Json:
    """PUT /v2/quota_totals"""
    limits = call.body["quota"]
    if not call.body.get("force", False):
        # This reads the counters of all projects once; a new limit reads and changes them anyway.
        sums = call.engine.limits.count_total_limits_held(call.elevated, limits)
        refuse_below_usage(
            limits, {name: (amount, f"{amount} in use and reserved by all projects") for name, amount in sums.items()}
        )
    given = {"reason": call.body.get("reason"), "force": call.body.get("force", False)}
    call.engine.limits.set_total_limits(call.elevated, limits, **given)
    return with_warnings(call, get_totals(call), limits)


def unset_total(call: Call) -> None:
    """DELETE /v2/quota_totals/{resource}"""
    call.engine.limits.unset_total_limits(call.elevated, [call.path["resource"]], reason=call.query.get("reason"))
