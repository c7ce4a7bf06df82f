# SPDX-License-Identifier: Apache-2.0
"""Which database errors may be tried again, and what the others become."""

from __future__ import annotations

import re
from typing import Final

import sqlalchemy.exc as sa_exc
from oslo_db import exception as oslo_exc

from cyborg_quota import exceptions


class TransactionMoved(Exception):
    """What a transaction had read was no longer so when it wrote: roll back, and do it again from the start."""


_DO_AGAIN: Final = (
    oslo_exc.DBDeadlock,
    oslo_exc.DBConnectionError,
    TransactionMoved,
)

_TRANSIENT_SQLSTATES: Final = frozenset(
    {
        "40001",  # PostgreSQL: serialization failure
        "40P01",  # PostgreSQL: deadlock
        "55P03",  # PostgreSQL: lock not available in time
        "57P01",  # PostgreSQL: shut down by the administrator
        "57P02",  # PostgreSQL: crash of another backend
        "57P03",  # PostgreSQL: starting up
        "25006",  # PostgreSQL: read-only, see is_read_only
        "53300",  # PostgreSQL: too many connections
        "57014",  # PostgreSQL: the statement took longer than it may
    }
)

_TRANSIENT_MYSQL: Final = frozenset(
    {
        1020,  # record has changed since last read
        1040,  # too many connections
        1047,  # Galera: the node is not ready (no primary component)
        1053,  # server shutdown in progress
        1205,  # lock wait timeout
        1213,  # deadlock; on Galera also a certification failure, at COMMIT
        1290,  # read-only, see is_read_only
        1317,  # query interrupted
        1927,  # connection was killed
        1969,  # MariaDB: the statement took longer than it may
        2002,
        2003,
        2006,
        2013,
        2014,
        2055,
    }
)

_TRANSIENT_TEXT: Final = re.compile(
    r"database is locked|database table is locked|could not connect|connection refused|connection to server|"
    r"could not translate host name|"
    r"server closed the connection|connection already closed|terminating connection|timeout expired|"
    r"provider status: |"  # Galera: the node could not replicate, and says only in words that it is cut off
    r"Lost connection|Packet sequence number wrong|cursor is closed|SSL SYSCALL",
    re.IGNORECASE,
)

_FATAL_TEXT: Final = re.compile(
    r"authentication failed|Access denied|no pg_hba|role .* does not exist|database .* does not exist|"
    r"unsupported startup parameter|"  # PgBouncer
    r"unable to open database file|disk is full|No space left|table .* is full|readonly database",
    re.IGNORECASE,
)


def may_do_again(error: BaseException) -> bool:
    """Whether the same transaction, done again, may succeed."""
    if isinstance(error, TransactionMoved):
        return True
    if not isinstance(error, (oslo_exc.DBError, sa_exc.SQLAlchemyError)):
        return False
    text = reason(error)
    if _FATAL_TEXT.search(text):
        return False
    code = _code(error)
    return (
        isinstance(error, _DO_AGAIN)
        or code in _TRANSIENT_SQLSTATES
        or code in _TRANSIENT_MYSQL
        or bool(_TRANSIENT_TEXT.search(text))
    )


_NOT_PREPARED: Final = frozenset({"26000", "42P05", 1243, 1461})
"""No prepared statement of that name; one of that name already; too many on the server."""


def is_not_prepared(error: BaseException) -> bool:
    """Whether prepared statements cannot be relied on here."""
    return _code(error) in _NOT_PREPARED


_TOOK_LONG: Final = frozenset({"57014", "55P03", 1205, 1317, 1969})
"""PostgreSQL: canceled, no lock in time. MariaDB: no lock in time, interrupted, max_statement_time."""


_READ_ONLY: Final = frozenset({"25006", 1792, 1836})
_MAY_BE_READ_ONLY: Final = {
    1290: "read-only",  # the server runs with an option that forbids the statement; the message names the option
    "XX000": "cannot assign TransactionIds during recovery",  # a statement that writes to PostgreSQL's log alone
}


def is_read_only(error: BaseException) -> bool:
    """Whether the server refused a change because it is a replica, or is set to be read-only."""
    code = _code(error)
    return code in _READ_ONLY or (code in _MAY_BE_READ_ONLY and _MAY_BE_READ_ONLY[code] in reason(error))


