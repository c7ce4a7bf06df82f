# SPDX-License-Identifier: Apache-2.0
"""Reserves that race with the beginning and the end of an override; processes, on every database."""

from __future__ import annotations

import contextlib
import datetime
import functools
import time
import unittest
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.db import overrides
from cyborg_quota.db.database import Database
from tests import base, history_replay
from tests.race import test_limit_races
from tests.race.workers import PROCESSES, race

LIMIT, LOWERED, RAISED = 5, 2, 10**6
"""The limit of each project, and what an override lowers and raises it to. RAISED is never reached."""
WAIT = 2.0
"""Seconds between the making of the overrides and their beginning."""
SPANS = (1.0, 4.0, 16.0)
"""Seconds from the beginning to the end. A longer one follows if a busy machine made too few attempts in the first."""
PAUSE_SECONDS = 0.04
ATTEMPTS = LIMIT + 1
"""The least number of attempts within the span: one more than the limit without the override."""


class TestOverrides(test_limit_races.LimitRaceTestCase):
    def test_one_of_the_two_limits_always_applies(self) -> None:
        """What is held never exceeds the limit of the moment of the look-up, and reaches it."""
        raised, lowered, admitted = race_with_overrides(self, [self.engine] * 6, self.database)
        available = {row.project_id: row.available for row in self.admin.tree(base.ADMIN)}
        self.assertEqual((LIMIT - admitted, 0), (available[raised], available[lowered]))
        self.assert_invariants()

    def test_two_overrides_made_at_once(self) -> None:
        """Whichever is made last applies, and the history says which."""
        self.set("p", 1)
        until = self.database.read(overrides.now) + datetime.timedelta(hours=1)
        make = self.admin.set_overrides
        for _ in range(3):
            self.start()
            race(*(functools.partial(make, base.ADMIN, {"gpu": limit}, "p", until) for limit in (3, 4, 5, 6)))
            listed = self.admin.list_overrides(base.ADMIN)[0]
            entry = self.admin.history(base.ADMIN, "p", limit=1)[0]
            self.assertEqual((listed[-1].id, listed[-1].limit), (entry.override_id, entry.after))
            self.assertEqual(entry.after, self.engine.get_usages(base.ADMIN, "p")["gpu"].limit)
        self.assertEqual([], history_replay.differences(self.engine))

    def test_overrides_of_siblings_made_at_once_stay_within_the_parent(self) -> None:
        """Administrators make an override of another child, for spans that overlap; three fit."""
        self.set(None, 0)
        children = [f"child{number}" for number in range(PROCESSES)]
        self.make_tree({"parent": None, **dict.fromkeys(children, "parent")})
        self.set("parent", 3)
        now = self.database.read(overrides.now)
        self.start()

        def make_one(number: int) -> int:
            start, until = (now + datetime.timedelta(minutes=minutes) for minutes in (number, number + 60))
            with contextlib.suppress(exceptions.LimitRefused):
                return len(self.admin.set_overrides(base.ADMIN, {"gpu": 1}, children[number], until, start=start))
            return 0

        self.assertEqual(3, sum(race(*(functools.partial(make_one, number) for number in range(PROCESSES)))))


class Attempt(NamedTuple):
    """A reserve of 1. ``start`` and ``end`` are seconds since the beginning of the overrides."""

    project_id: str
    start: float
    end: float
    is_admitted: bool


class Span(NamedTuple):
    """Both overrides begin between ``begin`` and ``begin + margin`` (monotonic clock), and last ``seconds``.

    An attempt that starts later than ``margin`` and ends before ``seconds`` is within the span.
    """

    begin: float
    margin: float
    seconds: float


def race_with_overrides(
    test: unittest.TestCase,
    engines: Sequence[QuotaEngine],
    database: Database,
    replicate: Callable[[], object] = lambda: None,
) -> tuple[str, str, int]:
    """Each engine, in a process of its own, reserves before, in and after two overrides.

    Returns the project whose limit was raised, the one whose limit was lowered, and how many were admitted in the first
    one. ``replicate`` is called when the overrides are made.
    """
    for number, seconds in enumerate(SPANS):
        raised, lowered = f"raised{number}", f"lowered{number}"
        now = database.read(overrides.now)
        start = now + datetime.timedelta(seconds=WAIT)
        for project_id, limit in ((raised, RAISED), (lowered, LOWERED)):
            administration = engines[0].limits
            administration.set_limit(base.ADMIN, "gpu", LIMIT, project_id)
            until = start + datetime.timedelta(seconds=seconds)
            administration.set_overrides(base.ADMIN, {"gpu": limit}, project_id, until, start=start)
        replicate()
        before = time.monotonic()
        passed = (database.read(overrides.now) - now).total_seconds()
        span = Span(before + WAIT - passed, time.monotonic() - before, seconds)
        for resource in (*engines, database):
            resource.close()  # the processes open connections of their own
        answers = race(*(functools.partial(reserve_around, engine, raised, lowered, span) for engine in engines))
        attempts = [attempt for answer in answers for attempt in answer]
        within = [one for one in attempts if one.start > span.margin and one.end < seconds]
        if all(sum(one.project_id == name for one in within) >= ATTEMPTS for name in (raised, lowered)):
            break
    else:
        raise AssertionError(f"fewer than {ATTEMPTS} attempts within {SPANS[-1]} seconds")

    def admitted(some: Iterable[Attempt], project_id: str) -> list[bool]:
        return [one.is_admitted for one in some if one.project_id == project_id]

    # Before: at most LIMIT. Within: every attempt, and so more than LIMIT. After: none.
    test.assertLessEqual(sum(admitted((one for one in attempts if one.end < 0), raised)), LIMIT)
    test.assertEqual({True}, set(admitted(within, raised)))
    after = [one for one in attempts if one.start > seconds + span.margin]
    test.assertEqual({False}, set(admitted(after, raised)))
    # Within (nothing is reserved before): LOWERED at most, although LIMIT is more. Afterwards LIMIT in all.
    test.assertLessEqual(sum(admitted(within, lowered)), LOWERED)
    test.assertEqual(LIMIT, sum(admitted(attempts, lowered)))
    return raised, lowered, sum(admitted(attempts, raised))


def reserve_around(engine: QuotaEngine, raised: str, lowered: str, span: Span) -> list[Attempt]:
    """Reserve in turn in both projects, in ``lowered`` from the beginning of the span; LIMIT times after it."""
    attempts: list[Attempt] = []
    turns_after = 0
    while turns_after < LIMIT:
        turns_after += time.monotonic() - span.begin > span.seconds + span.margin
        for project_id in (raised, lowered):
            start = time.monotonic() - span.begin
            if project_id == lowered and start <= span.margin:
                continue
            is_admitted = False
            with contextlib.suppress(exceptions.OverQuota):
                is_admitted = bool(engine.reserve(base.Context(project_id), {"gpu": 1}))
            attempts.append(Attempt(project_id, start, time.monotonic() - span.begin, is_admitted))
        time.sleep(PAUSE_SECONDS)
    return attempts
