# SPDX-License-Identifier: Apache-2.0
"""The database itself: an engine made lazily, one isolation level, one way to run a transaction, one retry policy.

What oslo.db is good at is taken from it: the [database] options, and the exception tree its filters make of every
driver's messages. Its engine factory is not: its SQLite settings (no pool, a deferred BEGIN) cost four fifths of
SQLite's speed, and its ping at every checkout is a round trip that the retry policy makes needless.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
import tenacity
from oslo_db import exception as oslo_exc
from oslo_log import log as logging
from sqlalchemy import exc as sa_exc

from cyborg_quota import exceptions
from cyborg_quota.db import clock, connecting, errors
from cyborg_quota.db.connecting import DatabaseSettings

LOG = logging.getLogger(__name__)

T = TypeVar("T")
Connection = sa.Connection
DuplicateEntry = oslo_exc.DBDuplicateEntry
Work = Callable[[Connection], T]


def new_uuid() -> str:
    """A reservation's identity."""
    return str(uuid.uuid4())


class Database:
    """A database, shared by threads; a forked child gets connections of its own. Making one does no I/O.

    ``verify(connection)`` runs once, before the first transaction; what it raises, the first caller gets.
    """

    def __init__(self, settings: DatabaseSettings, verify: Callable[[Connection], None] | None = None) -> None:
        self._settings = settings
        self._verify = verify
        self._lock = threading.Lock()
        self._engine: sa.Engine | None = None
        self._pid = 0
        self._galera: bool | None = None
        try:
            self._url = sa.make_url(settings.url)
            self._url.get_dialect()
        except (sa_exc.ArgumentError, ValueError, TypeError):
            # The text is a secret: it may hold a password.
            raise exceptions.ConfigurationError("[database] connection is not a valid SQLAlchemy URL.") from None

    @property
    def engine(self) -> sa.Engine:
        """The engine of this process; made at first use."""
        engine = self._engine
        if engine is not None and self._pid == os.getpid():
            return engine
        with self._lock:
            if self._engine is None:
                self._engine = connecting.make_engine(self._url, self._settings)
            elif self._pid != os.getpid():
                # Forked: the parent's sockets are the parent's. Drop them unclosed.
                self._engine.dispose(close=False)
            self._pid = os.getpid()
            return self._engine

    @property
    def is_mysql(self) -> bool:
        return self._url.get_backend_name() in ("mysql", "mariadb")

    def close(self) -> None:
        """Close the pooled connections. The next use opens new ones."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()

    def write(self, work: Work[T]) -> T:
        """Run ``work(connection)`` in one transaction; again, from its start, when that may help.

        ``work`` must hold no state between its runs but what makes a second run land on the first one's rows.
        Raises DatabaseUnavailable when the policy's time is over, DatabaseError for what cannot be tried again;
        DBDuplicateEntry comes out as it is: only the caller knows what a duplicate means.
        """
        return self._run(work, read=False)

    def read(self, work: Work[T]) -> T:
        """Run a ``work`` that only reads. On SQLite it does not wait for writers."""
        return self._run(work, read=True)

    def wait_for_cluster(self, connection: Connection) -> bool:
        """On a Galera node, wait until this session sees all that any node had answered. False: there was no need.

        Whoever is about to say that something does not exist asks this first, and looks again when it is True.
        """
        if not self.is_mysql or not self._is_galera(connection):
            return False
        connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 7")
        try:
            connection.exec_driver_sql("SELECT 1 FROM reservations LIMIT 1")
        finally:
            connection.exec_driver_sql(f"SET SESSION wsrep_sync_wait = {self._settings.mysql_wsrep_sync_wait or 0}")
        return True

    def _is_galera(self, connection: Connection) -> bool:
        if self._galera is None:
            found = connection.exec_driver_sql("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").first()
            self._galera = found is not None and str(found[1]).upper() in ("ON", "1")
        return self._galera

    def _run(self, work: Work[T], *, read: bool) -> T:
        began = time.monotonic()
        try:
            try:
                return self._once(work, read)
            except Exception as error:
                if not errors.may_do_again(error):
                    raise
                LOG.debug("A transaction is tried again: %s", errors.reason(error))
            result: T = self._retrying(began)(self._once, work, read)
            return result
        except (oslo_exc.DBDuplicateEntry, exceptions.QuotaError):
            raise
        except (errors.TransactionMoved, oslo_exc.DBError, sa_exc.SQLAlchemyError) as error:
            raise errors.translate(error, time.monotonic() - began) from error

    def _retrying(self, began: float) -> tenacity.Retrying:
        """The one retry policy. Every parameter is spelled out: tenacity's defaults never stop and never wait."""
        settings = self._settings

        def is_over(_state: tenacity.RetryCallState) -> bool:
            return time.monotonic() - began >= settings.retry_seconds

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(errors.may_do_again),
            stop=is_over,
            wait=tenacity.wait_random_exponential(
                multiplier=settings.retry_first_wait_seconds,
                min=0,
                max=settings.retry_longest_wait_seconds,
            ),
            before=tenacity.before_nothing,
            after=tenacity.after_nothing,
            sleep=time.sleep,
            reraise=True,
        )

    def _once(self, work: Work[T], read: bool) -> T:
        with self._connect(read) as connection:
            try:
                with connection.begin():
                    if self._verify is not None:
                        self._verify(connection)
                        self._verify = None
                    return work(connection)
            except Exception as error:
                if clock.was_interrupted(error):
                    raise KeyboardInterrupt from error
                raise
            except BaseException:
                # Ctrl-C, SystemExit, a killed greenlet: it strikes between any two steps, and what was begun may be
                # open still. Such a connection must not go back to the pool.
                connection.invalidate()
                raise

    def _connect(self, read: bool) -> Connection:
        try:
            return (self._reader if read else self.engine).connect()
        except TypeError as error:
            # A driver's connect() takes keywords, and the URL brings them.
            raise exceptions.ConfigurationError(
                f"[database] connection names a parameter that its driver does not take: {error}."
            ) from None

    @property
    def _reader(self) -> sa.Engine:
        return self.engine.execution_options(**{connecting.READ_OPTION: True})