def took_long(error: BaseException) -> bool:
    """Whether an attempt may have taken all of a statement's time, and the next one may again.

    The connection broke or was silent for too long, or the server ended what had waited for too long.
    """
    return isinstance(error, oslo_exc.DBConnectionError) or _code(error) in _TOOK_LONG


def is_pool_busy(error: BaseException) -> bool:
    """Whether no connection of this process became free in time."""
    return isinstance(error, sa_exc.TimeoutError)


def is_existing_table(error: BaseException) -> bool:
    """Whether MariaDB refused to make a table that is there."""
    return _code(error) == 1050


def is_outage(error: BaseException) -> bool:
    """Whether the error says that the database cannot be used now, rather than that a statement is wrong."""
    return (
        may_do_again(error)
        or is_pool_busy(error)
        or isinstance(error, oslo_exc.DBNonExistentDatabase)
        or bool(_FATAL_TEXT.search(reason(error)))
    )


_ENDS_CONNECTION: Final = frozenset({"57P01", "57P02", "57P03", 1053, 2002, 2003, 2006, 2013, 2055})
"""PostgreSQL: shut down, crashed, starting up. MariaDB: shut down; not connected, connection lost, no answer."""

_UNREACHABLE_TEXT: Final = re.compile(
    r"could not connect|connection refused|connection to server|could not translate host name|"
    r"server closed the connection|connection already closed|terminating connection|timeout expired|"
    r"Lost connection|SSL SYSCALL",
    re.IGNORECASE,
)

_ANSWERED: Final = frozenset({1040, 1047, 1927, "53300"})
"""The server answered that it has no connection left, is no member of a primary component, or ended this one alone."""

_ANSWERED_TEXT: Final = re.compile(r"too many (clients|connections)|remaining connection slots", re.IGNORECASE)


def is_unreachable(error: BaseException) -> bool:
    """Whether no connection could be made, or the server stopped answering; see DatabaseUnreachable."""
    if not isinstance(error, (oslo_exc.DBError, sa_exc.DBAPIError)):
        return False
    text, code = reason(error), _code(error)
    if code in _ANSWERED or _FATAL_TEXT.search(text) or _ANSWERED_TEXT.search(text):
        return False
    return (
        isinstance(error, oslo_exc.DBConnectionError)
        or code in _ENDS_CONNECTION
        or bool(_UNREACHABLE_TEXT.search(text))
    )


def translate(error: BaseException, seconds: float) -> exceptions.DatabaseError:
    """The typed error a caller sees. ``seconds`` is how long was tried."""
    if is_read_only(error):
        return exceptions.DatabaseReadOnly(reason(error), seconds)
    if is_unreachable(error):
        return exceptions.DatabaseUnreachable(reason(error), seconds)
    if is_outage(error):
        return exceptions.DatabaseUnavailable(reason(error), seconds)
    return exceptions.DatabaseError(f"The database refused a statement: {reason(error)}.")


def reason(error: BaseException) -> str:
    """One line for a person: the driver's own words, without the statement, its parameters or a URL."""
    if isinstance(error, TransactionMoved):
        return "others kept changing the same rows"
    if is_pool_busy(error):
        return "no connection of the pool became free in time"
    cause = _driver_error(error)
    words = str(cause.args[-1] if cause.args else cause) or type(cause).__name__
    lines = words.strip().splitlines() or [type(cause).__name__]
    # libpq has a line for each server that it tried, and hints between them.
    servers = [line.strip() for line in lines if line.startswith("connection to server at")]
    return re.sub(r"\w+://\S+", "(a connection URL)", "; ".join(servers or lines[:1])).rstrip(".")[:300]


def _code(error: BaseException) -> object:
    """PostgreSQL's SQLSTATE (a text), or MariaDB's number."""
    cause = _driver_error(error)
    return getattr(cause, "pgcode", None) or (cause.args[0] if cause.args else None)


def _driver_error(error: BaseException) -> BaseException:
    """The DBAPI's own exception under oslo.db's and SQLAlchemy's wrappers."""
    seen = 0
    while seen < 5:  # wrappers are two deep; the bound only keeps a strange cycle from hanging us
        inner = getattr(error, "inner_exception", None) or getattr(error, "orig", None)
        if not isinstance(inner, BaseException):
            break
        error, seen = inner, seen + 1
    return error
