# SPDX-License-Identifier: Apache-2.0
"""Classify database errors (transient, outage, fatal), and translate them to this package's exceptions."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

import sqlalchemy.exc as sa_exc
from oslo_db import exception as oslo_exc

from cyborg_quota import exceptions


class ConcurrentChange(Exception):
    """Data that the transaction had read has changed before it wrote: roll back, and retry the whole transaction."""


_TRANSIENT: Final = frozenset(
    {
        "40001",  # PostgreSQL: serialization failure
        "40P01",  # PostgreSQL: deadlock
        "55P03",  # PostgreSQL: lock not available in time
        "57P01",  # PostgreSQL: shut down by the administrator
        "57P02",  # PostgreSQL: crash of another backend
        "57P03",  # PostgreSQL: starting up
        "25006",  # PostgreSQL: read-only, see is_read_only
        "53300",  # PostgreSQL: too many connections
        "57014",  # PostgreSQL: statement timeout
        1020,  # record has changed since last read
        1040,  # too many connections
        1047,  # Galera: the node is not ready (no primary component)
        1053,  # server shutdown in progress
        1203,  # the user has too many connections: max_user_connections of the server
        1205,  # lock wait timeout
        1213,  # deadlock; on Galera also a certification failure, at COMMIT
        1226,  # the user has too many connections: the limit of the account
        1290,  # read-only, see is_read_only
        1317,  # query interrupted
        1927,  # connection was killed
        1969,  # MariaDB: max_statement_time exceeded
        2002,  # client: cannot connect through the socket
        2003,  # client: cannot connect to the server
        2006,  # client: the server has closed the connection
        2013,  # client: connection lost during a query
        2014,  # client: commands out of sync
        2055,  # client: connection lost
    }
)

_NO_SERVER: Final = (
    r"WSREP has not yet prepared node|"
    r"server login has been failing|pgbouncer cannot connect to server|server conn crashed"
)
"""The errors of a Galera node without a quorum, and of PgBouncer whose server is down."""

_TRANSIENT_TEXT: Final = re.compile(
    r"database is locked|database table is locked|could not connect|connection refused|connection to server|"
    r"could not translate host name|"
    r"server closed the connection|connection already closed|terminating connection|timeout expired|"
    r"provider status: |"  # Galera: the node could not replicate; only the text shows that it is disconnected
    rf"Lost connection|Packet sequence number wrong|cursor is closed|SSL SYSCALL|query_wait_timeout|{_NO_SERVER}",
    re.IGNORECASE,
)

_FATAL_TEXT: Final = re.compile(
    r"authentication failed|Access denied|no pg_hba|role .* does not exist|database .* does not exist|"
    r"unsupported startup parameter|no such database|"  # PgBouncer
    r"Host .* is (blocked|not allowed)|"  # MariaDB, 1129 and 1130
    r"unable to open database file|disk is full|No space left|table .* is full|readonly database",
    re.IGNORECASE,
)


def may_do_again(error: BaseException) -> bool:
    """Whether a retry of the same transaction may succeed."""
    if isinstance(error, ConcurrentChange):
        return True
    if not isinstance(error, (oslo_exc.DBError, sa_exc.SQLAlchemyError)):
        return False
    text = reason(error)
    if _FATAL_TEXT.search(text):
        return False
    return (
        isinstance(error, (oslo_exc.DBDeadlock, oslo_exc.DBConnectionError))
        or code_of(error) in _TRANSIENT
        or bool(_TRANSIENT_TEXT.search(text))
    )


def kind(error: BaseException) -> str:
    """A word for a transient error: concurrent_change, deadlock or other."""
    if isinstance(error, ConcurrentChange):
        return "concurrent_change"
    return "deadlock" if isinstance(error, oslo_exc.DBDeadlock) or code_of(error) in _CONFLICTS else "other"


_CONFLICTS: Final = frozenset({"40001", "40P01", 1020, 1213})
"""Serialization failures and deadlocks; on Galera, 1213 is also a certification failure."""

NOT_EXECUTABLE: Final = frozenset({"42883", "42501", 1064, 1243, 1295, 1461})
"""The codes that show that this server, or a pooler before it, cannot run single-statement transactions.

PostgreSQL: no such function, no privilege for it. MariaDB: unknown prepared statement; too many of them;
a proxy or an sql_mode (ORACLE) that cannot parse or prepare a compound statement.
"""


_READ_ONLY: Final = frozenset({"25006", 1792, 1836})

HANDLED: Final = NOT_EXECUTABLE | _READ_ONLY | {"QU001"}
"""The codes of errors that callers in this package handle, so that they need no traceback in the log.

