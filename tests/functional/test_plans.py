# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's plans of the statements of an attach: each reads the rows of one holder, however long the history is.

PostgreSQL keeps the plans of a function's statements. A plan that was made while the table was small must be right when
the table is large, and a plan must not depend on statistics: a table may have grown since it was last analyzed. The
server's module auto_explain sends each plan that a function uses to the client, as a notice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa
import testscenarios

from cyborg_quota import Claim, Inventory, QuotaEngine
from tests import base, clouds, fixtures, hooks

SIZES = (0, 100, 1_000, 10_000, 100_000)
"""The size of the table when a statement is prepared."""

SENDS_PLANS = """
    LOAD 'auto_explain';
    SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
    SET auto_explain.log_format = json; SET client_min_messages = log
"""

HOLDER_COLUMNS = frozenset({"id", "uuid", "consumer_id", "group_id"})
"""An index condition on one of these columns selects the rows of one holder."""

# Ended reservations, except for one row in ten, which is committed. The table is never analyzed.
GROW = """
    INSERT INTO reservations
        (created_at, deleted_at, deleted, uuid, usage_id, project_id, resource, delta, state,
         consumer_id, group_id, live, claim_ordinal)
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
        fixtures.create_schema(self.url)
        self.sql = sa.create_engine(self.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        for table in ("reservations", "quota_usages"):
            self.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        self.context = base.Context("p1")
        self.limits = fixtures.DictLimits()
        self.limits.own[None, "gpu"] = 1_000

    def execute(self, statement: str) -> None:
        with self.sql.connect() as connection:
            connection.exec_driver_sql(statement)

    def make_engine(self) -> QuotaEngine:
        return fixtures.open_engine(self, self.url, self.limits)

    def plans_of(self, engine: QuotaEngine, run: Callable[[], object]) -> list[Any]:
        """The plans of the statements of the functions that ``run()`` calls."""
        database = hooks.database_of(engine)
        notices: list[str] = []

        def send_plans(connection: sa.Connection) -> None:
            connection.exec_driver_sql(SENDS_PLANS)
            # (Of a list, psycopg2 keeps the last 50, and SQLAlchemy removes them.)
            connection.connection.dbapi_connection.notices = SimpleNamespace(append=notices.append)  # type: ignore[union-attr]

        database.write(send_plans)
        run()
        plans = [json.loads(notice[notice.index("{") :]) for notice in notices if "Query Text" in notice]
        # Only the functions name the tables with their schema.
        return [plan for plan in plans if "public." in plan["Query Text"]]

    def attach(self, engine: QuotaEngine, name: str) -> None:
        """Run the statements of reserve, commit, rollback and release, for one row and for several."""
        for size in (1, 2, 8):
            for call in (engine.rollback, engine.commit):
                consumers = [f"{name} {size} {number}" for number in range(size)]
                claims = [Claim(consumer, {"gpu": 1}) for consumer in consumers]
                call(self.context, engine.reserve_many(self.context, claims, group=name))
            engine.release(self.context, consumer=consumers[0])
        engine.rollback(self.context, engine.reserve(self.context, {"gpu": 1}))  # without a consumer


def _wrong(plans: Iterable[Any]) -> set[str]:
    """The scans of these plans that may read more than one holder's rows."""
    return {
        f"{node['Node Type']} on {node.get('Relation Name')} by {node.get('Index Name')}: {node.get('Index Cond')}"
        for plan in plans
        for node in _nodes(plan)
        if not _reads_one_holder(node)
    }


OF_CAPACITY = re.compile("inventories|resource_providers")
"""Tables without a history, or their indexes: test_claim_plans.py shows what a claim reads of them."""
NO_TABLE = frozenset({"CTE Scan", "Values Scan", "Function Scan", "Subquery Scan"})


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """The scans of tables in a plan, which is EXPLAIN's JSON."""
    for one in plan if isinstance(plan, list) else [plan]:
        node = one.get("Plan", one)
        if node["Node Type"].endswith("Scan") and node["Node Type"] not in NO_TABLE:
            yield node
        for child in node.get("Plans", []):
            yield from _nodes(child)


def _reads_one_holder(node: dict[str, Any]) -> bool:
    if OF_CAPACITY.search(f"{node.get('Relation Name')} {node.get('Index Name')}"):
        return True
    if "Index Name" not in node:
        return bool(node["Node Type"] == "Bitmap Heap Scan")  # the scan of its index is a node of its own
    condition = node.get("Index Cond", "")
    if node.get("Scan Direction") == "Backward" and condition == "(id IS NOT NULL)":
        return True  # max(id), which is stored where a reservation ends: reads only the last entry of the index
    if re.search(r"\(group_id\)::text >= .* \(group_id\)::text < ", condition.replace("((", "(")):
        return True  # the groups below one
    return bool(HOLDER_COLUMNS & set(re.findall(r"(\w+)(?:\)::text)? =", condition)))


