# SPDX-License-Identifier: Apache-2.0
"""What a claim with ANY reads: of one resource a bounded number of rows, however many providers there are.

A claim of two resources reads the inventories of the first one that fit, until a provider has both: that may be all.

On SQLite and MariaDB, statistics must not matter: it is measured before and after they are renewed. On PostgreSQL,
autovacuum renews them; before that, it may read and sort all inventories that fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import sqlalchemy as sa

from cyborg_quota import ANY, exceptions
from cyborg_quota.capacity import tables
from cyborg_quota.capacity.tables import Order
from cyborg_quota.db import models
from tests import base, clouds, fixtures, hooks

FEW_NODES, NODES = 400, 4_278
TOTALS = (1, 1, 1, 4, 8)
AMOUNTS = (1, 4, 8)
ORDERS: tuple[Order, ...] = ("least free", "most free")
MOST_ROWS = {"sqlite": NODES, "mariadb": NODES // 10, "postgresql": NODES // 10}
"""On SQLite, steps: a scan takes several for each row."""
ROWS_OF_EACH = {"sqlite": 30, "mariadb": 5, "postgresql": 5}
"""What a claim of two resources reads of each provider that has one of them, at most: the inventories, the provider."""


class TestSelection(base.LedgerTestCase):
    """The queries with which the client finds candidates."""

    scenarios = fixtures.SCENARIOS

    def setUp(self) -> None:
        super().setUp()
        self.database = hooks.database_of(self.engine)

    def rows_read(self, amounts: Mapping[str, int], order: Order, number: int = 9) -> int:
        """The rows that are read to find ``number`` candidates, of 9 that are wanted."""
        with clouds.captured() as captured:
            found = self.database.read(lambda connection: tables.find_candidates(connection, amounts, order, 9))
        self.assertEqual(number, len(found))
        self.assertGreater(len(captured), 0)
        with self.sql.connect() as connection:
            return sum(clouds.rows_read(connection, *query) for query in captured)

    def test_it_reads_few_rows(self) -> None:
        """A third of the nodes is full, a third partly free, and the others are free: many are equally good."""
        kinds = itertools.cycle((total, int(total * part)) for part in (0, 0.5, 1) for total in TOTALS)
        clouds.add_inventories(self.sql, [(f"node{number}", "gpu", *next(kinds)) for number in range(NODES)])
        if self.backend != "postgresql":
            self.assert_few_are_read()
        clouds.analyze_inventories(self.sql)
        self.assert_few_are_read()
        row = models.inventories.c
        by_total = sa.select(row.id).where(row.resource == "gpu").order_by(row.total).limit(1)
        scan = str(by_total.compile(self.sql, compile_kwargs={"literal_binds": True}))
        with self.sql.connect() as connection:
            self.assertGreater(clouds.rows_read(connection, scan, ()), MOST_ROWS[self.backend], "the control")
        self.execute("UPDATE inventories SET total = 8, capacity = 8, max_unit = 8, used_elsewhere = 0, free = 8")
        clouds.analyze_inventories(self.sql)
        self.assert_few_are_read()  # all are equally good

    def assert_few_are_read(self) -> None:
        for amount in AMOUNTS:
            for order in ORDERS:
                self.assertLess(self.rows_read({"gpu": amount}, order), MOST_ROWS[self.backend], (amount, order))

    def test_two_resources(self) -> None:
        """Half of the nodes have one resource, half the other, and one has both: all inventories of one may be read.

        One node has a rare resource: a server begins with it, by its statistics; SQLite does not.
        """
        kinds = ("gpu", "fpga")
        nodes = [(f"node{number}", kinds[number % 2], 8, 8) for number in range(FEW_NODES)]
        nodes += [("last", "gpu", 8, 8), ("last", "fpga", 8, 8), ("node0", "rare", 8, 8)]
        clouds.add_inventories(self.sql, nodes)
        clouds.analyze_inventories(self.sql)
        most = FEW_NODES // 2 * ROWS_OF_EACH[self.backend]
        for other, rows in (("fpga", most), ("rare", most if self.backend == "sqlite" else FEW_NODES // 10)):
            for order in ORDERS:
                self.assertLess(self.rows_read({"gpu": 2, other: 1}, order, 1), rows, (other, order))

    def test_a_refusal(self) -> None:
        """Two resources are free at different providers only: one statement reads the inventories of one of them."""
        kinds = ("gpu", "fpga")
        nodes = [
            (f"node{number}", kind, 8, 8 if number % 2 == index else 0)
            for number in range(FEW_NODES)
            for index, kind in enumerate(kinds)
        ]
        clouds.add_inventories(self.sql, nodes)
        clouds.analyze_inventories(self.sql)
        with clouds.captured() as captured:
            self.assertRaises(
                exceptions.OverCapacity, self.engine.reserve, self.context, dict.fromkeys(kinds, 1), provider=ANY
            )
        (search,) = [query for query in captured if "inventories" in query[0]]
        with self.sql.connect() as connection:
            rows = clouds.rows_read(connection, *search)
            text, parameters = search
            plan = connection.exec_driver_sql(f"EXPLAIN {text}", parameters).all() if self.backend == "mariadb" else []
        self.assertLess(rows, FEW_NODES // 2 * ROWS_OF_EACH[self.backend])
        for step in plan:  # of the two, no row is read that an index shows to be unfit: it takes half of the time
            if step.table == "inventory_0":
                self.assertEqual(("ix_inventories_free", "Using where; Using index"), (step.key, step.Extra))
            elif step.table == "inventory_1":
                self.assertEqual("ix_inventories_provider", step.key)
