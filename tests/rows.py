# SPDX-License-Identifier: Apache-2.0
"""Rows for any table of any revision, generated inside the database from the reflected schema.

A test that upgrades a database with data must not depend on the tables: new revisions add some. Each column gets an
expression over the row's number ``i`` (1, 2, ...) that depends on its type; a column with a CHECK gets values that the
database accepts for the CHECK.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

COPY_PREFIX: Final = "copy_of_"
"""The prefix of the copies that ``copy_tables`` makes."""

# Prefixes of the row's number. Two consecutive ones with equal numbers differ in case, or in their normal form.
_NUMBER_CHARS: Final = 7
_MAX_CANDIDATES: Final = 5000
_PREFIXES: Final = (
    ("CaSe-", 0),
    ("cAsE-", -1),
    ("caf\u00e9-", 0),
    ("cafe\u0301-", -1),
    ('it\'s "quoted" `name`-', 0),
    ("back\\slash\\\\-", 0),
    ("100% %s %(x)s %%-", 0),
    (":name ${x} {x} ;-- /* ", 0),
    ("\U0001f600\U0001f469\u200d\U0001f52c-", 0),
    ("\u0639\u0631\u0628\u064a-\u4e2d\u6587-", 0),
    ("\u00e9" * 248, 0),
    ("\U0001f600" * 248, 0),
)
_MOMENTS: Final = (
    datetime.datetime(2026, 2, 28, 23, 59, 59, 999999),
    datetime.datetime(2031, 7, 5, 1, 2, 3, 4),
)


COLUMNS: Final = {
    "sqlite": "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'",
    "mysql": "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE()"
    " AND table_name NOT IN (SELECT table_name FROM information_schema.views WHERE table_schema = DATABASE())",
    "postgresql": "SELECT c.relname, a.attname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
    " WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND attnum > 0 AND NOT attisdropped",
}


def column_names(connection: sa.Connection, *, without: Iterable[str] = ()) -> dict[str, set[str]]:
    """Return the columns of each table."""
    columns: dict[str, set[str]] = {}
    left_out = set(without)
    for table, column in connection.exec_driver_sql(COLUMNS[connection.dialect.name]):
        if table not in left_out and not table.startswith((COPY_PREFIX, "sqlite_")):
            columns.setdefault(table, set()).add(column)
    return columns


def reflect(connection: sa.Connection, names: Iterable[str]) -> list[sa.Table]:
    """Return these tables of the database, referenced tables first."""
    metadata, wanted = sa.MetaData(), set(names)
    if wanted:
        metadata.reflect(connection, only=list(wanted))
    return [table for table in metadata.sorted_tables if table.name in wanted]


def fill(connection: sa.Connection, table: sa.Table, count: int) -> None:
    """Insert ``count`` rows into a reflected table."""
    is_mysql = connection.dialect.name == "mysql"
    if is_mysql:
        connection.exec_driver_sql(f"SET SESSION max_recursive_iterations = {count}")
    first = 0
    if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
        first = 5_000_000  # a revision may have inserted rows of its own
    numbers = sa.select(sa.literal(1, sa.Integer).label("i")).cte("numbers", recursive=True)
    numbers = numbers.union_all(sa.select(numbers.c.i + 1).where(numbers.c.i < count))
    i = numbers.c.i + first if first else numbers.c.i
    values = _checked_values(connection, table, numbers.c.i)
    keys = _key_columns(table)
    for column in table.columns:
        if column.name not in values and column is not table.autoincrement_column and column.computed is None:
            values[column.name] = _value(column, i, column.name in keys)
    query = sa.select(*[value.label(name) for name, value in values.items()])
    connection.execute(table.insert().from_select(list(values), query))


def copy_tables(connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
    """Make a copy of each table's rows, or replace it."""
    for table in tables:
        quote = connection.dialect.identifier_preparer.quote
        copy = quote(COPY_PREFIX + table.name)
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {copy}")
        connection.exec_driver_sql(f"CREATE TABLE {copy} AS SELECT * FROM {quote(table.name)}")


