# SPDX-License-Identifier: Apache-2.0
"""The engine compared with plain numbers in random histories whose amounts reach the width of the counters.

The numbers are those of tests/unit/test_negative_deltas.py, which are checked there against counters without a maximum.
"""

from __future__ import annotations

import random

import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.types import MAX_AMOUNT
from tests import base
from tests.unit.test_negative_deltas import Ledger

load_tests = testscenarios.load_tests_apply_scenarios

AMOUNTS = (MAX_AMOUNT, MAX_AMOUNT - 4, 2**30, 5, -MAX_AMOUNT, -MAX_AMOUNT, -(2**30), -3)
KINDS = ("commit", "commit", "commit", "reserve", "release", "release", "settle", "purge")
HISTORIES = {"sqlite": 6, "mariadb": 2, "postgresql": 2}
STEPS = 18


class TestWidth(base.LedgerTestCase):
    def test_histories(self) -> None:
        """Histories with fixed seeds. At the start of each, more is held than the counters can show."""
        exceeded = 0
        histories = HISTORIES[self.backend]
        for seed in range(histories):
            self.context = base.Context(f"p{seed}")
            self.numbers = Ledger(MAX_AMOUNT)
            self.names: dict[str, tuple[str, int]] = {}
            rng = random.Random(seed)
            self.exceed()
            for turn in range(STEPS):
                self.step(rng, str(turn))
                self.assert_equal()
                exceeded += self.numbers.used < sum(row.delta for row in self.numbers.rows.values())
            while self.names:
                self.end(rng.choice(sorted(self.names)))
                self.assert_equal()
            self.assertEqual((0, 0), self.figures(str(self.context.project_id)))
        self.assertGreater(exceeded, histories)

    def exceed(self) -> None:
        for name, delta in (("first", MAX_AMOUNT), ("mistake", -MAX_AMOUNT), ("second", MAX_AMOUNT - 4)):
            self.begin(name, delta, is_flying=False)
        self.end("mistake")
        self.assert_equal()

    def step(self, rng: random.Random, name: str) -> None:
        kind, delta = rng.choice(KINDS), rng.choice(AMOUNTS)
        if kind in ("release", "settle"):
            wanted = "held" if kind == "release" else "flying"
            if names := [one for one, (state, _) in sorted(self.names.items()) if state == wanted]:
                self.end(rng.choice(names))
        elif kind == "purge":
            self.quotas.purge(base.ADMIN, 0)
        else:
            self.begin(name, delta if kind == "commit" else abs(delta), is_flying=kind == "reserve")

    def begin(self, name: str, delta: int, *, is_flying: bool) -> None:
        if not self.numbers.fits(delta):
            self.assertRaises(
                exceptions.UsageOverflow, self.quotas.reserve, self.context, {"gpu": delta}, consumer=name
            )
            return
        self.quotas.reserve(self.context, {"gpu": delta}, consumer=name)
        if is_flying:
            self.names[name] = "flying", self.numbers.reserve(delta)
        else:
            self.quotas.commit(self.context, consumer=name)
            self.names[name] = "held", self.numbers.commit(delta)

    def end(self, name: str) -> None:
        state, number = self.names.pop(name)
        if state == "flying":
            self.quotas.rollback(self.context, consumer=name)
            self.numbers.rollback(number)
        else:
            self.quotas.release(self.context, consumer=name)
            self.numbers.release(number)

    def assert_equal(self) -> None:
        expected = (self.numbers.used, self.numbers.reserved)
        self.assertEqual(expected, self.figures(str(self.context.project_id)))
