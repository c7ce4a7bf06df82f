# SPDX-License-Identifier: Apache-2.0
"""The sender of a transfer moves in the tree during the call."""

from __future__ import annotations

from typing import Any

from fixtures import MonkeyPatch

from cyborg_quota import exceptions
from cyborg_quota.ledger.project_limits import ProjectEnforcer
from tests import base, fixtures, trees
from tests.base import ADMIN


class TestSenderMoves(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.database = fixtures.open_database(self, self.url)
        self.plant({"root": None, "p1": "root", "p2": "root", "side": None})

    def transfer(self, to_project: str) -> None:
        self.quotas.transfer(ADMIN, to_project, "p1", consumer="c")

    def test_the_sender_moves_meanwhile(self) -> None:
        """The limit above both projects applies, because the sender has left it, also if its new path is cached."""
        self.limits.subtree_limits["root", "gpu"] = 5
        for project_id, amount in (("p1", 3), ("p2", 1), ("root", 1)):
            self.quotas.reserve(base.Context(project_id), {"gpu": amount}, consumer="c" if amount == 3 else project_id)
        other, constraints, moved = self.make_engine(), ProjectEnforcer._constraints, []

        def move_before(projects: ProjectEnforcer, charge: Any, *arguments: Any, **named: Any) -> Any:
            if not moved and charge.project_id == "p2":
                moved.append(True)
                trees.move(self.database, "p1", "side")
                other.reserve(base.Context("root"), {"gpu": 3}, consumer="more")
                self.engine.list_usages(ADMIN)
                self.engine.reserve(self.context, {"gpu": 1}, consumer="thread")  # caches the new path of p1
            return constraints(projects, charge, *arguments, **named)

        self.useFixture(MonkeyPatch("cyborg_quota.ledger.project_limits.ProjectEnforcer._constraints", move_before))
        error = self.assertRaises(exceptions.OverQuota, self.transfer, "p2")
        self.assertTrue(moved)
        self.assertEqual(["root"], [over.project_id for over in error.overs])
        self.assertEqual([(0, 4), (0, 1)], [self.figures("p1"), self.figures("p2")])

    def test_the_sender_moves_from_below_the_receiver(self) -> None:
        """No row is charged within limits here: the retry reads the path again nevertheless."""
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 3}, consumer="c"))
        read, moved = ProjectEnforcer.read, []

        def move_after(projects: ProjectEnforcer, project_id: str, *arguments: Any, **named: Any) -> Any:
            if project_id == "root" and not moved:
                moved.append(self.engine.list_usages(ADMIN))
                self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 1}))  # caches its path
                trees.move(self.database, "p1", "side")
            return read(projects, project_id, *arguments, **named)

        self.useFixture(MonkeyPatch("cyborg_quota.ledger.project_limits.ProjectEnforcer.read", move_after))
        self.transfer("root")
        self.assertTrue(moved)
        self.assertEqual([(0, 0), (3, 0)], [self.figures("p1"), self.figures("root")])

    def test_the_receiver_has_moved_with_the_sender(self) -> None:
        """Another process has moved them, while this one has the path of the sender in its cache."""
        self.limits.own["root", "gpu"] = 5
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 3}, consumer="c"))
        trees.move(self.database, "root", "side")
        self.transfer("root")
        self.assertEqual([(0, 0), (3, 0)], [self.figures("p1"), self.figures("root")])
