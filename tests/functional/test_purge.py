# SPDX-License-Identifier: Apache-2.0
"""What a purge deletes, and what it must not change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.db.database import Database
from cyborg_quota.ledger import reservations
from tests import base, fixtures, hooks

load_tests = testscenarios.load_tests_apply_scenarios

DAY = 86400


class PurgeTestCase(base.LedgerTestCase):
    def held(self, delta: int, **named: str) -> str:
        """Make one committed reservation."""
        (uuid,) = self.quotas.reserve(self.context, {"gpu": delta}, **named)
        self.quotas.commit(self.context, [uuid])
        return uuid

    def age(self, *uuids: str) -> None:
        """Set the times at which these were made, and ended, to long ago."""
        long_ago = "2001-01-01 00:00:00.000000"
        for uuid in uuids:
            self.execute(
                "UPDATE reservations SET created_at = :t, updated_at = :t WHERE uuid = :u",
                t=long_ago,
                u=uuid,
            )
            self.execute(
                "UPDATE reservations SET deleted_at = :t WHERE uuid = :u AND deleted_at IS NOT NULL",
                t=long_ago,
                u=uuid,
            )

    def stored(self) -> list[str]:
        return [row.uuid for row in self.engine.list_reservations(base.ADMIN)]

    def deltas(self) -> list[int]:
        return [row.delta for row in self.engine.list_reservations(base.ADMIN)]


class TestEnded(PurgeTestCase):
    """Ended rows."""

    def end_each_way(self) -> list[str]:
        uuids = [
            self.quotas.reserve(self.context, {"gpu": 1}, consumer=name)[0]
            for name in ("rolled", "expired", "released")
        ]
        self.quotas.rollback(self.context, consumer="rolled")
        self.make_overdue(uuids[1])
        self.quotas.expire(base.ADMIN)
        self.quotas.commit(self.context, consumer="released")
        self.quotas.release(self.context, consumer="released")
        self.assertEqual(["rolled_back", "expired", "released"], self.states(*uuids))
        return uuids

    def test_old_enough(self) -> None:
        uuids = self.end_each_way()
        self.age(*uuids[:2])
        self.assertEqual(2, self.quotas.purge(base.ADMIN, DAY))
        self.assertEqual(uuids[2:], self.stored())

    def test_the_age_counts_from_the_end(self) -> None:
        """A row that was made long ago and ended just now is kept."""
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="c")
        self.age(uuid)
        self.quotas.rollback(self.context, [uuid])
        self.assertEqual(0, self.quotas.purge(base.ADMIN, DAY))

    def test_live_rows_stay(self) -> None:
        (flying,) = self.quotas.reserve(self.context, {"gpu": 1})
        (overdue,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="o")
        held, other = self.held(2, consumer="c"), self.held(2, consumer="d")
        self.make_overdue(overdue)
        self.age(flying, overdue, held, other)
        self.assertEqual(0, self.quotas.purge(base.ADMIN, 0))
        self.assertEqual([flying, overdue, held, other], self.stored())

    def test_batches(self) -> None:
        uuids = self.quotas.reserve_many(self.context, [base.claim(None, gpu=1) for _ in range(5)])
        self.quotas.rollback(self.context, uuids)
        counts: list[int] = []
        quotas = fixtures.Checked(self.make_engine(batch_rows=2), self.url)
        self.assertEqual(5, quotas.purge(base.ADMIN, 0, progress=counts.append))
        self.assertEqual([2, 2, 1], counts)
        self.assertEqual([], self.stored())

    def test_purged_rows_are_unknown(self) -> None:
        uuids = self.end_each_way()
        self.quotas.purge(base.ADMIN, 0)
        for call in ("commit", "rollback", "release", "extend"):
            self.assertRaises(
                exceptions.ReservationNotFound,
                getattr(self.quotas, call),
                self.context,
                uuids[:1],
            )
        self.quotas.release(self.context, consumer="released")


class TestFold(PurgeTestCase):
    """Committed rows that can be selected only by their UUID are merged into one."""

    def test_several(self) -> None:
        uuids = [self.held(delta) for delta in (3, 1, 2)]
        self.assertEqual(2, self.quotas.purge(base.ADMIN, 0))
        (row,) = self.quotas.list_reservations(base.ADMIN)
        self.assertEqual(("p1", "gpu", 6, "committed"), (row.project_id, row.resource, row.delta, row.state))
        self.assertEqual((None, None, None), (row.consumer, row.group, row.expire))
        self.assertNotIn(row.uuid, uuids)
        self.assertEqual((6, 0), self.figures())

    def test_a_merged_row_is_unknown(self) -> None:
        uuids = [self.held(1) for _ in range(2)]
        self.quotas.purge(base.ADMIN, 0)
        for call in ("commit", "rollback", "release", "extend"):
            self.assertRaises(exceptions.ReservationNotFound, getattr(self.quotas, call), self.context, uuids)
        self.assertEqual((2, 0), self.figures())

    def test_the_fold_can_be_released(self) -> None:
        for _ in range(2):
            self.held(2)
        self.quotas.purge(base.ADMIN, 0)
        self.quotas.release(self.context, self.stored())
        self.assertEqual((0, 0), self.figures())

    def test_again(self) -> None:
        for _ in range(2):
            self.held(2)
        self.quotas.purge(base.ADMIN, 0)
        before = self.stored()
        self.assertEqual(0, self.quotas.purge(base.ADMIN, 0))
        self.assertEqual(before, self.stored())

    def test_it_can_be_stopped_between_two_batches(self) -> None:
        for _ in range(6):
            self.held(1)
        quotas = fixtures.Checked(self.make_engine(batch_rows=2), self.url)
        counts: list[int] = []

        def stop_after_two(count: int) -> None:
            counts.append(count)
            if sum(counts) == 2:
                raise InterruptedError

        self.assertRaises(InterruptedError, quotas.purge, base.ADMIN, 0, progress=stop_after_two)
        self.assertEqual([1, 1, 2, 2], sorted(self.deltas()))
        self.assertEqual(3, quotas.purge(base.ADMIN, 0, progress=counts.append))
        self.assertEqual(([6], 5), (self.deltas(), sum(counts)))

    def test_only_the_old(self) -> None:
        old = [self.held(1) for _ in range(2)]
        young = self.held(4)
        self.age(*old)
        self.assertEqual(1, self.quotas.purge(base.ADMIN, DAY))
        self.assertEqual([4, 2], self.deltas())
        self.assertIn(young, self.stored())

    def test_committed_lately(self) -> None:
        """Its age counts from the commit, not from the reserve."""
        uuids = [self.quotas.reserve(self.context, {"gpu": 1})[0] for _ in range(2)]
        self.age(*uuids)
        self.quotas.commit(self.context, uuids)
        self.assertEqual(0, self.quotas.purge(base.ADMIN, DAY))

    def test_groups_keep_theirs(self) -> None:
        """The rows of a group are selected by the group: if they were merged, its release would find nothing."""
        for _ in range(2):
            self.held(1, group="g")
        self.quotas.purge(base.ADMIN, 0)
        self.quotas.release(self.context, group="g")
        self.assertEqual((0, 0), self.figures())

    def test_each_project_and_resource_separately(self) -> None:
        for name in ("p1", "p2"):
            for _ in range(2):
                uuids = self.quotas.reserve(base.Context(name), {"gpu": 1, "fpga": 2})
                self.quotas.commit(base.Context(name), uuids)
        self.assertEqual(4, self.quotas.purge(base.ADMIN, 0))
        found = [(r.project_id, r.resource, r.delta) for r in self.quotas.list_reservations(base.ADMIN)]
        self.assertEqual(
            [("p1", "fpga", 4), ("p1", "gpu", 2), ("p2", "fpga", 4), ("p2", "gpu", 2)],
            sorted(found),
        )

    def test_many_usage_rows_are_read_in_pages(self) -> None:
        """No read of a purge returns more rows than a page, however many projects have rows to merge."""
        for name in ("p1", "p2", "p3", "p4", "p5"):
            for _ in range(2):
                self.quotas.commit(base.Context(name), self.quotas.reserve(base.Context(name), {"gpu": 1}))
        sizes = []
        read = Database.read

        def counting(database: Database, *arguments: Any) -> Any:
            result = read(database, *arguments)
            sizes.append(len(result) if isinstance(result, Sequence) else 1)
            return result

        with mock.patch.object(reservations, "_GROUPS_PER_PAGE", 2), mock.patch.object(Database, "read", counting):
            self.assertEqual(5, self.engine.purge(base.ADMIN, 0))
        self.assertEqual(2, max(sizes))
        self.assert_invariants()


class TestRaces(PurgeTestCase):
    """Another call runs between the statements of a purge. (Not on SQLite, which has one writer.)"""

    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.other = self.make_engine()

    def test_a_release_between_reading_and_folding(self) -> None:
        uuids = [self.held(delta) for delta in (1, 2, 4)]
        race = self.useFixture(
            hooks.Interleaved(
                self.engine,
                "DELETE FROM reservations",
                lambda: self.other.release(self.context, uuids[:1]),
            )
        )
        self.quotas.purge(base.ADMIN, 0)
        self.assertTrue(race.happened)
        self.assertEqual(["released"], self.states(uuids[0]))
        self.assertEqual((6, 0), self.figures())

    def test_a_fold_between_reading_and_releasing(self) -> None:
        uuids = [self.held(delta) for delta in (1, 2, 4)]
        race = self.useFixture(
            hooks.Interleaved(
                self.engine,
                "UPDATE reservations",
                lambda: self.other.purge(base.ADMIN, 0),
            )
        )
        self.assertRaises(exceptions.ReservationNotFound, self.quotas.release, self.context, uuids[:1])
        self.assertTrue(race.happened)
        self.assertEqual([7], self.deltas())
        self.assertEqual((7, 0), self.figures())

    def test_two_purges(self) -> None:
        uuids = [self.quotas.reserve(self.context, {"gpu": 1})[0] for _ in range(3)]
        self.quotas.rollback(self.context, uuids)
        counts = []
        race = self.useFixture(
            hooks.Interleaved(
                self.engine,
                "DELETE FROM reservations",
                lambda: counts.append(self.other.purge(base.ADMIN, 0)),
            )
        )
        counts.append(self.quotas.purge(base.ADMIN, 0))
        self.assertTrue(race.happened)
        self.assertEqual([], self.stored())
        self.assertEqual(3, sum(counts))
