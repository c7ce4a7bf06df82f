# SPDX-License-Identifier: Apache-2.0
"""Eight processes with clocks that differ charge the same rows: the meters are exact; on every database.

Each process logs its calls and their seconds. (A call has the second of its own process: no claim is changed by two.)
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota import QuotaEngine
from cyborg_quota.db import calendar
from tests import base, fixtures, on_sqlite
from tests.base import ADMIN
from tests.model.meters import MeteredClaim
from tests.race import naive
from tests.race.workers import PATIENT, once, race, race_beside
from tests.specifications import test_meter

PROCESSES: Final = 8
CALLS: Final = 4 * fixtures.MORE
SPREAD: Final = 60
"""The most seconds between two clocks at the beginning."""
TREE: Final[Mapping[str, str | None]] = {"root": None, "a": "root", "b": "root", "m": "a", "x": "m", "y": "m"}
"""``m`` moves from ``a`` to ``b`` and back."""
LEAVES: Final = ["m", "x", "y"]
MONTH_END: Final = calendar.second_of(73)


class Change(NamedTuple):
    """What a consumer holds from a second on. ``amount`` 0: nothing."""

    consumer: str
    project: str
    amount: int
    at: int


class MeterRaceTestCase(test_meter.MeterTestCase):
    def make_limited(self, **changes: Any) -> QuotaEngine:
        return super().make_limited(**{**PATIENT, **changes})

    def setUp(self) -> None:
        super().setUp()
        self.engine.limits.set_total_limits(ADMIN, {"gpu": 10**9})
        self.plant(TREE)
        self.meters.parents.update(TREE)
        self.meters.totals.add("gpu")
        self.claims: dict[str, MeteredClaim] = {}

    def log(self, changes: list[Change]) -> None:
        """Add the changes of one process to the model."""
        for consumer, project, amount, at in changes:
            if (before := self.claims.pop(consumer, None)) is not None:
                self.meters.end(before, at)
            if amount:
                self.claims[consumer] = MeteredClaim(project, "gpu", "", amount)
                self.meters.begin(self.claims[consumer], at)

    def hold(self, project_id: str, amount: int, consumer: str = "held") -> None:
        """Commit a claim at the present second."""
        self.engine.reserve(base.Context(project_id), {"gpu": amount}, consumer=consumer)
        self.engine.commit(base.Context(project_id), consumer=consumer)
        self.log([Change(consumer, project_id, amount, self.clock.second)])

    def find_violations(self, *without: str, late: int = 0) -> list[str]:
        self.assert_invariants()
        with self.sql.connect() as connection:
            return self.meters.find_violations(connection, self.clock.second, without, late)


class TestSkewedClocks(MeterRaceTestCase):
    spread = SPREAD
    steps = (0, 1, 7)
    """The seconds from one call of a process to the next."""

    def test_calls_moves_and_purges(self) -> None:
        self.race_from(MONTH_END - SPREAD)
        # Whether a claim was made before or after a move is not known: what was used at both places together is.
        # Whose call closed the month is not known, either: others may have been made by a clock that is behind.
        late = 9 * PROCESSES * CALLS * (SPREAD + 7 * CALLS)
        self.assertEqual([], self.find_violations("a", "b", late=late))
        end = self.meters.latest
        used = "SELECT SUM(metered + subtree * :t) FROM quota_usages WHERE project_id IN ('a', 'b')"
        self.assertEqual(self.meters.used(("m", "gpu", ""), end), int(self.fetch(used, t=end)[0][0]))

    def test_one_clock(self) -> None:
        """Nothing is late: the months are exact, and what moves, too."""
        self.spread, self.steps = 1, (0,)
        self.race_from(MONTH_END + 5)
        self.clock.second = MONTH_END + 5
        self.assertEqual([], self.find_violations())
        self.assertIn(72, [row.month for row in self.fetch("SELECT month FROM usage_months")])

    def race_from(self, begin: int) -> None:
        """Charge from this second on, with moves and purges. A claim is held before the month's end."""
        self.clock.second = MONTH_END - SPREAD
        self.hold("x", 3)
        self.assertEqual([], self.find_violations())
        self.engine.close()
        writers = [functools.partial(self.work, number, begin) for number in range(PROCESSES)]
        logs, *_ = race_beside(writers, functools.partial(self.move, begin), functools.partial(self.purge, begin))
        for changes in logs:
            self.log(changes)

    def work(self, number: int, begin: int) -> list[Change]:
        """Make calls, each at a second of its own."""
        rng, changes = random.Random(number), list[Change]()
        second = begin + rng.randrange(self.spread)
        for turn in range(CALLS):
            second += rng.choice(self.steps)
            self.clock.second = second
            project, amount = rng.choice(LEAVES), rng.randint(1, 9)
            if turn % 2:
                call = rng.choice(("release", "resize", "transfer"))
                change = self.change(call, changes[-1], project, amount)._replace(at=second)
            else:
                change = Change(f"c{number}-{turn}", project, amount, second)
                self.engine.reserve(base.Context(project), {"gpu": amount}, consumer=change.consumer)
            changes.append(change)
        return changes

    def change(self, call: str, before: Change, project: str, amount: int) -> Change:
        """Release, resize or transfer what a consumer holds. Returns what it holds then."""
        owner = base.Context(before.project)
        if call == "release":
            self.engine.release(owner, consumer=before.consumer)
            return before._replace(amount=0)
        if call == "resize":
            self.engine.resize(owner, {"gpu": amount}, consumer=before.consumer)
            return before._replace(amount=amount)
        if project != before.project:
            self.engine.transfer(ADMIN, project, before.project, consumer=before.consumer)
        return before._replace(project=project)

    def move(self, begin: int) -> None:
        for parent in ("b", "a"):
            self.clock.second = begin + random.randrange(self.spread)
            self.engine.limits.move_project(ADMIN, "m", parent)
            time.sleep(0.05)  # (on a busy machine, SQLite would let nothing else write)

    def purge(self, begin: int) -> None:
        self.clock.second = begin + random.randrange(self.spread)
        self.engine.purge(ADMIN, 0)

    @on_sqlite
    def test_naive_is_detected(self) -> None:
        """It reads C, and writes what it has computed from it; all processes read before any writes."""
        self.hold("x", 3)
        second, between = self.clock.second, once(PROCESSES)
        self.engine.close()
        sql = sa.create_engine(self.url, connect_args={"timeout": 60})
        claim = functools.partial(naive.change, sql, naive.METER, between, project="x")
        race(*(functools.partial(claim, second=second + number) for number in range(PROCESSES)))
        self.log([Change(f"c{number}", "x", 1, second + number) for number in range(PROCESSES)])
        with self.sql.connect() as connection:
            found = self.meters.find_violations(connection, second, ("m", "a", "root", " total"))
        self.assertIn("('x', 'gpu', '') has used", " ".join(found))


