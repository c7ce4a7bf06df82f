# SPDX-License-Identifier: Apache-2.0
"""Clouds of many projects, written by bulk INSERTs, and the number of rows that a call reads."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import models

CHILDREN = 20
"""The number of projects below each project of the second level."""

RESOURCES = ("fpga", "gpu")

Captured = list[tuple[str, Any]]


def add_projects(sql: sa.Engine, first: int, last: int, *, history: int = 0) -> None:
    """Add the projects ``p<first>`` to ``p<last - 1>``, each below ``mid<n>``, all below ``top``.

    Every project has usage rows of fpga and gpu and a limit of gpu; the projects of the two upper levels too.
    ``history``: the number of ended reservations for each of the new projects.
    """
    parents: dict[str, str | None] = {} if first else {"top": None}
    for number in range(first, last):
        middle = f"mid{number // CHILDREN}"
        if number % CHILDREN == 0:
            parents[middle] = "top"
        parents[f"p{number}"] = middle
    with sql.begin() as connection:
        _insert(connection, models.projects, [_project(*edge) for edge in parents.items()])
        _insert(connection, models.quota_usages, [_usage(parent, name) for parent in parents for name in RESOURCES])
        limits = [
            {"project_id": one, "resource": "gpu", "pod": "", "hard_limit": 1 if one[0] == "p" else 10**6}
            for one in parents
        ]
        _insert(connection, models.project_limits, limits)
        _insert(
            connection,
            models.reservations,
            [_ended(number, turn) for number in range(first, last) for turn in range(history)],
        )
        usage, row = models.quota_usages.c, models.reservations.c
        is_its = sa.and_(usage.project_id == row.project_id, usage.resource == row.resource, usage.pod == "")
        of_usage = sa.select(usage.id).where(is_its).scalar_subquery()
        connection.execute(sa.update(models.reservations).where(row.usage_id == 0).values(usage_id=of_usage))
    _renew_statistics(sql, "projects", "quota_usages", "project_limits", "reservations")


def add_children(sql: sa.Engine, parent_id: str, count: int, *, first: int = 0) -> None:
    """Add the children ``wide<first>``, ... to a project, each with usage rows, a limit and overrides of gpu."""
    names = [f"wide{number}" for number in range(first, count)]
    with sql.begin() as connection:
        _insert(connection, models.projects, [_project(name, parent_id) for name in names])
        _insert(connection, models.quota_usages, [_usage(name, resource) for name in names for resource in RESOURCES])
        limits = [{"project_id": name, "resource": "gpu", "pod": "", "hard_limit": 1} for name in names]
        _insert(connection, models.project_limits, limits)
    add_limit_records(sql, names)
    _renew_statistics(sql, "projects", "quota_usages", "project_limits")


def add_usages(sql: sa.Engine, keys: Sequence[tuple[str, str, str]]) -> None:
    """Add usage rows of these projects, resources and pods, without usage."""
    with sql.begin() as connection:
        _insert(connection, models.quota_usages, [_usage(*key) for key in keys])


def add_roots(sql: sa.Engine, first: int, last: int) -> None:
    """Add the roots ``root<first>`` to ``root<last - 1>`` with usage rows."""
    names = [f"root{number}" for number in range(first, last)]
    with sql.begin() as connection:
        _insert(connection, models.projects, [_project(name, None) for name in names])
        _insert(connection, models.quota_usages, [_usage(name, resource) for name in names for resource in RESOURCES])
    _renew_statistics(sql, "projects", "quota_usages")


def add_limit_records(sql: sa.Engine, project_ids: Sequence[str]) -> None:
    """Add to each project two overrides of gpu, of which one applies, and two later entries of the history of limits.

    (Later than those that a test makes: the newest entries are of other projects.)
    """
    moments = [datetime.datetime(year, 1, 1) for year in (2000, 2990, 2999)]
    with sql.begin() as connection:
        newest = connection.execute(sa.select(sa.func.max(models.changes.c.generation))).scalar() or 0
        start = max(newest, 10**6) + 1
        keys = [
            {"generation": start + index, "ordinal": turn, "project_id": project_id, "resource": "gpu"}
            for index, project_id in enumerate(project_ids)
            for turn in range(2)
        ]
        spans = [
            {"hard_limit": 1, "starts_at": moments[key["ordinal"]], "ends_at": moments[key["ordinal"] + 1]}
            for key in keys
        ]
        _insert(connection, models.limit_overrides, [{**key, **span} for key, span in zip(keys, spans, strict=True)])
        change = {"action": "set", "subject": "limit", "value_before": None, "value_after": "1"}
        _insert(connection, models.changes, [{**key, **change} for key in keys])
    _renew_statistics(sql, "limit_overrides", "changes")


def add_inventories(sql: sa.Engine, nodes: Sequence[tuple[str, str, int, int]]) -> None:
    """Add inventories (node, resource, total, free), and a provider for each node. The rest is used elsewhere."""
    with sql.begin() as connection:
        row = models.resource_providers.c
        names = dict.fromkeys(name for name, *_ in nodes)
        providers = [{"uuid": str(uuid.uuid4()), "name": name, "generation": 0, "can_host": 1} for name in names]
        _insert(connection, models.resource_providers, providers)
        ids = {found.name: found.id for found in connection.execute(sa.select(row.name, row.id))}
        units = {"reserved": 0, "min_unit": 1, "step_size": 1, "allocation_ratio": "1", "used": 0}
        inventories = [
            {
                **units,
                "provider_id": ids[name],
                "resource": resource,
                "free": free,
                "used_elsewhere": total - free,
                **dict.fromkeys(("total", "max_unit", "capacity"), total),
            }
            for name, resource, total, free in nodes
        ]
        _insert(connection, models.inventories, inventories)


def analyze_inventories(sql: sa.Engine) -> None:
    """Renew the statistics of the tables that ``add_inventories`` fills."""
    _analyze(sql, "resource_providers", "inventories")


def _renew_statistics(sql: sa.Engine, *tables: str) -> None:
    """As the servers do after many changes. SQLite does it only if it is told to, which the project never does."""
    if sql.dialect.name != "sqlite":
        _analyze(sql, *tables)


def _analyze(sql: sa.Engine, *tables: str) -> None:
    with sql.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in tables:
            connection.exec_driver_sql(
                f"ANALYZE TABLE {table}" if sql.dialect.name in ("mysql", "mariadb") else f"ANALYZE {table}"
            )


def rotated(projects: int, turns: int) -> dict[str, Any]:
    """Return the document that moves each project to another parent, a number of parents after its first one."""
    middles = projects // CHILDREN
    below: dict[int, list[dict[str, Any]]] = {number: [] for number in range(middles)}
    for number in range(projects):
        below[(number // CHILDREN + turns) % middles].append({"id": f"p{number}"})
    children = [{"id": f"mid{number}", "children": found} for number, found in below.items()]
    return {"projects": [{"id": "top", "children": children}]}


def _insert(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), 5000):
        connection.execute(sa.insert(table), rows[start : start + 5000])


def _project(project_id: str, parent_id: str | None) -> dict[str, Any]:
    return {"project_id": project_id, "parent_id": parent_id, "generation": 0}


def _usage(project_id: str, resource: str, pod: str = "") -> dict[str, Any]:
    zeros = {"used": 0, "reserved": 0, "subtree": 0, "generation": 0}
    return {"project_id": project_id, "resource": resource, "pod": pod, **zeros}


def _ended(number: int, turn: int) -> dict[str, Any]:
    return {
        "deleted": True,
        "uuid": f"ended-{number}-{turn}",
        "usage_id": 0,
        "project_id": f"p{number}",
        "resource": "gpu",
        "delta": 1,
        "state": "rolled_back",
        "consumer_id": f"old-{number}-{turn}",
        "group_id": f"group-{number}-{turn}",
    }


_PREPARED: dict[str, str] = {}
"""The queries that connections of this process have prepared, by name, with ``?`` for each parameter."""


@sa.event.listens_for(sa.Engine, "before_cursor_execute")
def _note_prepared(_connection: Any, _cursor: Any, statement: str, _parameters: Any, *_rest: Any) -> None:
    found = re.fullmatch(r"PREPARE (\w+) FROM 'BEGIN NOT ATOMIC (.*); COMMIT; END'", statement, re.DOTALL)
    if found is not None:
        _PREPARED[found[1]] = found[2].replace("''", "'").replace("%%", "%")


def _executed(statement: str) -> str:
    """The query that EXECUTE runs; any other statement stays as it is."""
    found = re.fullmatch(r"EXECUTE (\w+) USING (.*) -- COMMIT", statement)
    if found is None or found[1] not in _PREPARED:
        return statement
    values = iter(found[2].split(", "))
    return re.sub(r"\?", lambda _: next(values), _PREPARED[found[1]].replace("%", "%%"))


@contextlib.contextmanager
def captured() -> Iterator[Captured]:
    """Record every statement that SQLAlchemy sends while the block runs, with its parameters.

    A query that MariaDB has prepared is recorded as the query; its PREPARE is not.
    """
    found: Captured = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if not (statement.startswith("PREPARE") and statement.split()[1] in _PREPARED):
            found.append((_executed(statement), parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def queries(statements: Captured) -> Captured:
    """Return the statements that read."""
    return [statement for statement in statements if statement[0].lstrip(" (").startswith(("SELECT", "WITH"))]


def rows_read(connection: sa.Connection, statement: str, parameters: Any) -> int:
    """Return the number of rows of tables and indexes that a query reads; on SQLite, the steps of its program."""
    return _READERS[connection.dialect.name](connection, statement, parameters)


def rows_returned(connection: sa.Connection, statement: str, parameters: Any) -> int:
    """Return the number of rows that a query returns."""
    return len(connection.exec_driver_sql(statement, parameters).all())


def _read_on_mariadb(connection: sa.Connection, statement: str, parameters: Any) -> int:
    connection.exec_driver_sql("FLUSH STATUS")
    connection.exec_driver_sql(statement, parameters).all()
    return sum(int(row[1]) for row in connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'"))


def _read_on_postgresql(connection: sa.Connection, statement: str, parameters: Any) -> int:
    found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar_one()
    plans = json.loads(found) if isinstance(found, str) else found
    return rows_of_plan(plans[0]["Plan"])


def rows_of_plan(plan: dict[str, Any]) -> int:
    """Return the number of rows that the scans of PostgreSQL's plan have read."""
    node_rows = 0
    if "Relation Name" in plan:
        discarded = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        node_rows = round((plan["Actual Rows"] + discarded) * plan["Actual Loops"])
    return node_rows + sum(rows_of_plan(one) for one in plan.get("Plans", ()))


def _read_on_sqlite(connection: sa.Connection, statement: str, parameters: Any) -> int:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    bare: Any = connection.connection.dbapi_connection
    bare.set_progress_handler(step, 1)
    try:
        connection.exec_driver_sql(statement, parameters).all()
    finally:
        bare.set_progress_handler(None, 0)
    return steps


_READERS: dict[str, Callable[[sa.Connection, str, Any], int]] = {
    "mysql": _read_on_mariadb,
    "mariadb": _read_on_mariadb,
    "postgresql": _read_on_postgresql,
    "sqlite": _read_on_sqlite,
}
