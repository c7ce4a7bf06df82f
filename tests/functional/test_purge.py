# SPDX-License-Identifier: Apache-2.0
"""What a purge deletes, and what it must not change."""

from __future__ import annotations

from unittest import mock

from cyborg_quota import exceptions
from cyborg_quota.ledger import reservations
from tests import base, fixtures, hooks

DAY = 86400


class PurgeTestCase(base.LedgerTestCase):
    def held(self, delta: int, **named: str) -> str:
        """Make one committed reservation."""
        (uuid,) = self.quotas.reserve(self.context, {"gpu": delta}, **named)
        self.quotas.commit(self.context, [uuid])
        return uuid

    def age(self, *uuids: str) -> None:
        """Set the times at which these were made, and ended, to long ago."""
        long_ago = "'2001-01-01 00:00:00.000000'"
        ended = f"CASE WHEN deleted_at IS NULL THEN deleted_at ELSE {long_ago} END"
        columns = f"created_at = {long_ago}, updated_at = {long_ago}, deleted_at = {ended}"
        for uuid in uuids:
            self.execute(f"UPDATE reservations SET {columns} WHERE uuid = :u", u=uuid)

    def assert_unknown(self, uuids: list[str]) -> None:
        for call in ("commit", "rollback", "release", "extend"):
            self.assertRaises(exceptions.ReservationNotFound, getattr(self.quotas, call), self.context, uuids)

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
        """The age counts from the end. Live rows stay, also those that are overdue."""
        uuids = self.end_each_way()
        self.age(*uuids[:2])
        flying, overdue, late = (self.quotas.reserve(self.context, {"gpu": 1}, consumer=name)[0] for name in "fol")
        live = [flying, overdue, self.held(2, consumer="c"), self.held(2, consumer="d")]
        self.make_overdue(overdue)
        self.age(*live, late)
        self.quotas.rollback(self.context, [late])
        self.assertEqual(2, self.quotas.purge(base.ADMIN, DAY))
        self.assertEqual({uuids[2], *live, late}, set(self.stored()))
        self.assertEqual((2, live), (self.quotas.purge(base.ADMIN, 0), self.stored()))
        self.assert_unknown(uuids[:1])
        self.quotas.release(self.context, consumer="released")

    def test_batches(self) -> None:
        uuids = self.quotas.reserve_many(self.context, [base.claim(None, gpu=1) for _ in range(5)])
        self.quotas.rollback(self.context, uuids)
        progress = mock.Mock()
        quotas = fixtures.Checked(self.make_engine(batch_rows=2), self.url)
        self.assertEqual(5, quotas.purge(base.ADMIN, 0, progress=progress))
        self.assertEqual(([mock.call(2), mock.call(2), mock.call(1)], []), (progress.call_args_list, self.stored()))


