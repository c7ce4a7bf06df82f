# SPDX-License-Identifier: Apache-2.0
"""Create the engine for each kind of database: pool, isolation level, timeouts, and session settings."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa
from oslo_db import exception as oslo_exc
from oslo_db.sqlalchemy import exc_filters
from sqlalchemy import exc as sa_exc

from cyborg_quota import exceptions
from cyborg_quota.db import clock, errors, prepared_transaction, socket_watchdog

_READS: Final = "cyborg_quota_reads"
"""Key in ``connection.info``: the next transaction only reads."""

_SQLITE_IS_OURS: Final = "SELECT COUNT(*) = 0 OR SUM(name LIKE 'cyborg\\_quota\\_%' ESCAPE '\\') > 0 FROM sqlite_master"
"""Whether the file is empty, or contains a table of this project."""


_DRIVERS: Final = {"sqlite": "pysqlite", "mysql": "pymysql", "postgresql": "psycopg2"}
"""The supported driver of each database. For each server, setup.cfg has an extra that installs the driver."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatabaseSettings:
    """How to connect to the database and use it. Times are in seconds. ``repr()`` omits the URL with its password."""

    url: str = dataclasses.field(repr=False)
    max_pool_size: int = 5
    max_overflow: int = 50
    pool_timeout_seconds: float = 30.0
    """An upper bound: a call waits for a pool connection at most as long as for retries, or for connecting."""
    pool_recycle_seconds: int = 3600
    connect_timeout_seconds: int = 3
    statement_timeout_seconds: int | None = 8
    transaction_pooling: bool = False
    """Whether a pooler may run each transaction on another PostgreSQL connection, so that session settings are lost."""
    allow_idle_in_transaction: bool = False
    """Whether a transaction may be idle for long between two statements: see _idle_milliseconds."""
    sqlite_synchronous: bool = True
    sqlite_busy_timeout_seconds: float = 5.0
    mysql_sql_mode: str | None = "TRADITIONAL"
    mysql_wsrep_sync_wait: int | None = None
    retry_seconds: float = 6.0
    retry_first_wait_seconds: float = 0.002
    retry_longest_wait_seconds: float = 0.5


def as_mysql(url: sa.URL) -> sa.URL:
    """Replace SQLAlchemy's dialect name ``mariadb`` by ``mysql``: oslo.db translates no errors of the former."""
    backend, separator, driver = url.drivername.partition("+")
    return url.set(drivername=f"mysql{separator}{driver}") if backend == "mariadb" else url


def check_driver(url: sa.URL) -> None:
    """Raise ConfigurationError for an unsupported driver. Record 0030 explains why each database has only one."""
    backend, driver = url.get_backend_name(), url.get_driver_name()
    if _DRIVERS.get(backend) != driver:
        raise exceptions.ConfigurationError(
            f"[database] connection uses the driver {backend}+{driver}, which is not supported."
            " Begin it with sqlite://, mysql+pymysql:// or postgresql+psycopg2://."
        )


@contextlib.contextmanager
def translating_url_errors() -> Iterator[None]:
    """Translate the errors that the URL's parameters cause, and omit the values, which may be secrets."""
    try:
        yield
    except TypeError as error:
        # The parameters of the URL become keyword arguments of the driver's connect().
        raise exceptions.ConfigurationError(
            f"[database] connection has a parameter that its driver does not accept: {error}."
        ) from None
    except (NotImplementedError, sa_exc.ResourceClosedError) as error:
        # SQLAlchemy raises these if the connection breaks while it initializes the dialect; the cause is the context.
        raise oslo_exc.DBConnectionError(error.__context__ or error) from error
    except (ValueError, LookupError) as error:
        # Do not show the message: it contains the value.
        raise exceptions.ConfigurationError(
            f"[database] connection has a parameter with a value that its driver cannot use ({type(error).__name__})."
        ) from None


