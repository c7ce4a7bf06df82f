# SPDX-License-Identifier: Apache-2.0
"""Reserves that race with the beginning and the end of an override; processes, on every database."""

from __future__ import annotations

import bisect
import collections
import contextlib
import datetime
import functools
import itertools
import time
import unittest
from collections.abc import Callable, Sequence

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
Phase = tuple[int, int]
Attempt = tuple[str, Phase, bool]
"""The project, the phase, and whether it was admitted."""
BEFORE, WITHIN, AFTER = (0, 0), (1, 1), (2, 2)
"""The phases of an attempt: how many of the two boundaries are before its beginning, and how many before its end."""
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
        children = [f"child{number}" for number in range(PROCESSES)]
        self.import_tree({"parent": None, **dict.fromkeys(children, "parent")}, {"parent": 3}, gpu=0)
        now = self.database.read(overrides.now)
        self.start()

        def make_one(number: int) -> int:
            start, until = (now + datetime.timedelta(minutes=minutes) for minutes in (number, number + 60))
            with contextlib.suppress(exceptions.LimitRefused):
                return len(self.admin.set_overrides(base.ADMIN, {"gpu": 1}, children[number], until, start=start))
            return 0

        self.assertEqual(3, sum(race(*(functools.partial(make_one, number) for number in range(PROCESSES)))))


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
    for seconds in SPANS:
        raised, lowered = f"raised for {seconds}", f"lowered for {seconds}"
        start = database.read(overrides.now) + datetime.timedelta(seconds=WAIT)
        until = start + datetime.timedelta(seconds=seconds)
        for project_id, limit in ((raised, RAISED), (lowered, LOWERED)):
            engines[0].limits.set_limit(base.ADMIN, "gpu", LIMIT, project_id)
            engines[0].limits.set_overrides(base.ADMIN, {"gpu": limit}, project_id, until, start=start)
        replicate()
        for resource in (*engines, database):
            resource.close()  # the processes open connections of their own
        # (The servers and this process have the same clock.)
        span = [moment.replace(tzinfo=datetime.timezone.utc).timestamp() for moment in (start, until)]
        answers = race(*(functools.partial(reserve_around, engine, raised, lowered, span) for engine in engines))
        admitted: dict[tuple[str, Phase], list[bool]] = collections.defaultdict(list)
        for project_id, phase, is_admitted in itertools.chain(*answers):
            admitted[project_id, phase].append(is_admitted)
        if all(len(admitted[name, WITHIN]) >= ATTEMPTS for name in (raised, lowered)):
            break
    else:
        raise AssertionError(f"fewer than {ATTEMPTS} attempts within {SPANS[-1]} seconds")
    # Before: at most LIMIT. Within: every attempt, and so more than LIMIT. After: none.
    test.assertLessEqual(sum(admitted[raised, BEFORE]), LIMIT)
    test.assertEqual(({True}, {False}), (set(admitted[raised, WITHIN]), set(admitted[raised, AFTER])))
    # Within (nothing is reserved before): LOWERED at most, although LIMIT is more. Afterwards LIMIT in all.
    test.assertLessEqual(sum(admitted[lowered, WITHIN]), LOWERED)
    totals = [sum(sum(some) for (name, _), some in admitted.items() if name == one) for one in (raised, lowered)]
    test.assertEqual(LIMIT, totals[1])
    return raised, lowered, totals[0]


def reserve_around(engine: QuotaEngine, raised: str, lowered: str, span: Sequence[float]) -> list[Attempt]:
    """Reserve in turn in both projects, in ``lowered`` from the beginning of the span; LIMIT times after it."""
    attempts: list[Attempt] = []
    turns_after = 0
    while turns_after < LIMIT:
        turns_after += time.time() > span[1]
        for project_id in (raised, lowered):
            begun = bisect.bisect(span, time.time())
            if project_id == lowered and begun == 0:
                continue
            is_admitted = False
            with contextlib.suppress(exceptions.OverQuota):
                is_admitted = bool(engine.reserve(base.Context(project_id), {"gpu": 1}))
            attempts.append((project_id, (begun, bisect.bisect(span, time.time())), is_admitted))
        time.sleep(PAUSE_SECONDS)
    return attempts
