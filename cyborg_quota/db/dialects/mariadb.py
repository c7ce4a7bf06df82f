# SPDX-License-Identifier: Apache-2.0
"""MariaDB, Galera clusters of it, and MySQL: SQLAlchemy's dialect ``mysql``.

InnoDB locks the rows of an UPDATE in the order of their ids, so one statement of a block charges all rows. A reserve
and a settle are one prepared compound statement that ends its own transaction (MariaDB 10.6.2 or later)::

    BEGIN NOT ATOMIC DECLARE b_at BIGINT DEFAULT TIMESTAMPDIFF(SECOND, '2020-01-01', UTC_TIMESTAMP());
      INSERT ...; IF ROW_COUNT() = 1 THEN
        UPDATE ...; IF ROW_COUNT() = 1 THEN COMMIT; ELSE ROLLBACK; SELECT 2; END IF;
      ELSE ROLLBACK; SELECT 1; END IF;
    END

The number is that of the statement that refused. (0: a consumer has a live reservation.)
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from oslo_db import exception as oslo_exc
from sqlalchemy.dialects import mysql

from cyborg_quota import exceptions
from cyborg_quota.db import clock, errors, inventories, reservations, usages
from cyborg_quota.db.dialects.base import Dialect
from cyborg_quota.db.inventories import InventoryClaim
from cyborg_quota.db.prepared import ServerStatement
from cyborg_quota.db.reservations import NewReservation
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.db.usages import Posting
from cyborg_quota.types import RESERVED, State

_FIRST_VERSION: Final = (10, 6, 2)
"""The first version of MariaDB that can prepare a compound statement. MySQL cannot."""

_MAX_ROWS: Final = 16
"""The maximum number of reservations of one single-statement transaction."""

_MAX_POSTINGS: Final = 8
"""The maximum number of usage rows of one single-statement transaction."""

_MAX_CLAIMS: Final = 4
"""The maximum number of inventories of one such transaction: each number needs a prepared statement of its own."""

_TRANSACTION_ENDED: Final = "cyborg_quota_ended"
"""Key in ``connection.info``: a block has ended its transaction."""

_IN_TRANSACTION: Final = 1
"""The bit of the server's status flags for an open transaction."""


