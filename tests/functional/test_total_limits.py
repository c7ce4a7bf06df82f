# SPDX-License-Identifier: Apache-2.0
"""Total limits over all projects: enforcement, the fence, moves, audit and history.

tests/model/test_limit_model.py switches them on and off on
random trees; tests/race/test_total_limit_races.py while processes reserve.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any
from unittest import mock

import sqlalchemy as sa
from fixtures import MonkeyPatch

from cyborg_quota import Headroom, QuotaEngine, exceptions
from cyborg_quota.db import charges, path_state, usages
from cyborg_quota.ledger.history import History
from cyborg_quota.limits.sources.config import NoopLimitDriver
from cyborg_quota.types import TOTAL, Notice, ResourceKey, TotalLimit, UsageKey
from tests import base, fixtures, hooks
from tests.base import ADMIN
from tests.functional import test_limits, test_pages


class TotalTestCase(test_limits.LimitsTestCase):
    """Three roots that may hold any amount; ``a`` has a child."""

    def setUp(self) -> None:
        super().setUp()
        tree = {"a": None, "child": "a", "b": None, "c": None}
        self.import_tree(tree, {name: {"gpu": -1, "fpga": -1} for name in tree}, gpu=-1, fpga=-1)
        self.totals: Any = fixtures.Checked(self.admin, self.url)  # type: ignore[arg-type]

    def set_total(self, limit: int = 10) -> None:
        self.totals.set_total_limits(ADMIN, {"gpu": limit})

    def total(self) -> TotalLimit:
        (total,) = self.totals.list_total_limits(ADMIN)
        return total

    def fits(self, project_id: str = "b") -> Headroom:
        return self.engine.headroom(base.Context(project_id))["gpu"]


class TestEnforcement(TotalTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_all_projects_together(self) -> None:
        self.hold("child", 3)
        self.hold("b", 4)
        self.quotas.reserve(base.Context("b"), {"fpga": 2})
        count = functools.partial(self.totals.count_total_limits_held, ADMIN)
        with test_pages.counted_rows() as counter:
            self.assertEqual({"fpga": 2, "gpu": 7}, count(["gpu", "fpga"]))
        self.assertEqual((2, {"other": 0}), (counter["rows"], count(["other"])))
        self.set_total(10)
        self.assertEqual(({"gpu": 7}, TotalLimit("gpu", 10, 7)), (count(["gpu"]), self.total()))
        self.assertEqual(Headroom(3, None, "total", 10), self.fits())
        self.assertEqual(([TOTAL], []), (self.blockers("c", 4), self.blockers("c", 3)))
        self.hold("new", 3)
        self.assertEqual((Headroom(0, None, "total", 10), 10), (self.fits("child"), self.total().held))
        self.assertEqual([], self.engine.check(ADMIN, {"fpga": 99}, "c"))

    def test_what_a_user_sees(self) -> None:
        """The total limit, and not what other projects hold."""
        self.hold("a", 8)
        self.set_total(10)
        refused = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, base.Context("b"), {"gpu": 3})
        (over,) = refused.overs
        self.assertEqual(("total", 10, None, None), (over.scope, over.limit, over.subtree, over.used))
        self.assertIn("all projects, resource gpu: limit 10, requested 3", str(refused))
        refused = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, ADMIN, {"gpu": 3}, project_id="b")
        self.assertIn("limit 10, held 8, requested 3", str(refused))
        for call in (self.totals.list_total_limits, lambda user: self.totals.set_total_limits(user, {"gpu": 1})):
            self.assertRaises(exceptions.NotAuthorized, call, base.Context("a"))
        self.assertNotIn(TOTAL, {record.project_id for record in self.engine.list_usages(ADMIN)})

    def test_below_the_present_usage_changed_and_removed(self) -> None:
        self.hold("a", 8)
        self.assertEqual([], self.admin.list_over(ADMIN))
        self.set_total(5)
        self.assertEqual([TOTAL], self.blockers("b", 1))
        (row,) = self.admin.list_over(ADMIN)
        found = (row.project_id, row.resource, row.limit, row.used, row.subtree, row.available)
        self.assertEqual((TOTAL, "gpu", 5, 0, 8, -3), found)
        self.quotas.release(ADMIN, [row.uuid for row in self.engine.list_reservations(ADMIN, "a")])
        self.assertEqual(([], []), (self.blockers("b", 5), self.admin.list_over(ADMIN)))
        self.set_total(6)
        self.assertEqual([], self.blockers("b", 6))
        self.totals.unset_total_limits(ADMIN, ["gpu"])
        self.assertEqual([], self.totals.list_total_limits(ADMIN))
        self.assertEqual({}, self.database.read(lambda connection: usages.row_ids(connection, [TOTAL])))
        self.assertEqual([], self.blockers("b", 99))
        error = self.assertRaises(exceptions.TotalLimitNotFound, self.totals.unset_total_limits, ADMIN, ["gpu"])
        self.assertEqual(["gpu"], error.resources)
        self.assertIn("no total limit for gpu", str(error))

    def test_bad_input(self) -> None:
        preview = functools.partial(self.totals.set_total_limits, dry_run=True)
        for wrong in ({}, None, {"gpu": -1}, {"gpu": None}, {"gpu": True}, {"gpu": 2**63}, {"gpu": "5"}):
            for set_totals in (self.totals.set_total_limits, preview):
                self.assertRaises(exceptions.InvalidRequest, set_totals, ADMIN, wrong)
        for set_totals in (self.totals.set_total_limits, preview):
            self.assertRaises(exceptions.UnknownResource, set_totals, ADMIN, {"gpu": 1, "tpu": 1})
        for wrong in ({"gpu": -1}, {"gpu": "5"}, {"gpu": 1.5}, 5, ["gpu"]):
            importing = functools.partial(self.admin.import_limits, ADMIN, {"total": wrong})
            self.assertRaisesRegex(exceptions.InvalidDocument, "total", importing)
        self.assertRaises(exceptions.UnknownResource, self.admin.import_limits, ADMIN, {"total": {"tpu": 1}})
        self.assertRaises(exceptions.InvalidRequest, self.totals.unset_total_limits, ADMIN, "gpu")
        others = fixtures.open_engine(self, self.url, NoopLimitDriver()).limits
        self.assertRaises(exceptions.LimitsReadOnly, others.set_total_limits, ADMIN, {"gpu": 1})
        self.assertEqual([[], []], [limits.list_total_limits(ADMIN) for limits in (self.totals, others)])


class TestFence(TotalTestCase):
    """Another process (an engine with a cache of its own) has read the path before the total was switched on."""

    def race(self, during: Callable[[QuotaEngine], None]) -> None:
        other = self.make_limited()
        (uuid,) = other.reserve(base.Context("child"), {"gpu": 2})  # reads the path, and caches the reservation
        other.reserve(base.Context("b"), {"gpu": 2})
        self.admin.set_total_limits(ADMIN, {"gpu": 10})
        during(other)
        other.commit(base.Context("child"), [uuid])
        other.release(base.Context("child"), [uuid])

    def test_a_cached_path_cannot_charge(self) -> None:
        """The control: roots are counted without a new generation."""
        with mock.patch.object(charges, "renew_roots", lambda *_arguments, **_more: None):
            self.race(lambda other: other.reserve(base.Context("b"), {"gpu": 9}))
        self.assertRaises(AssertionError, self.assert_invariants)
        self.admin.unset_total_limits(ADMIN, ["gpu"])
        self.engine.release(ADMIN, [row.uuid for row in self.engine.list_reservations(ADMIN)])

        def during(other: QuotaEngine) -> None:
            other.reserve(base.Context("b"), {"gpu": 3})
            self.assertRaises(exceptions.OverQuota, other.reserve, base.Context("child"), {"gpu": 4})

        self.race(during)
        self.assert_invariants()
        self.assertEqual(5, self.total().held)

    def insert_meanwhile(self, *, is_naive: bool) -> None:
        """While the total is counted, another transaction inserts a root, and reads its path without the total."""
        if self.backend == "sqlite":
            self.skipTest("SQLite has one writer")
        other, rows, new = self.make_limited(), {UsageKey(TOTAL, "gpu"): 0}, f"new {is_naive}"
        count, make_row, row_ids = charges.count_totals, path_state.make_row, usages.row_ids

        def counted(connection: sa.Connection, resources: Collection[str]) -> None:
            if is_naive:
                make_row(connection, UsageKey(TOTAL, "gpu"))
                rows.update(row_ids(connection, [TOTAL]))
            count(connection, resources)
            other._driver._paths.get(new, [ResourceKey("gpu")])

        self.useFixture(MonkeyPatch("cyborg_quota.db.charges.count_totals", counted))
        if is_naive:
            self.patch(path_state, "make_row", lambda connection, key: key[0] == TOTAL or make_row(connection, key))
            self.patch(usages, "row_ids", lambda _, names: rows if [*names] == [TOTAL] else row_ids(_, names))
        self.admin.set_total_limits(ADMIN, {"gpu": 10})
        other.reserve(base.Context(new), {"gpu": 7 if not is_naive else 1})

    def test_a_root_that_is_inserted_meanwhile(self) -> None:
        """The control: if the row is inserted and counted in one transaction, it is not counted."""
        self.insert_meanwhile(is_naive=False)
        self.assert_invariants()
        self.assertEqual(Headroom(3, None, "total", 10), self.fits())
        self.admin.unset_total_limits(ADMIN, ["gpu"])
        self.insert_meanwhile(is_naive=True)
        self.assertRaises(AssertionError, self.assert_invariants)

    def test_the_row_is_removed_between_the_two_transactions(self) -> None:
        """The call makes it again. (For a crash there: see tests/faults/test_killed_calls.py.)"""
        self.hold("b", 3)
        remove = functools.partial(self.execute, f"DELETE FROM quota_usages WHERE project_id = '{TOTAL}'")
        with hooks.Meanwhile(History, "change", remove) as calls:
            self.set_total(12)
        self.assertEqual((2, TotalLimit("gpu", 12, 3)), (calls.count, self.total()))

    def test_names_are_sorted_as_the_database_sorts_them(self) -> None:
        """Some collations of PostgreSQL ignore blanks, so that the name of the total is not the first of all."""
        if self.backend != "postgresql":
            self.skipTest("the other databases compare names by bytes")
        change = "ALTER TABLE quota_usages ALTER project_id TYPE varchar(255) COLLATE"
        self.execute("CREATE COLLATION shifted (provider = icu, locale = 'und-u-ka-shifted')")
        self.addCleanup(self.execute, "DROP COLLATION shifted")
        self.execute(f"{change} shifted")
        self.addCleanup(self.execute, f'{change} "default"')
        self.hold("b", 3)
        self.set_total(12)
        self.assertEqual(TotalLimit("gpu", 12, 3), self.total())
        self.totals.unset_total_limits(ADMIN, ["gpu"])


class TestTree(TotalTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        for project_id, amount in (("a", 1), ("child", 2), ("b", 3)):
            self.hold(project_id, amount)

    def test_a_transfer_between_roots_does_not_change_it(self) -> None:
        """At the limit, too; and a resize is refused by it."""
        self.quotas.reserve(base.Context("c"), {"gpu": 4}, consumer="x")
        self.set_total(10)
        self.quotas.transfer(ADMIN, "b", "c", consumer="x")
        self.assertEqual(10, self.total().held)
        error = self.assertRaises(exceptions.OverQuota, self.quotas.resize, base.Context("b"), {"gpu": 5}, consumer="x")
        self.assertEqual(["total"], [over.scope for over in error.overs])
        self.quotas.resize(base.Context("b"), {"gpu": 1}, consumer="x")
        self.assertEqual(7, self.total().held)

    def test_notices(self) -> None:
        """Of the total, and of no project; a total limit that is not enforced has none."""
        self.set_total(10)
        self.assertEqual([], self.engine.notices(ADMIN))
        self.hold("c", 2)
        (notice,) = self.engine.notices(ADMIN)
        self.assertEqual(Notice(None, "gpu", 10, 8, 0, 80), notice)
        self.assertEqual("all projects, resource gpu: at 80 % of the limit (used 8, limit 10)", str(notice))
        self.totals.unset_total_limits(ADMIN, ["gpu"])
        self.assertEqual([], self.engine.notices(ADMIN))

    def test_audit_and_heal(self) -> None:
        """A deleted row is made again by heal; processes that have cached a path without it read it again."""
        self.set_total(20)
        of_total = f"WHERE project_id = '{TOTAL}'"
        self.execute(f"UPDATE quota_usages SET subtree = 17 {of_total}")
        (drift,) = self.engine.audit(ADMIN)
        self.assertEqual((UsageKey(TOTAL, "gpu"), 6), (drift.key, drift.expected.subtree))
        self.assertEqual([drift.expected], [one.expected for one in self.quotas.heal(ADMIN)])
        self.execute("UPDATE quota_usages SET used = used + 2 WHERE project_id = 'child'")
        self.execute(f"UPDATE quota_usages SET subtree = subtree + 2 WHERE project_id IN ('child', 'a', '{TOTAL}')")
        self.quotas.heal(ADMIN)
        self.assertEqual([], self.engine.audit(ADMIN))
        self.execute(f"DELETE FROM quota_usages {of_total}")
        self.engine.reserve(base.Context("b"), {"gpu": 1})  # caches the path without the total
        self.assertEqual([TOTAL], [one.key.project_id for one in self.quotas.heal(ADMIN)])
        self.assertEqual((TotalLimit("gpu", 20, 7), [TOTAL]), (self.total(), self.blockers("b", 14)))

    def test_a_deleted_row_while_nothing_is_held(self) -> None:
        """No charge makes it again, and the limit is not enforced without it: heal must not wait for a difference."""
        root = base.Context("a")
        self.engine.rollback(root, self.engine.reserve(root, {"fpga": 1}))
        self.totals.set_total_limits(ADMIN, {"fpga": 3})
        self.execute(f"DELETE FROM quota_usages WHERE project_id = '{TOTAL}' AND resource = 'fpga'")
        self.assertEqual([TOTAL], [one.key.project_id for one in self.engine.audit(ADMIN)])
        self.engine.heal(ADMIN)
        self.assertRaises(exceptions.OverQuota, self.engine.reserve, root, {"fpga": 4})
        self.assertEqual([], self.engine.audit(ADMIN))

    def drift(self, *project_ids: str) -> None:
        """Make the counters of these subtrees too low."""
        for project_id in project_ids:
            self.execute("UPDATE quota_usages SET subtree = 1 WHERE project_id = :id", id=project_id)
        self.assertRaises(AssertionError, self.assert_invariants)

    def test_drift_refuses_no_call(self) -> None:
        """A move makes the rows exact that were too low, and all above them."""
        self.set_total(20)
        self.admin.move_project(ADMIN, "a", "c")
        for drifted in (["a"], ["c"], ["a", "c", TOTAL]):
            self.drift(*drifted)
            self.totals.move_project(ADMIN, "child", "b")
            self.assertEqual([], self.engine.audit(ADMIN))
            self.totals.move_project(ADMIN, "child", "a")
        self.drift("a", "c")
        self.totals.import_limits(ADMIN, {"projects": [{"id": "a"}, {"id": "child"}]})
        self.drift(TOTAL)
        self.quotas.release(ADMIN, [row.uuid for row in self.engine.list_reservations(ADMIN, "b")])
        self.drift(TOTAL)
        self.totals.unset_total_limits(ADMIN, ["gpu"])
        self.assertEqual([], self.totals.list_total_limits(ADMIN))
        self.set_total(20)
        self.assertEqual(3, self.total().held)


class TestDocument(TotalTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_export_and_import(self) -> None:
        self.hold("a", 2)
        self.set_total(20)
        document = self.admin.export_limits(ADMIN)
        self.assertEqual({"gpu": 20}, document["total"])
        self.assertEqual([], self.admin.import_limits(ADMIN, document))
        document["total"] = {"gpu": None, "fpga": 5}
        changes = self.admin.import_limits(ADMIN, document, dry_run=True)
        self.assertEqual(20, self.total().limit)
        self.assertEqual(changes, self.totals.import_limits(ADMIN, document, reason="moved"))
        self.assertEqual(
            [("set limit", "fpga", None, 5), ("unset limit", "gpu", 20, None)],
            [(change.action, change.resource, change.before, change.after) for change in changes],
        )
        self.assertEqual(TotalLimit("fpga", 5, 0), self.total())
        entries = [(entry.reason, entry.operation) for entry in self.admin.history(ADMIN, limit=2)]
        self.assertEqual([("moved", "import")] * 2, entries)
