# SPDX-License-Identifier: Apache-2.0
"""Access to the database: a lazily created engine, one isolation level, transactions, and the retry policy.

This module uses two parts of oslo.db: the [database] options, and the filters that convert each driver's errors to
oslo.db's exceptions. It does not use oslo.db's engine factory: that factory's SQLite settings (no pool, a deferred
BEGIN) make SQLite five times slower, and its ping at every checkout costs a round trip that the retry policy makes
unnecessary.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from oslo_db import exception as oslo_exc
from oslo_log import log as logging
from sqlalchemy import exc as sa_exc

from cyborg_quota import exceptions, forks
from cyborg_quota.db import connect, dialects, errors
from cyborg_quota.db.connect import CachedConnection, ConnectionCache
from cyborg_quota.db.settings import DatabaseSettings

LOG = logging.getLogger(__name__)

T = TypeVar("T")
Connection = sa.Connection
DuplicateEntry = oslo_exc.DBDuplicateEntry
Work = Callable[[Connection], T]

_CONFLICT_WAIT_SHARE: Final = 48
_MAX_DOUBLINGS: Final = 20
_PROBE_SECONDS: Final = 2


class Deadline(threading.local):
    """All transactions inside this context share one retry deadline, because the caller waits for all of them.

    It applies to retries after database errors. The caller limits the attempts that it repeats for other reasons.
    ``began``: the start time of this thread's call, if the call consists of several transactions. (A context
    manager made by contextlib takes five times as long, and each attach enters it twice.) ``depth``: the number of
    contexts that it is in; the outermost one counts.
    """

    began: float | None = None
    depth = 0

    def __enter__(self) -> None:
        if self.depth == 0:
            self.began = time.monotonic()
        self.depth += 1

    def __exit__(self, *_failure: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.began = None


def backoff(retry: int, error: Exception, settings: DatabaseSettings, left_seconds: float) -> float:
    """The seconds before a retry, by its number (the first is 0, and does not wait): random, exponential.

    After a conflict, they are at most 1/48 of the time left until the deadline. Thus a transaction that has been
    refused for long retries more often. On a Galera cluster the writers of one node can refuse those of other nodes for
    seconds, and with waits of half a second a transaction might never succeed. (The bound does not apply to an
    unavailable database, which is not asked more often.)
    """
    longest = settings.retry_longest_wait_seconds
    if isinstance(error, oslo_exc.DBDeadlock):
        longest = min(longest, max(0.0, left_seconds) / _CONFLICT_WAIT_SHARE)
    return random.uniform(0, min(longest, settings.retry_first_wait_seconds * (2 ** min(retry, _MAX_DOUBLINGS) // 2)))


class _Pool:
    """The engine of this process and its connections, created at first use, and what is known of the server."""

    def __init__(
        self,
        url: sa.URL,
        dialect: dialects.Dialect,
        settings: DatabaseSettings,
        verify: Callable[[Connection], None] | None,
    ) -> None:
        self._url = url
        self._dialect = dialect
        self.settings = settings
        self.verify = verify
        self.is_galera: bool | None = None
        self.runs_single_statements: bool | None = None  # unknown before the first connection
        self.has_written = False
        self.on_retry: Callable[[str], None] | None = None
        self.scan_seconds: int | None = None
        self._opened: tuple[sa.Engine, ConnectionCache] | None = None
        self._parents: list[tuple[sa.Engine, ConnectionCache]] = []  # referenced, so that they are not closed
        # SQLite's locks belong to the process: with an open file of its parent, a child would believe that it holds
        # them, and write to a log that the parent has merged and deleted (sqlite.org/howtocorrupt.html, 2.6).
        is_file = not dialect.has_server and ":memory:" not in (url.database or ":memory:")
        forks.register(self)
        if is_file:
            forks.close_before(self)

    def open(self) -> tuple[sa.Engine, ConnectionCache]:
        if self._opened is not None:
            return self._opened
        with self._lock:
            if self._opened is None:
                with connect.translating_url_errors():
                    engine = connect.make_engine(self._url, self._dialect, self.settings)
                self._opened = engine, ConnectionCache(engine, self.settings)
            return self._opened

    def renew_after_fork(self) -> None:
        """Drop the parent's engine with its locks, without closing its sockets: the parent still uses them."""
        self._lock = threading.Lock()
        if self._opened is not None:
            self._parents.append(self._opened)
        self._opened = None

    def close(self) -> None:
        if self._opened is not None:
            engine, connections = self._opened
            connections.close()
            engine.dispose()