class MariaDB(Dialect):
    name = "mysql"
    driver = "pymysql"
    extra = "mysql"
    update_locks_in_order = True
    now = "UTC_TIMESTAMP(6)"
    now_plus = "(UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND)"
    second = "TIMESTAMPDIFF(SECOND, '2020-01-01', UTC_TIMESTAMP())"
    lock_order: ClassVar[staticmethod[[usages.Node], Any]] = staticmethod(operator.attrgetter("usage_id"))

    def engine_arguments(self, url: sa.URL, settings: DatabaseSettings) -> dict[str, Any]:
        # The charset replaces that of the URL, which in OpenStack is often utf8. That cannot encode all names.
        arguments: dict[str, Any] = {"connect_timeout": settings.connect_timeout_seconds, "charset": "utf8mb4"}
        if settings.statement_timeout_seconds is not None:
            # While it connects; configure_connection then sets the statement timeout. Without it, the driver would wait
            # for the server's greeting without a limit.
            arguments["read_timeout"] = arguments["write_timeout"] = settings.connect_timeout_seconds
        return {"isolation_level": "READ COMMITTED", "connect_args": arguments}

    def configure_connection(self, engine: sa.Engine, url: sa.URL, settings: DatabaseSettings) -> None:
        commit = engine.dialect.do_commit

        def commit_if_begun(dbapi_connection: Any) -> None:
            # If a block has ended the transaction, and the server's last status confirms it, skip the COMMIT and its
            # round trip. The status alone also shows no transaction while the session holds metadata locks.
            status = getattr(dbapi_connection, "server_status", _IN_TRANSACTION)
            if not dbapi_connection.info.pop(_TRANSACTION_ENDED, False) or status & _IN_TRANSACTION:
                commit(dbapi_connection)

        engine.dialect.do_commit = commit_if_begun  # type: ignore[method-assign]
        variables = {"sql_mode": settings.mysql_sql_mode, "wsrep_sync_wait": settings.mysql_wsrep_sync_wait}
        values = {name: value for name, value in variables.items() if value is not None}
        assignments = [f"SESSION {name} = %s" for name in values]
        if settings.statement_timeout_seconds is not None:
            assignments.append(_time_limits(settings))

        @sa.event.listens_for(engine, "connect")
        def set_up(dbapi_connection: Any, _record: Any) -> None:
            if settings.statement_timeout_seconds is not None:
                _set_client_timeout(dbapi_connection, settings)
            if assignments:
                with dbapi_connection.cursor() as cursor:
                    cursor.execute(f"SET {', '.join(assignments)}", tuple(values.values()))

    @contextlib.contextmanager
    def time_limits(
        self, connection: sa.Connection, settings: DatabaseSettings, usual: DatabaseSettings
    ) -> Iterator[None]:
        def set_limits(limits: DatabaseSettings) -> None:
            _set_client_timeout(connection.connection.dbapi_connection, limits)
            connection.exec_driver_sql(f"SET {_time_limits(limits)}")

        if usual.statement_timeout_seconds is None:  # (no connection has limits)
            yield
            return

        def restore() -> None:
            if not connection.invalidated:
                try:
                    set_limits(usual)
                    connection.commit()  # (the SET has begun a transaction)
                except Exception:  # (the transaction has ended: this must not change its result)
                    connection.invalidate()

        try:
            set_limits(settings)
            yield
        except Exception:
            restore()
            raise
        restore()

    def can_run_single_statements(self, server: sa.Dialect) -> bool:
        is_mariadb = bool(getattr(server, "is_mariadb", False))
        return is_mariadb and tuple(server.server_version_info or ()) >= _FIRST_VERSION

    def reserve_in_single_statement(
        self,
        connection: sa.Connection,
        rows: Sequence[NewReservation],
        postings: Sequence[Posting],
        claims: Sequence[InventoryClaim] = (),
    ) -> bool | InventoryClaim | None:
        if len(rows) > _MAX_ROWS or not 0 < len(postings) <= _MAX_POSTINGS or len(claims) > _MAX_CLAIMS:
            return None
        columns = reservations.columns_of(rows)
        parameters: dict[str, Any] = {
            "b_project": rows[0].project_id,
            "b_ttl": rows[0].ttl_microseconds,
            **reservations.row_parameters(rows, columns),
            **usages.arguments(postings),
        }
        for index, claim in enumerate(claims):
            parameters.update(inventories.arguments(claim, f"_{index}"))
        block = _reserve_block(connection.dialect, len(rows), columns, len(claims), len(postings))
        step = _run_block(connection, block, parameters)
        index = step - 2  # (step 1 is the INSERT, and the claims follow)
        return claims[index] if 0 <= index < len(claims) else step == _DONE

    @staticmethod
    def with_indexes(query: sa.Select[Any], table: Any, *indexes: str) -> sa.Select[Any]:
        return query.with_hint(table, f"FORCE INDEX ({', '.join(indexes)})")

    def settle_in_single_statement(
        self,
        connection: sa.Connection,
        uuids: Sequence[str],
        after: State,
        grace: int,
        postings: Sequence[Posting],
    ) -> bool | None:
        if len(uuids) > _MAX_ROWS or not 0 < len(postings) <= _MAX_POSTINGS:
            return None
        parameters: dict[str, Any] = {f"b_{index}": uuid for index, uuid in enumerate(sorted(uuids))}
        parameters.update(usages.arguments(postings), b_grace=grace)
        block = _settle_block(connection.dialect, len(uuids), after, len(postings))
        return _run_block(connection, block, parameters) == _DONE

    def is_first_of_index(self, column: sa.ColumnElement[str], value: str) -> sa.ColumnElement[bool]:
        """``column >= value AND column <= value``: for ``=``, MariaDB sorts all rows, whatever the LIMIT."""
        return sa.and_(column >= value, column <= value)

    def skip_locked(self, server: sa.Dialect, query: sa.Select[Any]) -> sa.Select[Any]:
        first = (10, 6) if getattr(server, "is_mariadb", False) else (8, 0, 1)
        can_skip = tuple(server.server_version_info or ()) >= first
        return query.with_for_update(skip_locked=True) if can_skip else query

    def set_autocommit(self, connection: sa.Connection, *, is_on: bool) -> None:
        connection.info.pop(_TRANSACTION_ENDED, None)  # (a failed statement has left it)

    def insert_or_ignore(
        self, connection: sa.Connection, table: sa.Table, values: dict[str, Any], params: dict[str, Any]
    ) -> None:
        key = next(iter(table.primary_key.columns)).name
        connection.execute(mysql.insert(table).values(values).on_duplicate_key_update({key: table.c[key]}), params)

    def is_galera(self, connection: sa.Connection) -> bool:
        variable = connection.exec_driver_sql("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").first()
        return variable is not None and str(variable[1]).upper() in ("ON", "1")

    def sync_with_cluster(self, connection: sa.Connection, settings: DatabaseSettings) -> None:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("SET SESSION wsrep_sync_wait = 7")
        try:
            connection.exec_driver_sql("SELECT 1 FROM reservations LIMIT 1")
        except Exception:
            # The session would wait at every later read; and a broken one accepts no statement that resets it.
            connection.invalidate()
            raise
        connection.exec_driver_sql(f"SET SESSION wsrep_sync_wait = {settings.mysql_wsrep_sync_wait or 0}")

    @contextlib.contextmanager
    def schema_lock(self, connection: sa.Connection) -> Iterator[None]:
        """A lock by name, held by the session that runs the statements.

        The server finishes a statement whose client was killed. A lock of another session would end with the client,
        and the next ``db sync`` would repeat a step that still runs. The lock of this session outlasts a COMMIT, and is
        released after it: otherwise the next ``db sync`` would find no revision, and drop the tables as unfinished.
        """
        name = "CONCAT(LEFT(DATABASE(), 40), '.cyborg_quota')"  # lock names are global to the server
        if connection.exec_driver_sql(f"SELECT GET_LOCK({name}, {SCHEMA_LOCK_SECONDS})").scalar() != 1:
            raise exceptions.DatabaseUnavailable("another db sync still runs", SCHEMA_LOCK_SECONDS)
        try:
            with _lock_schema_in_cluster(connection) if self.is_galera(connection) else contextlib.nullcontext():
                yield
                connection.exec_driver_sql("COMMIT")
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SELECT RELEASE_LOCK({name})")


