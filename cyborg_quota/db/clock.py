# SPDX-License-Identifier: Apache-2.0
"""The database's clock, in UTC and microseconds, as one SQL expression for three databases.

Only this clock is used to set and compare expiry. SQLite uses the host's clock, and its functions have a resolution of
milliseconds. Therefore each SQLite connection gets a Python function instead (see ``register_sqlite``).
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

_SQLITE_FUNCTION = "cyborg_quota_utc_after"


class utc_after(FunctionElement[Any]):
    """Now plus a number of microseconds (an int or a bound parameter; may be negative)."""

    type = sa.DateTime()
    inherit_cache = True
    name = "utc_after"


@compiles(utc_after)
def _refuse(element: utc_after, compiler: Any, **kw: Any) -> str:
    raise NotImplementedError(f"no clock is known for {compiler.dialect.name}")


@compiles(utc_after, "mysql")
@compiles(utc_after, "mariadb")
def _mysql(element: utc_after, compiler: Any, **kw: Any) -> str:
    if not len(element.clauses):
        return "UTC_TIMESTAMP(6)"
    return f"(UTC_TIMESTAMP(6) + INTERVAL {compiler.process(element.clauses, **kw)} MICROSECOND)"


@compiles(utc_after, "postgresql")
def _postgresql(element: utc_after, compiler: Any, **kw: Any) -> str:
    # statement_timestamp(), not clock_timestamp(): an index scan needs a value that is constant within the statement.
    if not len(element.clauses):
        return "(statement_timestamp() AT TIME ZONE 'UTC')"
    microseconds = compiler.process(element.clauses, **kw)
    return f"(statement_timestamp() AT TIME ZONE 'UTC' + {microseconds} * INTERVAL '1 microsecond')"


@compiles(utc_after, "sqlite")
def _sqlite(element: utc_after, compiler: Any, **kw: Any) -> str:
    return f"{_SQLITE_FUNCTION}({compiler.process(element.clauses, **kw) if len(element.clauses) else 0})"


def utc_now() -> utc_after:
    """The start time of the statement."""
    return utc_after()


def _host_utc_after(microseconds: int) -> str:
    moment = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    if microseconds:
        moment += datetime.timedelta(microseconds=microseconds)
    return moment.isoformat(" ", "microseconds")  # as SQLAlchemy stores a DateTime in SQLite


def was_interrupted(error: BaseException) -> bool:
    """Whether a statement failed because a signal handler raised an exception inside the clock function.

    SQLite replaces any exception of a function by its own error, and the clock function raises no other exception.
    """
    return "user-defined function raised exception" in str(error)


def register_sqlite(dbapi_connection: Any) -> None:
    """Register the clock function on an SQLite connection."""
    dbapi_connection.create_function(_SQLITE_FUNCTION, 1, _host_utc_after)
