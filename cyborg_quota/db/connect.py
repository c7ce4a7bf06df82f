# SPDX-License-Identifier: Apache-2.0
"""How an engine is made for each kind of database: pool, isolation, time-outs, and what a new connection is told."""

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
"""A note on a connection: its next transaction only reads."""

_SQLITE_IS_OURS: Final = "SELECT COUNT(*) = 0 OR SUM(name LIKE 'cyborg\\_quota\\_%' ESCAPE '\\') > 0 FROM sqlite_master"
"""Whether the file is empty, or has our version table."""


_DRIVERS: Final = {"sqlite": "pysqlite", "mysql": "pymysql", "postgresql": "psycopg2"}
"""The supported driver of each database. setup.cfg has an extra of each server's name that installs it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatabaseSettings:
    """How to reach and use the database. Times in seconds; the URL's password is never shown."""

    url: str = dataclasses.field(repr=False)
    max_pool_size: int = 5
    max_overflow: int = 50
    pool_timeout_seconds: float = 30.0
    """At most: a call that waits for a connection waits no longer than it would try again (or connect)."""
    pool_recycle_seconds: int = 3600
    connect_timeout_seconds: int = 3
    statement_timeout_seconds: int | None = 8
    transaction_pooling: bool = False
    """Whether a pooler gives each transaction another connection of PostgreSQL's: nothing is set for a session."""
    allow_idle_in_transaction: bool = False
    """Whether a transaction may go on for long without a statement: see _idle_milliseconds."""
    sqlite_synchronous: bool = True
    sqlite_busy_timeout_seconds: float = 5.0
    mysql_sql_mode: str | None = "TRADITIONAL"
    mysql_wsrep_sync_wait: int | None = None
    retry_seconds: float = 6.0
    retry_first_wait_seconds: float = 0.002
    retry_longest_wait_seconds: float = 0.5


def as_mysql(url: sa.URL) -> sa.URL:
    """SQLAlchemy has a second name for MariaDB, under which oslo.db understands none of its errors."""
    backend, separator, driver = url.drivername.partition("+")
    return url.set(drivername=f"mysql{separator}{driver}") if backend == "mariadb" else url


def check_driver(url: sa.URL) -> None:
    """Raise ConfigurationError for a driver that no test runs with; record 0030 says why there is one a database."""
    backend, driver = url.get_backend_name(), url.get_driver_name()
    if _DRIVERS.get(backend) != driver:
        raise exceptions.ConfigurationError(
            f"[database] connection uses the driver {backend}+{driver}, which is not supported."
            " Begin it with sqlite://, mysql+pymysql:// or postgresql+psycopg2://."
        )


@contextlib.contextmanager
def translating_url_errors() -> Iterator[None]:
    """What the URL's parameters make a driver, or SQLAlchemy, raise: without the values, which may be secrets."""
    try:
        yield
    except TypeError as error:
        # A driver's connect() takes keywords, and the URL brings them.
        raise exceptions.ConfigurationError(
            f"[database] connection names a parameter that its driver does not take: {error}."
        ) from None
    except (NotImplementedError, sa_exc.ResourceClosedError) as error:
        # SQLAlchemy's first look at a server does not bear the connection to break; what broke it is the context.
        raise oslo_exc.DBConnectionError(error.__context__ or error) from error
    except (ValueError, LookupError) as error:
        # Their text is the value that was given.
        raise exceptions.ConfigurationError(
            f"[database] connection gives a parameter a value that its driver cannot use ({type(error).__name__})."
        ) from None


def make_engine(url: sa.URL, settings: DatabaseSettings) -> sa.Engine:
    """An engine as ``settings`` say, with oslo.db's exceptions. Raises ConfigurationError for a missing driver."""
    arguments: dict[str, Any] = {
        "pool_size": settings.max_pool_size,
        "max_overflow": settings.max_overflow,
        "pool_timeout": min(
            settings.pool_timeout_seconds, max(settings.retry_seconds, settings.connect_timeout_seconds)
        ),
        "pool_recycle": settings.pool_recycle_seconds,
        "poolclass": sa.QueuePool,
        # Every transaction is ended where it was begun; a ROLLBACK at check-in would be one round trip more.
        "pool_reset_on_return": None,
        # A dead connection shows at its first statement, and the transaction is run again on a new one.
        "pool_pre_ping": False,
        "hide_parameters": True,
    }
    backend = url.get_backend_name()
    if backend == "sqlite":
        arguments["connect_args"] = {"timeout": settings.sqlite_busy_timeout_seconds, "check_same_thread": False}
        if url.database in (None, "", ":memory:"):
            # A private database per connection: all threads must share the one.
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
    """Ours comes first: oslo.db's raises its own exception, which ends the handling."""
    if engine.dialect.name != "sqlite":
        sa.event.listen(engine, "handle_error", _leave_read_only)
    # Of oslo.db's listeners this one alone: the others are for savepoints, and cost each transaction its part.
    sa.event.listen(engine, "handle_error", exc_filters.handler, retval=True)


