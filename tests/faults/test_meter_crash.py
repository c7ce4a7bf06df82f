# SPDX-License-Identifier: Apache-2.0
"""A process is killed in and after each transaction of a call that changes meters, also of one that closes months.

The meters then have the call wholly or not at all, and the repeated call completes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Final

import testscenarios

from cyborg_quota import QuotaEngine
from cyborg_quota.db import clock
from tests import base, hooks
from tests.base import ADMIN
from tests.faults import kill_points
from tests.model.meters import MeteredClaim, Meters
from tests.race.test_meter_races import MeterRaceTestCase

load_tests = testscenarios.load_tests_apply_scenarios

SECOND: Final = clock.second_of(75) + 7
"""The time of the calls, two months after the claims were made."""
TABLES: Final = [
    "projects", "quota_usages", "usage_months", "reservations", "reservation_changes", "project_limits", "fences",
    "changes",
]  # fmt: skip


class TestCrash(MeterRaceTestCase, kill_points.KillTestCase):
    """``x`` and ``y`` hold a claim each, two months ago; ``y`` had another one, and that of ``m`` is overdue."""

    def setUp(self) -> None:
        super().setUp()
        self.clock.second = clock.second_of(73) - 5
        self.hold("x", 3, "of x")
        self.hold("y", 4, "of y")
        self.hold("y", 2, "ended")
        self.engine.reserve(base.Context("m"), {"gpu": 6}, 60, consumer="of m")
        self.claims["of m"] = MeteredClaim("m", "gpu", "", 6)
        self.meters.begin(self.claims["of m"], self.clock.second)
        self.assertEqual([], self.find_violations())
        self.clock.second += 100
        self.engine.release(base.Context("y"), consumer="ended")
        self.meters.end(self.claims.pop("ended"), self.clock.second)
        self.clock.second = SECOND
        self.saved = hooks.SavedRows(self.sql, TABLES)

    def engine_of_process(self) -> QuotaEngine:
        return self.make_limited()

    def crash_everywhere(
        self, call: Callable[[QuotaEngine], object], change: Callable[[Meters, dict[str, MeteredClaim]], object]
    ) -> None:
        """``change``: the same call on the model."""
        before, after = (copy.deepcopy((self.meters, self.claims)) for _ in range(2))
        change(*after)
        for kill in self.kills(self.saved.put_back, call):
            self.assert_invariants()
            meters = [after[0], before[0]] if kill.has_effect else [before[0]]
            self.assertIn([], [self.differences(one) for one in meters], kill)
            engine = self.make_limited()
            call(engine)
            engine.close()
            self.assertEqual([], self.differences(after[0]), kill)
            self.assert_invariants()

    def differences(self, meters: Meters) -> list[str]:
        with self.sql.connect() as connection:
            return copy.deepcopy(meters).find_violations(connection, SECOND)

    def test_every_call(self) -> None:
        """On each database, several statements close the months. (The control is that of test_capacity_crash.py.)"""
        x = base.Context("x")
        self.crash_everywhere(
            lambda engine: engine.reserve(x, {"gpu": 5}, consumer="new"),
            lambda meters, _: meters.begin(MeteredClaim("x", "gpu", "", 5), SECOND),
        )
        self.crash_everywhere(
            lambda engine: engine.release(x, consumer="of x"),
            lambda meters, claims: meters.end(claims["of x"], SECOND),
        )
        self.crash_everywhere(
            lambda engine: engine.resize(x, {"gpu": 9}, consumer="of x"),
            lambda meters, claims: amend(meters, claims["of x"], amount=9),
        )
        self.crash_everywhere(
            lambda engine: engine.transfer(ADMIN, "y", "x", consumer="of x"),
            lambda meters, claims: amend(meters, claims["of x"], project="y"),
        )
        self.crash_everywhere(
            lambda engine: engine.expire(ADMIN), lambda meters, claims: meters.end(claims["of m"], SECOND)
        )
        self.crash_everywhere(lambda engine: engine.limits.move_project(ADMIN, "m", "b"), move)
        self.crash_everywhere(lambda engine: engine.purge(ADMIN, 0), lambda *_: None)


def amend(meters: Meters, claim: MeteredClaim, *, amount: int = 3, project: str = "x") -> None:
    meters.end(claim, SECOND)
    claim.amount, claim.project = amount, project
    meters.begin(claim, SECOND)


def move(meters: Meters, claims: dict[str, MeteredClaim]) -> None:
    meters.parents["m"] = "b"
    for claim in claims.values():
        meters.place(claim, SECOND)
