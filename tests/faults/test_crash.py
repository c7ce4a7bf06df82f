# SPDX-License-Identifier: Apache-2.0
"""The host dies at any moment: between reserve and commit, inside a transaction, between the answer and the next call.

Afterwards the counters are right, what was answered is there, what was in flight can be asked for again and is
charged once, and expiry gives back what nobody asks for.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import tempfile
import traceback
import uuid

import sqlalchemy as sa
import testscenarios

from tests import base, invariants
from tests.faults.crashing import Journal, Ready, kill_again_and_again

load_tests = testscenarios.load_tests_apply_scenarios

KILLS = 50
LAST_ANSWER_TO_STATES = {
    # what was answered last: the states the ledger may show (the call under way may have landed, or not)
    "reserve": {"reserved", "committed", "rolled_back"},
    "commit": {"committed", "released"},
    "rollback": {"rolled_back"},
    "release": {"released"},
}


class TestKilledWorkers(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine.get_usages(self.context)
        self.engine.close()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.journal = Journal(pathlib.Path(directory.name) / "journal")
        self.addCleanup(self.journal.close)

    def work(self, turn: int, ready: Ready) -> None:
        """Attach and detach for ever, in two projects, telling the journal every answer."""
        try:
            self.engine.get_usages(self.context)
            ready()
            for cycle in itertools.count():
                context = base.Context(f"p{cycle % 2}")
                consumer = f"c{os.getpid()}.{cycle}"
                self.engine.reserve(context, {"gpu": 2, "fpga": 1}, consumer=consumer, group=f"g{turn}")
                self.journal.write(consumer, "reserve")
                last = "rollback" if cycle % 3 == 0 else "commit"
                getattr(self.engine, last)(context, consumer=consumer)
                self.journal.write(consumer, last)
                if cycle % 3 == 1:
                    self.engine.release(context, consumer=consumer)
                    self.journal.write(consumer, "release")
        except BaseException:
            traceback.print_exc()
            raise

    def test_nothing_answered_is_lost_and_nothing_drifts(self) -> None:
        for _ in range(10):  # a busy machine lets a worker do little before it is killed
            kill_again_and_again(self.work, KILLS, seed=random.randrange(2**32))
            last_answers = [calls[-1] for calls in self.journal.read().values()]
            if len(last_answers) > KILLS and "reserve" in last_answers:
                break

        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))
        answered = self.journal.read()
        self.assertGreater(len(answered), KILLS, "the workers were killed before they did anything")
        stored = {one.consumer: one for one in self.engine.list_reservations(base.ADMIN) if one.resource == "gpu"}
        for consumer, calls in answered.items():
            self.assertIn(stored[consumer].state, LAST_ANSWER_TO_STATES[calls[-1]], (consumer, calls))

        in_flight = [one for one in stored.values() if one.state == "reserved"]
        self.assertGreater(len(in_flight), 0, "no worker died between reserve and commit")
        before = [self.figures("p0"), self.figures("p1")]
        for one in in_flight:  # the call is delivered again
            context = base.Context(one.project_id)
            self.assertIn(one.uuid, self.engine.reserve(context, {"gpu": 2, "fpga": 1}, consumer=str(one.consumer)))
        self.assertEqual(before, [self.figures("p0"), self.figures("p1")])

        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000' WHERE state = 'reserved'")
        self.assertEqual(2 * len(in_flight), self.engine.expire(base.ADMIN))
        for project_id in ("p0", "p1"):
            held = [one for one in stored.values() if (one.project_id, one.state) == (project_id, "committed")]
            self.assertEqual((2 * len(held), 0), self.figures(project_id))
        self.assert_invariants()

    def test_the_known_bad_way_is_caught(self) -> None:
        """Rows in one transaction, counters in the next: a kill between the two must show."""
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))
        with self.sql.connect() as connection:
            usage_id = connection.execute(sa.text("SELECT id FROM quota_usages")).scalar_one()
        self.engine.close()

        insert = sa.text(
            "INSERT INTO reservations (uuid, usage_id, project_id, resource, delta, state, deleted, live)"
            " VALUES (:uuid, :usage_id, 'p1', 'gpu', 1, 'committed', :no, 1)"
        )

        def work(_turn: int, ready: Ready) -> None:
            sql = sa.create_engine(self.url)
            sql.connect().close()
            ready()
            while True:
                with sql.begin() as connection:
                    connection.execute(insert, {"uuid": str(uuid.uuid4()), "usage_id": usage_id, "no": False})
                with sql.begin() as connection:
                    connection.execute(sa.text("UPDATE quota_usages SET used = used + 1, subtree = subtree + 1"))

        for _ in range(20):
            kill_again_and_again(work, 5, seed=random.randrange(2**32))
            with self.sql.connect() as connection:
                if invariants.broken(connection):
                    return
        self.fail("a hundred kills did not even catch two transactions where there must be one")
