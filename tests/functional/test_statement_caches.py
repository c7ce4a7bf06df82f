# SPDX-License-Identifier: Apache-2.0
"""The memory of cached statements grows neither with the backlog nor with the number of different batch sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from cyborg_quota.db import charges, models
from tests import base, hooks, on_sqlite, statement_cache

_DRIVER_KEEPS = 128
"""The number of statements that Python's sqlite3 caches on each connection."""

Batch = Callable[[int], object]


def sizes(most: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return two lists of sizes that share none; the first has one between each two powers of two."""
    return [1, 2, *range(3, most + 1, 2)], range(4, most + 1, 2)


class TestCaches(base.LedgerTestCase):
    """Batches of different sizes, over different projects, do not make a cache grow."""

    def setUp(self) -> None:
        """Count the statements of the engine, in a cache of its own."""
        super().setUp()
        self.watched = hooks.database_of(self.engine).engine
        self.texts: set[str] = set()
        statement_cache.unshare(self.watched)
        sa.event.listen(self.watched, "before_cursor_execute", lambda *given: self.texts.add(given[2]))

    def compiled(self) -> int:
        """Return the number of compiled statements in SQLAlchemy's cache."""
        return len(self.watched._compiled_cache or ())

    def assert_bounded(self, batch: Batch, first: Sequence[int], second: Sequence[int]) -> None:
        """Assert that batches of the second sizes do not make the caches larger than those of the first sizes."""
        for size in first:
            batch(size)
        before, texts = self.compiled(), set(self.texts)
        for size in second:
            batch(size)
        self.assertEqual(before, self.compiled())
        self.assertLess(before, 100)
        self.assert_invariants()
        if self.backend == "sqlite":
            self.assertEqual([], sorted(self.texts - texts))
            self.assertLess(len(texts), _DRIVER_KEEPS)

    @on_sqlite
    def test_a_text_for_each_size_is_detected(self) -> None:
        """The control: a statement with one condition for each row of its batch."""
        rows, database = models.reservations.c, hooks.database_of(self.engine)

        def batch(size: int) -> None:
            one_of = sa.or_(*[rows.id == number for number in range(size)])
            database.read(lambda connection: connection.execute(sa.select(rows.id).where(one_of)).all())

        self.assertRaises(AssertionError, self.assert_bounded, batch, *sizes(40))

    def seed(self, rows: int, projects: int, *, is_ended: bool = False) -> None:
        """Make rows that are overdue, or ended long ago, over a number of projects."""
        for number in range(projects):
            context = base.Context(f"p{number}")
            self.engine.reserve(context, {"gpu": 1}, consumer="first")
            uuids = self.engine.reserve_many(context, [base.claim(None, gpu=1)] * (rows // projects + 1))
            if is_ended:
                self.engine.rollback(context, uuids)
        column = "deleted_at" if is_ended else "expire"
        self.execute(f"UPDATE reservations SET {column} = '2001-01-01 00:00:00.000000' WHERE consumer_id IS NULL")

    def test_expiry(self) -> None:
        """Each batch has other projects, and another size."""
        expirer = self.engine._driver.reservations
        first, second = sizes(40)
        self.seed(sum(first) + sum(second), 30)

        def expire_batch(size: int) -> None:
            expirer._batch_rows = size
            rows, _ = expirer._settler.write(functools.partial(expirer.expire_after, None))
            self.assertEqual(size, len(rows))

        self.assert_bounded(expire_batch, first, second)
        self.assertEqual((0, 1), self.figures("p7"))

    def test_purge(self) -> None:
        first, second = sizes(40)
        self.seed(sum(first) + sum(second), 3, is_ended=True)
        database = hooks.database_of(self.engine)

        def batch(size: int) -> None:
            number = database.write(lambda connection: charges.purge_ended(connection, 0, size))
            self.assertEqual(size, number)

        self.assert_bounded(batch, first, second)

    def test_fold(self) -> None:
        def batch(size: int) -> None:
            uuids = self.engine.reserve_many(self.context, [base.claim(None, gpu=1) for _ in range(size)])
            self.engine.commit(self.context, uuids)
            self.assertLess(0, self.engine.purge(base.ADMIN, 0))

        self.engine.commit(self.context, self.engine.reserve(self.context, {"gpu": 1}))
        self.assert_bounded(batch, *sizes(14))

    def test_heal(self) -> None:
        for number in range(10):
            self.engine.reserve(base.Context(f"p{number}"), {"gpu": 1})

        def batch(size: int) -> None:
            self.execute("UPDATE quota_usages SET reserved = 9 WHERE id % 10 < :size", size=size)
            self.engine.heal(base.ADMIN)

        self.assert_bounded(batch, *sizes(10))

    def test_calls(self) -> None:
        """Groups of many sizes are reserved, listed, and settled by their UUIDs and by their name."""

        def batch(size: int) -> None:
            for way in ("commit", "rollback", "release"):
                group = f"{way}{size}"
                claims = [base.claim(f"{group}-{number}", gpu=1, fpga=number + 1) for number in range(size)]
                uuids = self.engine.reserve_many(self.context, claims, group=group)
                self.assertEqual(uuids, self.engine.reserve_many(self.context, claims, group=group))
                self.engine.extend(self.context, uuids, 3600)
                if way == "commit":
                    self.engine.commit(self.context, group=group)
                    self.engine.release(self.context, uuids)
                else:
                    getattr(self.engine, way)(self.context, uuids)
                self.engine.list_reservations(base.ADMIN, reservations=uuids[:1])  # (has a text for each length)

        self.assert_bounded(batch, [1, 2, 3, 5, 9, 17, 31, 35], [4, 7, 12, 20, 33])
