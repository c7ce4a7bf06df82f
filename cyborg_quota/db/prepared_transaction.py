# SPDX-License-Identifier: Apache-2.0
"""A whole transaction as one statement, prepared once on each connection, where the database can do that.

A transaction of several statements comes back to the client between them, and everybody who wants the same usage row
waits until that client has been given the processor again. In one statement nobody does, and the server need not
parse, nor PostgreSQL plan, what it has done a thousand times.

MariaDB runs a block, which ends its transaction itself::

    BEGIN NOT ATOMIC
      INSERT ...; IF ROW_COUNT() = 1 THEN
        UPDATE ...; IF ROW_COUNT() = 1 THEN COMMIT; ELSE ROLLBACK; SELECT 0; END IF;
      ELSE ROLLBACK; SELECT 0; END IF;
    END

PostgreSQL takes statements inside a statement (WITH), and a statement alone is a transaction. What either refuses
has changed nothing; the ordinary way then finds out why.

PostgreSQL holds what a transaction has changed until its log is on disk. Whoever had to wait for its row lets it go
before that (``lets_go``), and has the log written by a transaction of its own before anything is answered
(``make_lasting``). Whether somebody waits is looked at in some of the calls only. See record 0025 for why that is safe.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

ENDED: Final = "cyborg_quota_ended"
"""A note on a connection: a script has ended its transaction."""

TRANSACTION_SETTINGS: Final = "cyborg_quota_transaction_settings"
"""A note on a connection behind a pooler that gives each transaction another connection of the server's.

It is the text that sets what a transaction needs. Such a connection cannot prepare statements: each is sent as it is,
with that text before it. The server runs both in one transaction.
"""

_KNOWN: Final = "cyborg_quota_prepared"
_MAX_PREPARED: Final = 64
"""So many at most on one connection: a server has a bound on all of them together."""

_CONTENDED: Final = "cyborg_quota_hot"
"""A note on a connection: the rows that were waited for, and when."""

_IS_CONTENDED: Final = "b_is_hot"
_CONTENDED_SECONDS: Final = 0.2
_CONTENTION_CHECK_INTERVAL: Final = 4
"""A row that was not waited for lately is looked at in one call of so many, by chance: whoever counts calls may never
come to a row that is charged in turn with others. To look is a twentieth of a call."""
_MAX_CONTENDED_ROWS: Final = 1000
_DONE_AND_RELEASED: Final = 2
_ENSURE_DURABLE: Final = "SELECT FROM pg_logical_emit_message(true, 'cyborg_quota', '')"
"""Whatever is written to the log, and for good, is behind all that was written before. (The message means nothing.)"""

Step = tuple[sa.Executable, int]
"""A statement, and how many rows it must have changed."""


class _Prepared(NamedTuple):
    """What is sent to prepare it, once on a connection, and then to run it with the values of ``names``.

    ``plain`` runs it unprepared, with values by name; only PostgreSQL's.
    """

    name: str
    preparation: str
    execution: str
    names: tuple[str, ...]
    plain: str = ""


class SingleStatement:
    """The same transaction for each kind of server. ``script(connection, {name: value}, usage_id)`` runs it.

    ``block`` gives MariaDB's: a query that must find nothing (or None), and the steps. ``single(looks)`` gives
    PostgreSQL's one statement, or None. It changes nothing where it refuses, and it is one of two:

    - ``looks``: whether its row had to be waited for (``lets_go(is_unmoved)``). It returns no row where it refuses, one
      where it is done, and two where its log is not written yet; without columns, for SQLAlchemy makes much of those.
    - else it is told whether to let the row go (``lets_go()``), and returns nothing at all: what it changed is counted.
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
        """Do it all, for good: True. False: nothing was done. For use as ``Database.write``'s ``at_once`` alone.

        ``usage_id`` is the row that others may be waiting for. ``parameters`` is the script's from now on.
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
        if result is None and checks_contention:  # there was no room to prepare it; of the other there may be
            checks_contention = False
            result = self._run(connection, info, checks_contention, parameters)
        if result is None:
            return False
        changed: int = result.rowcount
        has_let_go = changed == _DONE_AND_RELEASED if checks_contention else is_contended
        if has_let_go and changed:
            ensure_durable(connection)
        if checks_contention:
            if has_let_go:
                if len(contended) >= _MAX_CONTENDED_ROWS:
                    contended.clear()
                contended[usage_id] = time.monotonic()
            else:
                contended.pop(usage_id, None)
        return changed > 0

    def _run(
        self, connection: sa.Connection, info: dict[str, Any], checks_contention: bool, parameters: Mapping[str, Any]
    ) -> sa.CursorResult[Any] | None:
        """None: it cannot be run here."""
        key = connection.dialect.name, checks_contention
        if key not in self._prepared:
            self._prepared[key] = self._prepare(connection.dialect, checks_contention)
        prepared = self._prepared[key]
        if prepared is None:
            return None
        name, preparation, execution, names, plain = prepared
        if (settings := info.get(TRANSACTION_SETTINGS)) is not None:
            return connection.exec_driver_sql(f"{settings}; {plain}", {one: parameters[one] for one in names})
        known: set[str] = info.setdefault(_KNOWN, set())
        if name not in known:
            if len(known) >= _MAX_PREPARED:
                return None
            connection.exec_driver_sql(preparation)
            known.add(name)
        # PyMySQL takes as long to write a parameter as the server does to look a row up: numbers are written here.
        values = [parameters[one] for one in names]
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
        # (For whoever reads the statement in a log or on the wire.)
        return _Prepared(name, preparation, f"{execution} -- COMMIT", names, f"{plain} -- COMMIT")


def _name(text: str) -> str:
    """A statement's name follows from its text: whoever shares a connection behind a pooler means the same by it."""
    return f"cyborg_quota_{hashlib.sha256(text.encode()).hexdigest()[:20]}"