class TestMonthEnd(MeterRaceTestCase):
    def test_each_boundary_is_written_once(self) -> None:
        """All charge the same path for the first time after two months, at different seconds."""
        for project in LEAVES:
            self.hold(project, 5, f"held by {project}")
        self.assertEqual([], self.find_violations())
        months = (MONTH_END, calendar.end_of_month(MONTH_END))
        self.clock.second = months[1] - 1
        self.engine.close()
        logs = race(*(functools.partial(self.work, number, months[1]) for number in range(PROCESSES)))
        for changes in logs:
            self.log(changes)
        self.clock.second = months[1] + 100
        self.assertEqual([], self.find_violations())
        written = self.fetch("SELECT project_id, month, COUNT(*) FROM usage_months GROUP BY project_id, month")
        rows = {"root", "a", *LEAVES, " total"}
        self.assertEqual({(name, month, 1) for name in rows for month in (72, 73)}, set(map(tuple, written)))

    def work(self, number: int, begin: int) -> list[Change]:
        self.clock.second = second = begin + number * 7
        project = LEAVES[number % 3]
        if number < len(LEAVES):
            self.engine.release(base.Context(project), consumer=f"held by {project}")
            return [Change(f"held by {project}", project, 0, second)]
        self.engine.reserve(base.Context(project), {"gpu": 1}, consumer=f"c{number}")
        return [Change(f"c{number}", project, 1, second)]
