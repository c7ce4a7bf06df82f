# SPDX-License-Identifier: Apache-2.0
"""Races whose window is too small to be hit at random: one transaction is stopped in the middle.

SQLite has one writer at a time, so nothing can be interleaved there; the tests pass there all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.db.database import Connection
from tests import base, fixtures, trees
from tests.race.interleaving import in_background, waits


class TestFence(base.LedgerTestCase):
    """The rules in the docstring of db/projects.py."""

    def setUp(self) -> None:
        super().setUp()
        self.database = fixtures.open_database(self, self.url)
        self.plant({"root": None, "left": "root", "right": "root", "leaf": "left"})

    def open_transaction(self, work: Callable[[Connection], Any]) -> tuple[Future[Any], threading.Event]:
        """Run ``work`` in a transaction that commits when the event is set."""
        has_begun, may_end = threading.Event(), threading.Event()

        def wait_inside(connection: Connection) -> None:
            work(connection)
            has_begun.set()
            may_end.wait(60)

        background = in_background(lambda: self.database.write(wait_inside))
        self.assertTrue(has_begun.wait(60) or background.result(60))
        return background, may_end

    def call_during_a_move(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin a call while left is moved below right; assert that it waits for the move, which then ends."""
        moving, may_end = self.open_transaction(lambda connection: trees.place(connection, "left", "right"))
        background = in_background(call)
        self.assertTrue(waits(background), "it was done behind the move's back")
        may_end.set()
        moving.result(60)
        return background

    def test_no_usage_row_is_missed_by_a_move(self) -> None:
        """Rule 2: the first charge of a new resource waits for the move, and then uses the new path."""
        self.call_during_a_move(lambda: self.engine.reserve(base.Context("left"), {"gpu": 3})).result(60)
        self.assert_invariants()
        self.assertEqual({"left": 3, "right": 3, "root": 3}, self.subtrees())

    def test_a_charge_in_progress_is_repeated_on_the_new_path(self) -> None:
        """Rule 1: it waits for the row of the moved project, finds another generation, and reads the path again.

        The limit of the new ancestor counts.
        """
        self.limits.subtree_limits["right", "gpu"] = 3
        for name in ("leaf", "right"):
            self.engine.reserve(base.Context(name), {"gpu": 1})
        self.call_during_a_move(lambda: self.engine.reserve(base.Context("leaf"), {"gpu": 1})).result(60)
        self.assert_invariants()
        trees.move(self.database, "left", "root")
        charge = self.call_during_a_move(lambda: self.engine.reserve(base.Context("leaf"), {"gpu": 1}))
        error = self.assertRaises(exceptions.OverQuota, charge.result, 60)
        self.assertEqual(["right"], [over.project_id for over in error.overs])
        self.assert_invariants()

    def test_two_moves_make_no_cycle(self) -> None:
        """Two concurrent moves, left below right and right below left: the second one finds the edge of the first."""
        second = self.call_during_a_move(lambda: trees.move(self.database, "right", "left"))
        self.assertRaises(exceptions.ProjectRefused, second.result, 60)
        self.assert_invariants()

    def test_heal_waits_for_a_charge_in_progress(self) -> None:
        """If it computed the sum before it locked the row, it would write a sum without that charge."""
        (uuid,) = self.engine.reserve(base.Context("leaf"), {"gpu": 1})
        self.execute("UPDATE quota_usages SET reserved = 4 WHERE project_id = 'leaf'")

        def commit(connection: Connection) -> None:
            driver: Any = self.engine._driver
            rows, _ = driver.settler._select_rows(connection, base.Selection(None, uuids=[uuid]))
            driver.settler.apply(connection, base.decide("commit", rows).moves)

        committing, may_end = self.open_transaction(commit)
        healing = in_background(lambda: self.engine.heal(base.ADMIN))
        if self.backend != "sqlite":  # its audit reads the last committed state, and then waits for the row
            self.assertTrue(waits(healing))
        may_end.set()
        committing.result(60)
        healing.result(60)
        self.assert_invariants()
        self.assertEqual((1, 0), self.figures("leaf"))
