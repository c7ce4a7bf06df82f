# SPDX-License-Identifier: Apache-2.0
"""Statements that are compiled once for each dialect, and statements that the server prepares once.

SQLAlchemy's own cache computes a key, looks it up and builds the parameters at each execution. That takes longer than
all the other Python code of a charge. The statements that measurements show to be frequent are therefore compiled
here, once, and then passed to SQLAlchemy as text. Parameters must be integers, strings or None. Results are as the
driver returns them: convert dates with ``clock.moment_of``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from cyborg_quota.db import clock


class Statement:
    """One statement with bound parameters. ``statement(connection, {name: value})`` runs it."""

    __slots__ = ("_make", "_prepared")

    def __init__(self, element: sa.Executable | Callable[[], sa.Executable]) -> None:
        """``element`` may be a function that returns the statement, so that a large one is not kept in memory."""
        self._make: Callable[[], Any] = element if callable(element) else lambda: element
        self._prepared: dict[type[sa.Dialect], tuple[str, tuple[str, ...] | None, dict[str, Any]]] = {}

    def __call__(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> sa.CursorResult[Any]:
        prepared = self._prepared.get(type(connection.dialect))
        if prepared is None:
            compiled: Any = self._make().compile(dialect=connection.dialect)
            names = tuple(compiled.positiontup) if compiled.positional else None
            constants = {name: value for name, value in compiled.params.items() if value is not None}
            prepared = self._prepared[type(connection.dialect)] = (str(compiled), names, constants)
        text, names, constants = prepared
        values = {**constants, **parameters}
        if names is None:
            return connection.exec_driver_sql(text, values)
        return connection.exec_driver_sql(text, tuple([values[name] for name in names]))


_MAX_VALUES: Final = 2048
"""The maximum number of values of one statement, a power of two. A maintenance batch of the default size needs one."""


@functools.cache
def _names(size: int) -> tuple[str, ...]:
    return tuple([f"b_{index}" for index in range(size)])


@dataclasses.dataclass(slots=True, eq=False)
class ListStatement:
    """A statement over a list of values: ``build(size)`` makes it, with parameters ``b_0`` ... ``b_<size - 1>``.

    Sizes are powers of two, and a list is padded with its last value: ``x IN (1, 2, 2, 2)`` selects the same rows as
    ``x IN (1, 2)``. So a dozen texts serve all lengths. A longer list is split into several statements, in order.
    """

    _build: Callable[[int], sa.Executable]
    _by_size: dict[int, Statement] = dataclasses.field(default_factory=dict)

    def execute(
        self, connection: sa.Connection, values: Sequence[Any], parameters: Mapping[str, Any]
    ) -> Iterator[sa.CursorResult[Any]]:
        """Run the statements lazily: each one runs when the caller takes its result."""
        for chunk in chunks(values, _MAX_VALUES):
            size = 1
            while size < len(chunk):
                size *= 2
            statement = self._by_size.get(size)
            if statement is None:
                statement = self._by_size[size] = Statement(functools.partial(self._build, size))
            merged = dict(parameters)
            merged.update(zip(_names(size), itertools.chain(chunk, itertools.repeat(chunk[-1]))))  # noqa: B905
            yield statement(connection, merged)

    def rows(self, connection: sa.Connection, values: Sequence[Any], parameters: Mapping[str, Any]) -> list[Any]:
        """All rows. If the list is split into several statements, each of them reads its own snapshot."""
        return [row for result in self.execute(connection, values, parameters) for row in result]

    def changed(self, connection: sa.Connection, values: Sequence[Any], parameters: Mapping[str, Any]) -> int:
        """The number of changed rows."""
        return sum(result.rowcount for result in self.execute(connection, values, parameters))


def any_of(column: sa.ColumnElement[Any], size: int) -> sa.ColumnElement[bool]:
    """``column IN (:b_0, ...)``, or ``column = :b_0``."""
    if size == 1:
        return column == sa.bindparam("b_0", type_=column.type)
    return column.in_([sa.bindparam(f"b_{index}", type_=column.type) for index in range(size)])


_KNOWN: Final = "cyborg_quota_prepared"
"""Key in ``connection.info``: the names of the statements that the connection has prepared."""

_MAX_PREPARED: Final = 64
"""The maximum number of prepared statements of one connection: the server limits their total over all connections."""


class ServerStatement(NamedTuple):
    """A statement that each connection prepares once, so that the server parses and plans it only once.

    ``preparation`` is the text of PREPARE, ``execution`` that of EXECUTE, with ``%s`` for each of the parameters
    ``names``.
    """

    name: str
    preparation: str
    execution: str
    names: tuple[str, ...]

    def run(
        self, connection: sa.Connection, info: dict[str, Any], parameters: Mapping[str, Any]
    ) -> sa.CursorResult[Any] | None:
        """Run the statement, preparing it first if needed. None: this connection cannot prepare more statements.

        ``info`` is ``connection.info``, which takes SQLAlchemy several steps to get.
        """
        name, preparation, execution, names = self
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


_ROWS_PER_INSERT: Final = 100


def insert_many(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows with the same columns, and ``created_at`` set to now, a hundred per statement.

    (A driver's executemany would send them one at a time, and SQLAlchemy would compile each multi-row INSERT again.)
    """
    for chunk in chunks(rows, _ROWS_PER_INSERT):
        parameters = {f"b_{name}_{index}": value for index, row in enumerate(chunk) for name, value in row.items()}
        _insert_of(table, tuple(chunk[0]), len(chunk))(connection, parameters)


