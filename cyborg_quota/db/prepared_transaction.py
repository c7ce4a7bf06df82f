# SPDX-License-Identifier: Apache-2.0
"""A whole transaction as one prepared statement, for databases that support it. Each connection prepares it once.

A transaction of several statements keeps its row locks during the round trips between them, and while its client
waits for a CPU. Every other transaction that needs the same usage row waits for that time. A single statement has no
round trips under the lock. As it is prepared, the server parses it only once, and PostgreSQL plans it only once.

On MariaDB it is a compound statement that ends its own transaction::

    BEGIN NOT ATOMIC
      INSERT ...; IF ROW_COUNT() = 1 THEN
        UPDATE ...; IF ROW_COUNT() = 1 THEN COMMIT; ELSE ROLLBACK; SELECT 0; END IF;
      ELSE ROLLBACK; SELECT 0; END IF;
    END

On PostgreSQL it is one statement with data-modifying WITH queries, in autocommit mode. A statement that refuses
changes nothing; the multi-statement transaction then determines the reason.

PostgreSQL keeps the row locks of a transaction until its commit record is flushed to disk. If the row is contended,
the statement commits asynchronously, which releases the locks before the flush (``early_lock_release``). A second
transaction then flushes the log before the call returns (``ensure_durable``). Only some calls check for contention.
Decision record 0025 explains why this is safe.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

ENDED: Final = "cyborg_quota_ended"
"""Key in ``connection.info``: a block has ended its transaction."""

TRANSACTION_SETTINGS: Final = "cyborg_quota_transaction_settings"
"""Key in ``connection.info``, for a connection behind a pooler in transaction mode: its SET statements.

Such a connection cannot use prepared statements, because each transaction may run on another server connection. Each
single statement is sent as plain text after these SET statements; the server runs them in one transaction.
"""

_KNOWN: Final = "cyborg_quota_prepared"
_MAX_PREPARED: Final = 64
"""The most prepared statements of one connection: the server limits their total over all connections."""

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

Step = tuple[sa.Executable, int]
"""A statement, and the number of rows that it must change."""


class _Prepared(NamedTuple):
    """The texts of one statement: PREPARE (once for each connection), and EXECUTE with the values of ``names``.

    ``plain`` is the text to run without preparing, with named parameters. Only PostgreSQL has it.
    """

    name: str
    preparation: str
    execution: str
    names: tuple[str, ...]
    plain: str = ""


class SingleStatement:
    """One transaction, written for each kind of server. ``statement(connection, {name: value}, usage_id)`` runs it.

    ``block()`` returns MariaDB's form: a query that must return no row (or None), and the steps.
    ``single(checks_contention)`` returns PostgreSQL's statement, or None if there is none. The statement changes
    nothing if it refuses. There are two variants:

    - With ``checks_contention`` it detects whether it waited for its row (``early_lock_release(row_unchanged)``). It
      returns no row if it refused, one if it is done, and two if it is done but not yet flushed to disk. These rows
      have no columns, because SQLAlchemy's processing of columns costs time.
    - Without, the caller says whether to release the lock early (``early_lock_release()``). It returns no result set;
      its row count is the number of changed rows.
    """

    __slots__ = ("_block", "_prepared", "_single")

    def __init__(
        self,
        block: Callable[[], tuple[sa.Select[Any] | None, Sequence[Step]]],
        single: Callable[[bool], sa.Executable | None],
    ) -> None:
        self._block = block
        self._single = single
        self._prepared: dict[tuple[str, bool], _Prepared | None] = {}

    def __call__(self, connection: sa.Connection, parameters: dict[str, Any], usage_id: int) -> bool:
        """Run and commit the transaction. False: it refused, and changed nothing.

        Use this only inside the ``single_statement`` of ``Database.write``. ``usage_id`` is the usage row for which
        other transactions may wait. This method changes ``parameters``.
        """
        if connection.dialect.name == "postgresql":
            return self._run_single(connection, parameters, usage_id)
        info = connection.info
        result = self._run(connection, info, False, parameters)
        if result is None:
            return False
        info[ENDED] = True
        is_refused = result.returns_rows
        result.close()
        return not is_refused

    def _run_single(self, connection: sa.Connection, parameters: dict[str, Any], usage_id: int) -> bool:
        info = connection.info
        contended: dict[int, float] = info.setdefault(_CONTENDED, {})
        waited_at = contended.get(usage_id)
        is_contended = waited_at is not None and time.monotonic() - waited_at < _CONTENDED_SECONDS
        checks_contention = not is_contended and (
            waited_at is not None or random.random() * _CONTENTION_CHECK_INTERVAL < 1
        )
        parameters[_IS_CONTENDED] = is_contended
        result = self._run(connection, info, checks_contention, parameters)
        if result is None and checks_contention:  # cannot prepare more; the other variant may be prepared
            checks_contention = False
            result = self._run(connection, info, checks_contention, parameters)
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
        self, connection: sa.Connection, info: dict[str, Any], checks_contention: bool, parameters: Mapping[str, Any]
    ) -> sa.CursorResult[Any] | None:
        """Run one variant, preparing it first if needed. None: this connection cannot run it."""
        variant = connection.dialect.name, checks_contention
        if variant not in self._prepared:
            self._prepared[variant] = self._prepare(connection.dialect, checks_contention)
        prepared = self._prepared[variant]
        if prepared is None:
            return None
        name, preparation, execution, names, plain = prepared
        if (settings := info.get(TRANSACTION_SETTINGS)) is not None:
            return connection.exec_driver_sql(f"{settings}; {plain}", {key: parameters[key] for key in names})
        known: set[str] = info.setdefault(_KNOWN, set())
        if name not in known:
            if len(known) >= _MAX_PREPARED:
                return None
            connection.exec_driver_sql(preparation)
            known.add(name)
        # PyMySQL needs as long to format a parameter as the server to look up a row: format integers here instead.
        values = [parameters[key] for key in names]
        text = execution % tuple([value if type(value) is int else "%s" for value in values])
        return connection.exec_driver_sql(text, tuple([value for value in values if type(value) is not int]))

    def _prepare(self, dialect: sa.Dialect, checks_contention: bool) -> _Prepared | None:
        if dialect.name == "postgresql":
            single = self._single(checks_contention)
            if single is None:
                return None
            compiled: Any = single.compile(dialect=dialect)  # type: ignore[attr-defined]
            names = tuple(compiled.binds)
            text = str(compiled) % {name: f"${index}" for index, name in enumerate(names, 1)}
            types = {name: compiled.binds[name].type.compile(dialect=dialect).partition("(")[0] for name in names}
            plain = str(compiled) % {name: f"CAST(%({name})s AS {type_name})" for name, type_name in types.items()}
            name = _name(text)
            preparation = f"PREPARE {name} ({', '.join(types.values())}) AS {text}"
            execution = f"EXECUTE {name} ({', '.join(['%s'] * len(names))})"
        else:
            text, names = _block_text(dialect, *self._block())
            name = _name(text)
            quoted = text.replace("'", "''")
            preparation = f"PREPARE {name} FROM '{quoted}'"
            execution = f"EXECUTE {name} USING {', '.join(['%s'] * len(names))}"
            plain = ""
        # (The comment shows in a server log or a network trace that the statement commits.)
        return _Prepared(name, preparation, f"{execution} -- COMMIT", names, f"{plain} -- COMMIT")


def _name(text: str) -> str:
    """The name is a hash of the text, so that clients that share a server connection use it for the same statement."""
    return f"cyborg_quota_{hashlib.sha256(text.encode()).hexdigest()[:20]}"


class _Names(dict[str, str]):
    """Replaces each named parameter by a question mark, and records the names in order."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.used.append(name)
        return "?"


