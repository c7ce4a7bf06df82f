# SPDX-License-Identifier: Apache-2.0
"""Reserves that race with the beginning and the end of an override; processes, on every database."""

from __future__ import annotations

import datetime
import functools
import time
import unittest
from typing import Any

import testscenarios

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.db import overrides
from cyborg_quota.db.database import Database
from cyborg_quota.limits.models.flat import Flat
from tests import base
from tests.race import test_limit_races
from tests.race.workers import race

load_tests = testscenarios.load_tests_apply_scenarios

LIMIT, RAISED = 5, 1000
"""The second one is never reached, so that only the end of the override stops the reserves."""
START, END, STOP = 1.0, 2.0, 2.6
"""Seconds from the beginning of the race: the override, and the end of the race."""
WAIT = 1.5
"""Seconds before that."""


class TestBeginAndEnd(test_limit_races.LimitRaceTestCase):
    policy = Flat

    def test_one_of_the_two_limits_always_applies(self) -> None:
        """Each process reserves and releases; what is held never exceeds the limit of the moment of the look-up."""
        self.set("p", LIMIT)
        now = self.database.read(overrides.now)
        span = [now + datetime.timedelta(seconds=WAIT + seconds) for seconds in (START, END)]
        self.admin.set_overrides(base.ADMIN, {"gpu": RAISED}, "p", span[1], start=span[0])
        self.start()
        zero, margin = beginning(self.database, now)
        self.database.close()
        answers = race(*[functools.partial(hold_as_much_as_fits, self.engine, zero)] * 6)
        entries = [entry for answer in answers for entry in answer]
        admitted = assert_one_limit_applied(self, entries, margin)
        self.assertEqual(LIMIT - admitted, self.admin.tree(base.ADMIN)[0].available)
        self.assert_invariants()

    def test_two_overrides_made_at_once(self) -> None:
        """Whichever is made last applies, and the history says which."""
        self.set("p", 1)
        until = self.time_in_an_hour()
        for _ in range(5):
            self.start()
            race(*(functools.partial(self.make, limit, until) for limit in (3, 4, 5, 6)))
            listed = self.admin.list_overrides(base.ADMIN)[0]
            entry = self.admin.limit_history(base.ADMIN, "p", limit=1)[0]
            self.assertEqual((listed[-1].id, listed[-1].limit), (entry.override_id, entry.after))
            self.assertEqual(entry.after, self.engine.get_usages(base.ADMIN, "p")["gpu"].limit)
        self.assertEqual([], self.admin.verify_limit_history(base.ADMIN))

    def make(self, limit: int, until: datetime.datetime) -> None:
        self.admin.set_overrides(base.ADMIN, {"gpu": limit}, "p", until)

    def time_in_an_hour(self) -> datetime.datetime:
        return self.database.read(overrides.now) + datetime.timedelta(hours=1)


class TestSiblings(test_limit_races.LimitRaceTestCase):
    def test_overrides_of_siblings_made_at_once_stay_within_the_parent(self) -> None:
        """Eight administrators each make an override of another child, for spans that overlap; three fit."""
        self.set(None, 0)
        children = [f"child{number}" for number in range(8)]
        self.make_tree({"parent": None, **dict.fromkeys(children, "parent")})
        self.set("parent", 3)
        now = self.database.read(overrides.now)
        self.start()
        admitted = race(
            *(
                functools.partial(make_one, self.engine, child, now + datetime.timedelta(minutes=number))
                for number, child in enumerate(children)
            )
        )
        self.assertEqual(3, sum(admitted))


def make_one(engine: QuotaEngine, child: str, start: datetime.datetime) -> bool:
    until = start + datetime.timedelta(hours=1)
    try:
        engine.administration.set_overrides(base.ADMIN, {"gpu": 1}, child, until, start=start)
    except exceptions.LimitRefused:
        return False
    return True


def beginning(database: Database, now: datetime.datetime) -> tuple[float, float]:
    """The monotonic time WAIT seconds after ``now`` of the database, and by how much it can be later than that."""
    before = time.monotonic()
    passed = (database.read(overrides.now) - now).total_seconds()
    return before + WAIT - passed, time.monotonic() - before


def assert_one_limit_applied(test: unittest.TestCase, entries: list[tuple[float, float, Any]], margin: float) -> int:
    """Check the entries of hold_as_much_as_fits. ``margin``: see beginning. Returns how many were admitted."""
    admitted = [entry for entry in entries if entry[2]]
    # (A busy machine may admit fewer than a limit allows before the next one applies, but never more.)
    test.assertLessEqual(sum(end < START for _, end, _ in admitted), LIMIT)
    test.assertGreaterEqual(len(admitted), LIMIT)
    test.assertLess(len(admitted), RAISED)
    before_end = sum(start <= END + margin for start, *_ in admitted)
    test.assertLessEqual(len(admitted), max(LIMIT, before_end))
    test.assertLess(len(admitted), len(entries))
    return len(admitted)


def hold_as_much_as_fits(engine: QuotaEngine, zero: float) -> list[tuple[float, float, Any]]:
    """Reserve one at a time until the race ends. Returns start, end (seconds since ``zero``) and whether admitted."""
    entries = []
    while (start := time.monotonic() - zero) < STOP:
        try:
            engine.reserve(base.Context("p"), {"gpu": 1})
            is_admitted = True
        except exceptions.OverQuota:
            is_admitted = False
        entries.append((start, time.monotonic() - zero, is_admitted))
        time.sleep(0.01)
    return entries
