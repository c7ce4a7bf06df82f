# SPDX-License-Identifier: Apache-2.0
"""The histories of the model, while the database fails at random between any two steps: no caller may notice.

CYBORG_QUOTA_TEST_SEED gives other histories and faults, or repeats those of a run; a failure prints the seed.
CYBORG_QUOTA_TEST_EXAMPLES_TIMES multiplies the number of histories. The soak makes others for minutes.
"""

from __future__ import annotations

import collections
import os
import random
from typing import Any
from unittest import mock

import hypothesis
import testscenarios
from hypothesis import stateful
from hypothesis import strategies as st

from cyborg_quota.db import connect
from cyborg_quota.ledger.limit_source import LimitDriver
from tests import base, fixtures, on_sqlite
from tests.faults import injecting
from tests.faults.injecting import Injected
from tests.model import test_model

load_tests = testscenarios.load_tests_apply_scenarios

SEED = "CYBORG_QUOTA_TEST_SEED"
EXAMPLES = {"sqlite": 5, "mariadb": 2, "postgresql": 2}
PROBABILITY = 0.08


class FaultyHistories(test_model.Histories):
    """The rules of Histories, with faults. ``struck`` is set by the test."""

    struck: collections.Counter[str]

    def begin_with(self, limits: LimitDriver, **changes: Any) -> None:
        # Long enough that no series of errors ends the retries, which do not wait.
        patience = {"retry_seconds": 60.0, "retry_first_wait_seconds": 0.0, "retry_longest_wait_seconds": 0.0}
        super().begin_with(limits, **changes, **patience)
        self.rng = random.Random(0)
        self.engine.check(base.ADMIN, {"gpu": 1})
        self.injected = Injected(self.engine, self.backend, self.rng, PROBABILITY)
        self.injected.setUp()

    def teardown(self) -> None:
        self.struck.update(self.injected.counts)
        self.injected.cleanUp()
        super().teardown()

    def both(self, mine: Any, theirs: Any) -> tuple[Any, Any]:
        self.injected.is_on = True
        try:
            return super().both(mine, theirs)
        finally:
            self.injected.is_on = False

    @stateful.initialize(seed=st.integers(0, 2**32 - 1))
    def begin_seeded(self, seed: int) -> None:
        self.rng.seed(seed)

    @stateful.rule()
    def expire(self) -> None:
        """The count may be lower: a batch whose answer was lost takes effect, but is not counted."""
        expected, answer = self.both(self.model.expire, lambda: self.quotas.expire(base.ADMIN))
        assert answer <= expected


def simulate(backend: str, seed: int, examples: int) -> collections.Counter[str]:
    """Run a number of histories; returns the number of faults by boundary. AssertionError names the seed."""
    struck: collections.Counter[str] = collections.Counter()
    kind = type("Histories", (FaultyHistories,), {"backend": backend, "struck": struck})
    try:
        stateful.run_state_machine_as_test(
            hypothesis.seed(seed)(kind),
            settings=hypothesis.settings(
                max_examples=examples,
                stateful_step_count=25,
                deadline=None,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
                phases=[hypothesis.Phase.generate],
            ),
        )
    except BaseException as error:
        raise AssertionError(f"{SEED}={seed} makes this failure again, on {backend}: {error!r}") from error
    return struck


class TestSimulation(base.BackendTestCase):
    def test_histories(self) -> None:
        seed = int(os.environ.get(SEED) or 1)
        struck = simulate(self.backend, seed, EXAMPLES[self.backend] * fixtures.MORE)
        for where in (injecting.BEFORE, injecting.BEHIND, injecting.BEFORE_COMMIT, injecting.BEHIND_COMMIT):
            self.assertGreater(struck[where], 0, f"{where} was never tried")

    @on_sqlite
    def test_a_transaction_left_open_is_detected(self) -> None:
        """A wrong implementation, which is wrong only if a database fails at the right time."""
        with mock.patch.object(connect, "rollback_open_transaction"):
            self.assertRaises(AssertionError, simulate, self.backend, 1, 200)
