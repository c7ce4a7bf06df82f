# SPDX-License-Identifier: Apache-2.0
"""Every transaction locks usage rows in the same order, so that no cycle of waiting transactions arises.

A deadlock violates no invariant, because it is retried; but where two lock orders meet, most transactions end in one.
"""

from __future__ import annotations

import functools
import random
import threading
from typing import Any

import sqlalchemy as sa

from cyborg_quota import ANY, Claim
from tests import base, fixtures, hooks
from tests.race.workers import race
from tests.servers import machine

PROCESSES = 5
TURNS = 15 * fixtures.MORE
"""Of each process. (Where two lock orders meet, most transactions end in a deadlock.)"""
_HOLD = sa.text("SELECT id FROM quota_usages WHERE project_id = :p AND resource = 'gpu' FOR UPDATE")


class TestLockOrder(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def test_a_batch_of_expiry(self) -> None:
        """While a row in the middle is locked, the rows before it get locked, and those after it stay free."""
        names = [f"p{number}" for number in range(10)]
        uuids = [uuid for name in reversed(names) for uuid in self.engine.reserve(base.Context(name), {"gpu": 1})]
        self.make_overdue(*uuids)
        # The order of the rows' IDs is the reverse of the order of their names.
        order = names[::-1] if self.backend == "mariadb" else names
        with hooks.row_locks(self.sql).begin() as holder:
            holder.execute(_HOLD, {"p": order[5]})
            sweeper = threading.Thread(target=self.engine.expire, args=(base.ADMIN,))
            sweeper.start()
            machine.wait_until(lambda: self.is_held(order[4]), 30.0)
            self.assertEqual(order[:6], [name for name in order if self.is_held(name)])
        sweeper.join()
        self.assert_invariants()

    def is_held(self, name: str) -> bool:
        with self.sql.connect() as connection:
            try:
                connection.execute(sa.text(f"{_HOLD.text} NOWAIT"), {"p": name})
            except sa.exc.OperationalError:
                return True
        return False

    def test_claims_of_capacity(self) -> None:
        """Claims of several inventories lock them in one order. With ANY, the server locks the inventory before the
        reservation is inserted.
        """
        for name in ("n1", "n2", "n3"):
            self.add_provider(name, gpu=900, fpga=900)

        engine = self.make_engine()

        def count_deadlocks(number: int) -> int:
            seen = []

            def note(context: Any) -> None:
                error = context.original_exception
                if getattr(error, "pgcode", None) == "40P01" or error.args[:1] == (1213,):
                    seen.append(error)

            sa.event.listen(hooks.database_of(engine).engine, "handle_error", note)
            rng = random.Random(number)
            for turn in range(TURNS):
                context = base.Context(f"p{rng.randrange(2)}")
                deltas = {"gpu": 1} if rng.random() < 0.7 else {"gpu": 1, "fpga": 1}
                providers = rng.choice(([ANY], [ANY], ["n1"], rng.sample(["n1", "n2", "n3"], 3)))
                claims = [Claim(None, deltas, provider=provider) for provider in providers]
                (engine.commit if turn % 3 == 0 else engine.rollback)(context, engine.reserve_many(context, claims))
            return len(seen)

        deadlocks = race(*(functools.partial(count_deadlocks, number) for number in range(PROCESSES)))
        self.assertEqual([0] * PROCESSES, deadlocks, f"in {TURNS} turns of each process")
        self.assert_invariants()