def differences(connection: sa.Connection, tables: Iterable[sa.Table]) -> dict[str, int]:
    """Return the number of rows of each table that were deleted or changed since its copy was made, if any were."""
    found = {}
    for table in tables:
        copy = _copy_of(connection, table)
        keys = [column.name for column in table.primary_key.columns]
        is_same_row = sa.and_(*[copy.c[name] == table.c[name] for name in keys])
        is_changed = sa.or_(
            table.c[keys[0]].is_(None),
            *[table.c[column.name].is_distinct_from(column) for column in copy.columns if column.name not in keys],
        )
        query = sa.select(sa.func.count()).select_from(copy.outerjoin(table, is_same_row)).where(is_changed)
        if changed := connection.execute(query).scalar_one():
            found[table.name] = changed
    return found


def _copy_of(connection: sa.Connection, table: sa.Table) -> sa.TableClause:
    """The copy's names only: to reflect a table takes as long as to compare hundreds of rows."""
    name = COPY_PREFIX + table.name
    found = connection.exec_driver_sql(f"SELECT * FROM {connection.dialect.identifier_preparer.quote(name)} LIMIT 0")
    return sa.table(name, *map(sa.column, found.keys()))


def drop_copies(connection: sa.Connection) -> None:
    """Drop the copies that ``copy_tables`` made."""
    for name in sa.inspect(connection).get_table_names():
        if name.startswith(COPY_PREFIX):
            connection.exec_driver_sql(f"DROP TABLE {connection.dialect.identifier_preparer.quote(name)}")


def unique_keys(connection: sa.Connection, table: sa.Table) -> list[tuple[str, ...]]:
    """Return the columns of the primary key and of each UNIQUE, except partial indexes and those of expressions."""
    inspector = sa.inspect(connection)
    keys = {tuple(column.name for column in table.primary_key.columns)}
    keys |= {tuple(constraint["column_names"]) for constraint in inspector.get_unique_constraints(table.name)}
    for index in inspector.get_indexes(table.name):
        names = tuple(name for name in index["column_names"] if name is not None)
        is_whole = len(names) == len(index["column_names"]) and not index.get("dialect_options")
        if index["unique"] and is_whole:
            keys.add(names)
    return sorted(key for key in keys if key)


def _key_columns(table: sa.Table) -> set[str]:
    """Return the columns of any key: their values must differ from row to row."""
    keys: list[Any] = [*table.constraints, *[index for index in table.indexes if index.unique]]
    return {column.name for key in keys if not isinstance(key, sa.CheckConstraint) for column in key.columns}


def _value(column: sa.Column[Any], i: sa.ColumnElement[int], is_key: bool) -> sa.ColumnElement[Any]:
    """Return the value of one column of row ``i``. Raises NotImplementedError for an unknown type."""
    type_ = column.type
    value: sa.ColumnElement[Any]
    if isinstance(type_, (sa.Boolean, sa.Integer, sa.Numeric)):
        value = _number(type_, i, is_key)
    elif isinstance(type_, sa.JSON):
        value = sa.literal({"a": [1, None]}, type_)
    elif isinstance(type_, sa.String):
        value = _name(i, type_.length or 255)
    elif isinstance(type_, sa.DateTime):
        value = sa.case((i % 2 == 0, sa.literal(_MOMENTS[0], type_)), else_=sa.literal(_MOMENTS[1], type_))
    elif isinstance(type_, sa.Date):
        value = sa.literal(_MOMENTS[0].date(), type_)
    elif isinstance(type_, sa.LargeBinary):
        value = sa.literal(b"\x00\xff", type_)
    else:
        raise NotImplementedError(f"tests.rows cannot make a value for {column.table.name}.{column.name}: {type_!r}")
    if column.nullable and not column.primary_key:
        value = sa.case((i % 5 == 0, sa.null()), else_=value)
    return value


def _number(type_: Any, i: sa.ColumnElement[int], is_key: bool) -> sa.ColumnElement[Any]:
    if isinstance(type_, sa.Boolean):
        return i % 2 == 0
    if isinstance(type_, sa.SmallInteger) or type(type_).__name__ == "TINYINT":
        return i % 2
    if isinstance(type_, sa.Integer):
        return i if is_key else i % 1000
    return sa.cast(i % 1000, type_)


