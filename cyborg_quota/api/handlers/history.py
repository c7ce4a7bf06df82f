# SPDX-License-Identifier: Apache-2.0
"""The history of the limits of a project."""

from __future__ import annotations

import dataclasses
import datetime

from cyborg_quota.api.call import Call, Json, moment
from cyborg_quota.api.errors import Refused
from cyborg_quota.history_visibility import without_others
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
    return call.page("history", call.visible(entries), _change, lambda entry: entry.id)


def parse_time(name: str, text: str) -> datetime.datetime:
    """A time in RFC 3339 or ISO 8601; without an offset it is UTC. Raises Refused."""
    try:
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00") if text.endswith("Z") else text)
    except ValueError:
        raise Refused(400, f"{name} must be a time as in 2026-01-31T08:00:00Z.") from None


def _change(entry: HistoryEntry) -> Json:
    change = dataclasses.asdict(entry)
    for name in ("provider", "provider_uuid"):
        del change[name]
    change.update(at=moment(entry.at), start=moment(change.pop("starts_at")), until=moment(entry.until))
    return change
