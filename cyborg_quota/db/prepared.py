# SPDX-License-Identifier: Apache-2.0
"""Statements that are compiled once per dialect, and from then on handed to SQLAlchemy as text.

SQLAlchemy's own cache still makes a key, looks it up, and builds the parameters anew at each execution: more work
than everything else a charge does in Python. What is measured to be hot is therefore compiled here, once. Parameters
must be ints, strings or None, and results come as the driver gives them: no dates through here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa


class Statement:
    """One statement with bound parameters. ``statement(connection, {name: value})`` runs it."""

    __slots__ = ("_make", "_prepared")

    def __init__(self, element: sa.Executable | Callable[[], sa.Executable]) -> None:
        """``element`` may be a function that makes it, so that a large one is not kept."""
        self._make: Callable[[], Any] = element if callable(element) else lambda: element
        self._prepared: dict[str, tuple[str, tuple[str, ...] | None, dict[str, Any]]] = {}

    def __call__(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> sa.CursorResult[Any]:
        prepared = self._prepared.get(connection.dialect.name)
        if prepared is None:
            prepared = self._prepare(connection.dialect)
        text, names, constants = prepared
        values = {**constants, **parameters}
        if names is None:
            return connection.exec_driver_sql(text, values)
        return connection.exec_driver_sql(text, tuple([values[name] for name in names]))

    def execute_many(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> sa.CursorResult[Any]:
        """Run it for each set of parameters; the row count is that of all together."""
        prepared = self._prepared.get(connection.dialect.name) or self._prepare(connection.dialect)
        text, names, constants = prepared
        merged = [{**constants, **row} for row in rows]
        if names is None:
            return connection.exec_driver_sql(text, merged)
        return connection.exec_driver_sql(text, [tuple([row[name] for name in names]) for row in merged])

    def text_for(self, dialect: sa.Dialect) -> str:
        """Its text. (For a statement without parameters, into which integers are to be written.)"""
        return (self._prepared.get(dialect.name) or self._prepare(dialect))[0]

    def _prepare(self, dialect: sa.Dialect) -> tuple[str, tuple[str, ...] | None, dict[str, Any]]:
        compiled: Any = self._make().compile(dialect=dialect)
        names = tuple(compiled.positiontup) if compiled.positional else None
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        prepared = self._prepared[dialect.name] = (str(compiled), names, constants)
        return prepared


_MAX_VALUES: Final = 2048
"""The most values of one statement: a batch of upkeep of the default size is one statement. A power of two."""


@functools.cache
def _names(size: int) -> tuple[str, ...]:
    return tuple([f"b_{index}" for index in range(size)])


class ListStatement:
    """A statement over a list of values: ``build(size)`` makes it, with parameters ``b_0`` ... ``b_<size - 1>``.

    Sizes are powers of two, and a list is filled up with its last value: a dozen texts serve all lengths, and
    ``x IN (1, 2, 2, 2)`` finds what ``x IN (1, 2)`` finds. A longer list takes several statements, in its order.
    """

    __slots__ = ("_build", "_by_size")

    def __init__(self, build: Callable[[int], sa.Executable]) -> None:
        self._build = build
        self._by_size: dict[int, Statement] = {}

    def execute(
        self, connection: sa.Connection, values: Sequence[Any], parameters: Mapping[str, Any]
    ) -> Iterator[sa.CursorResult[Any]]:
        """Run it, one statement at a time: the next one runs when the next result is asked for."""
        for begin in range(0, len(values), _MAX_VALUES):
            part = values[begin : begin + _MAX_VALUES]
            size = 1
            while size < len(part):
                size *= 2
            statement = self._by_size.get(size)
            if statement is None:
                statement = self._by_size[size] = Statement(functools.partial(self._build, size))
            merged = dict(parameters)
            merged.update(zip(_names(size), itertools.chain(part, itertools.repeat(part[-1]))))  # noqa: B905
            yield statement(connection, merged)

    def rows(self, connection: sa.Connection, values: Sequence[Any], parameters: Mapping[str, Any]) -> list[Any]:
        """The rows found. Of a list that takes several statements, each sees a moment of its own."""
        return [row for result in self.execute(connection, values, parameters) for row in result]

    def changed(self, connection: sa.Connection, values: Sequence[Any], parameters: Mapping[str, Any]) -> int:
        """How many rows were changed."""
        return sum(result.rowcount for result in self.execute(connection, values, parameters))


def any_of(column: sa.ColumnElement[Any], size: int) -> sa.ColumnElement[bool]:
    """``column IN (:b_0, ...)``, or ``column = :b_0``."""
    if size == 1:
        return column == sa.bindparam("b_0", type_=column.type)
    return column.in_([sa.bindparam(f"b_{index}", type_=column.type) for index in range(size)])