def _name(i: sa.ColumnElement[int], chars: int) -> sa.ColumnElement[str]:
    """Return a name of at most ``chars`` characters, different for each row, with unusual characters if they fit."""
    branches = []
    for turn, (prefix, offset) in enumerate(_PREFIXES):
        number = sa.cast(1_000_000 + i + offset, sa.String(_NUMBER_CHARS))
        start = prefix[: max(0, chars - _NUMBER_CHARS)]
        is_pair = chars - _NUMBER_CHARS >= len("cafe\u0301-")
        text = sa.literal(start, sa.String(255)) + (
            number if is_pair or not offset else sa.cast(1_000_000 + i, sa.String(_NUMBER_CHARS))
        )
        branches.append((i % len(_PREFIXES) == turn, text))
    return sa.case(*branches[1:], else_=branches[0][1])


def _checked_values(
    connection: sa.Connection, table: sa.Table, i: sa.ColumnElement[int]
) -> dict[str, sa.ColumnElement[Any]]:
    """For columns with CHECKs, return combinations of values that all CHECKs accept, in turn."""
    checks = [str(constraint["sqltext"]) for constraint in sa.inspect(connection).get_check_constraints(table.name)]
    values: dict[str, sa.ColumnElement[Any]] = {}
    for names, texts in _groups(table, checks):
        columns = [table.columns[name] for name in names]
        choices = [_candidates(column, " ".join(texts)) for column in columns]
        accepted = _accepted(connection, columns, itertools.product(*choices), texts)
        if not accepted:
            raise NotImplementedError(f"tests.rows found no row that the CHECKs of {table.name} accept: {texts}")
        for place, column in enumerate(columns):
            branches = [
                (i % len(accepted) == turn, _typed(connection, column, row[place])) for turn, row in enumerate(accepted)
            ]
            values[column.name] = sa.case(*branches) if len(accepted) > 1 else branches[0][1]
    return values


def _groups(table: sa.Table, checks: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """Group the columns by the CHECKs that name them together."""
    groups: list[tuple[set[str], list[str]]] = []
    for text in checks:
        words = set(re.findall(r"\w+", re.sub(r"'(?:[^']|'')*'", "", text)))
        names, texts = words & set(table.columns.keys()), [text]
        for other in [group for group in groups if group[0] & names]:
            names, texts = names | other[0], texts + other[1]
            groups.remove(other)
        groups.append((names, texts))
    return [(sorted(names), texts) for names, texts in groups]


def _candidates(column: sa.Column[Any], text: str) -> list[Any]:
    type_ = column.type
    found: list[Any]
    if isinstance(type_, sa.Boolean):
        found = [False, True]
    elif isinstance(type_, sa.Integer):
        numbers = {int(number) for number in re.findall(r"(?<![\w'])-?\d{1,5}\b", text)}
        found = sorted({0, 1} | numbers)[:8]
    elif isinstance(type_, sa.DateTime):
        found = list(_MOMENTS)
    elif isinstance(type_, sa.String):
        literals = re.findall(r"'((?:[^']|'')*)'", text)
        found = sorted({literal.replace("''", "'") for literal in literals} - {""})[:16] or ["{}"]
    else:
        raise NotImplementedError(f"tests.rows cannot make a value for a CHECK of {column.name}: {type_!r}")
    return [None, *found] if column.nullable else found


def _accepted(
    connection: sa.Connection, columns: Sequence[sa.Column[Any]], rows: Iterable[tuple[Any, ...]], texts: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return those rows for which no CHECK is false (databases accept NULL)."""
    condition = sa.text(" AND ".join(f"coalesce({text}, 1=1)" for text in texts).replace(":", "\\:"))
    accepted: list[tuple[Any, ...]] = []
    for batch in _batches(rows):
        given = sa.union_all(
            *[
                sa.select(
                    sa.literal_column(str(number)).label("number_of_row"),
                    *[
                        _typed(connection, column, value).label(column.name)
                        for column, value in zip(columns, row, strict=True)
                    ],
                )
                for number, row in enumerate(batch)
            ]
        ).subquery("given")
        query = sa.select(given.c.number_of_row).where(condition).order_by(given.c.number_of_row)
        accepted += [batch[number] for number in connection.execute(query).scalars()]
    return accepted


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    bounded = itertools.islice(rows, _MAX_CANDIDATES)
    while batch := list(itertools.islice(bounded, 200)):
        yield batch


def _typed(connection: sa.Connection, column: sa.Column[Any], value: Any) -> sa.ColumnElement[Any]:
    literal = sa.null() if value is None else sa.literal(value, column.type)
    return sa.cast(literal, column.type) if connection.dialect.name == "postgresql" else literal
