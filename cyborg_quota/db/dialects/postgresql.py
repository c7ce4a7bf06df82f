# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL. It guarantees no lock order within an UPDATE of several rows, so each usage row has its own UPDATE.

A reserve or a settle that charges one usage row is one prepared statement with data-modifying WITH queries, in
autocommit mode. A statement that refuses changes nothing.

PostgreSQL keeps the row locks of a transaction until its commit record is flushed to disk. If the row is contended,
the statement commits asynchronously, which releases the locks before the flush (``_early_lock_release``). A second
transaction then flushes the log before the call returns (``ensure_durable``). Only some calls check for contention.
Decision record 0025 explains why this is safe.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from oslo_log import log as logging
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles

from cyborg_quota.db import new_reservations, reservations, socket_watchdog, usages
from cyborg_quota.db.clock import utc_after
from cyborg_quota.db.dialects.base import (
    MIN_BULK_ROWS,
    Dialect,
    ReserveForm,
    SettleForm,
    reserve_form,
    reserve_values,
    settle_form,
)
from cyborg_quota.db.models import quota_usages
from cyborg_quota.db.models import reservations as reservations_table
from cyborg_quota.db.new_reservations import NewReservation
from cyborg_quota.db.prepared import ServerStatement, Statement, statement_name
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.db.usages import Change, ChargeShape
from cyborg_quota.types import RESERVED, State

LOG = logging.getLogger(__name__)

_usage = quota_usages.c

_TRANSACTION_SETTINGS: Final = "cyborg_quota_transaction_settings"
"""Key in ``connection.info``, for a connection behind a pooler in transaction mode: its SET statements.

Such a connection cannot use prepared statements, because each transaction may run on another server connection. Each
single statement is sent as plain text after these SET statements; the server runs them in one transaction.
"""

_CONTENDED: Final = "cyborg_quota_hot"
"""Key in ``connection.info``: the ids of contended usage rows, with the time of the last wait for each."""

_IS_CONTENDED: Final = "b_is_hot"
_CONTENDED_SECONDS: Final = 0.2
_CONTENTION_CHECK_INTERVAL: Final = 4
"""One call in this many, chosen at random, checks contention of a row that is not known as contended.

The choice is random because a counter could always miss a row that is charged in turn with others. The check takes a
twentieth of a call.
"""
_MAX_CONTENDED_ROWS: Final = 1000
_DONE_AND_RELEASED: Final = 2
_ENSURE_DURABLE: Final = "SELECT FROM pg_logical_emit_message(true, 'cyborg_quota', '')"
"""Writes a log record and flushes it, and thus all earlier records. The content of the message has no meaning."""

_READ_COMMITTED: Final = "TRANSACTION ISOLATION LEVEL READ COMMITTED"

_SCHEMA_LOCK: Final = "SELECT pg_advisory_xact_lock(6216302001)"


