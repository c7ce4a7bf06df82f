# SPDX-License-Identifier: Apache-2.0
"""The host crashes at any time: between reserve and commit, inside a transaction, between an answer and the next call.

Afterwards the counters are right, and answered calls have taken effect. A reservation in flight can be requested again
and is charged once; otherwise it expires.
"""

from __future__ import annotations

import os
import random
import signal
import time

import testscenarios

from tests import base, fixtures, forked, on_sqlite
from tests.faults.load import Ledger
from tests.faults.naive import NaiveLedger
from tests.servers import machine

load_tests = testscenarios.load_tests_apply_scenarios

KILLS = 8 * fixtures.MORE


def kill_workers(ledger: Ledger, kills: int, seed: int, until_error: str | None = None) -> None:
    """Kill (SIGKILL) one of four workers after a random number of calls, and start another; repeat this.

    ``until_error``: then let the workers go on until one of them got this error, for a minute at most.
    """
    rng = random.Random(seed)
    with ledger.crew(4, seed, ("hot", "cold")) as crew:
        for _ in range(kills):
            goal = ledger.journal.size + rng.randrange(100, 3000)
            machine.wait_until(lambda: ledger.journal.size >= goal, 5.0)  # noqa: B023
            time.sleep(rng.uniform(0, 0.01))
            crew.kill(rng.randrange(4))
        if until_error:
            machine.wait_until(lambda: any(entry.word == until_error for entry in ledger.journal.entries()), 60.0)


class TestKilledWorkers(base.BackendTestCase):
    def test_no_answered_call_is_lost_and_no_counter_drifts(self) -> None:
        ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "killed"), with_capacity=True))
        kill_workers(ledger, KILLS, random.randrange(2**32), "OverCapacity")
        report = ledger.assert_right()
        self.assertGreater(report.calls, KILLS, "the workers were killed before they did anything")
        self.assertGreater(report.errors["OverCapacity"], 0)

    @on_sqlite
    def test_naive_is_detected(self) -> None:
        """It inserts the row and changes the counter in two transactions, and is killed between them."""
        ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "killed")))
        ledger.engine.close()
        naive = NaiveLedger(ledger.url, "warm", ledger.journal)
        kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        pid = forked.start(lambda: naive.reserve_in_two_transactions(kill))
        self.assertEqual(-signal.SIGKILL, forked.wait(pid))
        self.assertNotEqual([], ledger.check().problems)
        ledger.execute("UPDATE quota_usages SET reserved = 99 WHERE resource = 'gpu'")
        self.assertIn("a limit was passed", " ".join(ledger.check().problems))
