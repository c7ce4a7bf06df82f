# SPDX-License-Identifier: Apache-2.0
"""The database itself: an engine made lazily, one isolation level, one way to run a transaction, one retry policy.

What oslo.db is good at is taken from it: the [database] options, and the exception tree its filters make of every
driver's messages. Its engine factory is not: its SQLite settings (no pool, a deferred BEGIN) cost four fifths of
SQLite's speed, and its ping at every checkout is a round trip that the retry policy makes needless.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
import tenacity
from oslo_db import exception as oslo_exc
from oslo_log import log as logging
from sqlalchemy import exc as sa_exc

from cyborg_quota import exceptions, forks
from cyborg_quota.db import clock, connect, deadline, errors, prepared_transaction
from cyborg_quota.db.connect import DatabaseSettings
from cyborg_quota.db.connection_cache import CachedConnection, ConnectionCache

LOG = logging.getLogger(__name__)

T = TypeVar("T")
Connection = sa.Connection
DuplicateEntry = oslo_exc.DBDuplicateEntry
Work = Callable[[Connection], T]


class Database:
    """A database, shared by threads; a forked child gets connections of its own. Making one does no I/O.

    ``verify(connection)`` runs once, before the first transaction; what it raises, the first caller gets.
    """

    def __init__(self, settings: DatabaseSettings, verify: Callable[[Connection], None] | None = None) -> None:
        self._settings = settings
        self._verify = verify
        self._lock = threading.Lock()
        self._engine: sa.Engine | None = None
        self._connections: ConnectionCache | None = None
        self._parents: list[tuple[sa.Engine, ConnectionCache | None]] = []  # kept, for what is garbage is closed
        self._thinking: Database | None = None
        self._galera: bool | None = None
        self._runs_single_statements: bool | None = None  # not known before there was a connection
        self._has_written = False
        self._call = deadline.Call()
        try:
            self._url = connect.as_mysql(sa.make_url(settings.url))
            self._url.get_dialect()
            self._is_sqlite = self._url.get_backend_name() == "sqlite"
        except (sa_exc.ArgumentError, ValueError, TypeError):
            # The text is a secret: it may hold a password.
            raise exceptions.ConfigurationError("[database] connection is not a valid SQLAlchemy URL.") from None
        connect.check_driver(self._url)
        if not self._is_sqlite and settings.url.count("@") > 1:
            # What follows the first would be taken for the host, and be named as that by every error.
            raise exceptions.ConfigurationError(
                "[database] connection has more than one @: in a user's name, a password or a parameter write %40."
            )
        forks.register(self)

    @property
    def engine(self) -> sa.Engine:
        """The engine of this process; made at first use."""
        if self._engine is not None:
            return self._engine
        with self._lock:
            if self._engine is None:
                settings = self._settings
                with connect.translating_url_errors():
                    engine = connect.make_engine(self._url, settings)
                self._connections = ConnectionCache(
                    engine, settings.pool_recycle_seconds, can_cache=connect.can_cache(engine)
                )
                self._engine = engine
            return self._engine

    def renew_after_fork(self) -> None:
        """The parent's sockets are the parent's: drop them unclosed, with the locks of its engine."""
        self._lock = threading.Lock()
        if self._engine is not None:
            self._parents.append((self._engine, self._connections))
        self._engine = self._connections = None

    @property
    def max_concurrent_writers(self) -> int:
        """How many may write at once for one caller: half of the pool, and others have the rest. (SQLite: one.)"""
        most, overflow = self._settings.max_pool_size, self._settings.max_overflow
        if self._is_sqlite:
            return 1
        return sys.maxsize if overflow < 0 or most == 0 else max(1, (most + overflow) // 2)

    @property
    def long_transactions(self) -> Database:
        """The same, for transactions that take their time between two statements."""
        with self._lock:
            if self._thinking is None:
                self._thinking = Database(
                    dataclasses.replace(self._settings, allow_idle_in_transaction=True), self._verify
                )
            return self._thinking

    @property
    def is_mysql(self) -> bool:
        return self._url.get_backend_name() in ("mysql", "mariadb")

    @property
    def location(self) -> str:
        """Where it is, as a URL without user, password and parameters."""
        url = self._url
        return sa.URL.create(url.drivername, host=url.host, port=url.port, database=url.database).render_as_string()

    def ping(self) -> bool:
        """Whether the server can be reached now; tried once, on a connection of its own, for a few seconds at most."""
        return connect.answers(self._url, self._settings)

    def close(self) -> None:
        """Close the connections. The next use opens new ones."""
        if self._engine is not None and self._connections is not None:
            self._connections.close()
            self._engine.dispose()
        if self._thinking is not None:
            self._thinking.close()

    def deadline(self) -> contextlib.AbstractContextManager[None]:
        """What is done inside has the policy's time together, for its caller waits for all of it."""
        return self._call

    def write(self, work: Work[T], single_statement: Work[T | None] | None = None) -> T:
        """Run ``work(connection)`` in one transaction; again, from its start, when that may help.

        ``work`` must hold no state between its runs but what makes a second run land on the first one's rows.
        Raises DatabaseUnavailable when the policy's time is over, DatabaseError for what cannot be tried again;
        DBDuplicateEntry comes out as it is: only the caller knows what a duplicate means.

        ``at_once`` is tried before, once, where the server can run a script (scripts.py): the same in one statement.
        Where it answers None nothing was done, and where it fails nobody knows; ``work`` does the rest.
        """
        return self._run(work, read=False, single_statement=single_statement)

    def supports_single_statement(self, usage_rows: int) -> bool:
        """Whether ``at_once`` is worth a try for a charge of so many usage rows."""
        return usage_rows > 0 and (usage_rows == 1 or self.is_mysql) and not self._is_sqlite

    def read(self, work: Work[T]) -> T:
        """Run a ``work`` that only reads. On SQLite it does not wait for writers."""
        return self._run(work, read=True)

    def read_synced(self, work: Work[T]) -> T:
        """The same, but on a Galera node not before it knows all that any node has answered."""

        def surely(connection: Connection) -> T:
            self.sync_with_cluster(connection)
            return work(connection)

        return self._run(surely, read=True)

    def sync_with_cluster(self, connection: Connection) -> bool:
        """On a Galera node, wait until this session sees all that any node had answered. False: there was no need.

        Whoever is about to say that something does not exist asks this first, and looks again when it is True.
        The transaction must have written nothing so far: it is begun anew, for inside one a node does not wait.
        """
        if not self.is_mysql or not self.is_galera(connection):
            return False
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 7")
        try:
            connection.exec_driver_sql("SELECT 1 FROM reservations LIMIT 1")
        except Exception:
            # This session would wait at every read from now on; and where it broke, it takes no further statement.
            connection.invalidate()
            raise
        connection.exec_driver_sql(f"SET SESSION wsrep_sync_wait = {self._settings.mysql_wsrep_sync_wait or 0}")
        return True

    def ensure_durable(self, connection: Connection) -> None:
        """On PostgreSQL: what this transaction sees is on disk when it has ended. For an answer that writes nothing."""
        if self._url.get_backend_name() == "postgresql":
            prepared_transaction.ensure_durable(connection)

    def is_galera(self, connection: Connection) -> bool:
        """Whether the server is a node of a cluster."""
        if self._galera is None:
            found = connection.exec_driver_sql("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").first()
            self._galera = found is not None and str(found[1]).upper() in ("ON", "1")
        return self._galera

    def _run(self, work: Work[T], *, read: bool, single_statement: Work[T | None] | None = None) -> T:
        began = self._call.began or time.monotonic()
        try:
            if single_statement is not None and (self._runs_single_statements or self._may_run_single_statements()):
                done = self._run_single_statement(single_statement, began)
                if done is not None:
                    self._has_written = True
                    return done
            try:
                result = self._once(work, read)
            except Exception as error:
                if not self._may_do_again(error) or (self._is_over(began) and errors.took_long(error)):
                    raise
                LOG.debug("A transaction is tried again: %s", errors.reason(error))
                result = self._retrying(began)(self._once, work, read)
            self._has_written = self._has_written or not read
            return result
        except (oslo_exc.DBDuplicateEntry, exceptions.QuotaError):
            raise
        except (errors.TransactionMoved, oslo_exc.DBError, sa_exc.SQLAlchemyError) as error:
            raise errors.translate(error, time.monotonic() - began) from error

    def _may_run_single_statements(self) -> bool:
        if self._runs_single_statements is None and prepared_transaction.is_possible(self.engine.dialect):
            self._runs_single_statements = True
        return bool(self._runs_single_statements)

    def _run_single_statement(self, single_statement: Work[T | None], began: float) -> T | None:
        try:
            return self._once_in_autocommit(single_statement)
        except oslo_exc.DBDuplicateEntry:
            raise
        except (oslo_exc.DBError, sa_exc.SQLAlchemyError) as error:
            if errors.is_pool_busy(error) or (errors.took_long(error) and self._is_over(began)):
                raise
            LOG.debug("A transaction is done in several statements: %s", errors.reason(error))
            if errors.is_not_prepared(error):
                self._runs_single_statements = False
                if not self.is_mysql:
                    LOG.warning(
                        "PostgreSQL does not have what its connection prepared (%s). If a pooler with pool_mode ="
                        " transaction is between, set [quota] postgresql_pool_mode = transaction.",
                        errors.reason(error),
                    )
            return None

    def _retrying(self, began: float) -> tenacity.Retrying:
        """The one retry policy. Every parameter is spelled out: tenacity's defaults never stop and never wait."""
        settings = self._settings
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._may_do_again),
            stop=lambda _state: self._is_over(began),
            wait=deadline.waiting(
                settings.retry_first_wait_seconds, settings.retry_longest_wait_seconds, began + settings.retry_seconds
            ),
            before=tenacity.before_nothing,
            after=tenacity.after_nothing,
            sleep=time.sleep,
            reraise=True,
        )

    def _may_do_again(self, error: BaseException) -> bool:
        """A read-only server means a failover where this process could write before; else the URL is wrong."""
        return errors.may_do_again(error) and (self._has_written or not errors.is_read_only(error))

    def _is_over(self, began: float) -> bool:
        return time.monotonic() - began >= self._settings.retry_seconds

    def _once(self, work: Work[T], read: bool) -> T:
        connections, cached = self._acquire()
        connection = cached.connection
        is_done = False
        try:
            if cached.autocommit:
                cached.leave_autocommit()
            if read and self._is_sqlite:
                connect.read_only_next(connection)
            with connection.begin():
                self._verify_once(connection)
                answer = work(connection)
                is_done = True
            return answer
        except Exception as error:
            if clock.was_interrupted(error):
                raise KeyboardInterrupt from error
            if is_done:
                connect.rollback_open_transaction(connection)
            raise
        except BaseException:
            # Ctrl-C, SystemExit, a killed greenlet: it strikes between any two steps; what was begun may be open still.
            connection.invalidate()
            raise
        finally:
            connections.put(cached)

    def _once_in_autocommit(self, statement: Work[T]) -> T:
        """Run what is a transaction of its own."""
        connections, cached = self._acquire()
        is_clean = False
        try:
            if not cached.autocommit:
                cached.enter_autocommit()
            self._verify_once(cached.connection)
            answer = statement(cached.connection)
            is_clean = True
            return answer
        except Exception:
            with contextlib.suppress(Exception):
                cached.leave_autocommit(is_failed=True)
                is_clean = True
            raise
        finally:
            if not is_clean:
                cached.connection.invalidate()
            connections.put(cached)

    def _verify_once(self, connection: Connection) -> None:
        if (verify := self._verify) is not None:  # (another thread may be doing it too)
            verify(connection)
            self._verify = None

    def _acquire(self) -> tuple[ConnectionCache, CachedConnection]:
        self.engine  # noqa: B018 (it makes both)
        connections = self._connections
        assert connections is not None, "made with the engine"
        return connections, connections.take() or self._open(connections)

    @staticmethod
    def _open(connections: ConnectionCache) -> CachedConnection:
        with connect.translating_url_errors():
            return connections.open()
