# SPDX-License-Identifier: Apache-2.0
"""The database's clock, in UTC and microseconds, as one SQL expression for three databases.

Expiry is set and compared on this clock alone. SQLite has no clock but the host's, and its own functions stop at
milliseconds: there a function of ours, registered on every connection (see ``register_sqlite``), answers.
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

_SQLITE_FUNCTION = "cyborg_quota_utc_after"


class utc_after(FunctionElement[Any]):
    """Now plus so many microseconds (an int, a bound parameter; may be negative)."""

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
    # statement_timestamp(), not clock_timestamp(): an index can be searched by a value that stands still.
    if not len(element.clauses):
        return "(statement_timestamp() AT TIME ZONE 'UTC')"
    microseconds = compiler.process(element.clauses, **kw)
    return f"(statement_timestamp() AT TIME ZONE 'UTC' + {microseconds} * INTERVAL '1 microsecond')"


@compiles(utc_after, "sqlite")
def _sqlite(element: utc_after, compiler: Any, **kw: Any) -> str:
    return f"{_SQLITE_FUNCTION}({compiler.process(element.clauses, **kw) if len(element.clauses) else 0})"


def utc_now() -> utc_after:
    """The moment the statement began."""
    return utc_after()


def _host_utc_after(microseconds: int) -> str:
    moment = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    if microseconds:
        moment += datetime.timedelta(microseconds=microseconds)
    return moment.isoformat(" ", "microseconds")  # as SQLAlchemy stores a DateTime in SQLite


def was_interrupted(error: BaseException) -> bool:
    """Whether a statement failed because a signal's exception struck inside our function.

    SQLite makes an error of its own of whatever comes out of a function, and ours has nothing else that could.
    """
    return "user-defined function raised exception" in str(error)


def register_sqlite(dbapi_connection: Any) -> None:
    """Give one SQLite connection the clock."""
    dbapi_connection.create_function(_SQLITE_FUNCTION, 1, _host_utc_after)