class _Names(dict[str, str]):
    """What parameters a text asks for, in their order; each becomes a question mark."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.asked.append(name)
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
    return f"BEGIN NOT ATOMIC {' '.join(opened)} COMMIT; {' '.join([refused] * len(opened))} END", tuple(names.asked)


def early_lock_release(row_unchanged: sa.ColumnElement[bool] | None = None) -> sa.ColumnElement[bool]:
    """For the RETURNING of an UPDATE on PostgreSQL: whether this transaction ends before its log is on disk.

    That is so where the row was not as it had been (``is_unmoved``); or as the caller says, who has looked before.
    """
    off: sa.ColumnElement[bool] = sa.literal_column("set_config('synchronous_commit', 'off', true) = 'off'", sa.Boolean)
    if row_unchanged is not None:
        return sa.case((row_unchanged, sa.false()), else_=off).label("early_lock_release")
    return sa.case((sa.bindparam(_IS_CONTENDED, type_=sa.Boolean), off), else_=sa.false()).label("early_lock_release")


def ensure_durable(connection: sa.Connection) -> None:
    """On PostgreSQL: at the end of this transaction, all that it could see is on disk."""
    connection.exec_driver_sql(_ENSURE_DURABLE)


def is_possible(dialect: sa.Dialect) -> bool:
    """Whether the server can: known once there was a connection."""
    version = getattr(dialect, "server_version_info", None) or ()
    if dialect.name == "postgresql":
        return bool(version)
    # (From 10.6.2 on, MariaDB prepares blocks; MySQL has none.)
    is_mariadb = getattr(dialect, "is_mariadb", False)
    return is_mariadb and tuple(version) >= (10, 6, 2)


def enter_autocommit(connection: sa.Connection) -> None:
    """From now on, each statement is a transaction of its own: on PostgreSQL the driver's, on MariaDB the block's.

    For SQLAlchemy all of them are one, until the ordinary way has its turn: one of its own for each was a tenth of what
    they cost the client. (No round trip: it is the driver's.)
    """
    if connection.dialect.name == "postgresql":
        _driver(connection).autocommit = True
    connection.begin()


def leave_autocommit(connection: sa.Connection, *, is_failed: bool = False) -> None:
    """As it was. ``is_failed``: the last one did, and may be open."""
    if is_failed:
        connection.info.pop(ENDED, None)
        connection.rollback()
    else:
        connection.commit()
    disable_driver_autocommit(connection)


def disable_driver_autocommit(connection: sa.Connection) -> None:
    """Let several statements be one transaction, as on any new connection."""
    if connection.dialect.name == "postgresql" and _driver(connection).autocommit:
        _driver(connection).autocommit = False


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.dbapi_connection
