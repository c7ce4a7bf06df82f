# SPDX-License-Identifier: Apache-2.0
"""The texts of the SQL statements that charge, settle, expire, insert, import and move, on each database.

The expected texts are in ``statements/``, one file for each database. They make a change of the SQL visible in a
review. If a change is intended, write the files again with ``python -m tests.unit.test_statement_texts``.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import sqlalchemy as sa
from oslotest import base

from cyborg_quota import transitions
from cyborg_quota.db import (
    dialects,
    history,
    inventories,
    limits,
    maintenance,
    moves,
    path_state,
    prepared,
    projects,
    reservations,
    usages,
)
from cyborg_quota.db.candidates import Order
from cyborg_quota.db.dialects import postgresql, postgresql_functions
from cyborg_quota.db.new_reservations import NewReservation
from cyborg_quota.db.provider_choice import ProviderChoice
from cyborg_quota.db.usages import Change, Node
from cyborg_quota.types import COMMITTED, EXPIRED, RELEASED, RESERVED, ROLLED_BACK

TEXTS = pathlib.Path(__file__).parent / "statements"
CONTENTION_CHECK = "cyborg_quota.db.dialects.postgresql_functions.random.random"
CONTENTION_STATE = postgresql_functions._CONTENDED
TRANSACTION_SETTINGS = postgresql_functions.TRANSACTION_SETTINGS

URLS = {
    "sqlite": "sqlite://",
    "mariadb": "mysql+pymysql://127.0.0.1/none",
    "mysql": "mysql+pymysql://127.0.0.1/none",
    "postgresql": "postgresql+psycopg2://127.0.0.1/none",
}
MARIADB = {"is_mariadb": True, "server_version_info": (10, 11, 6), "insert_returning": True, "delete_returning": True}
VERSIONS: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "mariadb": MARIADB,
    "mysql": {"is_mariadb": False, "server_version_info": (8, 0, 36)},
    "postgresql": {"server_version_info": (15, 6)},
}
"""What each dialect knows after its first connection to a server."""

LATER = datetime.datetime(2030, 1, 2, 3, 4, 5, 6)


class FakeResult:
    """The result of a statement: the given rows."""

    returns_rows = False

    def __init__(self, rows: Sequence[Any], rowcount: int) -> None:
        self._rows = list(rows)
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def all(self) -> list[Any]:
        return self._rows

    def first(self) -> Any:
        return self._rows[0] if self._rows else None

    one = first

    def scalars(self) -> FakeResult:
        return FakeResult([row[0] for row in self._rows], self.rowcount)

    def scalar(self) -> Any:
        return self._rows[0][0] if self._rows else None

    def scalar_one(self) -> Any:
        return self._rows[0][0] if self._rows else 0

    scalar_one_or_none = scalar

    def close(self) -> None:
        pass


class FakeConnection:
    """Records the text of each statement as the driver would get it.

    ``answers``: the rows to return for the statements that contain a text. ``rowcount``: that of every statement.
    """

    def __init__(self, dialect: sa.Dialect) -> None:
        self.dialect = dialect
        self.info: dict[str, Any] = {}
        self.texts: list[str] = []
        self.answers: dict[str, Sequence[Any]] = {}
        self.rowcount = 1

    def _record(self, text: str) -> Any:
        self.texts.append(text)
        return FakeResult(next((rows for part, rows in self.answers.items() if part in text), ()), self.rowcount)

    def exec_driver_sql(self, text: str, parameters: Any = None) -> Any:
        return self._record(text)

    def execute(self, element: Any, parameters: Any = None) -> Any:
        is_many = isinstance(parameters, (list, tuple))
        keys = sorted(parameters[0] if is_many else parameters or ())
        return self._record(str(element.compile(dialect=self.dialect, column_keys=keys, for_executemany=is_many)))


def dialect_of(name: str) -> sa.Dialect:
    dialect = sa.create_engine(URLS[name]).dialect
    for attribute, value in VERSIONS[name].items():
        setattr(dialect, attribute, value)
    return dialect


def node(number: int, depth: int = 0) -> Node:
    return Node(number, f"p{number}", "gpu", 100 + number, depth)


def new_rows(count: int, *, consumer: bool = True, source: bool = False, ttl: int | None = 5) -> list[NewReservation]:
    return [
        NewReservation(
            uuid=f"uuid-{index}",
            usage_id=1,
            project_id="p1",
            resource=f"gpu{index}",
            delta=1,
            consumer=f"c{index}" if consumer else None,
            group=None,
            state=RESERVED if ttl is not None else COMMITTED,
            ttl_microseconds=ttl,
            claim_ordinal=index + 1,
            source="s" if source else None,
        )
        for index in range(count)
    ]


def reserving(rows: int) -> list[Change]:
    """The changes of a reserve with all bounds: the usage rows of a path, leaf first."""
    leaf = Change(node(1, rows - 1), reserved=2, subtree=2, max_held=8, max_subtree=50)
    above = [Change(node(1 + index, rows - 1 - index), subtree=2, max_subtree=60) for index in range(1, rows)]
    return [leaf, *above]


def committing(rows: int) -> list[Change]:
    return [Change(node(1 + index), reserved=-2, used=2) for index in range(rows)]


def rolling_back(rows: int) -> list[Change]:
    leaf = Change(node(1, rows - 1), reserved=-2, subtree=-2)
    return [leaf, *(Change(node(1 + index, rows - 1 - index), subtree=-2) for index in range(1, rows))]


Run = Callable[[Any], object]


class Variant(NamedTuple):
    """A way to run PostgreSQL's single statement: with the contention check, or with a known contended row."""

    checks: bool
    contended: bool = False


