# SPDX-License-Identifier: Apache-2.0
"""Removes from an entry of the history what its reader may not see. Pure."""

from __future__ import annotations

import dataclasses

from cyborg_quota.types import HistoryEntry


def without_others(entry: HistoryEntry) -> HistoryEntry:
    """The entry without what the users of its project may not see: the author and other projects (I8)."""
    entry = dataclasses.replace(entry, user_id=None, user_project_id=None, request_id=None)
    return entry if entry.resource is not None else dataclasses.replace(entry, before=None, after=None)