@functools.lru_cache(maxsize=32)
def _insert_of(table: sa.Table, names: tuple[str, ...], size: int) -> Statement:
    return Statement(
        sa.insert(table).values(
            [
                {
                    "created_at": clock.utc_now(),
                    **{name: sa.bindparam(f"b_{name}_{index}", type_=table.c[name].type) for name in names},
                }
                for index in range(size)
            ]
        )
    )


def put(connection: sa.Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Change the row with this key, or insert it. The transaction must be serialized with others that insert it."""
    update = sa.update(table).where(*(table.c[name] == value for name, value in key.items()))
    if not connection.execute(update.values(**values, updated_at=clock.utc_now())).rowcount:
        connection.execute(sa.insert(table).values(**key, **values, created_at=clock.utc_now()))


def case_by_value(column: sa.ColumnElement[Any], result: sa.ColumnElement[Any], size: int) -> sa.Case[Any]:
    """CASE column WHEN :b_0 THEN :b_value_0 ...; a padded list repeats its last pair. See ``update_each``."""
    return sa.case(
        {
            sa.bindparam(f"b_{index}", type_=column.type): sa.bindparam(f"b_value_{index}", type_=result.type)
            for index in range(size)
        },
        value=column,
    )


ROWS_PER_STATEMENT: Final = 512
"""For statements that lock: a power of two (see ListStatement), below the length at which MariaDB converts a list to a
subquery (1,000)."""

CASES_PER_STATEMENT: Final = 128
"""The maximum number of rows of an UPDATE with one value per row: the server compares each row with each value."""

T = TypeVar("T")


def chunks(values: Sequence[T], size: int = ROWS_PER_STATEMENT) -> Iterable[Sequence[T]]:
    """The values in order, at most ``size`` at a time."""
    return (values[start : start + size] for start in range(0, len(values), size))


def update_each(connection: sa.Connection, statement: ListStatement, values: Mapping[Any, Any]) -> None:
    """Run an UPDATE with ``case_by_value`` over the keys of ``values``, sorted."""
    for chunk in chunks(sorted(values), CASES_PER_STATEMENT):
        padded = [*chunk, *[chunk[-1]] * (CASES_PER_STATEMENT - len(chunk))]
        parameters = {f"b_value_{index}": values[key] for index, key in enumerate(padded)}
        statement.changed(connection, chunk, parameters)