class TestPredicate(base.base.BaseTestCase):
    """The control of this module: a scan of all rows of a project is not taken for one of a holder's rows."""

    def test_conditions(self) -> None:
        for condition, expected in (
            ("(((project_id)::text = 'p'::text) AND (live = 1))", False),
            ("(usage_id = 7)", False),
            ("(((project_id)::text = 'p'::text) AND ((consumer_id)::text = 'c'::text))", True),
            ("(id = ANY (ids))", True),
            ("(((project_id)::text = 'p'::text) AND ((group_id)::text >= 'g/'::text))", False),
            ("(((group_id)::text >= 'g/'::text) AND ((group_id)::text < 'g0'::text))", True),
        ):
            node = {"Node Type": "Index Scan", "Index Name": "an_index", "Index Cond": condition}
            self.assertIs(expected, _reads_one_holder(node), condition)


def explain(connection: sa.Connection, statement: str, parameters: Any = None) -> Any:
    plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
    return json.loads(plan) if isinstance(plan, str) else plan


class TestFunctions(PlanTestCase):
    """Each size of the table has a connection that plans its statements there."""

    scenarios = testscenarios.multiply_scenarios(
        PlanTestCase.scenarios, [("one project", {"projects": 1}), ("many projects", {"projects": 5_000})]
    )
    projects = 1

    def setUp(self) -> None:
        super().setUp()
        engine = self.make_engine()
        engine.capacity.add_provider(base.ADMIN, "n1")
        engine.capacity.set_inventories(base.ADMIN, "n1", {"gpu": Inventory(50)})

    def call_every_function(self, engine: QuotaEngine, name: str) -> None:
        """Also those of claims, for one row and for several."""
        self.attach(engine, name)
        for size in (1, 2):
            consumers = [f"{name} at n1 {size} {number}" for number in range(size)]
            claims = [Claim(consumer, {"gpu": 1}, provider="n1") for consumer in consumers]
            engine.rollback(self.context, engine.reserve_many(self.context, claims))

    def test_at_each_size_of_an_unanalyzed_table(self) -> None:
        begin, wrong = 1, set()
        for size in SIZES:
            self.execute(GROW.format(projects=self.projects, begin=begin, end=size))
            begin = size + 1
            engine = self.make_engine()
            with hooks.recorded_statements(engine) as sent:
                plans = self.plans_of(engine, lambda of=engine, at=size: self.call_every_function(of, str(at)))  # type: ignore[misc]
            called = {name for text in sent for name in re.findall(r"cyborg_quota_\w+_v\d", text)}
            self.assertEqual({"cyborg_quota_reserve_v1", "cyborg_quota_settle_v1"}, called)
            # Those of TestPlannedAgain, and the UPDATE of inventories.
            self.assertEqual(6, len({plan["Query Text"] for plan in plans}))
            found = _wrong(plans)
            found |= _wrong(self.plans_of_multi_statement_transaction(engine, size))
            wrong |= {f"{size} rows: {one}" for one in found}
            engine.close()
        self.assertEqual([], sorted(wrong))

    def plans_of_multi_statement_transaction(self, engine: QuotaEngine, size: int) -> list[Any]:
        """Return the plans of the multi-statement transaction, whose statements are planned each time."""
        database = hooks.database_of(engine)
        database._pool.runs_single_statements = False
        with clouds.captured() as sent:
            self.attach(engine, f"ordinary {size}")
            uuids = engine.reserve_many(self.context, [Claim("a", {"gpu": 1}), Claim("b", {"gpu": 1})], group="g")
            engine.extend(self.context, uuids, 60)
            engine.commit(self.context, group="g")
            engine.release(self.context, group="g")
        texts = {statement: parameters for statement, parameters in sent if " reservations" in statement}
        self.assertGreaterEqual(len(texts), 8)

        return database.read(
            lambda connection: [
                explain(connection, statement, parameters or None) for statement, parameters in texts.items()
            ]
        )


class TestPlannedAgain(PlanTestCase):
    """PostgreSQL plans the statements of a function again when a table was analyzed or altered."""

    def test_after_an_analyze_of_small_tables(self) -> None:
        engine = self.make_engine()
        self.attach(engine, "small")
        self.execute("ANALYZE")
        plans = self.plans_of(engine, lambda: self.attach(engine, "analyzed"))
        # Look up the consumers, charge (reserve and settle alike), insert, commit, roll back.
        self.assertEqual(5, len({plan["Query Text"] for plan in plans}))
        self.assertEqual(set(), _wrong(plans))