def single(run: Run, variant: Variant) -> Run:
    def run_variant(connection: FakeConnection) -> None:
        if variant.contended:
            connection.info[CONTENTION_STATE] = collections.defaultdict(lambda: 10.0**9)
            connection.info[CONTENTION_STATE].update(dict.fromkeys(range(20), 10.0**12))
        with mock.patch(CONTENTION_CHECK, return_value=0.0 if variant.checks else 0.999):
            run(connection)

    return run_variant


def in_single_statement() -> Iterator[tuple[str, Run]]:
    for label, run in single_statements().items():
        yield f"single statement: {label}", single(run, Variant(checks=False))


def with_contention() -> Iterator[tuple[str, Run]]:
    """PostgreSQL's further variants."""
    runs = single_statements()
    for label, run in runs.items():
        yield f"single statement, checking for contention: {label}", single(run, Variant(checks=True))
    first = runs["reserve one row"]
    yield "single statement, contended: reserve one row", single(first, Variant(checks=False, contended=True))

    def pooled(connection: FakeConnection) -> None:
        connection.info[TRANSACTION_SETTINGS] = "SET LOCAL statement_timeout = 8000"
        first(connection)

    yield "single statement through a pooler: reserve one row", single(pooled, Variant(checks=False))


def single_statements() -> dict[str, Run]:

    def reserve(connection: Any, *arguments: Any) -> None:
        dialects.of(connection).reserve_in_single_statement(connection, *arguments)

    def reserve_anywhere(connection: Any, row: NewReservation, changes: list[Change], order: Order) -> None:
        choice = ProviderChoice(row.resource, row.delta, order)
        connection.answers["claim_anywhere"] = [([1, 5, 7],)]  # (PostgreSQL: done, at this provider and inventory)
        connection.answers["EXECUTE"] = [(5, 7)]  # (MariaDB)
        dialects.of(connection).reserve_anywhere_in_single_statement(connection, row, changes, choice)

    def settle(connection: Any, *arguments: Any, **keywords: Any) -> None:
        dialects.of(connection).settle_in_single_statement(connection, *arguments, **keywords)

    claimed = [row._replace(provider_id=5) for row in new_rows(1)]
    claims = [inventories.InventoryClaim(inventory_id=7, amount=2, total=4)]
    return {
        "reserve one row": lambda c: reserve(c, new_rows(1), reserving(1)),
        "reserve one row without a consumer": lambda c: reserve(c, new_rows(1, consumer=False), reserving(1)),
        "reserve one row with a source": lambda c: reserve(c, new_rows(1, source=True), reserving(1)),
        "reserve two rows": lambda c: reserve(c, new_rows(2), reserving(1)),
        "reserve in a tree": lambda c: reserve(c, new_rows(1), reserving(3)),
        "reserve without bounds": lambda c: reserve(c, new_rows(1), [Change(node(1), reserved=1, subtree=1)]),
        "reserve a negative amount": lambda c: reserve(c, new_rows(1), [Change(node(1))]),
        "reserve too many rows": lambda c: reserve(c, new_rows(17), reserving(1)),
        "commit": lambda c: settle(c, ["u1"], COMMITTED, 0, committing(1)),
        "commit two": lambda c: settle(c, ["u1", "u2"], COMMITTED, 0, committing(1)),
        "commit two resources": lambda c: settle(c, ["u1", "u2"], COMMITTED, 0, committing(2)),
        "roll back": lambda c: settle(c, ["u1"], ROLLED_BACK, 0, rolling_back(1)),
        "roll back in a tree": lambda c: settle(c, ["u1"], ROLLED_BACK, 0, rolling_back(3)),
        "claim capacity": lambda c: reserve(c, claimed, reserving(1), claims),
        "claim capacity anywhere": lambda c: reserve_anywhere(c, new_rows(1)[0], reserving(1), "least free"),
        "claim capacity where most is free": lambda c: reserve_anywhere(c, new_rows(1)[0], reserving(1), "most free"),
        "claim capacity in a tree": lambda c: reserve(c, claimed, reserving(3), claims),
        "give capacity back": lambda c: settle(c, ["u1"], ROLLED_BACK, 0, rolling_back(1), freed=[(7, 4)]),
    }