def _block_text(
    dialect: sa.Dialect, guard: sa.Select[Any] | None, steps: Sequence[Step]
) -> tuple[str, tuple[str, ...]]:
    names = _Names()

    def text_of(element: Any) -> str:
        compiled = element.compile(dialect=dialect)
        return str(compiled) % names

    opened = []
    if guard is not None:
        opened.append(f"IF NOT EXISTS ({text_of(guard)}) THEN")
    opened += [f"{text_of(element)}; IF ROW_COUNT() = {rows} THEN" for element, rows in steps]
    refused = "ELSE ROLLBACK; SELECT 0; END IF;"
    return f"BEGIN NOT ATOMIC {' '.join(opened)} COMMIT; {' '.join([refused] * len(opened))} END", tuple(names.used)


def early_lock_release(row_unchanged: sa.ColumnElement[bool] | None = None) -> sa.ColumnElement[bool]:
    """For the RETURNING of an UPDATE on PostgreSQL: commit asynchronously if the row is contended, and return that.

    The row is contended if it changed while the statement waited for it (``row_unchanged`` is false). Without
    ``row_unchanged``, the caller passes the result of an earlier check as a parameter.
    """
    off: sa.ColumnElement[bool] = sa.literal_column("set_config('synchronous_commit', 'off', true) = 'off'", sa.Boolean)
    if row_unchanged is not None:
        return sa.case((row_unchanged, sa.false()), else_=off).label("lets_go")
    return sa.case((sa.bindparam(_IS_CONTENDED, type_=sa.Boolean), off), else_=sa.false()).label("lets_go")


def ensure_durable(connection: sa.Connection) -> None:
    """On PostgreSQL: flush everything that this transaction can see to disk when it ends."""
    connection.exec_driver_sql(_ENSURE_DURABLE)


def is_possible(dialect: sa.Dialect) -> bool:
    """Whether the server supports single-statement transactions. Its version is known after the first connection."""
    version = getattr(dialect, "server_version_info", None) or ()
    if dialect.name == "postgresql":
        return bool(version)
    # (MariaDB can prepare a compound statement since 10.6.2. MySQL cannot.)
    is_mariadb = getattr(dialect, "is_mariadb", False)
    return is_mariadb and tuple(version) >= (10, 6, 2)


def enter_autocommit(connection: sa.Connection) -> None:
    """Make each later statement a transaction of its own: by driver autocommit on PostgreSQL, by the block on MariaDB.

    SQLAlchemy sees a single transaction until ``leave_autocommit``. One SQLAlchemy transaction for each statement
    takes a tenth of the client's time. This function makes no round trip.
    """
    if connection.dialect.name == "postgresql":
        _driver(connection).autocommit = True
    connection.begin()


def leave_autocommit(connection: sa.Connection, *, is_failed: bool = False) -> None:
    """Return to multi-statement transactions. ``is_failed``: the last statement failed, and may have left one open."""
    if is_failed:
        connection.info.pop(ENDED, None)
        connection.rollback()
    else:
        connection.commit()
    disable_driver_autocommit(connection)


def disable_driver_autocommit(connection: sa.Connection) -> None:
    """Turn off the autocommit mode of psycopg2, as on a new connection."""
    if connection.dialect.name == "postgresql" and _driver(connection).autocommit:
        _driver(connection).autocommit = False


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.dbapi_connection
