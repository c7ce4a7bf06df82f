# SPDX-License-Identifier: Apache-2.0
"""Who has come near a limit, passed it, or come back: told once per crossing, by whichever host sees it first.

A periodic look, outside of every charge: a reserve does no more for it, and a limit that was lowered, which no
request tells of, is seen like anything else. A crossing back and forth between two looks is not told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cyborg_quota.db import notified_levels
from cyborg_quota.db.database import Database
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.types import UNLIMITED, Counters, Notice

OVER: Final = 101
"""The level of more than the limit, as a percentage that no threshold can be."""


def level(held: int, limit: int, thresholds: Sequence[int]) -> int:
    """The highest threshold (percent) that ``held`` has reached; 0 for none, OVER for more than the limit."""
    if limit == UNLIMITED or held <= 0:
        return 0
    if held > limit:
        return OVER
    return max((one for one in thresholds if held * 100 >= one * limit), default=0)


class ThresholdNotifier:
    """Finds crossings."""

    def __init__(self, database: Database, untimed: Database, limits: LimitDriver, thresholds: Sequence[int]) -> None:
        """``patient`` is the same database without a time-out, for the look at everything."""
        self._database = database
        self._untimed = untimed
        self._limits = limits
        self._thresholds = sorted(thresholds)

    def notices(self) -> list[Notice]:
        """The crossings since the last look, anybody's; each is returned by one host alone."""
        rows = self._untimed.read(notified_levels.read)
        limits = self._limits.get_limits({key[0] for key in rows}, {key[1] for key in rows})
        found = []
        for (project_id, resource), (figures, told) in rows.items():
            limit = limits.get((project_id, resource), UNLIMITED)
            held = self._held(figures)
            now = level(held, limit, self._thresholds)
            if now != told and self._claim(project_id, resource, told, now):
                found.append(Notice(project_id, resource, limit, held, told, now))
        return found

    def _held(self, figures: Counters) -> int:
        return figures.subtree if self._limits.bounds_subtree else figures.used + figures.reserved

    def _claim(self, project_id: str, resource: str, before: int, now: int) -> bool:
        return self._database.write(
            lambda connection: notified_levels.claim(connection, project_id, resource, before, now)
        )