def server_functions() -> Iterator[tuple[str, Run]]:
    """PostgreSQL's functions. The text of a released function must not change: its name contains a version."""
    for name, definition in postgresql.FUNCTIONS.items():
        yield f"function {name}", lambda c, text=definition: c.exec_driver_sql(text)  # type: ignore[misc]


def charges() -> Iterator[tuple[str, Run]]:
    def bulk(connection: Any, changes: Sequence[Change]) -> None:
        connection.rowcount = len(changes)
        dialects.of(connection).charge_bulk(connection, changes)

    yield "charge", lambda c: usages.charge(c, reserving(1)[0])
    yield "charge all of one", lambda c: dialects.of(c).charge_all(c, reserving(1))
    yield "charge all of three", lambda c: dialects.of(c).charge_all(c, reserving(3))
    yield "charge in bulk: 1", lambda c: bulk(c, rolling_back(1))
    yield "charge in bulk: 3", lambda c: bulk(c, rolling_back(3))
    yield "charge in bulk: 10", lambda c: bulk(c, rolling_back(10))
    yield "lock a usage row", lambda c: usages.lock_usage_row(c, node(1))
    yield "read counters", lambda c: usages.read(c, ["p1"], ["gpu"])


def inserts() -> Iterator[tuple[str, Run]]:
    yield "insert 1", lambda c: reservations.insert(c, new_rows(1))
    yield "insert 5", lambda c: reservations.insert(c, new_rows(5))
    yield "insert 2 with a source", lambda c: reservations.insert(c, new_rows(2, source=True))
    yield "insert 2 committed", lambda c: reservations.insert(c, new_rows(2, ttl=None))