def _set_client_timeout(dbapi_connection: Any, settings: DatabaseSettings) -> None:
    # (PyMySQL has no public way to change them, and compares them at each packet.)
    dbapi_connection._read_timeout = dbapi_connection._write_timeout = settings.statement_timeout_seconds


def _time_limits(settings: DatabaseSettings) -> str:
    """The assignments of a session's time limits; without a statement timeout those of the server."""
    lock_wait, statement, idle = "DEFAULT", "DEFAULT", "DEFAULT"
    seconds, idle_milliseconds = settings.statement_timeout_seconds, settings.idle_milliseconds
    if seconds is not None and idle_milliseconds is not None:
        # Shorter than the client's timeout: a statement that gets its lock later would be executed without an answer.
        limits = max(1, seconds - 1), seconds * 7 / 8, max(1, idle_milliseconds // 1000)
        lock_wait, statement, idle = map(str, limits)
    # (A comment for other servers than MariaDB. max_statement_time also limits a block, which may wait for several
    # locks.)
    return (
        f"SESSION innodb_lock_wait_timeout = {lock_wait}, SESSION lock_wait_timeout = {lock_wait}"
        f" /*M!100300 , SESSION max_statement_time = {statement}, SESSION idle_transaction_timeout = {idle} */"
    )


_DONE: Final = -1


def _run_block(connection: sa.Connection, block: ServerStatement, parameters: Mapping[str, Any]) -> int:
    """Run and commit the transaction: _DONE, or the number of the step that refused. Then nothing was changed.

    0: the guard refused, or the connection cannot prepare the statement.
    """
    result = block.run(connection, connection.info, parameters)
    if result is None:
        return 0
    connection.info[_TRANSACTION_ENDED] = True
    refused = int(result.scalar_one()) if result.returns_rows else _DONE
    result.close()
    return refused


def _block(dialect: sa.Dialect, guard: sa.Select[Any] | None, *steps: tuple[sa.Executable, int]) -> ServerStatement:
    """One transaction as a prepared compound statement. ``guard``: a query that must return no row.

    ``steps``: statements, and the number of rows that each must change.
    """
    names: list[str] = []

    def text_of(element: Any) -> str:
        """With a question mark for each parameter, whose name is recorded. (clock.AT is a variable.)"""
        parts = re.split(r"%\((\w+)\)s", str(element.compile(dialect=dialect)))
        found = parts[1::2]
        names.extend(name for name in found if name != clock.AT)
        parts[1::2] = [name if name == clock.AT else "?" for name in found]
        return "".join(parts).replace("%%", "%")

    at = f"DECLARE {clock.AT} BIGINT DEFAULT {MariaDB.second};"
    opened = [] if guard is None else [f"IF NOT EXISTS ({text_of(guard)}) THEN"]
    opened += [f"{text_of(element)}; IF ROW_COUNT() = {rows} THEN" for element, rows in steps]
    numbers = list(range(len(steps), 0, -1)) + [0] * (len(opened) - len(steps))  # of the innermost step first
    refused = " ".join([f"ELSE ROLLBACK; SELECT {number}; END IF;" for number in numbers])
    text = f"BEGIN NOT ATOMIC {at} {' '.join(opened)} COMMIT; {refused} END"
    # A hash of the text, so that clients that share a server connection use the name for the same statement.
    name = f"cyborg_quota_{hashlib.sha256(text.encode()).hexdigest()[:20]}"
    quoted = text.replace("'", "''").replace("%", "%%")  # (the driver formats the text)
    # (The comment shows in a server log or a network trace that the statement commits.)
    execution = f"EXECUTE {name} USING {', '.join(['%s'] * len(names))} -- COMMIT"
    return ServerStatement(name, f"PREPARE {name} FROM '{quoted}'", execution, tuple(names))


@functools.lru_cache(maxsize=256)
def _reserve_block(
    dialect: sa.Dialect, size: int, columns: tuple[str, ...], claims: int, postings: int
) -> ServerStatement:
    guard = reservations.live_rows_of_consumers(size) if "consumer_id" in columns else None
    insert = reservations.insert_rows(size, columns, RESERVED)
    taking = [(inventories.claim_update(f"_{index}"), 1) for index in range(claims)]
    return _block(dialect, guard, (insert, size), *taking, (usages.charge_rows(postings), postings))


@functools.lru_cache(maxsize=256)
def _settle_block(dialect: sa.Dialect, size: int, after: State, postings: int) -> ServerStatement:
    settle = reservations.settle_in_flight_update(size, after)
    return _block(dialect, None, (settle, size), (usages.charge_rows(postings), postings))


SCHEMA_LOCK_SECONDS: Final = 600
"""The longest time that one upgrade of the schema waits for another."""

_TABLE_EXISTS: Final = 1050

_SYNC_TABLE: Final = "cyborg_quota_sync"
"""This table exists while an upgrade of the schema runs on a Galera cluster."""


@contextlib.contextmanager
def _lock_schema_in_cluster(connection: sa.Connection) -> Iterator[None]:
    """Exclude upgrades on the cluster's other nodes, where this node's named lock has no effect.

    Galera executes a CREATE TABLE on all nodes at the same position in the total order: only one upgrade succeeds, and
    it then sees all earlier changes. The table's comment names the node. A claim by this node was left by an upgrade
    that was killed or lost its connection, because this session holds the node's lock; this one takes it over. A claim
    by another node may be in use: this upgrade waits for it, and the error after the timeout names the table.
    """
    node = connection.exec_driver_sql("SHOW STATUS LIKE 'wsrep_gcomm_uuid'").one()[1]
    deadline = time.monotonic() + SCHEMA_LOCK_SECONDS
    while True:
        try:
            connection.exec_driver_sql(
                f"CREATE TABLE {_SYNC_TABLE} (id INTEGER NOT NULL PRIMARY KEY) ENGINE=InnoDB COMMENT='{node}'"
            )
            break
        except (oslo_exc.DBError, sa.exc.DBAPIError) as error:
            if errors.code_of(error) != _TABLE_EXISTS:
                raise
        query = "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = "
        if node and connection.exec_driver_sql(f"{query}'{_SYNC_TABLE}'").scalar() == node:
            break
        if time.monotonic() > deadline:
            raise exceptions.DatabaseUnavailable(
                f"the table {_SYNC_TABLE} says that a db sync runs on another node; drop it if none does",
                SCHEMA_LOCK_SECONDS,
            )
        time.sleep(0.2)
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"DROP TABLE {_SYNC_TABLE}")
