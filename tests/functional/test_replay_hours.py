# SPDX-License-Identifier: Apache-2.0
"""A trace is replayed at its own times under a budget: the report equals the sum of the trace, to the second.

CYBORG_QUOTA_TEST_TRACE=FILE python -m stestr run test_replay_hours         replays this trace (see cyborg-quota replay)
"""

from __future__ import annotations

import datetime
import os
import pathlib
from collections import Counter
from collections.abc import Iterator

import fixtures as fx

from benchmarks import trace as generated
from cyborg_quota.replay.replay import Replay
from cyborg_quota.replay.tables import Position
from cyborg_quota.replay.traces import Event, Trace
from tests import base, fixtures, held_clock

ADMIN = base.ADMIN
BEGIN = datetime.datetime(2026, 10, 20)
HOUR = 3600


def month_at(seconds: int) -> datetime.date:
    """The first day of the month that is so many seconds after BEGIN."""
    return (BEGIN + datetime.timedelta(seconds=seconds)).date().replace(day=1)


class Model:
    """What each project uses of gpu in each month, second by second of the trace, and what a budget of all refuses."""

    def __init__(self, budget_hours: float) -> None:
        self.budget_seconds = budget_hours * HOUR
        self.now = 0
        self.held: dict[tuple[str, str], int] = {}
        self.used: Counter[tuple[str, datetime.date]] = Counter()
        self.refused: set[int] = set()

    def spent(self) -> int:
        """The device-seconds of the present month."""
        return sum(seconds for (_, month), seconds in self.used.items() if month == month_at(self.now))

    def advance(self, now: int) -> None:
        while self.now < now:
            month = month_at(self.now)
            after = (month + datetime.timedelta(days=31)).replace(day=1)
            end = min(now, int((datetime.datetime.combine(after, datetime.time()) - BEGIN).total_seconds()))
            for (_, project_id), amount in self.held.items():
                self.used[project_id, month] += amount * (end - self.now)
            self.now = end

    def apply(self, event: Event) -> None:
        self.advance(int(event.time))
        key = event.consumer, event.project_id
        if event.kind == "reserve":
            held = sum(self.held.values()) + event.amount
            if self.spent() + held * HOUR > self.budget_seconds:
                self.refused.add(event.line)
                return
            self.held[key] = event.amount
        elif event.kind != "commit":
            self.held.pop(key, None)


class TestReplay(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE
    settings = {"expire_seconds": 30 * 86400}

    def setUp(self) -> None:
        super().setUp()
        self.clock = self.useFixture(held_clock.HeldClock(self.url, BEGIN))
        given = os.environ.get("CYBORG_QUOTA_TEST_TRACE")
        path = pathlib.Path(given or f"{self.useFixture(fx.TempDir()).path}/trace.csv")
        if not given:
            generated.generate(path, instances=300)
        self.trace, read = Trace(str(path)), Trace.__iter__

        def read_in_time(trace: Trace) -> Iterator[Event]:
            """Set the clock to the time of each event, before it is replayed."""
            for event in read(trace):
                self.clock.now = BEGIN + datetime.timedelta(seconds=int(event.time))
                yield event

        self.patch(Trace, "__iter__", read_in_time)
        self.events = list(self.trace)
        self.plant({"all": None, **{event.project_id: "all" for event in self.events}})

    def model(self, budget_hours: float) -> Model:
        model = Model(budget_hours)
        for event in self.events:
            model.apply(event)
        return model

    def test_half_is_refused(self) -> None:
        """The budget of all projects together is half of what the trace uses in a month."""
        ample = self.model(float("inf"))
        most = max(sum(seconds for (_, one), seconds in ample.used.items() if one == month) for _, month in ample.used)
        hours = most // HOUR // 2
        model = self.model(hours)
        self.assertTrue(0 < len(model.refused) < len(self.events) / 3, len(model.refused))
        self.engine.hours.set_budget(ADMIN, {"gpu": hours}, "all")
        position = Position(fixtures.open_database(self, self.url), self.trace.digest, {})
        session = Replay(self.engine, ADMIN, self.trace, position)
        session.run()
        self.assertEqual(model.refused, session.refused)
        self.assert_invariants()
        report = self.engine.hours.report(ADMIN, BEGIN.date(), month_at(model.now), "all", tree=True)
        found = {(one.project_id, one.month): one.device_seconds for one in report}
        expected = Counter(model.used)
        for (_, month), seconds in model.used.items():
            expected["all", month] += seconds
        self.assertEqual(+expected, found)
        self.assertGreater(len({month for _, month in found}), 1, "a month ends within the trace")
        (record,) = self.engine.hours.show_budget(ADMIN, "all")
        self.assertEqual(model.spent() / HOUR, record.use.spent)
