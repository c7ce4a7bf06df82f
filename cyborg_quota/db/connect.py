# SPDX-License-Identifier: Apache-2.0
"""Creates the engine, and keeps connections between transactions. The dialects add what differs (dialects/).

SQLAlchemy's pool keeps the driver's connections, and wraps and unwraps one for each transaction. That takes a fifth
of the client's time for a short transaction. ConnectionCache keeps the wrapped connections; for the pool they are
checked out. A thread that finds the cache empty waits at the pool. Therefore the cache keeps no connection while a
thread waits there, or while the pool has overflow connections.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import time
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from oslo_db import exception as oslo_exc
from oslo_db.sqlalchemy import exc_filters
from sqlalchemy import exc as sa_exc

from cyborg_quota import exceptions
from cyborg_quota.db import dialects, errors
from cyborg_quota.db.dialects import Dialect
from cyborg_quota.db.settings import DatabaseSettings


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


def make_engine(url: sa.URL, dialect: Dialect, settings: DatabaseSettings) -> sa.Engine:
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
        **dialect.engine_arguments(url, settings),
    }
    try:
        engine = sa.create_engine(url, **arguments)
    except ImportError as error:
        raise exceptions.ConfigurationError(
            f"[database] connection needs the Python package {error.name}, which is not installed."
            f" Install cyborg_quota[{dialect.extra}]."
        ) from None
    # Our handler first: oslo.db's raises an exception, so that no later handler runs. None of oslo.db's other
    # listeners: they are for savepoints, and cost time in each transaction.
    if dialect.has_server:
        sa.event.listen(engine, "handle_error", _prepare_error)
    sa.event.listen(engine, "handle_error", exc_filters.handler, retval=True)
    if "sslpassword" in url.query:
        logging.getLogger(f"{sa.QueuePool.__module__}.{sa.QueuePool.__name__}").addFilter(_hide_ssl_password)
    dialect.configure_connection(engine, url, settings)
    return engine


def _prepare_error(context: sa.engine.ExceptionContext) -> None:
    """Close a connection whose server has become read-only: a new one may lead to the new primary server.

    A demoted server does not close its sessions, so that the pool would use each of them until pool_recycle. For other
    errors that a caller handles, raise what oslo.db's handler would: that handler logs a warning with a traceback.
    """
    if errors.is_read_only(context.original_exception):
        context.is_disconnect = True
    if not context.is_disconnect and errors.code_of(context.original_exception) in errors.HANDLED:
        raise oslo_exc.DBError(context.sqlalchemy_exception or context.original_exception)


_SSL_PASSWORD: Final = re.compile(r"sslpassword=('(?:[^'\\]|\\.)*'|\S*)")


def _hide_ssl_password(record: logging.LogRecord) -> bool:
    """Mask ``sslpassword``: the pool logs psycopg2 connections, whose repr masks ``password`` only."""
    record.msg, record.args = _SSL_PASSWORD.sub("sslpassword=xxx", record.getMessage()), ()
    return True


def rollback_open_transaction(connection: sa.Connection) -> None:
    """Roll back after a failed COMMIT: SQLAlchemy does not, and would return an open transaction to the pool."""
    if not connection.invalidated:
        try:
            connection.connection.rollback()
        except Exception:
            connection.invalidate()


@dataclasses.dataclass(slots=True, eq=False)
class CachedConnection:
    """A connection, the time of its checkout from the pool, and whether it is in autocommit mode."""

    connection: sa.Connection
    since: float
    autocommit: bool = False

    def leave_autocommit(self, *, is_failed: bool = False) -> None:
        """Return to multi-statement transactions. If it fails, the connection is invalidated.

        ``is_failed``: the last statement may have left a transaction open.
        """
        connection = self.connection
        try:
            if is_failed:
                connection.rollback()
            else:
                connection.commit()
            if not connection.invalidated:  # (otherwise, this would connect to the server again)
                dialects.of(connection).set_autocommit(connection, is_on=False)
            self.autocommit = False
        except BaseException:  # the server had closed it, or a signal interrupted this method
            self.connection.invalidate()
            raise


class ConnectionCache:
    """The idle connections. Thread-safe without a lock, because each step is one atomic operation of a list."""

    def __init__(self, engine: sa.Engine, settings: DatabaseSettings) -> None:
        self._engine = engine
        self._recycle_seconds = settings.pool_recycle_seconds
        pool: Any = engine.pool
        self._enabled = pool._max_overflow != 0  # (otherwise, threads must share the connections of the pool)
        self._cached: list[CachedConnection] = []
        self._waiting: list[None] = []
        """One entry for each thread that waits at the pool."""

    def take(self) -> CachedConnection | None:
        """An idle connection from the cache, or None."""
        while (cached := self._pop()) is not None:
            if time.monotonic() - cached.since < self._recycle_seconds:
                return cached
            _return_to_pool(cached)  # the pool replaces a connection that is too old
        return None

    def open(self) -> CachedConnection:
        """A connection from the pool, or one that was just put back. Raises sqlalchemy.exc.TimeoutError."""
        self._waiting.append(None)
        try:
            # (put() adds a connection before it checks for waiting threads, so that no waiting thread misses it.)
            if (cached := self.take()) is not None:
                return cached
            connection = self._engine.connect()
        finally:
            self._waiting.pop()
        # If a signal interrupted the previous user, the connection may still be in autocommit.
        dialects.of(connection).set_autocommit(connection, is_on=False)
        return CachedConnection(connection, time.monotonic())

    def put(self, cached: CachedConnection) -> None:
        """Put a connection back into the cache, or return it to the pool."""
        connection = cached.connection
        pool: Any = self._engine.pool
        if (
            self._enabled
            and not connection.invalidated
            and (cached.autocommit or not connection.in_transaction())
            and pool.overflow() <= 0
        ):
            self._cached.append(cached)
            if self._waiting and (other := self.take()) is not None:
                _return_to_pool(other)
        else:
            while connection.invalidated and (other := self._pop()) is not None:
                # It may be dead too, and would fail at its next use. Close it without a ROLLBACK: the server might not
                # answer.
                other.connection.invalidate()
                other.connection.close()
            _return_to_pool(cached)

    def close(self) -> None:
        """Return all connections to the pool."""
        while (cached := self._pop()) is not None:
            _return_to_pool(cached)

    def _pop(self) -> CachedConnection | None:
        try:
            return self._cached.pop()
        except IndexError:  # there is none, or another thread took the last one
            return None


def _return_to_pool(cached: CachedConnection) -> None:
    if cached.autocommit and not cached.connection.invalidated:
        with contextlib.suppress(Exception):  # leave_autocommit has invalidated it
            cached.leave_autocommit()
    cached.connection.close()
