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
(``make_lasting``). See record 0025 for why that is safe.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

ENDED: Final = "cyborg_quota_ended"
"""A note on a connection: a script has ended its transaction."""

_ALONE: Final = "cyborg_quota_alone"
"""A note on a connection: see begin_alone."""

_KNOWN: Final = "cyborg_quota_prepared"
_MOST_PREPARED: Final = 64
"""So many at most on one connection: a server has a bound on all of them together."""

_HOT: Final = "cyborg_quota_hot"
"""A note on a connection: the rows that were waited for, and when."""

_IS_HOT: Final = "b_is_hot"
_HOT_SECONDS: Final = 0.2
_MOST_HOT: Final = 1000
_DONE_AND_LET_GO: Final = 2
_MAKE_LASTING: Final = "SELECT FROM pg_logical_emit_message(true, 'cyborg_quota', '')"
"""Whatever is written to the log, and for good, is behind all that was written before. (The message means nothing.)"""

Step = tuple[sa.Executable, int]
"""A statement, and how many rows it must have changed."""


class Script:
    """The same transaction for each kind of server. ``script(connection, {name: value}, usage_id)`` runs it.

    ``block`` gives MariaDB's: a query that must find nothing (or None), and the steps. ``single`` gives PostgreSQL's
    one statement, or None: it returns no row where it refuses, one where it is done, and two where its log is not
    written yet; without columns, for which SQLAlchemy would build a result each time.
    """

    __slots__ = ("_block", "_prepared", "_single")

    def __init__(
        self,
        block: Callable[[], tuple[sa.Select[Any] | None, Sequence[Step]]],
        single: Callable[[], sa.Executable | None],
    ) -> None:
        self._block = block
        self._single = single
        self._prepared: dict[str, tuple[str, str, str, tuple[str, ...]] | None] = {}

    def __call__(self, connection: sa.Connection, parameters: Mapping[str, Any], usage_id: int) -> bool:
        """Do it all, for good: True. False: nothing was done. For use as ``Database.write``'s ``at_once`` alone.

        ``usage_id`` is the row that others may be waiting for.
        """
        dialect = connection.dialect
        if dialect.name not in self._prepared:
            self._prepared[dialect.name] = self._prepare(dialect)
        prepared = self._prepared[dialect.name]
        if prepared is None:
            return False
        name, preparation, execution, names = prepared
        info = connection.info
        known: set[str] = info.get(_KNOWN) or info.setdefault(_KNOWN, set())
        if name not in known:
            if len(known) >= _MOST_PREPARED:
                return False
            connection.exec_driver_sql(preparation)
            known.add(name)
        if dialect.name != "postgresql":
            # PyMySQL takes as long to write a parameter as the server does to look a row up: numbers are written here.
            values = [parameters[one] for one in names]
            text = execution % tuple([value if type(value) is int else "%s" for value in values])
            result = connection.exec_driver_sql(text, tuple([value for value in values if type(value) is not int]))
            info[ENDED] = True
            is_refused = result.returns_rows
            result.close()  # mysqlclient takes no other statement before it has been read
            return not is_refused
        hot: dict[int, float] = info.setdefault(_HOT, {})
        is_hot = usage_id in hot and time.monotonic() - hot[usage_id] < _HOT_SECONDS
        parameters = {**parameters, _IS_HOT: is_hot}
        result = connection.exec_driver_sql(execution, tuple([parameters[one] for one in names]))
        if result.rowcount == _DONE_AND_LET_GO:
            make_lasting(connection)
            if not is_hot:
                if len(hot) >= _MOST_HOT:
                    hot.clear()
                hot[usage_id] = time.monotonic()
        return bool(result.rowcount)

    def _prepare(self, dialect: sa.Dialect) -> tuple[str, str, str, tuple[str, ...]] | None:
        if dialect.name == "postgresql":
            single = self._single()
            if single is None:
                return None
            compiled: Any = single.compile(dialect=dialect)  # type: ignore[attr-defined]
            names = tuple(compiled.binds)
            text = str(compiled) % {name: f"${index}" for index, name in enumerate(names, 1)}
            types = ", ".join(compiled.binds[name].type.compile(dialect=dialect) for name in names)
            name = _name(text)
            preparation = f"PREPARE {name} ({types}) AS {text}; {_plan(name, len(names))}"
            execution = f"EXECUTE {name} ({', '.join(['%s'] * len(names))})"
        else:
            text, names = _block_text(dialect, *self._block())
            name = _name(text)
            quoted = text.replace("'", "''")
            preparation = f"PREPARE {name} FROM '{quoted}'"
            execution = f"EXECUTE {name} USING {', '.join(['%s'] * len(names))}"
        # (For whoever reads the statement in a log or on the wire.)
        return name, preparation, f"{execution} -- COMMIT", names