class PostgreSQL(Dialect):
    name = "postgresql"
    driver = "psycopg2"
    extra = "postgresql"

    def engine_arguments(self, url: sa.URL, settings: DatabaseSettings) -> dict[str, Any]:
        arguments: dict[str, Any] = {"connect_timeout": settings.connect_timeout_seconds}
        if settings.statement_timeout_seconds is not None:
            # The kernel closes a connection whose peer does not acknowledge data.
            arguments["tcp_user_timeout"] = settings.statement_timeout_seconds * 1000
        return {"connect_args": arguments}

    def configure_connection(self, engine: sa.Engine, url: sa.URL, settings: DatabaseSettings) -> None:
        if settings.transaction_pooling:
            _set_in_each_transaction(engine, _time_limits(url, settings))
        else:
            _set_in_session(engine, _session_values(url, settings))
        if settings.statement_timeout_seconds is not None:
            # The server ends a statement half a second earlier, with an error.
            socket_watchdog.watch(engine, settings.statement_timeout_seconds + 0.5)

    def charge_bulk(self, connection: sa.Connection, changes: Sequence[Change]) -> bool | None:
        if len(changes) < MIN_BULK_ROWS:
            return None
        return _CHARGE_ARRAYS(connection, _arrays(self.in_lock_order(changes))).rowcount == len(changes)

    def can_run_single_statements(self, server: sa.Dialect) -> bool:
        return bool(getattr(server, "server_version_info", None))

    def supports_single_statement(self, usage_rows: int) -> bool:
        return usage_rows == 1

    def reserve_in_one(
        self, connection: sa.Connection, rows: Sequence[NewReservation], changes: Sequence[Change]
    ) -> bool | None:
        form = reserve_form(rows, changes)
        if form is None or len(changes) > 1:
            return None
        return _reserve_statement(form[0]).run(connection, form[1], changes[0].node.usage_id)

    def settle_in_one(
        self, connection: sa.Connection, uuids: Sequence[str], after: State, grace: int, changes: Sequence[Change]
    ) -> bool | None:
        form = settle_form(uuids, after, grace, changes)
        if form is None or len(changes) > 1:
            return None
        return _settle_statement(form[0]).run(connection, form[1], changes[0].node.usage_id)

    def warn_not_prepared(self, reason: str) -> None:
        LOG.warning(
            "PostgreSQL has lost a prepared statement of this connection (%s). If PgBouncer or another"
            " pooler with pool_mode = transaction is used, set [quota] postgresql_pool_mode = transaction.",
            reason,
        )

    def enter_autocommit(self, connection: sa.Connection) -> None:
        _driver_connection(connection).autocommit = True
        super().enter_autocommit(connection)

    def leave_autocommit(self, connection: sa.Connection, *, is_failed: bool) -> None:
        super().leave_autocommit(connection, is_failed=is_failed)
        self.reset_autocommit(connection)

    def reset_autocommit(self, connection: sa.Connection) -> None:
        if _driver_connection(connection).autocommit:
            _driver_connection(connection).autocommit = False

    def insert_or_ignore(
        self, connection: sa.Connection, table: sa.Table, values: dict[str, Any], params: dict[str, Any]
    ) -> None:
        connection.execute(postgresql.insert(table).values(values).on_conflict_do_nothing(), params)

    def is_on_path(self, owner: sa.ColumnElement[str], path_ids: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """``owner = ANY (array(SELECT ...))``

        PostgreSQL estimates a hundred rows for any recursive CTE, and then prefers a sequential scan of a table of a
        few ten thousand rows. For an array it estimates ten rows.
        """
        return owner == sa.any_(sa.func.array(path_ids.scalar_subquery(), type_=sa.ARRAY(owner.type)))

    def ensure_durable(self, connection: sa.Connection) -> None:
        ensure_durable(connection)

    @contextlib.contextmanager
    def schema_lock(self, connection: sa.Connection) -> Iterator[None]:
        connection.exec_driver_sql(_SCHEMA_LOCK)
        yield


def _driver_connection(connection: sa.Connection) -> Any:
    return connection.connection.dbapi_connection


def _time_limits(url: sa.URL, settings: DatabaseSettings) -> dict[str, str]:
    """The server's timeouts for a statement and for an idle transaction. The URL's ``options`` take precedence.

    They are set after connecting, because PgBouncer rejects startup parameters that it does not know.
    """
    if settings.statement_timeout_seconds is None:
        return {}
    values = {
        "statement_timeout": str(settings.statement_timeout_seconds * 1000),
        "idle_in_transaction_session_timeout": str(settings.idle_milliseconds),
    }
    options = str(url.query.get("options", ""))
    return {name: value for name, value in values.items() if name not in options}


def _session_values(url: sa.URL, settings: DatabaseSettings) -> dict[str, str]:
    """The session settings of a connection."""
    # Plan a prepared statement once, at its first execution, instead of five times for specific parameters first.
    values = {**_time_limits(url, settings), "plan_cache_mode": "force_generic_plan"}
    if settings.statement_timeout_seconds is not None and not settings.allow_idle_in_transaction:
        # All statements find their rows by keys. A plan with a sequential scan is good only for a small table, but the
        # session keeps the plan when the table has grown.
        values["enable_seqscan"] = "off"
        # A sequential scan that cannot be avoided (all default limits) then has a huge estimated cost, so that the
        # statement would be compiled first, which takes a second.
        values["jit"] = "off"
    return values


def _set_in_session(engine: sa.Engine, values: Mapping[str, str]) -> None:
    # Do not set the isolation level through psycopg2: it would send it again at each change between autocommit and
    # multi-statement transactions, which costs two round trips.
    assignments = [f"SET {name} = {value}" for name, value in values.items()]
    text = "; ".join([f"SET SESSION CHARACTERISTICS AS {_READ_COMMITTED}", *assignments])

    @sa.event.listens_for(engine, "connect")
    def set_up(dbapi_connection: Any, _record: Any) -> None:
        with dbapi_connection.cursor() as cursor:
            cursor.execute(text)
        dbapi_connection.commit()


def _set_in_each_transaction(engine: sa.Engine, values: Mapping[str, str]) -> None:
    """For a pooler in transaction mode: the next transaction may run on another server connection."""
    text = "; ".join([f"SET {_READ_COMMITTED}", *(f"SET LOCAL {name} = {value}" for name, value in values.items())])

    @sa.event.listens_for(engine, "connect")
    def set_up(_dbapi_connection: Any, record: Any) -> None:
        record.info[_TRANSACTION_SETTINGS] = text

    def begin(dbapi_connection: Any) -> None:
        if not dbapi_connection.autocommit:  # (a single-statement transaction includes the text)
            with dbapi_connection.cursor() as cursor:
                cursor.execute(text)

    engine.dialect.do_begin = begin  # type: ignore[method-assign]


def _charging_arrays() -> sa.Update:
    """The UPDATE of ``charge_bulk``: all rows, with each column as an array, so that one text serves all sizes.

    PostgreSQL guarantees no lock order inside an UPDATE, so the statement first locks the rows in lock order.
    """
    names = usages.BULK_COLUMNS
    types = dict.fromkeys(names, sa.BigInteger) | {"id": sa.Integer, "generation": sa.Integer}
    arrays = {
        name: sa.cast(sa.bindparam(f"b_{name}", type_=sa.String), postgresql.ARRAY(kind))
        for name, kind in types.items()
    }
    table = sa.func.unnest(*arrays.values()).table_valued(*names, with_ordinality="ordinal", name="listed")
    listed: Any = table.render_derived()
    # (A redundant condition: the planner overestimates the list, and would otherwise hash the whole table.)
    narrow = _usage.id == sa.any_(arrays["id"])
    locking = sa.select(listed).where(_usage.id == listed.c.id, narrow).order_by(listed.c.ordinal)
    locked = locking.with_for_update(of=quota_usages, key_share=True).cte("d").prefix_with("MATERIALIZED")
    return usages.bulk_update({name: locked.c[name] for name in names}, narrow)


_CHARGE_ARRAYS: Final = Statement(_charging_arrays())


def _arrays(changes: Sequence[Change]) -> dict[str, str]:
    """The parameters of ``_charging_arrays``, in PostgreSQL's array syntax."""
    columns = zip(*[usages.bulk_values(change) for change in changes], strict=True)
    return {
        f"b_{name}": f"{{{','.join([str(value) for value in column])}}}"
        for name, column in zip(usages.BULK_COLUMNS, columns, strict=True)
    }


class _SingleStatement:
    """One transaction as a prepared statement. Each connection prepares it once.

    ``build(checks_contention)`` returns the statement, which changes nothing if it refuses. There are two variants:

    - With ``checks_contention`` it detects whether it waited for its row (``_row_unchanged``). It returns no row if it
      refused, one if it is done, and two if it is done but not yet flushed to disk. These rows have no columns,
      because SQLAlchemy's processing of columns costs time.
    - Without, the parameter _IS_CONTENDED says whether to release the lock early. It returns no result set; its row
      count is the number of changed rows.
    """

    __slots__ = ("_build", "_variants")

    def __init__(self, build: Callable[[bool], sa.Executable]) -> None:
        self._build = build
        self._variants: dict[bool, ServerStatement] = {}

    def run(self, connection: sa.Connection, parameters: dict[str, Any], usage_id: int) -> bool:
        """Run and commit the transaction. False: it refused, and changed nothing.

        ``usage_id`` is the usage row for which other transactions may wait. This method changes ``parameters``.
        """
        info = connection.info
        contended: dict[int, float] = info.setdefault(_CONTENDED, {})
        waited_at = contended.get(usage_id)
        is_contended = waited_at is not None and time.monotonic() - waited_at < _CONTENDED_SECONDS
        checks_contention = not is_contended and (
            waited_at is not None or random.random() * _CONTENTION_CHECK_INTERVAL < 1
        )
        parameters[_IS_CONTENDED] = is_contended
        result = self._run(connection, info, parameters, checks_contention)
        if result is None and checks_contention:  # cannot prepare more; the other variant may be prepared
            checks_contention = False
            result = self._run(connection, info, parameters, checks_contention)
        if result is None:
            return False
        changed: int = result.rowcount
        released_early = changed == _DONE_AND_RELEASED if checks_contention else is_contended
        if released_early and changed:
            ensure_durable(connection)
        if checks_contention:
            if released_early:
                if len(contended) >= _MAX_CONTENDED_ROWS:
                    contended.clear()
                contended[usage_id] = time.monotonic()
            else:
                contended.pop(usage_id, None)
        return changed > 0

    def _run(
        self, connection: sa.Connection, info: dict[str, Any], parameters: Mapping[str, Any], checks_contention: bool
    ) -> sa.CursorResult[Any] | None:
        """Run one variant, preparing it first if needed. None: this connection cannot prepare more statements."""
        statement = self._variants.get(checks_contention)
        if statement is None:
            statement = self._variants[checks_contention] = self._prepare(connection.dialect, checks_contention)
        if (settings := info.get(_TRANSACTION_SETTINGS)) is not None:
            values = {key: parameters[key] for key in statement.names}
            return connection.exec_driver_sql(f"{settings}; {statement.plain}", values)
        return statement.run(connection, info, parameters)

    def _prepare(self, dialect: sa.Dialect, checks_contention: bool) -> ServerStatement:
        compiled: Any = self._build(checks_contention).compile(dialect=dialect)  # type: ignore[attr-defined]
        names = tuple(compiled.binds)
        text = str(compiled) % {name: f"${index}" for index, name in enumerate(names, 1)}
        types = {name: compiled.binds[name].type.compile(dialect=dialect).partition("(")[0] for name in names}
        plain = str(compiled) % {name: f"CAST(%({name})s AS {type_name})" for name, type_name in types.items()}
        name = statement_name(text)
        # (The comment shows in a server log or a network trace that the statement commits.)
        return ServerStatement(
            name,
            preparation=f"PREPARE {name} ({', '.join(types.values())}) AS {text}",
            execution=f"EXECUTE {name} ({', '.join(['%s'] * len(names))}) -- COMMIT",
            names=names,
            plain=f"{plain} -- COMMIT",
        )


_OF_USAGE: Final = {"usage_id": _usage.id, "project_id": _usage.project_id, "resource": _usage.resource}
"""The columns of a new reservation that are copied from its usage row."""


@functools.lru_cache(maxsize=256)
def _reserve_statement(form: ReserveForm) -> _SingleStatement:
    """WITH charged AS (UPDATE quota_usages ...) INSERT INTO reservations SELECT ... FROM charged"""
    shape = form.shapes[0]

    def build(checks_contention: bool) -> sa.Executable:
        rows = reserve_values(form, RESERVED)
        update = usages.charge_update(shape, "_0")
        if form.has_consumers:
            update = update.where(
                *[new_reservations.live_row_of_consumer(index).is_(None) for index in range(form.size)]
            )
        released = _early_lock_release(shape, checks_contention)
        charged = update.returning(*_OF_USAGE.values(), released).cte("charged")
        of_usage = {name: charged.c[column.name] for name, column in _OF_USAGE.items()}
        selects = [sa.select(*{**row, **of_usage}.values()).select_from(charged) for row in rows]
        query: Any = sa.union_all(*selects) if form.size > 1 else selects[0]
        insert = sa.insert(reservations_table).from_select(list(rows[0]), query).inline()
        return _with_contention_rows(charged, insert.cte("made")) if checks_contention else insert

    return _SingleStatement(build)


@functools.lru_cache(maxsize=256)
def _settle_statement(form: SettleForm) -> _SingleStatement:
    """WITH ended AS (UPDATE reservations ...) UPDATE quota_usages ... WHERE all ended

    If only some reservations ended, or the usage row refuses the change (it has drifted, or its project has moved), a
    division by zero makes the statement fail, and PostgreSQL rolls it back. If the usage row does not exist, no
    reservation ends. (If somebody deletes the usage row by hand while this statement waits for it, the reservations
    end without being counted; the audit reports that.)
    """
    shape = form.shapes[0]

    def build(checks_contention: bool) -> sa.Executable:
        settle = reservations.settle_in_flight_update(form.size, form.after).where(_usage_row_exists("_0"))
        # (The last UPDATE returns no rows, because SQLAlchemy's processing of a result set costs time.)
        returned = reservations_table.c.id if checks_contention else _early_lock_release(shape, checks_contention)
        ended = settle.returning(returned).cte("ended")
        ended_count = sa.select(sa.func.count()).select_from(ended).scalar_subquery()
        update = _update_all_or_fail(shape, "_0", ended_count, form.size)
        if not checks_contention:
            return update
        return _with_contention_rows(update.returning(_early_lock_release(shape, checks_contention)).cte("counted"))

    return _SingleStatement(build)


def _with_contention_rows(changed: sa.CTE, *others: sa.CTE) -> sa.Executable:
    """Return one row without columns if the usage row was changed, and a second one if its lock was released early."""
    done = sa.select().select_from(changed)
    return sa.union_all(done, done.where(changed.c.lets_go)).add_cte(*others)


def _update_all_or_fail(shape: ChargeShape, suffix: str, count: sa.ColumnElement[int], size: int) -> sa.Update:
    """Apply if ``count`` == ``size``, do nothing if 0; otherwise fail the statement, so that PostgreSQL rolls it back.

    It also fails if the row refuses the change.
    """
    conditions, values = usages.charge_clauses(shape, suffix)
    zero, one = sa.literal_column("0", sa.Integer), sa.literal_column("1", sa.Integer)
    # (Division by zero. PostgreSQL would evaluate a constant expression when it plans the statement.)
    error = sa.func.mod(one, _usage.id - _usage.id)
    agrees = sa.case((sa.and_(*conditions), one), else_=error)
    verdict = sa.case({zero: zero, sa.literal_column(str(size), sa.Integer): agrees}, value=count, else_=error)
    return sa.update(quota_usages).where(usages.has_id(suffix), verdict == one).values(values)


def _usage_row_exists(suffix: str) -> sa.ColumnElement[bool]:
    """Whether the usage row exists. PostgreSQL evaluates this subquery once in a statement, and does not join it."""
    one: sa.ColumnElement[int] = sa.literal_column("1")
    other = quota_usages.alias("other")
    query = sa.select(one).where(other.c.id == sa.bindparam(f"b_id{suffix}", type_=_usage.id.type))
    return query.scalar_subquery().is_not(None)


def _early_lock_release(shape: ChargeShape, checks_contention: bool) -> sa.ColumnElement[bool]:
    """For the RETURNING of an UPDATE: commit asynchronously if the row is contended, and return that.

    The row is contended if it changed while the statement waited for it. Without the check, the caller passes the
    result of an earlier one as a parameter.
    """
    off: sa.ColumnElement[bool] = sa.literal_column("set_config('synchronous_commit', 'off', true) = 'off'", sa.Boolean)
    if checks_contention:
        return sa.case((_row_unchanged(shape, "_0"), sa.false()), else_=off).label("lets_go")
    return sa.case((sa.bindparam(_IS_CONTENDED, type_=sa.Boolean), off), else_=sa.false()).label("lets_go")


def _row_unchanged(shape: ChargeShape, suffix: str) -> sa.ColumnElement[bool]:
    """For the RETURNING of a charge: whether the row did not change between the statement's start and its UPDATE.

    It is false if the statement waited for another transaction that changed the row.
    """
    before = quota_usages.alias("before")
    conditions = [before.c.id == _usage.id]
    for name, sign in zip(("reserved", "used"), shape[:2], strict=True):
        change = sa.bindparam(f"b_{name}{suffix}", type_=sa.BigInteger) if sign else sa.literal_column("0")
        conditions.append(before.c[name] == _usage[name] - change)
    return sa.exists(sa.select(sa.literal_column("1")).select_from(before).where(*conditions))


def ensure_durable(connection: sa.Connection) -> None:
    """Flush everything that this transaction can see to disk when it ends."""
    connection.exec_driver_sql(_ENSURE_DURABLE)


@compiles(utc_after, "postgresql")
def _utc_after(element: utc_after, compiler: Any, **kw: Any) -> str:
    # statement_timestamp(), not clock_timestamp(): an index scan needs a value that is constant within the statement.
    if not len(element.clauses):
        return "(statement_timestamp() AT TIME ZONE 'UTC')"
    microseconds = compiler.process(element.clauses, **kw)
    return f"(statement_timestamp() AT TIME ZONE 'UTC' + {microseconds} * INTERVAL '1 microsecond')"
