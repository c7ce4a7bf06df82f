# SPDX-License-Identifier: Apache-2.0
"""What a claim with ANY reads: of one resource a bounded number of rows, however many providers there are.

A claim of two resources reads the inventories of the first one that fit, until a provider has both: that may be all.

The tables grow while the connection is open, as in a cloud: the statements were prepared, and the functions planned,
when there were few rows. On SQLite and MariaDB, statistics must not matter either: it is measured before and after they
are renewed. On PostgreSQL, autovacuum renews them; before that, it may read and sort all inventories that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa
import testscenarios

from cyborg_quota import ANY, QuotaEngine
from cyborg_quota.db import inventories
from cyborg_quota.db.candidates import Order
from tests import base, clouds, fixtures, hooks
from tests.functional import test_plans

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
FEW, FEW_NODES, NODES = 20, 400, 4_278
TOTALS = (1, 1, 1, 4, 8)
AMOUNTS = (1, 4, 8)
ORDERS: tuple[Order, ...] = ("least free", "most free")
MOST_ROWS = {"sqlite": NODES, "mariadb": NODES // 10, "postgresql": NODES // 10}
"""On SQLite, steps: a scan takes several for each row."""
ROWS_OF_EACH = {"sqlite": 30, "mariadb": 5, "postgresql": 5}
"""What a claim of two resources reads of each provider that has one of them, at most: the inventories, the provider."""
SENDS_ROWS = f"{test_plans.SENDS_PLANS}; SET auto_explain.log_analyze = on"


def add_nodes(sql: sa.Engine, first: int, last: int) -> None:
    """A third of the nodes is full, a third partly free, and the others are free: many are equally good."""
    nodes = []
    for number in range(first, last):
        total = TOTALS[number % len(TOTALS)]
        nodes.append((f"node{number}", "gpu", total, (0, total // 2, total)[number // len(TOTALS) % 3]))
    clouds.add_inventories(sql, nodes)


def add_equal_nodes(sql: sa.Engine, first: int, last: int) -> None:
    """All are free, and equally good."""
    clouds.add_inventories(sql, [(f"node{number}", "gpu", 8, 8) for number in range(first, last)])


class TestSelection(base.LedgerTestCase):
    """The queries with which the client finds candidates."""

    scenarios = fixtures.SCENARIOS

    def setUp(self) -> None:
        super().setUp()
        self.database = hooks.database_of(self.engine)

    def rows_read(self, amounts: Mapping[str, int], order: Order, number: int = 9) -> int:
        """The rows that are read to find ``number`` candidates, of 9 that are wanted."""
        seek = self.database.dialect.seek_in_free_index
        with clouds.captured() as captured:
            found = self.database.read(
                lambda connection: inventories.find_candidates(connection, amounts, order, 9, seek=seek)
            )
        self.assertEqual(number, len(found))
        self.assertGreater(len(captured), 0)
        with self.sql.connect() as connection:
            return sum(clouds.rows_read(connection, *query) for query in captured)

    def test_it_reads_few_rows(self) -> None:
        most = MOST_ROWS[self.backend]
        add_nodes(self.sql, 0, NODES)
        for is_analyzed in (False, True):
            if is_analyzed:
                clouds.analyze_inventories(self.sql)
            elif self.backend == "postgresql":
                continue
            for amount in AMOUNTS:
                for order in ORDERS:
                    self.assertLess(self.rows_read({"gpu": amount}, order), most, (amount, order))
        row = inventories.inventories.c
        by_total = sa.select(row.id).where(row.resource == "gpu").order_by(row.total).limit(1)
        scan = str(by_total.compile(self.sql, compile_kwargs={"literal_binds": True}))
        with self.sql.connect() as connection:
            self.assertGreater(clouds.rows_read(connection, scan, ()), most, "the control")

    def test_all_are_equally_good(self) -> None:
        add_equal_nodes(self.sql, 0, NODES)
        clouds.analyze_inventories(self.sql)
        for amount in AMOUNTS:
            for order in ORDERS:
                self.assertLess(self.rows_read({"gpu": amount}, order), MOST_ROWS[self.backend], (amount, order))

    def test_two_resources(self) -> None:
        """Half of the nodes have one resource, half the other, and one has both: all inventories of one may be read."""
        kinds = ("gpu", "fpga")
        nodes = [(f"node{number}", kinds[number % 2], 8, 8) for number in range(FEW_NODES)]
        clouds.add_inventories(self.sql, [*nodes, *(("last", kind, 8, 8) for kind in kinds)])
        clouds.analyze_inventories(self.sql)
        for order in ORDERS:
            rows = self.rows_read({"gpu": 2, "fpga": 1}, order, 1)
            self.assertLess(rows, FEW_NODES // 2 * ROWS_OF_EACH[self.backend], order)

    def test_a_rare_resource(self) -> None:
        """One node has the other resource. A server begins with it, by its statistics; SQLite does not."""
        nodes = [(f"node{number}", "gpu", 8, 8) for number in range(FEW_NODES)]
        clouds.add_inventories(self.sql, [*nodes, ("node7", "fpga", 8, 8)])
        clouds.analyze_inventories(self.sql)
        most = FEW_NODES * ROWS_OF_EACH["sqlite"] if self.backend == "sqlite" else FEW_NODES // 10
        for order in ORDERS:
            self.assertLess(self.rows_read({"gpu": 2, "fpga": 1}, order, 1), most, order)


class TestChoiceOnMariaDB(base.LedgerTestCase):
    """The block of statements in which the server chooses the provider."""

    scenarios = [scenario for scenario in fixtures.SCENARIOS if scenario[0] == "mariadb"]

    def rows_read(self, amount: int) -> int:
        """The rows that a claim reads, by the counters of its session."""
        database = hooks.database_of(self.engine)
        database.write(lambda connection: connection.exec_driver_sql("FLUSH STATUS"))
        with hooks.recorded_statements(self.engine) as sent:
            self.engine.reserve(self.context, {"gpu": amount}, provider=ANY)
        self.assertEqual(1, len(sent), sent)
        status = dict(
            database.read(lambda connection: connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler%%'").all())
        )
        self.assertGreater(int(status["Handler_update"]), 0, "the session of the claim")
        return sum(int(value) for name, value in status.items() if name.startswith("Handler_read"))

    def most_rows_read(self, add: Callable[[sa.Engine, int, int], None]) -> int:
        add(self.sql, 0, FEW)
        for amount in AMOUNTS:
            self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": amount}, provider=ANY))
        add(self.sql, FEW, NODES)
        rows = [self.rows_read(amount) for amount in AMOUNTS]
        clouds.analyze_inventories(self.sql)
        return max(*rows, *(self.rows_read(amount) for amount in AMOUNTS))

    def test_it_reads_few_rows(self) -> None:
        self.assertLess(self.most_rows_read(add_nodes), MOST_ROWS[self.backend])

    def test_all_are_equally_good(self) -> None:
        self.assertLess(self.most_rows_read(add_equal_nodes), MOST_ROWS[self.backend])


class TestChoiceOnPostgreSQL(test_plans.PlanTestCase):
    """The function in which the server chooses the provider."""

    def setUp(self) -> None:
        super().setUp()
        for table in ("inventories", "resource_providers"):
            self.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")

    def claim(self, engine: QuotaEngine, amount: int) -> None:
        engine.rollback(self.context, engine.reserve(self.context, {"gpu": amount}, provider=ANY))

    def rows_read(self, engine: QuotaEngine, amount: int) -> int:
        plans = self.plans_of(engine, lambda: self.claim(engine, amount), SENDS_ROWS)
        choices = [plan for plan in plans if "SKIP LOCKED" in plan["Query Text"]]
        self.assertEqual(2, len(choices), plans)
        return sum(clouds.rows_of_plan(plan["Plan"]) for plan in plans)

    def most_rows_read(self, add: Callable[[sa.Engine, int, int], None]) -> int:
        engine = self.make_engine()
        add(self.sql, 0, FEW)
        for _ in range(6):  # from the sixth call on, PostgreSQL may keep a plan for all parameters
            for amount in AMOUNTS:
                self.claim(engine, amount)
        add(self.sql, FEW, NODES)
        clouds.analyze_inventories(self.sql)
        return max(self.rows_read(engine, amount) for amount in AMOUNTS)

    def test_it_reads_few_rows(self) -> None:
        self.assertLess(self.most_rows_read(add_nodes), MOST_ROWS[self.backend])

    def test_all_are_equally_good(self) -> None:
        """The query for an equally good provider reads the index from a random provider on, and does not sort."""
        self.assertLess(self.most_rows_read(add_equal_nodes), FEW)
