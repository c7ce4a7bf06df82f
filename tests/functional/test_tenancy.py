# SPDX-License-Identifier: Apache-2.0
"""Only an admin sees or changes another project's usage or reservations, or learns that they exist (I8)."""

from __future__ import annotations

import dataclasses

from cyborg_quota import exceptions
from cyborg_quota.types import Over
from tests import base, fixtures, hooks

NOT_FOUND = exceptions.ReservationNotFound
STRANGER = base.Context("p2")
SETTLING = ("commit", "rollback", "release", "extend")


class TestContexts(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE  # decided without the database

    def test_no_project(self) -> None:
        nobody = base.Context(None)
        uuids = self.quotas.reserve(self.context, {"gpu": 1})
        before = hooks.tables(self.sql)
        for call, args in (("reserve", ({"gpu": 1},)), ("get_usages", ()), ("check", ({"gpu": 1},))):
            method = getattr(self.quotas, call)
            self.assertRaisesRegex(exceptions.InvalidName, "project_id", method, nobody, *args)
            self.assertRaises(exceptions.NotAuthorized, method, nobody, *args, project_id="p1")
        for call in SETTLING:
            self.assertRaises(exceptions.InvalidName, getattr(self.quotas, call), nobody, uuids)
        self.assertEqual(before, hooks.tables(self.sql))


class TestAdmin(base.LedgerTestCase):
    """An admin's context, of a project of its own."""

    scenarios = fixtures.ON_SQLITE

    def test_reservations_of_several_projects(self) -> None:
        """A consumer of the same name of another project is another one."""
        mine, theirs = (self.quotas.reserve(base.Context(name), {"gpu": 1}, consumer="c")[0] for name in ("p1", "p2"))
        for call in SETTLING:
            self.assertRaises(NOT_FOUND, getattr(self.quotas, call), base.ADMIN, [mine], project_id="p2")
        self.assertRaises(NOT_FOUND, self.quotas.commit, base.ADMIN, consumer="c")  # without a project: of its own
        self.quotas.commit(STRANGER, consumer="c")
        self.assertEqual(["reserved", "committed"], self.states(mine, theirs))
        (more,) = self.quotas.reserve(STRANGER, {"gpu": 1})
        self.quotas.rollback(base.ADMIN, [mine, more])
        self.assertEqual(["rolled_back", "committed", "rolled_back"], self.states(mine, theirs, more))


class TestAncestors(base.LedgerTestCase):
    """What a project may learn of the projects above it: which one refuses, and its limit."""

    scenarios = fixtures.ON_SQLITE  # the engine decides what is shown

    def setUp(self) -> None:
        super().setUp()
        self.plant({"root": None, "p1": "root", "aunt": "root"})
        self.quotas.commit(base.ADMIN, self.quotas.reserve(base.ADMIN, {"gpu": 3}, project_id="aunt"))
        self.quotas.reserve(base.Context("root"), {"gpu": 1})
        self.limits.subtree_limits["root", "gpu"] = 5

    def refused(self, context: base.Context) -> exceptions.OverQuota:
        """Return the OverQuota of two more gpus, after asserting that check reports the same (and what fits)."""
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, context, {"gpu": 2}, project_id="p1")
        without_fits = [dataclasses.replace(over, fits=None) for over in self.quotas.check(context, {"gpu": 2}, "p1")]
        self.assertEqual(list(map(repr, without_fits)), list(map(repr, error.overs)))
        return error

    def assert_shown(self, error: exceptions.OverQuota, *expected: Over) -> None:
        """(The usage is not compared by ==.)"""
        self.assertEqual(list(map(repr, expected)), list(map(repr, error.overs)))

    def test_a_descendant_sees_no_usage(self) -> None:
        """Nor more than the first constraint that binds. An admin sees all."""
        error = self.refused(self.context)
        self.assert_shown(error, Over("root", "gpu", "subtree", 5, 2, None, None, is_ancestor=True))
        self.assertEqual(
            "Quota exceeded: project root, resource gpu: limit 5 (project and its descendants), requested 2", str(error)
        )
        self.limits.own["p1", "gpu"] = 1
        of_p1 = Over("p1", "gpu", "project", 1, 2, 0, 0)
        self.assert_shown(self.refused(self.context), of_p1)
        error = self.refused(base.ADMIN)
        self.assert_shown(error, of_p1, Over("root", "gpu", "subtree", 5, 2, 0, 1, 4, is_ancestor=True))
        self.assertIn("subtree 4", str(error))
        # A parent sees its own usage; the total would reveal that of its children.
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, base.Context("root"), {"gpu": 2})
        self.assert_shown(error, Over("root", "gpu", "subtree", 5, 2, 0, 1))
