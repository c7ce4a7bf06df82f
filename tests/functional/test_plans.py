# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's plans of the statements of an attach: each reads the rows of one holder, however long the history is.

PostgreSQL keeps the plan of a prepared statement. A plan that was made while the table was small must be right when the
table is large. A plan must not depend on statistics either: a table may have grown since it was last analyzed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import sqlalchemy as sa
import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import Claim, QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base, fixtures, hooks

load_tests = testscenarios.load_tests_apply_scenarios

SIZES = (0, 100, 1_000, 10_000, 100_000)
"""The size of the table when a statement is prepared."""

HOLDER_COLUMNS = frozenset({"id", "uuid", "consumer_id", "group_id"})
"""An index condition on one of these columns selects the rows of one holder."""

# Ended reservations, except for one row in ten, which is committed. The table is never analyzed.
GROW = """
    INSERT INTO reservations
        (created_at, deleted_at, deleted, uuid, usage_id, project_id, resource, delta, state,
         consumer_id, group_id, live, place)
    SELECT now(), CASE WHEN n %% 10 > 0 THEN now() END, n %% 10 > 0, gen_random_uuid()::text, 0,
        CASE WHEN {projects} = 1 THEN 'p1' ELSE 'p' || n %% {projects} END, 'fpga', 1,
        CASE WHEN n %% 10 > 0 THEN 'released' ELSE 'committed' END, md5(n::text), NULL,
        CASE WHEN n %% 10 = 0 THEN 1 END, CASE WHEN n %% 10 = 0 THEN 1 END
    FROM generate_series({begin}, {end}) AS n
"""