def settles() -> Iterator[tuple[str, Run]]:
    yield "by uuids", lambda c: reservations.by_uuids(c, ["u1", "u2", "u3"], "p1", 0)
    yield "by consumer", lambda c: reservations.by_consumer(c, "p1", "c1", 0)
    yield "by group", lambda c: reservations.by_group(c, "p1", "g1", 0)
    yield "live of", lambda c: reservations.live_of(c, "p1", ["c1"], 0)
    yield "any live", lambda c: reservations.any_live(c, "p1", ["c1", "c2"])
    yield "move to committed", lambda c: reservations.move(c, [1, 2], RESERVED, COMMITTED, 0)
    yield "move to rolled back", lambda c: reservations.move(c, [1], RESERVED, ROLLED_BACK, 0)
    yield "move to released", lambda c: reservations.move(c, [1], COMMITTED, RELEASED, 0)
    yield "move to expired", lambda c: reservations.move(c, [1], RESERVED, EXPIRED, 0)
    yield "commit in flight", lambda c: reservations.settle_in_flight(c, ["u1"], COMMITTED, 0)
    yield "roll back in flight", lambda c: reservations.settle_in_flight(c, ["u1", "u2"], ROLLED_BACK, 0)
    yield "extend", lambda c: reservations.extend(c, [1], 1000, 0)
    row = transitions.Row(1, "u1", 7, "p1", "gpu", 2, RESERVED, False)
    yield "amend", lambda c: reservations.amend(c, reservations.Amendment(row, "u9", "p2", 8, 3), 0)
    yield "name", lambda c: reservations.name(c, row, "c1", 1)
    yield "link", lambda c: maintenance.link(c, 1, "p1", "gpu")


def expiry() -> Iterator[tuple[str, Run]]:
    def behind(connection: Any, place: Any) -> None:
        row = collections.namedtuple("row", "id project_id resource delta")(1, "p1", "gpu", 1)
        connection.answers = {"reservations.delta": [row], "SELECT maintenance.expire": [(LATER,)]}
        history.read_overdue_after(connection, place, 10, 0)

    yield "overdue", lambda c: history.read_overdue(c, 10, 0)
    yield "overdue from the first", lambda c: behind(c, None)
    yield "overdue from a position", lambda c: behind(c, (LATER, 7))
    yield "overdue of", lambda c: history.still_overdue(c, [1, 2, 3], 0)
    overdue: Any = [(number, "p", "gpu", 1, None, 0, None) for number in range(1, 6)]
    yield "expire", lambda c: maintenance.expire(c, overdue, 0)
    yield "read paths", lambda c: path_state.read_paths(c, ["p1", "p2"], ["gpu"])


def figures() -> Iterator[tuple[str, Run]]:
    def fold(connection: Any) -> None:
        row = collections.namedtuple("row", "id project_id resource delta")
        connection.answers = {"LIMIT": [row(1, "p1", "gpu", 3), row(2, "p1", "gpu", -1)]}
        connection.rowcount = 2
        maintenance.fold(connection, (1, None, None), 10, 0, 100)

    counters = usages.Counters(used=1, reserved=2, subtree=3)
    yield "sums", lambda c: _ignore_empty(lambda: maintenance.sums_from_reservations(c, node(1)))
    yield "children's total", lambda c: maintenance.children_total(c, node(1))
    yield "figures", lambda c: _ignore_empty(lambda: usages.read_row(c, 1))
    yield "end adjustments", lambda c: maintenance.end_adjustments(c, 1)
    yield "freed", lambda c: maintenance.freed(c, 1)
    yield "excess", lambda c: maintenance.insert_excess(c, node(1), 2**32)
    yield "set figures", lambda c: usages.set_counters(c, 1, counters)
    yield "purge", lambda c: maintenance.purge_ended(c, 10, 100)
    yield "foldable usage rows", lambda c: maintenance.foldable_usage_rows(c, 10, 0, 100)
    yield "foldable", lambda c: maintenance.foldable(c, 1, 10)
    yield "fold", fold
    yield "audit", maintenance.audit


def _ignore_empty(run: Callable[[], object]) -> None:
    """Run a query of which the fake result is empty."""
    with contextlib.suppress(AttributeError, TypeError):
        run()