class Database:
    """A database that threads can share. A forked child opens its own connections. The constructor does no I/O.

    ``verify(connection)`` runs once, before the first transaction. Its exceptions are raised to the first caller.
    """

    def __init__(self, settings: DatabaseSettings, verify: Callable[[Connection], None] | None = None) -> None:
        self._settings = settings
        self.deadline: Final = Deadline()
        try:
            url = sa.make_url(settings.url)
            url.get_dialect()
        except (sa_exc.ArgumentError, ValueError, TypeError):
            # Do not show the URL: it may contain a password.
            raise exceptions.ConfigurationError(
                "[database] connection is not a valid SQLAlchemy URL: begin it with sqlite://, mysql+pymysql:// or "
                "postgresql+psycopg2://."
            ) from None
        self._url, self.dialect = dialects.of_url(url)
        if self.dialect.has_server and settings.url.count("@") > 1:
            # The text after the first @ would be parsed as the host name, and error messages would show it.
            raise exceptions.ConfigurationError(
                "[database] connection has more than one @: write %40 in a user name, a password or a parameter."
            )
        self._pool = _Pool(self._url, self.dialect, settings, verify)

    @property
    def engine(self) -> sa.Engine:
        """The engine of this process, created at first use."""
        return self._pool.open()[0]

    @property
    def untimed(self) -> Database:
        """The same database and pool, for transactions whose statements have no timeout, or another: full scans."""
        return self.with_limits(statement_timeout_seconds=None)

    def with_limits(self, **limits: Any) -> Database:
        """The same database and pool, with other settings for its transactions."""
        view = copy.copy(self)
        view._settings = dataclasses.replace(self._settings, **limits)
        return view

    def observe_retries(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the kind of the error (see errors.kind) before each retry. Call this once, first."""
        self._pool.on_retry = listener

    @property
    def location(self) -> str:
        """The URL of the database without user, password and parameters; for log lines."""
        url = self._url
        return sa.URL.create(url.drivername, host=url.host, port=url.port, database=url.database).render_as_string()

    def ping(self) -> bool:
        """Whether the server accepts a new connection and answers SELECT 1, each within 2 s.

        True also if it answers with an error, because then it is reachable. The connection is not from the pool: after
        an outage the pool's connections are dead, and each probe would test only one of them.
        """
        settings = dataclasses.replace(
            self._settings, connect_timeout_seconds=_PROBE_SECONDS, statement_timeout_seconds=_PROBE_SECONDS
        )
        engine = connect.make_engine(self._url, self.dialect, settings)
        try:
            with connect.translating_url_errors(), engine.connect() as connection:
                connection.exec_driver_sql("SELECT 1")
        except (oslo_exc.DBError, sa_exc.SQLAlchemyError) as error:
            return not errors.is_unreachable(error)
        finally:
            engine.dispose()
        return True

    def close(self) -> None:
        """Close the connections. The next use opens new ones."""
        self._pool.close()

    def limit_scans(self, seconds: int) -> None:
        """From now on, the statements of ``untimed`` have a timeout too, and no retry: lists over all projects, and
        audits, then raise StatementTimeout. (SQLite has no timeout.)
        """
        self._pool.scan_seconds = seconds

    def write(self, work: Work[T], single_statement: Work[T | None] | None = None) -> T:
        """Run ``work(connection)`` in one transaction. Retry the whole transaction after a transient error.

        ``work`` may run several times: keep no state except UUIDs made beforehand. It also runs again if the
        connection was lost during COMMIT, although the transaction may have been committed: ``work`` must detect its
        own changes, by these UUIDs (DBDuplicateEntry) or by the state of the rows.
        Raises DatabaseUnavailable after the retry deadline, and DatabaseError for an error that is not transient.
        DBDuplicateEntry is not translated: only the caller knows what a duplicate means.

        ``single_statement`` does the same in one statement. It is tried once, before ``work``, if the server supports
        it (Dialect.can_run_single_statements). None or False means that it changed nothing: ``work`` runs next. Any
        other value is the result. DBDuplicateEntry, an exhausted connection pool, and an error that took long and came
        after the deadline are raised; after any other database error, whose outcome is unknown, ``work`` runs.
        """
        return self._run_with_retries(work, read=False, single_statement=single_statement)

    def claim(self, change: Callable[..., bool], before: object, now: object) -> bool:
        """Change a value from ``before`` to ``now``, on one of all hosts that try. Returns whether this call did it.

        ``change(connection, before=, now=)`` says whether the value was ``before``. If it runs again, it may have been
        committed the first time: better two hosts that report a crossed threshold than none.
        """
        runs = itertools.count()

        def work(connection: Connection) -> bool:
            may_have_changed = next(runs) > 0
            has_changed = change(connection, before=before, now=now)
            return has_changed or (may_have_changed and change(connection, before=now, now=now))

        return self.write(work)

    def read(self, work: Work[T]) -> T:
        """Run ``work`` in a transaction that only reads. On SQLite it does not wait for writers."""
        return self._run_with_retries(work, read=True)

    def read_synced(self, work: Work[T]) -> T:
        """Like ``read``, but on a Galera node first wait until the node has applied all that any node has committed."""

        def synced_work(connection: Connection) -> T:
            self.sync_with_cluster(connection)
            return work(connection)

        return self._run_with_retries(synced_work, read=True)

    def sync_with_cluster(self, connection: Connection) -> bool:
        """On a Galera node, wait until this session sees all that any node has committed. False: not a Galera node.

        Call this before you report that a row does not exist, and read again if it returns True.
        The transaction must not have written anything: this method restarts it, because a node waits only at the
        first statement of a transaction.
        """
        if not self.is_galera(connection):
            return False
        self.dialect.sync_with_cluster(connection, self._settings)
        return True

    def is_galera(self, connection: Connection) -> bool:
        """Whether the server is a node of a Galera cluster."""
        if self._pool.is_galera is None:
            self._pool.is_galera = self.dialect.is_galera(connection)
        return self._pool.is_galera

    def _run_with_retries(self, work: Work[T], *, read: bool, single_statement: Work[T | None] | None = None) -> T:
        began = self.deadline.began or time.monotonic()
        pool, single_result = self._pool, None
        try:
            if pool.runs_single_statements is None and single_statement is not None:
                pool.runs_single_statements = self.dialect.can_run_single_statements(self.engine.dialect) or None
            if single_statement is not None and pool.runs_single_statements:
                single_result = self._run_single_statement(single_statement, began)
            result = single_result or self._run_until_deadline(work, read, began)
            pool.has_written = pool.has_written or not read
            return result
        except (oslo_exc.DBDuplicateEntry, exceptions.QuotaError):
            raise
        except (errors.ConcurrentChange, oslo_exc.DBError, sa_exc.SQLAlchemyError) as error:
            seconds = time.monotonic() - began
            if self._ended_a_scan(error):
                raise exceptions.StatementTimeout(errors.reason(error), seconds) from error
            raise errors.translate(error, seconds) from error

    def _run_until_deadline(self, work: Work[T], read: bool, began: float) -> T:
        """Run ``work``, again after each transient error until the deadline; the first time without a wait."""
        retry = 0
        while True:
            try:
                return self._run_once(work, read)
            except Exception as error:
                left_seconds = began + self._settings.retry_seconds - time.monotonic()
                is_over = left_seconds <= 0 and (retry > 0 or errors.took_long(error))
                # (On a read-only server only if this process has written before, a failover; else the URL is wrong.)
                is_wrong_server = not self._pool.has_written and errors.is_read_only(error)
                if is_over or is_wrong_server or not errors.may_do_again(error) or self._ended_a_scan(error):
                    raise
                LOG.debug("Retrying a transaction: %s", errors.reason(error))
                if self._pool.on_retry is not None:
                    self._pool.on_retry(errors.kind(error))
                wait_seconds = backoff(retry, error, self._settings, left_seconds)
            time.sleep(wait_seconds)
            retry += 1

    def _run_single_statement(self, single_statement: Work[T | None], began: float) -> T | None:
        try:
            return self._run_once_in_autocommit(single_statement)
        except oslo_exc.DBDuplicateEntry:
            raise
        except (oslo_exc.DBError, sa_exc.SQLAlchemyError) as error:
            is_over = time.monotonic() >= began + self._settings.retry_seconds
            if isinstance(error, sa_exc.TimeoutError) or (is_over and errors.took_long(error)):
                raise
            LOG.debug("A single-statement transaction failed, using several statements: %s", errors.reason(error))
            if errors.code_of(error) in errors.NOT_EXECUTABLE:
                self._pool.runs_single_statements = False
                if self.dialect.no_single_statements:
                    LOG.warning(self.dialect.no_single_statements, errors.reason(error))
            return None

    def _ended_a_scan(self, error: BaseException) -> bool:
        """Whether the error is the timeout of ``limit_scans``."""
        is_scan = self._settings.statement_timeout_seconds is None and self._pool.scan_seconds is not None
        return is_scan and errors.code_of(error) in errors.CANCELED

    def _run_once(self, work: Work[T], read: bool) -> T:
        connections, cached = self._acquire()
        connection = cached.connection
        settings = self._settings
        if settings.statement_timeout_seconds is None:
            settings = dataclasses.replace(settings, statement_timeout_seconds=self._pool.scan_seconds)
        has_run = False
        try:
            if cached.autocommit:
                cached.leave_autocommit()
            if read:
                self.dialect.read_only_next(connection)
            with contextlib.ExitStack() as after_commit, connection.begin():
                if settings is not self._pool.settings:
                    limits = self.dialect.time_limits(connection, settings, self._pool.settings)
                    after_commit.enter_context(limits)
                if self._pool.verify is not None:
                    self._verify(connection)
                result = work(connection)
                has_run = True
            return result
        except Exception:
            if has_run:
                connect.rollback_open_transaction(connection)
            raise
        except BaseException:
            # KeyboardInterrupt, SystemExit or a killed greenlet can occur at any step: a transaction may be open.
            connection.invalidate()
            raise
        finally:
            connections.put(cached)

    def _run_once_in_autocommit(self, statement: Work[T]) -> T:
        """Run a statement that is a transaction of its own."""
        connections, cached = self._acquire()
        is_clean = False
        try:
            if not cached.autocommit:
                self.dialect.set_autocommit(cached.connection, is_on=True)
                cached.connection.begin()
                cached.autocommit = True
            if self._pool.verify is not None:
                self._verify(cached.connection)
            result = statement(cached.connection)
            is_clean = True
            return result
        except Exception:
            with contextlib.suppress(Exception):
                cached.leave_autocommit(is_failed=True)
                is_clean = True
            raise
        finally:
            if not is_clean:
                cached.connection.invalidate()
            connections.put(cached)

    def _verify(self, connection: Connection) -> None:
        if (verify := self._pool.verify) is not None:  # (another thread may run it at the same time)
            verify(connection)
            self._pool.verify = None

    def _acquire(self) -> tuple[ConnectionCache, CachedConnection]:
        _, connections = self._pool.open()
        cached = connections.take()
        if cached is None:
            with connect.translating_url_errors():
                cached = connections.open()
        return connections, cached