class PlanTestCase(base.BackendTestCase):
    """Tests with a database of its own, whose tables are never analyzed automatically."""

    scenarios = [scenario for scenario in fixtures.SCENARIOS if scenario[0] == "postgresql"]

    def setUp(self) -> None:
        super().setUp()
        self.url = fixtures.fresh_url(self.backend, "plans")
        database = Database(fixtures.settings(self.url))
        schema.sync(database)
        database.close()
        self.sql = sa.create_engine(self.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        self.execute("ALTER TABLE reservations SET (autovacuum_enabled = off)")
        self.execute("ALTER TABLE quota_usages SET (autovacuum_enabled = off)")
        self.context = base.Context("p1")
        self.limits = fixtures.DictLimits()
        self.limits.limits[None, "gpu"] = 1_000

    def execute(self, statement: str) -> None:
        with self.sql.connect() as connection:
            connection.exec_driver_sql(statement)

    def make_engine(self) -> QuotaEngine:
        engine = fixtures.make_engine(self.url, self.limits)
        self.addCleanup(engine.close)
        return engine

    def attach(self, engine: QuotaEngine, name: str) -> None:
        """Run the statements of reserve, commit, rollback and release, for one row and for several."""
        for size in (1, 2, 8):
            for call in (engine.rollback, engine.commit):
                consumers = [f"{name} {size} {number}" for number in range(size)]
                claims = [Claim(consumer, {"gpu": 1}) for consumer in consumers]
                call(self.context, engine.reserve_many(self.context, claims, group=name))
            engine.release(self.context, consumer=consumers[0])
        engine.rollback(self.context, engine.reserve(self.context, {"gpu": 1}))  # without a consumer

    def attach_prepared(self, engine: QuotaEngine, name: str) -> None:
        """Run the statements in both variants that PostgreSQL has."""
        for check_interval in (1, 10**9):
            with mock.patch("cyborg_quota.db.dialects.postgresql._CONTENTION_CHECK_INTERVAL", check_interval):
                self.attach(engine, f"{name} {check_interval}")


def _wrong(plans: Mapping[str, Any]) -> set[str]:
    """Return the scans of these plans that may read more than one holder's rows, by the text of their statements."""
    return {
        f"{node['Node Type']} on {node.get('Relation Name')} by {node.get('Index Name')}: {statement[:90]}"
        for statement, plan in plans.items()
        for node in _nodes(plan)
        if not _reads_one_holder(node)
    }


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Return the scans of tables in a plan, which is the JSON of EXPLAIN."""
    for item in plan if isinstance(plan, list) else [plan]:
        node = item.get("Plan", item)
        if node["Node Type"].endswith("Scan") and node["Node Type"] not in ("CTE Scan", "Values Scan"):
            yield node
        for child in node.get("Plans", []):
            yield from _nodes(child)


def _reads_one_holder(node: dict[str, Any]) -> bool:
    if "Index Name" not in node:
        return bool(node["Node Type"] == "Bitmap Heap Scan")  # the scan of its index is a node of its own
    condition = node.get("Index Cond", "")
    if node.get("Scan Direction") == "Backward" and condition == "(id IS NOT NULL)":
        return True  # max(id), which is stored where a reservation ends: reads only the last entry of the index
    return any(f"{column} =" in condition or f"{column})::text =" in condition for column in HOLDER_COLUMNS)


def explain(connection: sa.Connection, statement: str, parameters: Any = None) -> Any:
    plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
    return json.loads(plan) if isinstance(plan, str) else plan


def generic_plans(connection: sa.Connection) -> dict[str, Any]:
    """Return the generic plan of each statement that this connection has prepared, by its text."""
    connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
    prepared = connection.exec_driver_sql(
        "SELECT name, array_length(parameter_types, 1) AS size, statement FROM pg_prepared_statements"
    ).all()
    return {
        row.statement: explain(connection, f"EXECUTE {row.name} ({', '.join(['NULL'] * row.size)})")
        for row in prepared
    }


class TestPrepared(PlanTestCase):
    """For each size of the table, a connection prepares its statements at that size."""

    scenarios = testscenarios.multiply_scenarios(
        PlanTestCase.scenarios, [("one project", {"projects": 1}), ("many projects", {"projects": 5_000})]
    )
    projects = 1

    def test_at_each_size_of_an_unanalyzed_table(self) -> None:
        begin, wrong = 1, set()
        for size in SIZES:
            self.execute(GROW.format(projects=self.projects, begin=begin, end=size))
            begin = size + 1
            engine = self.make_engine()
            self.attach_prepared(engine, str(size))
            plans = hooks.database_of(engine).read(generic_plans)
            # Reserve, commit and rollback of 1, 2 and 8 rows in two variants, and reservations without a consumer.
            self.assertGreaterEqual(len(plans), 18)
            plans |= self.plans_of_multi_statement_transaction(engine, size)
            wrong |= {f"{size} rows: {scan}" for scan in _wrong(plans)}
            engine.close()
        self.assertEqual([], sorted(wrong))

    def plans_of_multi_statement_transaction(self, engine: QuotaEngine, size: int) -> dict[str, Any]:
        """Return the plans of the multi-statement transaction, whose statements are planned each time."""
        sent: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
            if " reservations" in statement and not statement.startswith("EXPLAIN"):
                sent.append((statement, parameters))

        database = hooks.database_of(engine)
        sa.event.listen(database.engine, "before_cursor_execute", note)
        with mock.patch.object(Database, "_may_run_single_statements", return_value=False):
            database._runs_single_statements = False
            self.attach(engine, f"ordinary {size}")
            uuids = engine.reserve_many(self.context, [Claim("a", {"gpu": 1}), Claim("b", {"gpu": 1})], group="g")
            engine.extend(self.context, uuids, 60)
            engine.commit(self.context, group="g")
            engine.release(self.context, group="g")
        sa.event.remove(database.engine, "before_cursor_execute", note)
        texts = {statement: parameters for statement, parameters in sent}
        self.assertGreaterEqual(len(texts), 8)

        return database.read(
            lambda connection: {
                statement: explain(connection, statement, parameters or None) for statement, parameters in texts.items()
            }
        )


class TestPlannedAgain(PlanTestCase):
    """PostgreSQL plans a prepared statement again when a table was analyzed or altered."""

    def test_after_an_analyze_of_small_tables(self) -> None:
        engine = self.make_engine()
        self.attach_prepared(engine, "small")
        self.execute("ANALYZE")
        self.assertEqual(set(), _wrong(hooks.database_of(engine).read(generic_plans)))


class TestOnlyTheUniqueKeys(PlanTestCase):
    """Without its unique keys, a lookup needs a sequential scan: so no statistics can select another index."""

    def scans(self, constraints: Sequence[str]) -> set[str]:
        engine = self.make_engine()
        self.useFixture(MonkeyPatch("cyborg_quota.db.dialects.postgresql._CONTENTION_CHECK_INTERVAL", 10**9))
        engine.reserve(self.context, {"gpu": 1})  # the usage row exists
        engine.commit(self.context, engine.reserve(self.context, {"gpu": 1}, consumer="a"))

        def without(connection: sa.Connection) -> set[str]:
            for name in constraints:
                connection.exec_driver_sql(f"ALTER TABLE reservations DROP CONSTRAINT {name}")
            plans = generic_plans(connection)
            connection.exec_driver_sql("ROLLBACK")
            return {
                f"{node['Node Type']} {node.get('Index Name')}"
                for plan in plans.values()
                for node in _nodes(plan)
                if node.get("Relation Name") == "reservations"
            }

        return hooks.database_of(engine).write(without)

    def test_of_the_lookup_of_a_consumer(self) -> None:
        found = self.scans(["uq_reservations_live_consumer", "uq_reservations_live_claim"])
        self.assertEqual({"Seq Scan None", "Index Scan uq_reservations_uuid"}, found)

    def test_of_a_settle(self) -> None:
        found = {scan for scan in self.scans(["uq_reservations_uuid"]) if "live" not in scan}
        self.assertEqual({"Seq Scan None"}, found)