def paths() -> Iterator[tuple[str, Run]]:
    zeros = {"reserved": 0, "used": 0, "subtree": 0, "generation": 0}
    row = {"project_id": "p1", "resource": "gpu", **zeros}
    yield "read path", lambda c: path_state.read_path(c, "p1", ["gpu", "fpga"])
    yield "read path state", lambda c: path_state.read(c, "p1", None)
    yield "add project", lambda c: projects.ensure(c, "p1")
    yield "add usage row", lambda c: path_state.make_row(c, "p1", "gpu")
    yield "add many usage rows", lambda c: prepared.insert_many(c, usages.quota_usages, [row] * 101)
    yield "lock projects", lambda c: projects.lock_project_rows(c, ["p1", "p2"])
    yield "move", lambda c: moves.move(c, "p1", None)
    yield "edges", projects.edges
    yield "limiting edges", lambda c: projects.limiting_edges(c, ["p1"])
    yield "edges with an origin", lambda c: projects.marked_edges(c, "keystone", 10)
    yield "count by origin", projects.count_by_origin
    yield "children", lambda c: projects.children_of(c, "p1")
    yield "subtree", lambda c: projects.subtree_of(c, "p1")
    yield "parent", lambda c: projects.parent_of(c, "p1")


def imports() -> Iterator[tuple[str, Run]]:
    def place_all(connection: Any) -> None:
        """Move p1, which has a usage row, from p2 below p3 and p4, of which p4 has no usage row."""
        edge = collections.namedtuple("edge", "project_id parent_id")
        usage = collections.namedtuple("usage", "id project_id resource")
        tree = [edge("p1", "p2"), edge("p2", None), edge("p3", "p4"), edge("p4", None)]
        rows = [usage(1, "p1", "gpu"), usage(2, "p2", "gpu"), usage(3, "p3", "gpu")]
        connection.answers = {
            "SELECT projects.project_id, projects.parent_id": tree,
            "SELECT quota_usages.id, quota_usages.project_id": rows,
            "SELECT quota_usages.id, quota_usages.subtree": [(1, 5), (2, 5), (3, 0), (4, 0)],
        }
        connection.rowcount = 3
        original = usages.row_ids

        def usage_rows(*arguments: Any) -> Any:
            found = original(*arguments)
            return {**found, ("p4", "gpu"): 4} if list(arguments[1]) == ["p4"] else found

        with mock.patch.object(usages, "row_ids", usage_rows):
            moves.place_all(connection, {"p9": "p3"}, {"p1": "p3"})

    def serialize(connection: Any) -> None:
        connection.rowcount = 0
        limits.serialize_tree_changes(connection)

    yield "add and move many", place_all
    yield "count usage rows", lambda c: moves.count_rows(c, ["p1", "p2"])
    yield "serialize tree changes", serialize
    yield "read limits", limits.read_limits
    yield "set a default", lambda c: limits.set_default(c, "gpu", 3)
    yield "set overrides", lambda c: limits.set_limits(c, {("p1", "gpu"): 3, ("p2", "gpu"): None}, [("p2", "gpu")])


def capacity() -> Iterator[tuple[str, Run]]:
    change = inventories.InventoryClaim(inventory_id=7, amount=2, total=4)
    yield "claim of capacity", lambda c: _ignore_empty(lambda: inventories.claim(c, change))
    yield "adopted capacity", lambda c: _ignore_empty(lambda: inventories.adopt(c, change))
    amounts = {"gpu": 2, "fpga": 1}
    for order in ("least free", "most free", "provider"):
        yield f"candidates, {order}", lambda c, o=order: inventories.find_candidates(c, amounts, o, 64)  # type: ignore[misc]
    equal = inventories.candidates_statement(2, "least free", is_equal=True)
    bounds = {**inventories.candidates_arguments(amounts, 64), "b_free": 8, "b_start": 1}
    yield "equally good candidates", lambda c: equal(c, bounds)
    yield "candidates of a pod", lambda c: _ignore_empty(
        lambda: inventories.find_candidates(c, amounts, "least free", 64, "p1")
    )


PORTABLE = (charges, inserts, settles, expiry, figures, paths, imports, capacity)
GROUPS = {
    "sqlite": PORTABLE,
    "mariadb": (in_single_statement, *PORTABLE),
    "mysql": (charges, paths, imports),  # the others are those of MariaDB
    "postgresql": (server_functions, in_single_statement, with_contention, *PORTABLE),
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

    def test_mysql(self) -> None:
        self.assert_unchanged("mysql")

    def test_postgresql(self) -> None:
        self.assert_unchanged("postgresql")


if __name__ == "__main__":
    for database in URLS:
        (TEXTS / f"{database}.sql").write_text(texts_of(database))
