# SPDX-License-Identifier: Apache-2.0
"""The schema of this release, made in an empty database by the statements of an earlier ``db sync`` of this process.

Most of the processor time of a ``db sync`` is that of alembic and SQLAlchemy, which read every revision and compile its
statements. A test of ``db sync`` itself must call ``schema.sync``.
"""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import fixtures

READS = ("SELECT", "DESCRIBE", "SHOW", "PRAGMA")

Statement = tuple[str, Any]

_recorded: dict[str, list[Statement]] = {}
"""The statements, with their parameters, by the name of the dialect."""


def create(url: str) -> None:
    """Make the current schema. The first call for each kind of database in a process is a ``db sync``."""
    backend = sa.make_url(url).get_backend_name()
    if backend in _recorded:
        _replay(url, _recorded[backend])
    else:
        _recorded[backend] = _sync(url)


def forget() -> None:
    """Let the next calls be a ``db sync`` again."""
    _recorded.clear()


def _sync(url: str) -> list[Statement]:
    statements: list[Statement] = []
    database = Database(fixtures.settings(url))
    sa.event.listen(database.engine, "before_cursor_execute", functools.partial(_record, statements))
    schema.sync(database)
    database.close()
    return statements


def _record(
    statements: list[Statement], _connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any
) -> None:
    if not statement.startswith(READS):
        statements.append((statement, parameters))


def _replay(url: str, statements: list[Statement]) -> None:
    sql = sa.create_engine(url, poolclass=sa.NullPool)
    with sql.begin() as connection:
        if sql.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")  # otherwise each statement is a transaction of its own
        cursor = connection.connection.cursor()
        for statement, parameters in statements:
            cursor.execute(statement, parameters)
        cursor.close()
