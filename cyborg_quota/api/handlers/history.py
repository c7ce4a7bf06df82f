# SPDX-License-Identifier: Apache-2.0
"""The history of the limits of a project."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.api.errors import Refused
from cyborg_quota.policy import SEE_PODS, without_pods
from cyborg_quota.surface import arguments
from cyborg_quota.types.limits import without_others


def get_history(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/history"""
    entries = call.engine.limits.history(
        call.elevated,
        call.project_id,
        since=parse_time("since", call.query),
        limit=call.limit + 1,
        marker=call.query.get("marker"),
        oldest_first=call.query.get("sort_dir") == "asc",
    )
    if not call.is_admin:
        entries = [without_others(entry) for entry in entries]
    if not call.policy.permits(SEE_PODS, call.context, call.project_id, call.parent_id):
        entries = without_pods(entries)
    return call.page("history", entries, lambda entry: render("Change", entry), lambda entry: entry.id)


def parse_time(name: str, given: Mapping[str, Any]) -> Any:
    """The value of this name, a time in RFC 3339 or ISO 8601 (without an offset: UTC); None without it.

    Raises Refused.
    """
    try:
        return arguments.moment(given[name]) if name in given else None
    except argparse.ArgumentTypeError:
        raise Refused(400, f"{name} must be a time as in 2026-01-31T08:00:00Z.") from None
