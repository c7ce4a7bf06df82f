# SPDX-License-Identifier: Apache-2.0
"""The texts of the SQL statements of a reserve and of a settle, in each of the three forms.

The expected texts are in ``statements/``, one file for each database. They make a change of the SQL visible in a
review. If a change is intended, write the files again with ``python -m tests.unit.test_statement_texts``.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import sqlalchemy as sa
from oslotest import base

from cyborg_quota.db import (
    charges,
    dialects,
    inventories,
    reservations,
)
from cyborg_quota.db.reservations import NewReservation
from cyborg_quota.db.usages import Node, Posting
from cyborg_quota.types import COMMITTED, RESERVED, ROLLED_BACK

TEXTS = pathlib.Path(__file__).parent / "statements"

URLS = {
    "sqlite": "sqlite://",
    "mariadb": "mysql+pymysql://127.0.0.1/none",
    "postgresql": "postgresql+psycopg2://127.0.0.1/none",
}
MARIADB = {"is_mariadb": True, "server_version_info": (10, 11, 6), "insert_returning": True, "delete_returning": True}
VERSIONS: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "mariadb": MARIADB,
    "postgresql": {"server_version_info": (15, 6)},
}
"""What each dialect knows after its first connection to a server."""


class FakeConnection:
    """Records the text of each statement as the driver would get it.

    The result of each statement is a mock: one changed row.
    """

    def __init__(self, dialect: sa.Dialect) -> None:
        self.dialect = dialect
        self.info: dict[str, Any] = {}
        self.texts: list[str] = []

    def exec_driver_sql(self, text: str, parameters: Any = None) -> Any:
        self.texts.append(text)
        return mock.MagicMock(rowcount=1)

    def execute(self, element: Any, parameters: Any = None) -> Any:
        is_many = isinstance(parameters, (list, tuple))
        keys = sorted(parameters[0] if is_many else parameters or ())
        text = element.compile(dialect=self.dialect, column_keys=keys, for_executemany=is_many)
        return self.exec_driver_sql(str(text))


def dialect_of(name: str) -> sa.Dialect:
    dialect = sa.create_engine(URLS[name]).dialect
    for attribute, value in VERSIONS[name].items():
        setattr(dialect, attribute, value)
    return dialect


def node(number: int, depth: int = 0) -> Node:
    return Node(number, f"p{number}", "gpu", 100 + number, depth)


def new_rows(count: int) -> list[NewReservation]:
    return [
        NewReservation(
            uuid=f"uuid-{index}",
            usage_id=1,
            project_id="p1",
            resource=f"gpu{index}",
            delta=1,
            consumer_id=f"c{index}",
            group_id=None,
            state=RESERVED,
            ttl_microseconds=5,
            claim_ordinal=index + 1,
            source=None,
            provider_id=None,
            pod=None,
        )
        for index in range(count)
    ]


def reserving(rows: int) -> list[Posting]:
    """The changes of a reserve with all bounds: the usage rows of a path, leaf first."""
    leaf = Posting(node(1, rows - 1), reserved=2, subtree=2, max_held=8, max_subtree=50)
    above = [Posting(node(1 + index, rows - 1 - index), subtree=2, max_subtree=60) for index in range(1, rows)]
    return [leaf, *above]


def committing(rows: int) -> list[Posting]:
    return [Posting(node(1 + index), reserved=-2, used=2) for index in range(rows)]


def rolling_back(rows: int) -> list[Posting]:
    leaf = Posting(node(1, rows - 1), reserved=-2, subtree=-2)
    return [leaf, *(Posting(node(1 + index, rows - 1 - index), subtree=-2) for index in range(1, rows))]


Run = Callable[[Any], object]


def in_single_statement() -> Iterator[tuple[str, Run]]:
    """MariaDB's block, and PostgreSQL's function."""
    yield from ((f"single statement: {label}", run) for label, run in single_statements().items())


def single_statements() -> dict[str, Run]:

    def reserve(connection: Any, *arguments: Any) -> None:
        dialects.of(connection).reserve_in_single_statement(connection, *arguments)

    def settle(connection: Any, *arguments: Any) -> None:
        dialects.of(connection).settle_in_single_statement(connection, *arguments)

    claimed = [row._replace(provider_id=5) for row in new_rows(1)]
    claims = [inventories.InventoryClaim(inventory_id=7, amount=2, total=4)]
    return {
        "reserve one row": lambda c: reserve(c, new_rows(1), reserving(1)),
        "reserve two rows": lambda c: reserve(c, new_rows(2), reserving(1)),
        "reserve in a tree": lambda c: reserve(c, new_rows(1), reserving(3)),
        "commit": lambda c: settle(c, ["u1"], COMMITTED, 0, committing(1)),
        "commit two": lambda c: settle(c, ["u1", "u2"], COMMITTED, 0, committing(1)),
        "roll back in a tree": lambda c: settle(c, ["u1"], ROLLED_BACK, 0, rolling_back(3)),
        "claim capacity": lambda c: reserve(c, claimed, reserving(1), claims),
    }


def statement_by_statement() -> Iterator[tuple[str, Run]]:
    """The portable statements of a reserve, and of a settle by uuid, by consumer and by group."""
    claim = inventories.InventoryClaim(inventory_id=7, amount=2, total=4)
    yield "claim of capacity", lambda c: inventories.claim(c, claim)
    yield "charge one row", lambda c: charges.apply(c, reserving(1))
    yield "charge together", lambda c: dialects.of(c).charge_together(c, reserving(3))
    yield "insert 1", lambda c: reservations.insert(c, new_rows(1))
    yield "insert 2", lambda c: reservations.insert(c, new_rows(2))
    yield "by uuids", lambda c: reservations.by_uuids(c, ["u1", "u2", "u3"], "p1", 0)
    yield "by consumer", lambda c: reservations.by_holder(c, "p1", consumer="c1", grace=0)
    yield "by group", lambda c: reservations.by_holder(c, "p1", group="g1", grace=0)
    yield "move to committed", lambda c: reservations.move(c, [1, 2], RESERVED, COMMITTED, 0)
    yield "move to rolled back", lambda c: reservations.move(c, [1], RESERVED, ROLLED_BACK, 0)


GROUPS = {
    "sqlite": (statement_by_statement,),
    "mariadb": (in_single_statement, statement_by_statement),
    "postgresql": (in_single_statement, statement_by_statement),
}


def texts_of(name: str) -> str:
    """All statements of one database, each group of them under a comment with its label."""
    parts = []
    for group in GROUPS[name]:
        for label, run in group():
            connection = FakeConnection(dialect_of(name))
            run(connection)
            parts.append("".join([f"-- {label}\n", *(f"{text}\n;\n" for text in connection.texts)]))
    return "\n".join(parts)


class TestStatementTexts(base.BaseTestCase):
    def assert_unchanged(self, name: str) -> None:
        self.maxDiff = None
        expected = (TEXTS / f"{name}.sql").read_text()
        self.assertIn("UPDATE quota_usages SET", expected)
        self.assertEqual(expected.split("\n\n"), texts_of(name).split("\n\n"))

    def test_sqlite(self) -> None:
        self.assert_unchanged("sqlite")

    def test_mariadb(self) -> None:
        self.assert_unchanged("mariadb")

    def test_postgresql(self) -> None:
        self.assert_unchanged("postgresql")


if __name__ == "__main__":
    for database in URLS:
        (TEXTS / f"{database}.sql").write_text(texts_of(database))
