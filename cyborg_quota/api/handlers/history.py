# SPDX-License-Identifier: Apache-2.0
"""The history of the limits of a project."""

from __future__ import annotations

import datetime

from cyborg_quota.api.call import Call, Json, moment
from cyborg_quota.api.errors import Refused
from cyborg_quota.history_visibility import hide_pod, without_others
from cyborg_quota.types import HistoryEntry


def get_history(call: Call) -> Json:
    """GET /v2/quotas/{project_id}/history"""
    since = call.query.get("since")
    entries = call.engine.administration.history(
        call.elevated,
        call.project_id,
        since=None if since is None else parse_time("since", since),
        limit=call.limit + 1,
        marker=call.query.get("marker"),
    )
    if not call.is_admin:
        entries = [without_others(entry) for entry in entries]
    if not call.sees_pods:
        entries = [hide_pod(entry) for entry in entries]
    return call.page("history", entries, _change, lambda entry: entry.id)


def parse_time(name: str, text: str) -> datetime.datetime:
    """A time in RFC 3339 or ISO 8601; without an offset it is UTC. Raises Refused."""
    try:
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00") if text.endswith("Z") else text)
    except ValueError:
        raise Refused(400, f"{name} must be a time as in 2026-01-31T08:00:00Z.") from None


def _change(entry: HistoryEntry) -> Json:
    return {
        "id": entry.id,
        "at": moment(entry.at),
        "action": entry.action,
        "operation": entry.operation,
        "project_id": entry.project_id,
        "resource": entry.resource,
        "pod": entry.pod,
        "before": entry.before,
        "after": entry.after,
        "override_id": entry.override_id,
        "start": moment(entry.starts_at),
        "until": moment(entry.until),
        "reason": entry.reason,
        "user_id": entry.user_id,
        "user_project_id": entry.user_project_id,
        "request_id": entry.request_id,
    }
