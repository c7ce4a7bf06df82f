# SPDX-License-Identifier: Apache-2.0
"""Only an admin sees or changes another project's usage or reservations, or learns that they exist (I8)."""

from __future__ import annotations

import dataclasses

from cyborg_quota import exceptions
from tests import base, fixtures, hooks

NOT_FOUND = exceptions.ReservationNotFound
UNKNOWN = "5b5d71cd-2f3a-44ee-9d33-64a6a5f2a9cc"
STRANGER = base.Context("p2")
SETTLING = ("commit", "rollback", "release", "extend")


class TenancyTestCase(base.LedgerTestCase):
    """Project p1 has a reservation in each state: in flight, overdue, committed, ended."""

    def setUp(self) -> None:
        super().setUp()
        names = ("flying", "overdue", "committed", "ended")
        self.uuids = {
            name: self.quotas.reserve(self.context, {"gpu": 1}, consumer=name, group="g")[0] for name in names
        }
        self.quotas.commit(self.context, consumer="committed")
        self.quotas.rollback(self.context, consumer="ended")
        self.make_overdue(self.uuids["overdue"])
        self.before = hooks.tables(self.sql)

    def assert_untouched(self) -> None:
        self.assertEqual(self.before, hooks.tables(self.sql))

    def answer(self, call: str, context: base.Context, *args: object, **named: object) -> tuple[type, str]:
        """Return the class and the text of the answer of a call, without its UUID."""
        try:
            return type(None), repr(getattr(self.engine, call)(context, *args, **named))
        except exceptions.QuotaError as error:
            words = str(error)
            for value in (*self.uuids.values(), UNKNOWN):
                words = words.replace(value, "UUID")
            return type(error), words


class TestContexts(TenancyTestCase):
    """Requirements on a context."""

    scenarios = fixtures.ON_SQLITE  # decided without the database

    def test_no_project(self) -> None:
        for call, args in (
            ("reserve", ({"gpu": 1},)),
            ("get_usages", ()),
            ("check", ({"gpu": 1},)),
        ):
            kind, words = self.answer(call, base.Context(None), *args)
            self.assertIs(exceptions.InvalidName, kind)
            self.assertIn("project_id", words)
            kind, _ = self.answer(call, base.Context(None), *args, project_id="p1")
            self.assertIs(exceptions.NotAuthorized, kind)
        for call in SETTLING:
            kind, _ = self.answer(call, base.Context(None), [self.uuids["flying"]])
            self.assertIs(exceptions.InvalidName, kind)
        self.assert_untouched()


class TestAdmin(TenancyTestCase):
    """An admin's context, of a project of its own."""

    scenarios = fixtures.ON_SQLITE

    def test_settles_by_uuid_of_several_projects(self) -> None:
        """A consumer of the same name of another project is another one."""
        (theirs,) = self.quotas.reserve(STRANGER, {"gpu": 1}, consumer="committed", group="g")
        self.quotas.commit(STRANGER, group="g")
        self.quotas.release(STRANGER, consumer="committed")
        self.assertEqual(["released", "committed"], self.states(theirs, self.uuids["committed"]))
        (theirs,) = self.quotas.reserve(STRANGER, {"gpu": 1})
        self.quotas.rollback(base.ADMIN, [self.uuids["flying"], theirs])
        self.assertEqual(["rolled_back"] * 2, self.states(self.uuids["flying"], theirs))
        self.assertEqual((0, 0), self.figures("p2"))

    def test_settles_by_name(self) -> None:
        self.quotas.release(base.ADMIN, project_id="p1", consumer="committed")
        self.quotas.rollback(base.ADMIN, project_id="p1", consumer="flying")
        self.assertEqual(["released", "rolled_back"], self.states(self.uuids["committed"], self.uuids["flying"]))

    def test_names_the_wrong_project(self) -> None:
        for call in SETTLING:
            kind, _ = self.answer(call, base.ADMIN, [self.uuids["flying"]], project_id="p2")
            self.assertIs(NOT_FOUND, kind)
        kind, _ = self.answer("commit", base.ADMIN, consumer="flying")  # without a project: of its own
        self.assertIs(NOT_FOUND, kind)
        self.assert_untouched()


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

    def test_a_descendant_sees_no_usage(self) -> None:
        error = self.refused(self.context)
        (over,) = error.overs
        self.assertEqual(
            ("root", "gpu", "subtree", 5, 2),
            (over.project_id, over.resource, over.scope, over.limit, over.requested),
        )
        self.assertEqual((None, None, None), (over.used, over.reserved, over.subtree))
        self.assertEqual(
            "Quota exceeded: project root, resource gpu: limit 5 (project and its descendants), requested 2", str(error)
        )

    def test_an_admin_sees_it(self) -> None:
        error = self.refused(base.ADMIN)
        (over,) = error.overs
        self.assertEqual((0, 1, 4), (over.used, over.reserved, over.subtree))
        self.assertIn("subtree 4", str(error))

    def test_own_subtree_without_its_total(self) -> None:
        """A parent sees its own usage; the total would reveal that of its children."""
        self.quotas.reserve(base.ADMIN, {"gpu": 1}, project_id="p1")
        root = base.Context("root")
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, root, {"gpu": 2})
        (over,) = error.overs
        self.assertEqual((0, 1, None), (over.used, over.reserved, over.subtree))

    def test_only_the_constraint_that_binds_is_shown(self) -> None:
        self.limits.own["p1", "gpu"] = 1
        overs = self.refused(self.context).overs
        self.assertEqual([("p1", 0, 0)], [(over.project_id, over.used, over.reserved) for over in overs])
        self.assertEqual(["p1", "root"], [over.project_id for over in self.refused(base.ADMIN).overs])