def make_engine(url: sa.URL, settings: DatabaseSettings) -> sa.Engine:
    """Create an engine that raises oslo.db's exceptions. Raises ConfigurationError if the driver is not installed."""
    arguments: dict[str, Any] = {
        "pool_size": settings.max_pool_size,
        "max_overflow": settings.max_overflow,
        "pool_timeout": min(
            settings.pool_timeout_seconds, max(settings.retry_seconds, settings.connect_timeout_seconds)
        ),
        "pool_recycle": settings.pool_recycle_seconds,
        "poolclass": sa.QueuePool,
        # Each transaction is ended by the code that began it; a ROLLBACK at check-in would add a round trip.
        "pool_reset_on_return": None,
        # The first statement on a dead connection fails, and the transaction is retried on a new connection.
        "pool_pre_ping": False,
        "hide_parameters": True,
    }
    backend = url.get_backend_name()
    if backend == "sqlite":
        arguments["connect_args"] = {"timeout": settings.sqlite_busy_timeout_seconds, "check_same_thread": False}
        if url.database in (None, "", ":memory:"):
            # Each connection has its own in-memory database, so all threads must share one connection.
            arguments.update(pool_size=1, max_overflow=0)
    else:
        if backend != "postgresql":
            arguments["isolation_level"] = "READ COMMITTED"
        arguments["connect_args"] = _server_arguments(url, settings)
    try:
        engine = sa.create_engine(url, **arguments)
    except ImportError as error:
        raise exceptions.ConfigurationError(
            f"[database] connection needs the Python package {error.name}, which is not installed."
            f" Install cyborg_quota[{backend}]."
        ) from None
    _handle_errors(engine)
    if "sslpassword" in url.query:
        logging.getLogger(f"{sa.QueuePool.__module__}.{sa.QueuePool.__name__}").addFilter(_hide_ssl_password)
    if backend == "sqlite":
        _prepare_sqlite(engine, settings)
    elif backend in ("mysql", "mariadb"):
        _prepare_mysql(engine, settings)
    elif backend == "postgresql":
        _prepare_postgresql(engine, url, settings)
    return engine


def _handle_errors(engine: sa.Engine) -> None:
    """Register our handler first: oslo.db's raises an exception, so that no later handler runs."""
    if engine.dialect.name != "sqlite":
        sa.event.listen(engine, "handle_error", _leave_read_only)
    # Register none of oslo.db's other listeners: they are for savepoints, and cost time in each transaction.
    sa.event.listen(engine, "handle_error", exc_filters.handler, retval=True)


def _leave_read_only(context: sa.engine.ExceptionContext) -> None:
    """Close a connection whose server has become read-only: a new one may lead to the new primary server.

    A demoted server does not close its sessions, so that the pool would use each of them until pool_recycle.
    """
    if errors.is_read_only(context.original_exception):
        context.is_disconnect = True


_PROBE_SECONDS: Final = 2


def answers(url: sa.URL, settings: DatabaseSettings) -> bool:
    """Whether the server accepts a new connection and answers SELECT 1, each within 2 s.

    True also if it answers with an error, because then it is reachable. The connection is not from the pool: after an
    outage the pool's connections are dead, and each probe would test only one of them.
    """
    probe_settings = dataclasses.replace(
        settings, connect_timeout_seconds=_PROBE_SECONDS, statement_timeout_seconds=_PROBE_SECONDS
    )
    engine = make_engine(url, probe_settings)
    try:
        with translating_url_errors(), engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
    except (oslo_exc.DBError, sa_exc.SQLAlchemyError) as error:
        return not errors.is_unreachable(error)
    finally:
        engine.dispose()
    return True


_SSL_PASSWORD: Final = re.compile(r"sslpassword=('(?:[^'\\]|\\.)*'|\S*)")


def _hide_ssl_password(record: logging.LogRecord) -> bool:
    """Mask ``sslpassword``: the pool logs psycopg2 connections, whose repr masks ``password`` only."""
    record.msg, record.args = _SSL_PASSWORD.sub("sslpassword=xxx", record.getMessage()), ()
    return True


def _server_arguments(url: sa.URL, settings: DatabaseSettings) -> dict[str, Any]:
    """The driver's timeouts: a server that does not answer must not block a caller forever."""
    arguments: dict[str, Any] = {"connect_timeout": settings.connect_timeout_seconds}
    seconds = settings.statement_timeout_seconds
    if url.get_backend_name() in ("mysql", "mariadb"):
        if "charset" not in url.query:
            arguments["charset"] = "utf8mb4"
        if seconds is not None:
            arguments["read_timeout"] = arguments["write_timeout"] = seconds
    elif seconds is not None:
        # The kernel closes a connection whose peer does not acknowledge data.
        arguments["tcp_user_timeout"] = seconds * 1000
    return arguments