def _leave_read_only(context: sa.engine.ExceptionContext) -> None:
    """Close a connection whose server has become read-only: the next one may lead to the server that took its place.

    A server that was demoted does not close its sessions, and each would be used until pool_recycle.
    """
    if errors.is_read_only(context.original_exception):
        context.is_disconnect = True


_PROBE_SECONDS: Final = 2


def answers(url: sa.URL, settings: DatabaseSettings) -> bool:
    """Whether the server accepts a new connection and answers SELECT 1, each within 2 s.

    True also where it answers with an error: it can be reached. The connection is not one of a pool's: after an outage
    those are dead, and each probe would test another one of them.
    """
    impatient = dataclasses.replace(
        settings, connect_timeout_seconds=_PROBE_SECONDS, statement_timeout_seconds=_PROBE_SECONDS
    )
    engine = make_engine(url, impatient)
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
    """psycopg2 shows a connection with all its parameters, and masks one password of two; the pool logs connections."""
    record.msg, record.args = _SSL_PASSWORD.sub("sslpassword=xxx", record.getMessage()), ()
    return True


def _server_arguments(url: sa.URL, settings: DatabaseSettings) -> dict[str, Any]:
    """What a driver is told about time. A server that does not answer must not hold a caller for ever."""
    arguments: dict[str, Any] = {"connect_timeout": settings.connect_timeout_seconds}
    seconds = settings.statement_timeout_seconds
    if url.get_backend_name() in ("mysql", "mariadb"):
        if "charset" not in url.query:
            arguments["charset"] = "utf8mb4"
        if seconds is not None:
            arguments["read_timeout"] = arguments["write_timeout"] = seconds
    elif seconds is not None:
        # The kernel ends a connection whose other end does not even acknowledge.
        arguments["tcp_user_timeout"] = seconds * 1000
    return arguments


_LONG_IDLE_MILLISECONDS: Final = 120_000


def _idle_milliseconds(statement_seconds: int, *, allow_idle_in_transaction: bool) -> int:
    """How long a server leaves a transaction open whose client says nothing: that client's machine may have died.

    Nobody tells the server, and its rows would stay locked until the kernel notices, two hours later. It is less than a
    statement may take, so that whoever waits for these rows gets them; but for what checks everything in between.
    """
    return _LONG_IDLE_MILLISECONDS if allow_idle_in_transaction else statement_seconds * 625