def _plan(name: str, size: int) -> str:
    """Make PostgreSQL plan a prepared statement for a large table.

    It keeps a plan from the sixth time on, and one made while a table is small reads the whole of it, until the table
    is analyzed: in an attach of eight, 20 times what one costs.
    """
    return (
        "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan;"
        f" EXPLAIN EXECUTE {name} ({', '.join(['NULL'] * size)});"
        " RESET enable_seqscan; RESET plan_cache_mode"
    )


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
        if compiled.positional:  # mysqlclient's
            names.asked += compiled.positiontup
            return str(compiled) % tuple(["?"] * len(compiled.positiontup))
        return str(compiled) % names

    opened = []
    if guard is not None:
        opened.append(f"IF NOT EXISTS ({text_of(guard)}) THEN")
    opened += [f"{text_of(element)}; IF ROW_COUNT() = {rows} THEN" for element, rows in steps]
    refused = "ELSE ROLLBACK; SELECT 0; END IF;"
    return f"BEGIN NOT ATOMIC {' '.join(opened)} COMMIT; {' '.join([refused] * len(opened))} END", tuple(names.asked)


def lets_go(is_unmoved: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """For the RETURNING of an UPDATE on PostgreSQL: whether this transaction ends before its log is on disk."""
    off: sa.ColumnElement[bool] = sa.literal_column("set_config('synchronous_commit', 'off', true) = 'off'", sa.Boolean)
    return sa.case((sa.and_(~sa.bindparam(_IS_HOT, type_=sa.Boolean), is_unmoved), sa.false()), else_=off)


def make_lasting(connection: sa.Connection) -> None:
    """On PostgreSQL: at the end of this transaction, all that it could see is on disk."""
    connection.exec_driver_sql(_MAKE_LASTING)


def is_possible(dialect: sa.Dialect) -> bool:
    """Whether the server and its driver can: known once there was a connection."""
    version = getattr(dialect, "server_version_info", None) or ()
    if dialect.name == "postgresql":
        return dialect.driver == "psycopg2" and bool(version)
    # (From 10.6.2 on, MariaDB prepares blocks; MySQL has none.)
    is_mariadb = getattr(dialect, "is_mariadb", False)
    return is_mariadb and dialect.driver in ("pymysql", "mysqldb") and tuple(version) >= (10, 6, 2)


def begin_alone(connection: sa.Connection) -> None:
    """From now on, each statement is a transaction of its own: on PostgreSQL the driver's, on MariaDB the block's.

    For SQLAlchemy all of them are one, until the ordinary way has its turn: one of its own for each was a tenth of what
    they cost the client. (No round trip: it is the driver's.)
    """
    if connection.dialect.name == "postgresql":
        _driver(connection).autocommit = True
    connection.begin()
    connection.info[_ALONE] = True


def is_alone(connection: sa.Connection) -> bool:
    """Whether it was left so."""
    return not connection.invalidated and _ALONE in connection.info


def end_alone(connection: sa.Connection, *, is_failed: bool = False) -> None:
    """As it was. ``is_failed``: the last one did, and may be open."""
    try:
        connection.info.pop(_ALONE)
        if is_failed:
            connection.info.pop(ENDED, None)
            connection.rollback()
        else:
            connection.commit()
        if connection.dialect.name == "postgresql":
            _driver(connection).autocommit = False
    except BaseException:  # it is closed, and nobody has noticed yet; or somebody was killed half way
        connection.invalidate()
        raise


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.dbapi_connection
