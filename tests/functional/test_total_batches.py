# SPDX-License-Identifier: Apache-2.0
"""The batches that switch a total limit over all projects on and off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import exceptions
from cyborg_quota.db.project_path import ProjectPath
from cyborg_quota.ledger import total_limits
from cyborg_quota.types import TOTAL, TotalLimit
from tests import base
from tests.functional import test_total_limits

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN


class TestBatches(test_total_limits.TotalTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(MonkeyPatch(test_total_limits.BATCH, 1))
        for project_id, amount in (("a", 1), ("child", 2), ("b", 3), ("c", 4)):
            self.hold(project_id, amount)

    def test_not_enforced_before_the_last_batch(self) -> None:
        seen = []

        def progress(number: int) -> None:
            self.assert_invariants()
            self.hold("b", 1)
            self.hold(f"new{len(seen)}", 1)
            seen.append((number, self.total()))

        self.set_total(12, progress=progress)
        self.assertEqual({False}, {total.is_enforced for _, total in seen})
        self.assertGreaterEqual(len(seen), 3)
        self.assertEqual(TotalLimit("gpu", 12, 10 + 2 * len(seen), True), self.total())
        self.assertEqual([TOTAL], self.blockers("b"))

    def test_a_repeat_continues_after_a_crash(self) -> None:
        self.assertRaises(test_total_limits.Killed, self.set_total, 12, progress=test_total_limits.kill)
        self.assertEqual(TotalLimit("gpu", 12, 3, False), self.total())
        self.assertEqual([], self.blockers("c", 99))
        self.assertEqual([], self.engine.audit(ADMIN))
        self.set_total(11)
        self.assertEqual(TotalLimit("gpu", 11, 10, True), self.total())
        changes = [entry.after for entry in self.admin.history(ADMIN) if entry.project_id == TOTAL]
        self.assertEqual([11, 12], changes)

    def test_removed_half_way_and_set_again(self) -> None:
        self.assertRaises(test_total_limits.Killed, self.set_total, 12, progress=test_total_limits.kill)
        self.totals.unset(ADMIN, ["gpu"])
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(ADMIN))
        self.set_total(12)
        self.assertRaises(test_total_limits.Killed, self.totals.unset, ADMIN, ["gpu"], progress=test_total_limits.kill)
        self.assert_invariants()
        self.assertEqual([], self.blockers("b", 99))
        self.set_total(12)
        self.assertEqual(TotalLimit("gpu", 12, 10, True), self.total())
        self.assertRaises(test_total_limits.Killed, self.totals.unset, ADMIN, ["gpu"], progress=test_total_limits.kill)
        self.totals.unset(ADMIN, ["gpu"])
        self.assert_invariants()

    def after_the_last_batch(self, act: Callable[[], object]) -> Any:
        """Call ``act`` once, between the last batch and the transaction that follows it."""
        original, calls = total_limits.TotalLimits._count, []

        def count(totals: total_limits.TotalLimits, resource: str, progress: Any, *, is_counted: bool) -> None:
            original(totals, resource, progress, is_counted=is_counted)
            calls.append(1)
            if len(calls) == 1:
                act()

        self.addCleanup(lambda: self.assertEqual(2, len(calls)))  # it looked again, and counted once more
        return mock.patch.object(total_limits.TotalLimits, "_count", count)

    def test_a_root_that_appears_after_the_last_batch(self) -> None:
        """It was inserted by a transaction that did not see the total, and sorts before the last batch."""

        def insert() -> None:
            with mock.patch.object(ProjectPath, "uncounted", lambda self, resources: []):
                self.make_limited().reserve(base.Context("0"), {"gpu": 3})

        with self.after_the_last_batch(insert):
            self.set_total(20)
        self.assertEqual(TotalLimit("gpu", 20, 13, True), self.total())

    def test_a_root_that_is_counted_after_the_last_batch(self) -> None:
        """While the total is removed: the row of the root must not stay marked as counted."""
        self.set_total(20)

        def count_again() -> None:
            self.execute("UPDATE quota_usages SET counted_in_total = 1 WHERE project_id = 'b'")
            self.execute("UPDATE quota_usages SET subtree = subtree + 3 WHERE project_id = :total", total=TOTAL)

        with self.after_the_last_batch(count_again):
            self.totals.unset(ADMIN, ["gpu"])
        self.assertEqual(0, self.count("SELECT count(*) FROM quota_usages WHERE counted_in_total IS NOT NULL"))

    def test_each_batch_is_bounded(self) -> None:
        numbers: list[int] = []
        with mock.patch(test_total_limits.BATCH, 2):
            self.set_total(12, progress=numbers.append)
        self.assertEqual([2, 1], numbers)

    def test_names_are_sorted_as_the_database_sorts_them(self) -> None:
        """Some collations of PostgreSQL ignore blanks, so that the name of the total is not the first of all."""
        if self.backend != "postgresql":
            self.skipTest("the other databases compare names by bytes")
        self.execute("CREATE COLLATION shifted (provider = icu, locale = 'und-u-ka-shifted')")
        self.execute("ALTER TABLE quota_usages ALTER project_id TYPE varchar(255) COLLATE shifted")
        self.set_total(12)
        self.assertEqual(TotalLimit("gpu", 12, 10, True), self.total())
        self.totals.unset(ADMIN, ["gpu"])
        self.assert_invariants()

    def test_another_command_removes_it_meanwhile(self) -> None:
        def progress(number: int) -> None:
            self.make_limited().total_limits.unset(ADMIN, ["gpu"])

        error = self.assertRaises(exceptions.TotalLimitChanged, self.set_total, 12, progress=progress)
        self.assertEqual("gpu", error.resource)
        self.assertNotIn("Nothing was changed", str(error))
        self.assert_invariants()
        self.assertEqual([], self.totals.list(ADMIN))

    def test_another_command_removes_it_during_an_import(self) -> None:
        """The other changes of the import were made before, and the error says so."""
        other = self.make_limited().total_limits

        def removed_first(method: Any) -> Any:
            def call(*arguments: Any, **more: Any) -> Any:
                with mock.patch.object(total_limits.TotalLimits, method.__name__, method):
                    other.unset(ADMIN, ["gpu"])
                return method(*arguments, **more)

            return call

        for number, (name, limit) in enumerate((("_count", 9), ("unset", None)), start=77):
            if limit is None:
                self.set_total(20)
            patched = removed_first(getattr(total_limits.TotalLimits, name))
            with mock.patch.object(total_limits.TotalLimits, name, patched):
                document = {"total": {"gpu": limit}, "defaults": {"gpu": number}}
                error = self.assertRaises(exceptions.TotalLimitChanged, self.admin.import_limits, ADMIN, document)
            self.assertIn("Other changes of this command were made", str(error))
            self.assertIn(("gpu", number), [(one.resource, one.limit) for one in self.admin.list_limits(ADMIN)])
            self.assertEqual([], self.totals.list(ADMIN))
            self.assert_invariants()
