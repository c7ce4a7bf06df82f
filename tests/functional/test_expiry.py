# SPDX-License-Identifier: Apache-2.0
"""When a reservation becomes overdue, according to which clock, and how overdue reservations are expired."""

from __future__ import annotations

import datetime
from unittest import mock

import sqlalchemy as sa

from cyborg_quota import Claim, QuotaEngine, exceptions
from cyborg_quota.db.dialects import Dialect
from tests import base, fixtures, hooks, trees

UTC = datetime.timezone.utc
SECOND = datetime.timedelta(seconds=1)
HOUR = datetime.timedelta(hours=1)


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(UTC).replace(tzinfo=None)


class ExpiryTestCase(base.LedgerTestCase):
    def set_expire(self, uuid: str, expire: datetime.datetime) -> None:
        update = "UPDATE reservations SET expire = :e WHERE uuid = :u"
        self.execute(update, e=expire.isoformat(" ", "microseconds"), u=uuid)

    def expire_of(self, uuid: str) -> datetime.datetime:
        (row,) = self.engine.list_reservations(base.ADMIN, reservations=[uuid])
        return row.expire

    def make_swept(self, count: int) -> list[str]:
        """Make a number of overdue reservations; the last one is overdue for the longest time."""
        uuids = self.quotas.reserve_many(self.context, [base.claim(None, gpu=1) for _ in range(count)])
        for number, uuid in enumerate(uuids):
            self.set_expire(uuid, utc_now() - (number + 1) * HOUR)
        return uuids


class TestExpiry(ExpiryTestCase):
    def test_returns_the_number_expired(self) -> None:
        """An extended one is not among them."""
        uuids = self.make_swept(3)
        (early,) = self.quotas.reserve(self.context, {"gpu": 1}, 60)
        self.set_expire(early, utc_now() + SECOND)
        self.quotas.extend(self.context, [early], HOUR)
        self.assertEqual(3, self.make_engine(grace=-30.0).expire(base.ADMIN))
        self.assertEqual(["expired"] * 3 + ["reserved"], self.states(*uuids, early))
        self.assertEqual(0, self.quotas.expire(base.ADMIN))

    def test_batches_of_the_longest_overdue(self) -> None:
        uuids = self.make_swept(5)
        engine = self.make_engine(batch_rows=2)
        stop = mock.Mock(side_effect=InterruptedError)
        self.assertRaises(InterruptedError, engine.expire, base.ADMIN, progress=stop)
        self.assertEqual(["reserved"] * 3 + ["expired"] * 2, self.states(*uuids))
        self.assert_invariants()
        progress = mock.Mock()
        self.assertEqual(3, engine.expire(base.ADMIN, progress=progress))
        self.assertEqual([mock.call(2), mock.call(1)], progress.call_args_list)

    def test_a_reservation_is_overdue_after_the_grace_period(self) -> None:
        """[quota] expire_grace, in every call."""
        patient = fixtures.Checked(self.make_engine(grace=3600.0), self.url)
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="c")
        self.set_expire(uuid, utc_now() - 60 * SECOND)
        self.assertEqual(0, patient.expire(base.ADMIN))
        self.assertEqual([uuid], patient.reserve(self.context, {"gpu": 1}, consumer="c"))
        patient.extend(self.context, [uuid], 60)
        self.assertLess(utc_now(), self.expire_of(uuid))
        late = self.quotas.reserve(self.context, {"gpu": 1})
        for one, seconds in ((uuid, 60), (*late, 3601)):
            self.set_expire(one, utc_now() - seconds * SECOND)
        patient.commit(self.context, [uuid])
        self.assertRaises(exceptions.ReservationExpired, patient.commit, self.context, late)
        self.assertEqual(["committed", "expired"], self.states(uuid, *late))

    def test_a_whole_group(self) -> None:
        """Longer and shorter; and by the default."""
        claims = [base.claim("a", gpu=1), base.claim("b", fpga=1, gpu=2)]
        uuids = self.quotas.reserve_many(self.context, claims, 60, group="g")
        for expire, ttl in ((2 * HOUR, 2 * HOUR), (HOUR, HOUR), (None, 24 * HOUR)):
            self.quotas.extend(self.context, expire=expire, group="g")
            for uuid in uuids:
                self.assertLess(abs(self.expire_of(uuid) - utc_now() - ttl), 5 * SECOND)
        self.assertEqual((0, 3), self.figures())


class TestRaces(ExpiryTestCase):
    """Another call runs between the statements of a sweeper. (Not on SQLite, which has one writer.)"""

    scenarios = fixtures.SCENARIOS[1:]

    def test_one_is_locked(self) -> None:
        uuids = self.make_swept(2)
        with hooks.row_locks(self.sql).begin() as holder:
            holder.execute(sa.text("UPDATE reservations SET delta = delta WHERE uuid = :u"), {"u": uuids[0]})
            self.assertEqual(1, self.quotas.expire(base.ADMIN))
        self.assertEqual(["reserved", "expired"], self.states(*uuids))
        self.assertEqual(1, self.quotas.expire(base.ADMIN))

    def test_extended_between_reading_and_ending(self) -> None:
        """On a server without SKIP LOCKED, whose rows are not locked when they are read."""
        dialect = type(hooks.database_of(self.engine).dialect)
        uuids = self.make_swept(2)
        extend = lambda: self.set_expire(uuids[0], utc_now() + HOUR)  # noqa: E731
        with (
            mock.patch.object(dialect, "skip_locked", Dialect.skip_locked),
            hooks.Interleaved(self.engine, "SELECT reservations.expire", extend, after=True),
        ):
            self.assertEqual(1, self.quotas.expire(base.ADMIN))
        self.assertEqual(["reserved", "expired"], self.states(*uuids))


class TestManyProjects(base.LedgerTestCase):
    """More projects than are updated row by row: their counters are changed in bulk."""

    def setUp(self) -> None:
        super().setUp()
        self.plant({"top": None, "TOP": None, **{f"leaf{n}": "top" for n in range(4)}, "leaf4": "TOP"})
        for name in (*(f"root{number}" for number in range(15)), *(f"leaf{number}" for number in range(5))):
            self.engine.reserve_many(base.Context(name), [Claim(None, {"gpu": 2, "fpga": 1}), Claim(None, {"gpu": 1})])
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")

    def sweep(self, engine: QuotaEngine) -> None:
        """All expire, and nothing is held then."""
        self.assertEqual(60, engine.expire(base.ADMIN))
        self.assertEqual([], self.engine.audit(base.ADMIN))
        self.assert_invariants()
        usages = [record.usage for record in self.engine.list_usages(base.ADMIN)]
        self.assertEqual({(0, 0)}, {(usage.used, usage.reserved) for usage in usages})

    def test_paths_of_roots_and_of_children(self) -> None:
        """One statement reads them all."""
        saved = hooks.SavedRows(self.sql, ["reservations", "quota_usages"])
        engine = self.make_engine()
        engine.get_usages(base.ADMIN)
        with hooks.recorded_statements(engine) as sent:
            self.sweep(engine)
        self.assertEqual(1, len([text for text in sent if "RECURSIVE" in text]))
        saved.put_back()
        # The bulk update fails; row by row, the drifted row is recounted.
        self.execute("UPDATE quota_usages SET reserved = 1 WHERE project_id = 'root3' AND resource = 'gpu'")
        self.sweep(self.make_engine())
        saved.put_back()
        # An engine with the old path in its cache reads the path again.
        trees.move(hooks.database_of(self.make_engine()), "root3", "top")
        self.sweep(self.engine)