_LONG_IDLE_MILLISECONDS: Final = 120_000


def _idle_milliseconds(statement_seconds: int, *, allow_idle_in_transaction: bool) -> int:
    """After what idle time the server ends an open transaction.

    If a client's machine crashes, the server does not notice, and the rows stay locked until the kernel's keepalive
    closes the connection two hours later. The time is shorter than the statement timeout, so that a transaction that
    waits for these rows gets them. Transactions with long client-side work (``allow_idle_in_transaction``) get longer.
    """
    return _LONG_IDLE_MILLISECONDS if allow_idle_in_transaction else statement_seconds * 625


def _prepare_sqlite(engine: sa.Engine, settings: DatabaseSettings) -> None:
    synchronous = "FULL" if settings.sqlite_synchronous else "OFF"

    @sa.event.listens_for(engine, "connect")
    def set_up(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None  # this module sends BEGIN
        # This changes the file permanently: do not do it to a file of another application.
        if dbapi_connection.execute(_SQLITE_IS_OURS).fetchone()[0]:
            dbapi_connection.execute("PRAGMA journal_mode = WAL")
        dbapi_connection.execute(f"PRAGMA synchronous = {synchronous}")
        # A batch of expiry changes more pages than the default cache of 2 MiB holds, so SQLite wrote pages several
        # times. 32 MiB expires a third more rows a second. (A larger wal_autocheckpoint would gain as much again, but
        # could fill a small disk.)
        dbapi_connection.execute("PRAGMA cache_size = -32768")
        clock.register_sqlite(dbapi_connection)

    def begin(dbapi_connection: Any) -> None:
        # A writer takes the write lock at BEGIN: a transaction that first reads and then writes fails if another
        # one writes in between.
        dbapi_connection.execute("BEGIN" if dbapi_connection.info.pop(_READS, False) else "BEGIN IMMEDIATE")

    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def read_only_next(connection: sa.Connection) -> None:
    """On SQLite: make the next transaction of this connection read-only, so that it does not wait for writers."""
    connection.info[_READS] = True


def can_cache(engine: sa.Engine) -> bool:
    """Whether ConnectionCache may keep connections. Not if the pool has no overflow: threads must share them."""
    pool = engine.pool
    return isinstance(pool, sa.QueuePool) and pool._max_overflow != 0


def _postgresql_time_limits(url: sa.URL, settings: DatabaseSettings) -> dict[str, str]:
    """The server's timeouts for a statement and for an idle transaction. The URL's ``options`` take precedence.

    They are set after connecting, because PgBouncer rejects startup parameters that it does not know.
    """
    seconds = settings.statement_timeout_seconds
    if seconds is None:
        return {}
    values = {
        "statement_timeout": str(seconds * 1000),
        "idle_in_transaction_session_timeout": str(
            _idle_milliseconds(seconds, allow_idle_in_transaction=settings.allow_idle_in_transaction)
        ),
    }
    options = str(url.query.get("options", ""))
    return {name: value for name, value in values.items() if name not in options}


def _postgresql_values(url: sa.URL, settings: DatabaseSettings) -> dict[str, str]:
    """The session settings of a connection."""
    # Plan a prepared statement once, at its first execution, instead of five times for specific parameters first.
    values = {**_postgresql_time_limits(url, settings), "plan_cache_mode": "force_generic_plan"}
    if settings.statement_timeout_seconds is not None and not settings.allow_idle_in_transaction:
        # All statements find their rows by keys. A plan with a sequential scan is good only for a small table, but the
        # session keeps the plan when the table has grown.
        values["enable_seqscan"] = "off"
    return values


_READ_COMMITTED: Final = "TRANSACTION ISOLATION LEVEL READ COMMITTED"


def _prepare_transaction_pooling(engine: sa.Engine, values: Mapping[str, str]) -> None:
    """Set everything in each transaction: the next one may run on another server connection."""
    text = "; ".join([f"SET {_READ_COMMITTED}", *(f"SET LOCAL {name} = {value}" for name, value in values.items())])

    @sa.event.listens_for(engine, "connect")
    def set_up(_dbapi_connection: Any, record: Any) -> None:
        record.info[prepared_transaction.TRANSACTION_SETTINGS] = text

    def begin(dbapi_connection: Any) -> None:
        if not dbapi_connection.autocommit:  # (a single-statement transaction includes the text)
            with dbapi_connection.cursor() as cursor:
                cursor.execute(text)

    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def _prepare_postgresql(engine: sa.Engine, url: sa.URL, settings: DatabaseSettings) -> None:
    if settings.transaction_pooling:
        _prepare_transaction_pooling(engine, _postgresql_time_limits(url, settings))
    else:
        _prepare_session(engine, _postgresql_values(url, settings))
    if settings.statement_timeout_seconds is not None:
        # The server ends a statement half a second earlier, with an error.
        socket_watchdog.watch(engine, settings.statement_timeout_seconds + 0.5)


def _prepare_session(engine: sa.Engine, values: Mapping[str, str]) -> None:
    # Do not set the isolation level through psycopg2: it would send it again at each change between autocommit and
    # multi-statement transactions (prepared_transaction.py), which costs two round trips.
    text = "; ".join(
        [
            f"SET SESSION CHARACTERISTICS AS {_READ_COMMITTED}",
            *(f"SET {name} = {value}" for name, value in values.items()),
        ]
    )

    @sa.event.listens_for(engine, "connect")
    def set_up(dbapi_connection: Any, _record: Any) -> None:
        with dbapi_connection.cursor() as cursor:
            cursor.execute(text)
        dbapi_connection.commit()


_IN_TRANSACTION: Final = 1
"""The bit of the server's status flags for an open transaction."""


def _prepare_mysql(engine: sa.Engine, settings: DatabaseSettings) -> None:
    commit = engine.dialect.do_commit

    def commit_if_begun(dbapi_connection: Any) -> None:
        # If a block has ended the transaction, and the server's last status (kept by PyMySQL) confirms it, skip the
        # COMMIT and its round trip. The status alone is not sufficient: it shows no open transaction also while the
        # session holds metadata locks until a COMMIT.
        status = getattr(dbapi_connection, "server_status", _IN_TRANSACTION)
        if not dbapi_connection.info.pop(prepared_transaction.ENDED, False) or status & _IN_TRANSACTION:
            commit(dbapi_connection)

    engine.dialect.do_commit = commit_if_begun  # type: ignore[method-assign]

    @sa.event.listens_for(engine, "connect")
    def set_up(dbapi_connection: Any, _record: Any) -> None:
        values = {"sql_mode": settings.mysql_sql_mode, "wsrep_sync_wait": settings.mysql_wsrep_sync_wait}
        mariadb_settings = ""
        seconds = settings.statement_timeout_seconds
        if seconds is not None:
            # Shorter than the client's timeout: a statement that gets its lock after the client has closed the
            # connection would be executed, but its client would not know.
            lock_wait_seconds = max(1, seconds - 1)
            values |= {"innodb_lock_wait_timeout": lock_wait_seconds, "lock_wait_timeout": lock_wait_seconds}
            idle_seconds = max(
                1, _idle_milliseconds(seconds, allow_idle_in_transaction=settings.allow_idle_in_transaction) // 1000
            )
            # (Only MariaDB 10.3 or later executes this; for other servers it is a comment. max_statement_time also
            # limits a block, which may wait for several locks.)
            mariadb_settings = (
                f" /*M!100300 , SESSION max_statement_time = {seconds * 7 / 8},"
                f" SESSION idle_transaction_timeout = {idle_seconds} */"
            )
        session_values = {name: value for name, value in values.items() if value is not None}
        if session_values:
            text = ", ".join(f"SESSION {name} = %s" for name in session_values)
            with dbapi_connection.cursor() as cursor:
                cursor.execute(f"SET {text}{mariadb_settings}", tuple(session_values.values()))


def rollback_open_transaction(connection: sa.Connection) -> None:
    """Roll back after a failed COMMIT: SQLAlchemy does not, and would return an open transaction to the pool."""
    if not connection.invalidated:
        try:
            connection.connection.rollback()
        except Exception:
            connection.invalidate()