QU001: one of the ledger's functions refuses (postgresql.REFUSED_STATE).
"""


_TOOK_LONG: Final = frozenset({"57014", "55P03", 1205, 1317, 1969})
"""PostgreSQL: canceled, lock timeout. MariaDB: lock timeout, interrupted, max_statement_time."""


CANCELED: Final = ("57014", 1969)
"""The server ended a statement at its timeout."""

_MAY_BE_READ_ONLY: Final = {
    1290: "read-only",  # an option of the server forbids the statement; the message names the option
    "XX000": "cannot assign TransactionIds during recovery",  # pg_logical_emit_message on a standby
}


def is_read_only(error: BaseException) -> bool:
    """Whether the server refused a change because it is a replica, or is configured as read-only."""
    code = code_of(error)
    if code in _READ_ONLY or (code in _MAY_BE_READ_ONLY and _MAY_BE_READ_ONLY[code] in reason(error)):
        return True
    is_operational = isinstance(_driver_error(error), sqlite3.OperationalError)
    return is_operational and "attempt to write a readonly database" in reason(error)


def took_long(error: BaseException) -> bool:
    """Whether the attempt may have lasted as long as the statement timeout, so that a retry may last as long.

    The connection was lost or timed out, or the server canceled a statement that had waited for too long.
    """
    return isinstance(error, oslo_exc.DBConnectionError) or code_of(error) in _TOOK_LONG


_ENDS_CONNECTION: Final = frozenset({"57P01", "57P02", "57P03", 1053, 2002, 2003, 2006, 2013, 2055})
"""PostgreSQL: shut down, crashed, starting up. MariaDB: shut down; not connected, connection lost, no answer."""

_UNREACHABLE_TEXT: Final = re.compile(
    r"could not connect|connection refused|connection to server|could not translate host name|"
    r"server closed the connection|connection already closed|terminating connection|timeout expired|"
    rf"Lost connection|SSL SYSCALL|{_NO_SERVER}",
    re.IGNORECASE,
)

_ANSWERED: Final = frozenset({1040, 1203, 1226, 1927, "53300"})
"""The server answered: too many connections, or this one connection was killed."""

_ANSWERED_TEXT: Final = re.compile(
    r"too many (clients|connections)|remaining connection slots|"
    r"no more connections allowed|"  # PgBouncer
    r"query_wait_timeout",  # of PgBouncer, also while all of its connections are in use
    re.IGNORECASE,
)


def is_unreachable(error: BaseException) -> bool:
    """Whether no server can be reached, or it stopped answering: see DatabaseUnreachable."""
    if not isinstance(error, (oslo_exc.DBError, sa_exc.DBAPIError)):
        return False
    text, code = reason(error), code_of(error)
    if code in _ANSWERED or _FATAL_TEXT.search(text) or _ANSWERED_TEXT.search(text):
        return False
    return (
        isinstance(error, oslo_exc.DBConnectionError)
        or code in _ENDS_CONNECTION
        or bool(_UNREACHABLE_TEXT.search(text))
    )


def translate(error: BaseException, seconds: float) -> exceptions.DatabaseError:
    """The exception to raise to the caller. ``seconds`` is the time since the first attempt."""
    if is_read_only(error):
        return exceptions.DatabaseReadOnly(reason(error), seconds)
    if is_unreachable(error):
        return exceptions.DatabaseUnreachable(reason(error), seconds)
    # (A wrong password, an unknown database, a full disk: the statement could succeed after a repair.)
    is_repairable = isinstance(error, oslo_exc.DBNonExistentDatabase) or _FATAL_TEXT.search(reason(error))
    if may_do_again(error) or isinstance(error, sa_exc.TimeoutError) or is_repairable:
        return exceptions.DatabaseUnavailable(reason(error), seconds)
    return exceptions.DatabaseError(f"The database refused a statement: {reason(error)}.")


def reason(error: BaseException) -> str:
    """One line to display: the driver's message, without the statement, its parameters or a URL."""
    if isinstance(error, ConcurrentChange):
        return "too many concurrent changes of the same rows"
    if isinstance(error, sa_exc.TimeoutError):
        return "no connection of the pool became free in time"
    cause = _driver_error(error)
    message = str(cause.args[-1] if cause.args else cause) or type(cause).__name__
    lines = message.strip().splitlines() or [type(cause).__name__]
    # libpq's message has one line for each server that it tried, with hints between them.
    servers = [line.strip() for line in lines if line.startswith("connection to server at")]
    return re.sub(r"\w+://\S+", "(a connection URL)", "; ".join(servers or lines[:1])).rstrip(".")[:300]


def code_of(error: BaseException) -> object:
    """PostgreSQL's SQLSTATE (a string), or MariaDB's error number."""
    cause = _driver_error(error)
    return getattr(cause, "pgcode", None) or (cause.args[0] if cause.args else None)


def _driver_error(error: BaseException) -> BaseException:
    """The DBAPI exception that oslo.db's and SQLAlchemy's exceptions wrap."""
    while isinstance(inner := getattr(error, "inner_exception", None) or getattr(error, "orig", None), BaseException):
        error = inner
    return error