class TestFold(PurgeTestCase):
    """Committed rows that can be selected only by their UUID are merged into one."""

    def test_several(self) -> None:
        """For each project, resource and provider, with their resizes. The rows of a group stay: it selects them."""
        uuids = [self.held(delta) for delta in (3, 1, 1)]
        self.quotas.resize(self.context, {"gpu": 2}, reservation=uuids[-1])
        for name in ("p2", "p2"):
            self.quotas.commit(base.Context(name), self.quotas.reserve(base.Context(name), {"gpu": 1, "fpga": 2}))
        self.add_provider("n1", gpu=9)
        self.held(2, provider="n1")
        self.held(2, provider="n1")
        of_group = [self.held(1, group="g") for _ in range(2)]
        self.assertEqual(5, self.quotas.purge(base.ADMIN, 0))
        rows = self.quotas.list_reservations(base.ADMIN)
        folded = {(one.project_id, one.resource, one.provider): one for one in rows if one.group is None}
        expected = {("p1", "gpu", None): 6, ("p1", "gpu", "n1"): 4, ("p2", "fpga", None): 4, ("p2", "gpu", None): 2}
        self.assertEqual(expected, {key: one.delta for key, one in folded.items()})
        row = folded["p1", "gpu", None]
        self.assertEqual(("committed", None, None), (row.state, row.consumer, row.expire))
        self.assertEqual(set(of_group), {one.uuid for one in rows if one.group == "g"})
        self.assert_unknown(uuids)
        self.assertEqual([], self.fetch("SELECT id FROM reservation_changes"))
        before = self.stored()
        self.assertEqual((0, before, (12, 0)), (self.quotas.purge(base.ADMIN, 0), self.stored(), self.figures()))
        self.quotas.release(self.context, group="g")
        self.quotas.release(self.context, [row.uuid])
        self.assertEqual((4, 0), self.figures())

    def test_it_can_be_stopped_between_two_batches(self) -> None:
        for _ in range(6):
            self.held(1)
        quotas = fixtures.Checked(self.make_engine(batch_rows=2), self.url)
        progress = mock.Mock(side_effect=[None, None, InterruptedError])
        self.assertRaises(InterruptedError, quotas.purge, base.ADMIN, 0, progress=progress)
        self.assertEqual([0, 1, 1], [call.args[0] for call in progress.call_args_list])
        self.assertEqual([1, 1, 2, 2], sorted(self.deltas()))
        self.assertEqual((3, [6]), (quotas.purge(base.ADMIN, 0), self.deltas()))

    def test_only_the_old(self) -> None:
        """The age of a row counts from the commit, not from the reserve."""
        old = [self.held(1) for _ in range(2)]
        lately = [self.quotas.reserve(self.context, {"gpu": 4})[0] for _ in range(2)]
        self.age(*old, *lately)
        self.quotas.commit(self.context, lately)
        self.assertEqual((1, [4, 4, 2]), (self.quotas.purge(base.ADMIN, DAY), self.deltas()))

    def test_many_usage_rows(self) -> None:
        """The memory of a purge is bounded, however many projects have rows to merge: the next one continues."""
        for name in ("p1", "p2", "p3", "p4", "p5"):
            for _ in range(2):
                self.quotas.commit(base.Context(name), self.quotas.reserve(base.Context(name), {"gpu": 1}))
        with mock.patch.object(reservations, "_MAX_GROUPS", 2):
            self.assertEqual([2, 2, 1, 0], [self.quotas.purge(base.ADMIN, 0) for _ in range(4)])


class TestRaces(PurgeTestCase):
    """Another call runs between the statements of a purge. (Not on SQLite, which has one writer.)"""

    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.other = self.make_engine()
        self.uuids = [self.held(delta) for delta in (1, 2, 4)]

    def test_a_release_between_reading_and_folding(self) -> None:
        release = lambda: self.other.release(self.context, self.uuids[:1])  # noqa: E731
        with hooks.Interleaved(self.engine, "DELETE FROM reservations", release):
            self.quotas.purge(base.ADMIN, 0)
        self.assertEqual((["released"], (6, 0)), (self.states(self.uuids[0]), self.figures()))

    def test_a_fold_between_reading_and_releasing(self) -> None:
        with hooks.Interleaved(self.engine, "UPDATE reservations", lambda: self.other.purge(base.ADMIN, 0)):
            self.assertRaises(exceptions.ReservationNotFound, self.quotas.release, self.context, self.uuids[:1])
        self.assertEqual(([7], (7, 0)), (self.deltas(), self.figures()))

    def test_two_purges(self) -> None:
        self.quotas.release(self.context, self.uuids)
        counts = []
        purge = lambda: counts.append(self.other.purge(base.ADMIN, 0))  # noqa: E731
        with hooks.Interleaved(self.engine, "DELETE FROM reservations", purge):
            counts.append(self.quotas.purge(base.ADMIN, 0))
        self.assertEqual(([], 3), (self.stored(), sum(counts)))
