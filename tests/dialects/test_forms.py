# SPDX-License-Identifier: Apache-2.0
"""The forms of a charge, called one by one: of several statements, and of a single one."""

from __future__ import annotations

import time

from cyborg_quota.db import charges, clock, path_state, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.types import ResourceKey
from tests import base, hooks


class Undo(Exception):
    """Rolls back, and carries the result."""


class TestForms(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.database = hooks.database_of(self.engine)
        projects = [f"p{number}" for number in range(9)]
        self.uuids = [self.quotas.reserve(base.Context(name), {"gpu": 1})[0] for name in projects]
        paths = self.database.read(lambda connection: path_state.read_paths(connection, projects, [ResourceKey("gpu")]))
        self.nodes = [(paths[name].charged.get(ResourceKey("gpu")) or ())[0] for name in projects]

    def undone(self, postings: list[usages.Posting]) -> bool:
        """The result of the form of several statements (of one, for nine rows), which is rolled back."""

        def work(connection: Connection) -> None:
            try:
                charges.apply(connection, postings, clock.read_second(connection))
            except charges.Refused:
                raise Undo(False) from None
            raise Undo(True)

        return bool(self.assertRaises(Undo, self.database.write, work).args[0])

    def settle(self, postings: list[usages.Posting]) -> object:
        """The result of the form of a single statement. (The portable form is not tried.) None: not supported."""
        settle, uuids = self.database.dialect.settle_in_single_statement, self.uuids[:2]
        return self.database.write(
            lambda _: None if self.backend == "sqlite" else False,
            lambda connection: settle(connection, uuids, "committed", 0, postings),
        )

    def test_a_cancelled_change(self) -> None:
        """A row whose postings add up to nothing: each form compares its generation nevertheless."""
        for charge, size in ((self.undone, 3), (self.undone, 9), (self.settle, 3)):
            postings = [usages.Posting(node, -1, 1) for node in self.nodes[: size - 1]]
            postings.append(usages.Posting(self.nodes[size - 1]))
            last = postings[-1].node
            for more, is_granted in ((1, False), (0, True)):
                change = "UPDATE quota_usages SET generation = :generation WHERE id = :id"
                self.execute(change, generation=last.generation + more, id=last.usage_id)
                self.assertIn(charge(postings), (is_granted, None))
        self.assert_invariants()

    def test_the_end_of_limits(self) -> None:
        """The limits of a growth end: each form then refuses it. (A single statement settles less than it charges.)"""
        uuids = self.uuids
        for charge, size in ((self.undone, 1), (self.undone, 9), (self.settle, 1), (self.settle, 2)):
            self.uuids = uuids[2 * size : 3 * size]
            postings = [usages.Posting(node, 1, subtree=1) for node in self.nodes[:size]]
            for seconds, is_granted in ((-0.5, False), (60, True)):
                postings[-1].until = int((time.time() + seconds) * 1e6)
                self.assertIn(charge(postings), (is_granted, None))
        # A commit has no limits.
        self.assertTrue(self.undone([usages.Posting(self.nodes[0], -1, 1, until=0)]))
        for ends, least in (((None, None), None), ((5, None), 5), ((None, 5), 5), ((5, 4), 4)):
            merged = usages.merge([usages.Posting(self.nodes[0], 1, until=end) for end in ends], usages.deepest_first)
            self.assertEqual([usages.Posting(self.nodes[0], 2, until=least)], merged)
