# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL. It guarantees no lock order within an UPDATE of several rows, so each usage row has its own UPDATE.

A reserve or a settle is one call of a function in autocommit mode. If it is refused, the function changes nothing. A
transaction of several statements keeps its row locks during the round trips between them. A function has no round
trips, and PostgreSQL keeps the plans of its statements for as long as the connection lives. Its text is in
postgresql.sql.

A released function is never changed: a new text is a new function, with the next version in its name. ``db sync``
creates the functions. Where they are missing, reserve and settle use the multi-statement transaction.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import re
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa
from oslo_db import exception as oslo_exc
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles

from cyborg_quota import forks
from cyborg_quota.db import errors, usages
from cyborg_quota.db.dialects.base import Dialect
from cyborg_quota.db.inventories import InventoryClaim
from cyborg_quota.db.models import reservations
from cyborg_quota.db.reservations import COLUMNS, LiveOfConsumers, NewReservation
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.db.usages import Posting
from cyborg_quota.types import State

_READ_COMMITTED: Final = "TRANSACTION ISOLATION LEVEL READ COMMITTED"


class PostgreSQL(Dialect):
    name = "postgresql"
    driver = "psycopg2"
    extra = "postgresql"
    insert = staticmethod(postgresql.insert)
    # statement_timestamp(), not clock_timestamp(): an index scan needs a value that is constant within the statement.
    now = "(statement_timestamp() AT TIME ZONE 'UTC')"
    now_plus = "(statement_timestamp() AT TIME ZONE 'UTC' + {} * INTERVAL '1 microsecond')"
    second = "CAST(floor(extract(epoch FROM statement_timestamp() - '2020-01-01 UTC')) AS bigint)"
    no_single_statements = (
        "A function of the ledger cannot be called (%s). Reserve and settle use several statements, which is slower."
        " Run cyborg-quota db sync, which creates them or reports the missing privilege; then restart."
    )

    def engine_arguments(self, url: sa.URL, settings: DatabaseSettings) -> dict[str, Any]:
        arguments: dict[str, Any] = {"connect_timeout": settings.connect_timeout_seconds}
        if settings.statement_timeout_seconds is not None:
            # The kernel closes a connection whose peer does not acknowledge data.
            arguments["tcp_user_timeout"] = settings.statement_timeout_seconds * 1000
        return {"connect_args": arguments}

    def configure_connection(self, engine: sa.Engine, url: sa.URL, settings: DatabaseSettings) -> None:
        values, local = _session_values(url, settings), "LOCAL " if settings.transaction_pooling else ""
        # Do not set the isolation level through psycopg2: it would send it again at each change between autocommit and
        # multi-statement transactions, which costs two round trips.
        isolation = _READ_COMMITTED if local else f"SESSION CHARACTERISTICS AS {_READ_COMMITTED}"
        text = "; ".join([f"SET {isolation}", *(f"SET {local}{name} = {value}" for name, value in values.items())])

        def execute(dbapi_connection: Any) -> None:
            with dbapi_connection.cursor() as cursor:
                cursor.execute(text)

        @sa.event.listens_for(engine, "connect")
        def set_up(dbapi_connection: Any, record: Any) -> None:
            if local:  # the next transaction may run on another server connection of the pooler
                record.info[TRANSACTION_SETTINGS] = text
            else:
                execute(dbapi_connection)
                dbapi_connection.commit()

        def begin(dbapi_connection: Any) -> None:
            if not dbapi_connection.autocommit:  # (a single-statement transaction includes the text)
                execute(dbapi_connection)

        if local:
            engine.dialect.do_begin = begin  # type: ignore[method-assign]
        # (The watchdog works for TCP connections on Linux.)
        if settings.statement_timeout_seconds is not None and hasattr(socket, "TCP_INFO"):
            # The server ends a statement half a second earlier, with an error.
            watcher = _Watcher(settings.statement_timeout_seconds + 0.5)
            # Register first: SQLAlchemy and other listeners run statements on a new connection.
            sa.event.listen(engine, "connect", watcher.begin, insert=True)
            sa.event.listen(engine, "close", watcher.end)

    @contextlib.contextmanager
    def time_limits(
        self, connection: sa.Connection, settings: DatabaseSettings, usual: DatabaseSettings
    ) -> Iterator[None]:
        url = connection.engine.url
        values = _session_values(url, settings)
        changes = [
            f"SET LOCAL {name} = {values.get(name, 'DEFAULT')}"
            for name, value in _session_values(url, usual).items()
            if values.get(name) != value
        ]
        if changes:
            connection.exec_driver_sql("; ".join(changes))
        info = connection.info
        seconds, usually = settings.statement_timeout_seconds, usual.statement_timeout_seconds
        info[_IS_PATIENT] = seconds is None or (usually is not None and seconds > usually)
        try:
            yield
        finally:
            info[_IS_PATIENT] = False

    def charge_together(self, connection: sa.Connection, postings: Sequence[Posting], at: int) -> bool:
        """By the function that charges row by row, so that the rows are locked in order."""
        columns = arrays([usages.values(posting) for posting in postings], len(usages.COLUMNS))
        text = f"SELECT {CHARGE}({', '.join(['%s'] * len(usages.COLUMNS))}, %s)"
        try:
            charged: int = connection.exec_driver_sql(text, (*columns, at)).scalar_one()
        except oslo_exc.DBError as error:
            if errors.code_of(error) not in errors.NOT_EXECUTABLE:
                raise
            return False
        return charged == len(postings)

    def can_run_single_statements(self, server: sa.Dialect) -> bool:
        return bool(getattr(server, "server_version_info", None))

    def reserve_in_single_statement(
        self,
        connection: sa.Connection,
        rows: Sequence[NewReservation],
        postings: Sequence[Posting],
        claims: Sequence[InventoryClaim] = (),
    ) -> bool | None:
        first = rows[0]
        return call(
            connection,
            RESERVE,
            first.project_id,
            first.ttl_microseconds,
            *arrays(rows, _COLUMNS_OF_ROWS),
            *arrays(claims, 3),
            *arrays([usages.values(posting) for posting in postings], len(usages.COLUMNS)),
        )

    def settle_in_single_statement(
        self,
        connection: sa.Connection,
        uuids: Sequence[str],
        after: State,
        grace: int,
        postings: Sequence[Posting],
    ) -> bool | None:
        uuids_array = array(sorted(uuids))
        return call(
            connection,
            SETTLE,
            uuids_array,
            after,
            grace,
            *arrays([usages.values(posting) for posting in postings], len(usages.COLUMNS)),
        )

    def missing_functions(self, connection: sa.Connection) -> list[str]:
        is_missing = "SELECT to_regproc(%s) IS NULL"
        return [name for name in DEFINITIONS if connection.exec_driver_sql(is_missing, (name,)).scalar_one()]

    def create_functions(self, connection: sa.Connection) -> list[str]:
        """If a privilege is missing, nothing is created."""
        with self.schema_lock(connection):
            names = self.missing_functions(connection)
            if not names:
                return []
            schema, can_create = connection.exec_driver_sql(
                "SELECT quote_ident(current_schema()), has_schema_privilege(current_schema(), 'CREATE')"
            ).one()
            can_use_language = connection.exec_driver_sql(
                "SELECT has_language_privilege(oid, 'USAGE') FROM pg_language WHERE lanname = 'plpgsql'"
            ).scalar()
            privileges = {f"CREATE ON SCHEMA {schema}": can_create, "USAGE ON LANGUAGE plpgsql": can_use_language}
            lacking = [privilege for privilege, has in privileges.items() if not has]
            for name in () if lacking else names:
                connection.exec_driver_sql(DEFINITIONS[name].replace("@schema@", schema))
            return lacking

    def set_autocommit(self, connection: sa.Connection, *, is_on: bool) -> None:
        driver_connection: Any = connection.connection.dbapi_connection
        if driver_connection.autocommit != is_on:
            driver_connection.autocommit = is_on

    def is_on_path(self, owner: sa.ColumnElement[str], path_ids: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """``owner = ANY (array(SELECT ...))``

        PostgreSQL estimates a hundred rows for any recursive CTE, and then prefers a sequential scan of a table of a
        few ten thousand rows. For an array it estimates ten rows.
        """
        return owner == sa.any_(sa.func.array(path_ids.scalar_subquery(), type_=sa.ARRAY(owner.type)))

    def by_bytes(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
        """The collation "C" compares bytes."""
        return sa.collate(column, "C")

    def lock_in_order(self, query: sa.Select[Any], *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """With FOR NO KEY UPDATE, the lock that an UPDATE takes."""
        order = [self.by_bytes(column) if isinstance(column.type, sa.String) else column for column in columns]
        return query.order_by(*order).with_for_update(key_share=True)

    def skip_locked(self, server: sa.Dialect, query: sa.Select[Any]) -> sa.Select[Any]:
        """With FOR NO KEY UPDATE SKIP LOCKED."""
        return query.with_for_update(key_share=True, skip_locked=True)

    def ensure_durable(self, connection: sa.Connection) -> None:
        """By a log record, which is flushed with all earlier ones. (The content of the message has no meaning.)"""
        connection.exec_driver_sql("SELECT FROM pg_logical_emit_message(true, 'cyborg_quota', '')")

    @contextlib.contextmanager
    def schema_lock(self, connection: sa.Connection) -> Iterator[None]:
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(6216302001)")
        yield


def _session_values(url: sa.URL, settings: DatabaseSettings) -> dict[str, str]:
    """The settings of a connection's session, or of each transaction. The URL's ``options`` take precedence.

    They are set after connecting, because PgBouncer rejects startup parameters that it does not know.
    """
    values: dict[str, str] = {}
    if settings.statement_timeout_seconds is not None:
        values["statement_timeout"] = str(settings.statement_timeout_seconds * 1000)
        values["idle_in_transaction_session_timeout"] = str(settings.idle_milliseconds)
    options = str(url.query.get("options", ""))
    values = {name: value for name, value in values.items() if name not in options}
    # Plan a function's statement once, at its first execution, instead of five times for specific parameters first.
    values["plan_cache_mode"] = "force_generic_plan"
    if settings.statement_timeout_seconds is not None and not settings.allow_idle_in_transaction:
        # All statements find their rows by keys. A plan with a sequential scan is good only for a small table, but the
        # session keeps the plan when the table has grown.
        values["enable_seqscan"] = "off"
        # A sequential scan that cannot be avoided (all default limits) then has a huge estimated cost, so that the
        # statement would be compiled first, which takes a second.
        values["jit"] = "off"
    return values


_COLUMNS_OF_ROWS: Final = len(COLUMNS) - 1
"""The number of columns that the function of a reserve inserts. (Claims that set the last one need more statements.)"""


@compiles(LiveOfConsumers, "postgresql")
def _live_of_consumers(element: LiveOfConsumers, compiler: Any, **kw: Any) -> str:
    """One lookup for each consumer::

        id = ANY (array(SELECT live_rows.id FROM unnest(ARRAY[...]) AS given(name) JOIN LATERAL (
            SELECT id FROM reservations WHERE project_id = ... AND consumer_id = given.name AND live = 1 OFFSET 0
        ) AS live_rows ON true))

    PostgreSQL would search ``consumer_id IN (...)`` by the project alone, and read all its live rows, if it expects few
    of them. (OFFSET 0: otherwise it would join the subquery in another way.)
    """
    if element.size == 1:
        return str(compiler.process(element.portable, **kw))
    held = reservations.alias("held")
    name = held.c.consumer_id.type
    names = postgresql.array([sa.bindparam(f"b_{index}", type_=name) for index in range(element.size)], type_=name)
    given: Any = sa.func.unnest(names).table_valued(sa.column("name", name)).render_derived(name="given")
    lookup = sa.select(held.c.id).where(element.of(held.c, held.c.consumer_id == given.c.name))
    live_rows = lookup.offset(sa.literal_column("0")).lateral("live_rows")
    ids = sa.select(live_rows.c.id).select_from(given.join(live_rows, sa.true())).scalar_subquery()
    number = reservations.c.id
    return str(compiler.process(number == sa.any_(sa.func.array(ids, type_=sa.ARRAY(number.type))), **kw))


_TEXT: Final = importlib.resources.files("cyborg_quota.db.dialects").joinpath("postgresql.sql").read_text("utf-8")
DEFINITIONS: Final = {
    name: definition
    for definition, name in re.findall(r"^(CREATE FUNCTION @schema@\.(\w+)\(.*?)\n;$", _TEXT, re.DOTALL | re.MULTILINE)
}
"""The definition of each function, by name, in the order in which they are created."""

CHARGE: Final = "cyborg_quota_charge_v1"
RESERVE: Final = "cyborg_quota_reserve_v1"
SETTLE: Final = "cyborg_quota_settle_v1"

TRANSACTION_SETTINGS: Final = "cyborg_quota_transaction_settings"
"""Key in ``connection.info``, for a connection behind a pooler in transaction mode: its SET statements.

Each transaction may run on another server connection. A function call is sent after these SET statements; the server
runs them in one transaction.
"""

REFUSED_STATE: Final = "QU001"
"""Our own SQLSTATE: roll back."""


def call(connection: sa.Connection, function: str, *arguments: str | int | None) -> bool:
    """Call a function that is a transaction of its own. False: it changed nothing."""
    # The function's result is returned as the row count, because SQLAlchemy is slower with columns. (The comment shows
    # in a server log or a network trace that the statement commits.)
    text = f"SELECT WHERE {function}({', '.join(['%s'] * len(arguments))}) -- COMMIT"
    if (settings := connection.info.get(TRANSACTION_SETTINGS)) is not None:
        text = f"{settings}; {text}"
    return connection.exec_driver_sql(text, arguments).rowcount > 0


def arrays(rows: Sequence[Sequence[str | int | None]], number: int) -> Iterable[str]:
    """The columns of rows as arrays, also if there are no rows. ``number``: of the columns."""
    return map(array, zip(*[row[:number] for row in rows], strict=True) if rows else [()] * number)


def array(elements: Iterable[str | int | None]) -> str:
    """PostgreSQL's text of an array. (psycopg2's ARRAY[...] takes the client and the server longer.)"""
    return f"{{{','.join([_element(element) for element in elements])}}}"


def _element(value: str | int | None) -> str:
    """An element in the text of an array."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


# --- A watchdog, which closes connections whose server no longer answers: a frozen machine or process ---

# PyMySQL has a read timeout. libpq has none: its timeout covers connecting only, ``statement_timeout`` is enforced by
# the server, and the kernel's timeouts (``tcp_user_timeout``, keepalives) do not detect a stopped process whose kernel
# still acknowledges data. Therefore a thread checks all connections twice a second. It shuts down each connection that
# waits for an answer, and on which no data was sent or received for too long. Its caller then gets a lost connection
# error.

_IS_PATIENT: Final = "cyborg_quota_is_patient"
"""Key in the pool's ``info`` of a connection: whether its statement may take any time."""

_ACTIVE: Final = 1
"""libpq's transaction status of a connection that waits for the answer to a statement."""
_LAST_DATA_SENT: Final = 44
_LAST_DATA_RECEIVED: Final = 52
"""Offsets in Linux's struct tcp_info: tcpi_last_data_sent and tcpi_last_data_recv, 32 bits, in milliseconds ago."""


class _Watcher:
    """The connections of an engine, and the thread that checks them, which starts with the first connection.

    It closes each connection that waits longer than ``limit_seconds`` for a server that sends nothing, and adds no cost
    to a statement.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Reset in a child process, which has neither the parent's connections nor its thread."""
        self._has_thread = False
        # (Weak references: SQLAlchemy sends no close event for a connection that failed during its setup.)
        self._connections: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def begin(self, connection: Any, record: Any) -> None:
        """Watch a new connection. Start the thread if it does not run."""
        with self._lock:
            self._connections[connection] = record.info
            if self._has_thread:
                return
            self._has_thread = True
        period = min(0.5, self._limit_seconds / 10)
        threading.Thread(
            target=_check_periodically,
            args=(weakref.ref(self), period),
            name="cyborg-quota-socket-watchdog",
            daemon=True,
        ).start()

    def end(self, connection: Any, _record: Any = None) -> None:
        """Forget a closed connection: its file descriptor may be reused immediately."""
        with self._lock:
            self._connections.pop(connection, None)

    def check(self) -> None:
        """Shut down the connections that have been silent for too long."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with self._lock, contextlib.suppress(Exception):  # (closed by another thread, or not a TCP connection)
                if connection in self._connections and self._is_silent(connection):
                    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
                        duplicate.shutdown(socket.SHUT_RDWR)

    def _is_silent(self, connection: Any) -> bool:
        """Whether the connection waits for its server for too long. An idle connection or transaction is not silent."""
        is_waiting = connection.info.transaction_status == _ACTIVE and not self._connections[connection].get(
            _IS_PATIENT
        )
        if not is_waiting:
            return False
        with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            tcp_info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        silences = [struct.unpack_from("=I", tcp_info, place)[0] for place in (_LAST_DATA_SENT, _LAST_DATA_RECEIVED)]
        return bool(min(silences) / 1000 > self._limit_seconds)


def _check_periodically(watcher_ref: weakref.ref[_Watcher], period_seconds: float) -> None:
    while (watcher := watcher_ref()) is not None:
        watcher.check()
        del watcher
        time.sleep(period_seconds)
