# SPDX-License-Identifier: Apache-2.0
"""Finds usage that has crossed a threshold of its limit, in either direction. Each crossing is reported by one host.

A periodic job reads all counters, so that a reserve needs no extra work, and so that a lowered limit is noticed
although no call changes a counter. Usage that crosses a threshold and returns between two runs is not reported.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

from cyborg_quota.db import path_state, usages
from cyborg_quota.db.database import Database
from cyborg_quota.ledger.limit_source import LimitDriver
from cyborg_quota.types import TOTAL, UNLIMITED, Notice

OVER: Final = 101
"""The level of usage above the limit. Thresholds are at most 100 percent."""


def level(held: float, limit: float, thresholds: Sequence[int], least_limit: int = 0) -> int:
    """The highest threshold (percent) that ``held`` has reached; 0 if none; OVER if it exceeds the limit.

    A limit below ``least_limit`` has no thresholds.
    """
    if limit == UNLIMITED or held <= 0:
        return 0
    if held > limit:
        return OVER
    if limit < least_limit:
        return 0
    return max((threshold for threshold in thresholds if held * 100 >= threshold * limit), default=0)


@dataclasses.dataclass(eq=False)
class ThresholdNotifier:
    """Finds threshold crossings that are not yet reported."""

    _database: Database
    _limits: LimitDriver
    _thresholds: Sequence[int]
    _least_limit: int

    def notices(self) -> list[Notice]:
        """The crossings since the last run on any host. Each is returned on one host only."""
        rows, (shared, states) = self._database.untimed.read(
            lambda connection: (usages.read_notified_levels(connection), path_state.read_states(connection))
        )
        limits = dict(self._limits.limits(states, {key.resource for key in rows}))
        limits |= {constraint.key: constraint.limit for constraint in self._limits.totals(shared)}
        notices = []
        for key, (counters, notified) in rows.items():
            project_id, resource, _ = key
            limit = limits.get(key, UNLIMITED)
            in_subtree = project_id == TOTAL or self._limits.bounds_subtree
            usage = counters.subtree if in_subtree else counters.used + counters.reserved
            current = level(usage, limit, self._thresholds, self._least_limit)
            change = functools.partial(usages.claim_notified_level, project_id=project_id, resource=resource)
            if current != notified and self._database.claim(change, notified, current):
                owner = None if project_id == TOTAL else project_id
                notices.append(Notice(owner, resource, limit, usage, notified, current))
        return notices