def _prepare_sqlite(engine: sa.Engine, settings: DatabaseSettings) -> None:
    synchronous = "FULL" if settings.sqlite_synchronous else "OFF"

    @sa.event.listens_for(engine, "connect")
    def set_up(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None  # we BEGIN ourselves
        # It is written into the file: not into one that may be somebody else's.
        if dbapi_connection.execute(_SQLITE_IS_OURS).fetchone()[0]:
            dbapi_connection.execute("PRAGMA journal_mode = WAL")
        dbapi_connection.execute(f"PRAGMA synchronous = {synchronous}")
        # A batch of expiry touches more than the default of 2 MiB, and wrote pages several times (a third more rows a
        # second; a log of more pages between checkpoints would give as much again, and fill a small disk).
        dbapi_connection.execute("PRAGMA cache_size = -32768")
        clock.register_sqlite(dbapi_connection)

    def begin(dbapi_connection: Any) -> None:
        # A writer takes the write lock at once: one that began by reading could only fail when it turns
        # to writing while another writes.
        dbapi_connection.execute("BEGIN" if dbapi_connection.info.pop(_READS, False) else "BEGIN IMMEDIATE")

    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def read_only_next(connection: sa.Connection) -> None:
    """On SQLite: the next transaction of this connection does not wait for writers."""
    connection.info[_READS] = True


def can_cache(engine: sa.Engine) -> bool:
    """Whether connections may be kept outside of the pool: not where several threads have to share all there are."""
    pool = engine.pool
    return isinstance(pool, sa.QueuePool) and pool._max_overflow != 0


def _postgresql_time_limits(url: sa.URL, settings: DatabaseSettings) -> dict[str, str]:
    """When the server ends a statement, and a transaction whose client says nothing. The URL's ``options`` come first.

    They are set after the connection was made: PgBouncer refuses start-up parameters that it does not know.
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
    """The server's settings for the life of a connection."""
    # A prepared statement is planned at its first execution, and not five times for its parameters before.
    values = {**_postgresql_time_limits(url, settings), "plan_cache_mode": "force_generic_plan"}
    if settings.statement_timeout_seconds is not None and not settings.allow_idle_in_transaction:
        # All statements here find their rows by keys. A plan that reads a whole table is right only while that is
        # small, and is kept when it has grown.
        values["enable_seqscan"] = "off"
    return values


_READ_COMMITTED: Final = "TRANSACTION ISOLATION LEVEL READ COMMITTED"


def _prepare_transaction_pooling(engine: sa.Engine, values: Mapping[str, str]) -> None:
    """Set everything for one transaction at a time: the next one may run on another connection of the server's."""
    text = "; ".join([f"SET {_READ_COMMITTED}", *(f"SET LOCAL {name} = {value}" for name, value in values.items())])

    @sa.event.listens_for(engine, "connect")
    def set_up(_dbapi_connection: Any, record: Any) -> None:
        record.info[prepared_transaction.TRANSACTION_SETTINGS] = text

    def begin(dbapi_connection: Any) -> None:
        if not dbapi_connection.autocommit:  # (a statement that is a transaction of its own brings the text along)
            with dbapi_connection.cursor() as cursor:
                cursor.execute(text)

    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def _prepare_postgresql(engine: sa.Engine, url: sa.URL, settings: DatabaseSettings) -> None:
    if settings.transaction_pooling:
        _prepare_transaction_pooling(engine, _postgresql_time_limits(url, settings))
    else:
        _prepare_session(engine, _postgresql_values(url, settings))
    if settings.statement_timeout_seconds is not None:
        # The server itself ends a statement earlier, and says so.
        socket_watchdog.watch(engine, settings.statement_timeout_seconds + 0.5)


def _prepare_session(engine: sa.Engine, values: Mapping[str, str]) -> None:
    # The isolation level not by the driver: psycopg2 would tell the server again whenever it turns to a statement that
    # is a transaction of its own, and back (scripts.py): two round trips.
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
"""The bit of the server's status that says that a transaction is open."""


def _prepare_mysql(engine: sa.Engine, settings: DatabaseSettings) -> None:
    commit = engine.dialect.do_commit

    def commit_if_begun(dbapi_connection: Any) -> None:
        # Where a script has ended the transaction, and the server says so (PyMySQL keeps what it said last), a COMMIT
        # would be a round trip for nothing. The server's word alone will not do: it says "no transaction" also where
        # locks on tables' definitions are held until one ends.
        status = getattr(dbapi_connection, "server_status", _IN_TRANSACTION)
        if not dbapi_connection.info.pop(prepared_transaction.ENDED, False) or status & _IN_TRANSACTION:
            commit(dbapi_connection)

    engine.dialect.do_commit = commit_if_begun  # type: ignore[method-assign]

    @sa.event.listens_for(engine, "connect")
    def set_up(dbapi_connection: Any, _record: Any) -> None:
        values = {"sql_mode": settings.mysql_sql_mode, "wsrep_sync_wait": settings.mysql_wsrep_sync_wait}
        of_mariadb = ""
        seconds = settings.statement_timeout_seconds
        if seconds is not None:
            # Before the client gives up and is gone: what gets its lock after that would be done, and nobody told.
            earlier = max(1, seconds - 1)
            values |= {"innodb_lock_wait_timeout": earlier, "lock_wait_timeout": earlier}
            idle_seconds = max(
                1, _idle_milliseconds(seconds, allow_idle_in_transaction=settings.allow_idle_in_transaction) // 1000
            )
            # (A comment, to all but a MariaDB of 10.3 or later. A block may wait for several locks.)
            of_mariadb = (
                f" /*M!100300 , SESSION max_statement_time = {seconds * 7 / 8},"
                f" SESSION idle_transaction_timeout = {idle_seconds} */"
            )
        given = {name: value for name, value in values.items() if value is not None}
        if given:
            text = ", ".join(f"SESSION {name} = %s" for name in given)
            with dbapi_connection.cursor() as cursor:
                cursor.execute(f"SET {text}{of_mariadb}", tuple(given.values()))


def rollback_open_transaction(connection: sa.Connection) -> None:
    """SQLAlchemy sends no ROLLBACK behind a COMMIT that failed, and what is open would go back to the pool."""
    if not connection.invalidated:
        try:
            connection.connection.rollback()
        except Exception:
            connection.invalidate()
