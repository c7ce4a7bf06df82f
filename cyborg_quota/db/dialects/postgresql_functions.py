# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: a reserve and a settle as one call of a function each. Their text is in postgresql.sql.

A transaction of several statements keeps its row locks during the round trips between them. A function has no round
trips, and PostgreSQL keeps the plans of its statements for as long as the connection lives.

A released function is never changed: a new text is a new function, with the next version in its name. ``db sync``
creates the functions. Where they are missing, reserve and settle use the multi-statement transaction.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterable, Sequence
from typing import Final

import sqlalchemy as sa

_TEXT: Final = importlib.resources.files("cyborg_quota.db.dialects").joinpath("postgresql.sql").read_text("utf-8")
DEFINITIONS: Final = {
    name: definition
    for definition, name in re.findall(r"^(CREATE FUNCTION @schema@\.(\w+)\(.*?)\n;$", _TEXT, re.DOTALL | re.MULTILINE)
}
"""The definition of each function, by name, in the order in which they are created."""

RESERVE: Final = "cyborg_quota_reserve_v1"
SETTLE: Final = "cyborg_quota_settle_v1"

TRANSACTION_SETTINGS: Final = "cyborg_quota_transaction_settings"
"""Key in ``connection.info``, for a connection behind a pooler in transaction mode: its SET statements.

Each transaction may run on another server connection. A function call is sent after these SET statements; the server
runs them in one transaction.
"""

REFUSED_STATE: Final = "QU001"
"""Our own SQLSTATE: roll back."""


def missing(connection: sa.Connection) -> list[str]:
    """The functions that do not exist in the database."""
    return [
        name
        for name in DEFINITIONS
        if connection.exec_driver_sql("SELECT to_regproc(%s) IS NULL", (name,)).scalar_one()
    ]


def missing_privileges(connection: sa.Connection) -> list[str]:
    """The privileges that the user lacks to create functions, as GRANT writes them."""
    schema, can_create = connection.exec_driver_sql(
        "SELECT quote_ident(current_schema()), has_schema_privilege(current_schema(), 'CREATE')"
    ).one()
    can_use_language = connection.exec_driver_sql(
        "SELECT has_language_privilege(oid, 'USAGE') FROM pg_language WHERE lanname = 'plpgsql'"
    ).scalar()
    privileges = {f"CREATE ON SCHEMA {schema}": can_create, "USAGE ON LANGUAGE plpgsql": can_use_language}
    return [privilege for privilege, has in privileges.items() if not has]


def create(connection: sa.Connection) -> list[str]:
    """Create the functions that are missing. Returns the privileges that the user lacks for it.

    If any is missing, nothing is created.
    """
    names = missing(connection)
    if not names:
        return []
    if privileges := missing_privileges(connection):
        return privileges
    schema: str = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    for name in names:
        connection.exec_driver_sql(DEFINITIONS[name].replace("@schema@", schema))
    return []


def call(connection: sa.Connection, function: str, *arguments: str | int | None) -> bool:
    """Call a function that is a transaction of its own. False: it changed nothing."""
    # The function's result is returned as the row count, because SQLAlchemy is slower with columns. (The comment shows
    # in a server log or a network trace that the statement commits.)
    text = f"SELECT WHERE {function}({', '.join(['%s'] * len(arguments))}) -- COMMIT"
    if (settings := connection.info.get(TRANSACTION_SETTINGS)) is not None:
        text = f"{settings}; {text}"
    return connection.exec_driver_sql(text, arguments).rowcount > 0


def arrays(rows: Sequence[Sequence[str | int | None]], number: int) -> Iterable[str]:
    """The columns of rows as arrays, also if there are no rows. ``number``: of the columns."""
    return map(array, zip(*[row[:number] for row in rows], strict=True) if rows else [()] * number)


def array(elements: Iterable[str | int | None]) -> str:
    """PostgreSQL's text of an array. (psycopg2's ARRAY[...] takes the client and the server longer.)"""
    return f"{{{','.join([_element(element) for element in elements])}}}"


def _element(value: str | int | None) -> str:
    """An element in the text of an array."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'
