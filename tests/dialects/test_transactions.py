# SPDX-License-Identifier: Apache-2.0
"""What a transaction sees, and which of its errors are retried."""

from __future__ import annotations

import functools
from unittest import mock

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import models, path_state
from cyborg_quota.types import UsageKey
from tests import base, hooks

COUNT = sa.select(sa.func.count()).select_from(models.quota_usages)


class TestTransactions(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.database = hooks.database_of(self.engine)

    def test_missing_rows_are_added_once(self) -> None:
        """An INSERT of a row that exists is ignored, and the row keeps its counters."""
        self.quotas.reserve(self.context, {"gpu": 2})
        keys = [UsageKey("p1", "gpu"), UsageKey("p1", "fpga")]
        for key in [*keys, *keys]:
            self.database.write(functools.partial(path_state.make_row, key=key))
        self.assertEqual([(0, 2), (0, 0)], [self.figures(resource=key.resource) for key in keys])

    def test_a_wrong_statement_is_not_retried(self) -> None:
        error = self.assertRaises(
            exceptions.DatabaseError,
            self.database.read,
            lambda connection: connection.exec_driver_sql("SELECT * FROM nothing"),
        )
        self.assertNotIsInstance(error, exceptions.DatabaseUnavailable)

    def test_read_committed(self) -> None:
        """A transaction sees what another one has committed since its first statement."""
        if self.backend == "sqlite":
            self.skipTest("a transaction reads from one snapshot")

        def read_twice(connection: sa.Connection) -> list[int]:
            before = connection.execute(COUNT).scalar_one()
            self.make_engine().reserve(self.context, {"gpu": 1})
            return [before, connection.execute(COUNT).scalar_one()]

        self.assertEqual([0, 1], self.database.read(read_twice))

    def test_nothing_is_left_open(self) -> None:
        """A COMMIT fails on a connection that works: its transaction must not become part of the next one."""
        uuids = self.engine.reserve(self.context, {"gpu": 1})
        other = self.make_engine()  # it has not made them, and so sends a COMMIT of its own
        dialect = hooks.database_of(other).engine.dialect
        with mock.patch.object(dialect, "do_commit", side_effect=hooks.refuse_commit(self.backend)):
            self.assertRaises(exceptions.DatabaseError, other.rollback, self.context, uuids)
        other.reserve(self.context, {"gpu": 2})
        self.assertEqual(["reserved"], self.states(*uuids))
        self.assertEqual((0, 3), self.figures())
        self.assert_invariants()
