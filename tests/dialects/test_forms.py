# SPDX-License-Identifier: Apache-2.0
"""The forms of a charge, called one by one: of several statements, and of a single one."""

from __future__ import annotations

import time
from collections.abc import Callable

from cyborg_quota.db import charges, clock, path_state, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.types import ResourceKey
from tests import base, hooks


class Undo(Exception):
    """Rolls back, and carries the result."""


class FormsTestCase(base.LedgerTestCase):
    """The forms of a charge, called one by one."""

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


class TestCancelledChange(FormsTestCase):
    """A row whose postings add up to nothing: each form of a charge compares its generation nevertheless."""

    def assert_compared(self, charge: Callable[[list[usages.Posting]], object], size: int) -> None:
        """``charge`` refuses rows of which the last, unchanged one has another generation. None: not supported."""
        postings = [usages.Posting(node, -1, 1) for node in self.nodes[: size - 1]]
        postings.append(usages.Posting(self.nodes[size - 1]))
        last = postings[-1].node
        change = "UPDATE quota_usages SET generation = :generation WHERE id = :id"
        self.execute(change, generation=last.generation + 1, id=last.usage_id)
        self.assertIn(charge(postings), (False, None))
        self.execute(change, generation=last.generation, id=last.usage_id)
        self.assertIn(charge(postings), (True, None))

    def test_several_statements(self) -> None:
        for size in (3, 9):
            self.assert_compared(self.undone, size)

    def test_a_single_statement(self) -> None:
        self.assert_compared(self.settle, 3)
        self.assert_invariants()


class TestEndOfLimits(FormsTestCase):
    """The limits of a growth end: each form then refuses it."""

    def assert_compared(self, charge: Callable[[list[usages.Posting]], object], size: int) -> None:
        postings = [usages.Posting(node, 1, subtree=1) for node in self.nodes[:size]]
        for seconds, is_granted in ((-0.5, False), (60, True)):
            postings[-1].until = int((time.time() + seconds) * 1e6)
            self.assertIn(charge(postings), (is_granted, None))

    def test_several_statements(self) -> None:
        for size in (1, 9):
            self.assert_compared(self.undone, size)

    def test_a_single_statement(self) -> None:
        """(It settles less than it charges.)"""
        uuids = self.uuids
        for size in (1, 2):
            self.uuids = uuids[2 * size : 3 * size]
            self.assert_compared(self.settle, size)

    def test_a_commit_has_no_limits(self) -> None:
        self.assertTrue(self.undone([usages.Posting(self.nodes[0], -1, 1, until=0)]))

    def test_ends_that_are_merged(self) -> None:
        node = self.nodes[0]
        for ends, least in (((None, None), None), ((5, None), 5), ((None, 5), 5), ((5, 4), 4)):
            merged = usages.merge([usages.Posting(node, 1, until=end) for end in ends], usages.deepest_first)
            self.assertEqual([usages.Posting(node, 2, until=least)], merged)
