# SPDX-License-Identifier: Apache-2.0
"""The host crashes at any time: between reserve and commit, inside a transaction, between an answer and the next call.

Afterwards the counters are right, and answered calls have taken effect. A reservation in flight can be requested again
and is charged once; otherwise it expires.
"""

from __future__ import annotations

import random
import time

import sqlalchemy as sa
import testscenarios

from cyborg_quota import Claim
from tests import base, fixtures, on_sqlite
from tests.faults.crashing import Ready, kill_repeatedly
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

        def work(_turn: int, ready: Ready) -> None:
            def wait() -> None:
                ready()
                time.sleep(60)

            NaiveLedger(ledger.url, "warm", ledger.journal).reserve_in_two_transactions(wait)

        kill_repeatedly(work, 1, seed=random.randrange(2**32))
        self.assertNotEqual([], ledger.check().problems)


class TestKilledSweeper(base.LedgerTestCase):
    """A parallel expirer is killed with several open transactions. (On SQLite, with one: it has one writer.)"""

    def test_each_batch_is_atomic(self) -> None:
        for number in range(10):
            claims = [Claim(None, {"gpu": 1, "fpga": 2})] * 20
            self.engine.reserve_many(base.Context(f"p{number}"), claims)
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")
        self.engine.close()
        engine = self.make_engine(batch_rows=2)

        def work(_turn: int, ready: Ready) -> None:
            batches = 0

            def progress(_count: int) -> None:
                nonlocal batches
                batches += 1
                if batches == 3:
                    ready()

            while True:
                engine.expire(base.ADMIN, progress=progress)
                if batches < 3:
                    ready()
                time.sleep(1)  # all reservations are expired: wait for the end

        kill_repeatedly(work, 8, seed=random.randrange(2**32), longest_seconds=0.02)
        with self.sql.connect() as connection:
            left = connection.execute(sa.text("SELECT COUNT(*) FROM reservations WHERE state = 'reserved'")).scalar()
        self.assertLess(left or 0, 400)
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))
        self.assertEqual(left, engine.expire(base.ADMIN))
        self.assertEqual((0, 0), self.figures("p3"))
