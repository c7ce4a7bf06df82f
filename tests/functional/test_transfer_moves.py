# SPDX-License-Identifier: Apache-2.0
"""The sender of a transfer moves in the tree during the call."""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.ledger.project_limits import ProjectEnforcer
from tests import base, hooks, trees
from tests.base import ADMIN
from tests.functional.test_resize import ResizeTestCase


class TestSenderMoves(ResizeTestCase):
    def move(self, project_id: str) -> None:
        """Move it below ``side``, as another process does."""
        trees.move(hooks.database_of(self.make_engine()), project_id, "side")

    def test_the_sender_moves_meanwhile(self) -> None:
        """The limit above both projects applies, because the sender has left it, also if its new path is cached."""
        self.limits.subtree_limits["root", "gpu"] = 5
        for project_id, amount in (("p1", 3), ("p2", 1), ("root", 1)):
            self.quotas.reserve(base.Context(project_id), {"gpu": amount}, consumer="c" if amount == 3 else project_id)

        def move() -> None:
            self.move("p1")
            self.make_engine().reserve(base.Context("root"), {"gpu": 3}, consumer="more")
            self.engine.list_usages(ADMIN)
            self.engine.reserve(self.context, {"gpu": 1}, consumer="thread")  # caches the new path of p1

        with hooks.Meanwhile(ProjectEnforcer, "_constraints", move) as calls:
            error = self.assertRaises(exceptions.OverQuota, self.transfer, "p2")
        self.assertGreater(calls.count, 1)
        self.assertEqual(["root"], [over.project_id for over in error.overs])
        self.assertEqual([(0, 4), (0, 1)], [self.figures("p1"), self.figures("p2")])

    def test_the_sender_moves_from_below_the_receiver(self) -> None:
        """No row is charged within limits here: the retry reads the path again nevertheless."""
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 3}, consumer="c"))

        def move() -> None:
            self.engine.list_usages(ADMIN)
            self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 1}))  # caches its path
            self.move("p1")

        with hooks.Meanwhile(ProjectEnforcer, "read", move) as calls:
            self.transfer("root")
        self.assertGreater(calls.count, 1)
        self.assertEqual([(0, 0), (3, 0)], [self.figures("p1"), self.figures("root")])

    def test_the_receiver_has_moved_with_the_sender(self) -> None:
        """Another process has moved them, while this one has the path of the sender in its cache."""
        self.limits.own["root", "gpu"] = 5
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 3}, consumer="c"))
        self.move("root")
        self.transfer("root")
        self.assertEqual([(0, 0), (3, 0)], [self.figures("p1"), self.figures("root")])
