# SPDX-License-Identifier: Apache-2.0
"""The history of the limits of a project."""

from __future__ import annotations

import datetime

from cyborg_quota.api.call import Call, Json, render
from cyborg_quota.api.errors import Refused
from cyborg_quota.types.limits import without_others


def get_history(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/history"""
    since = call.query.get("since")
    entries = call.engine.limits.history(
        call.elevated,
        call.project_id,
        since=None if since is None else parse_time("since", since),
        limit=call.limit + 1,
        marker=call.query.get("marker"),
        oldest_first=call.query.get("sort_dir") == "asc",
    )
    if not call.is_admin:
        entries = [without_others(entry) for entry in entries]
    return call.page("history", call.visible(entries), lambda entry: render("Change", entry), lambda entry: entry.id)


def parse_time(name: str, text: str) -> datetime.datetime:
    """A time in RFC 3339 or ISO 8601; without an offset it is UTC. Raises Refused."""
    try:
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00") if text.endswith("Z") else text)
    except ValueError:
        raise Refused(400, f"{name} must be a time as in 2026-01-31T08:00:00Z.") from None
