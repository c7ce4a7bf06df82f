# SPDX-License-Identifier: Apache-2.0
"""Claims of accelerators are placed on an inventory of nodes until it is full.

The data is generated. The inventory that is filled has the shape of a published one: 4,278 nodes with 10,412 GPUs of
six models. With the directory of a published inventory and of a trace in CYBORG_QUOTA_DATA, the tests use these files.
"""

from __future__ import annotations

import csv
import itertools
import os
import pathlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import fixtures as fx
import sqlalchemy as sa
import testscenarios

from cyborg_quota import ANY, exceptions
from cyborg_quota.db.database import Database
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.replay import replay
from cyborg_quota.replay.traces import Trace
from tests import base, clouds

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
DATA = os.environ.get("CYBORG_QUOTA_DATA")
SHAPE = (
    ("A10", 1, 2494),
    ("A100", 8, 432),
    ("A800", 8, 22),
    ("H800", 8, 219),
    ("S1", 1, 902),
    ("S1", 4, 10),
    ("S1", 8, 77),
    ("S2", 8, 122),
)
"""Model, accelerators of a node, and number of such nodes."""
LARGEST = 8
"""The largest amount of a claim."""
FREE = {"sqlite": 4, "mariadb": 8, "postgresql": 8}
"""One of so many generated nodes is free. The others are used elsewhere."""
HEADER = ("time", "event", "consumer", "project", "resource", "amount")


class Node(NamedTuple):
    name: str
    model: str
    gpus: int


Row = tuple[str, ...]


def generated_nodes() -> list[Node]:
    kinds = [(model, gpus) for model, gpus, count in SHAPE for _ in range(count)]
    random.Random(7).shuffle(kinds)
    return [Node(f"node-{number}", model, gpus) for number, (model, gpus) in enumerate(kinds)]


def generated_trace(instances: int) -> Iterator[Row]:
    """Reserve and commit each instance; release half of them later."""
    dice, held = random.Random(11), []
    for number in range(instances):
        row = (f"instance-{number}", f"app-{dice.randrange(12)}", "gpu", "1")
        yield from ((str(number), event, *row) for event in ("reserve", "commit"))
        held.append(row)
        if dice.random() < 0.5:
            yield (str(number), "release", *held.pop(dice.randrange(len(held))))


def read_nodes(path: pathlib.Path) -> list[Node]:
    with path.open(newline="") as file:
        return [
            Node(f"node-{row['node_name']}", row["gpu_model"], int(row["gpu_capacity_num"]))
            for row in csv.DictReader(file)
        ]


def read_trace(path: pathlib.Path) -> list[Row]:
    with path.open(newline="") as file:
        return [tuple(row) for row in itertools.islice(csv.reader(file), 1, None)]


class InventoryTestCase(base.LedgerTestCase):
    backend = "sqlite"

    def largest_free(self, resource: str) -> int:
        with self.sql.connect() as connection:
            query = sa.text("SELECT COALESCE(MAX(free), 0) FROM inventories WHERE resource = :resource")
            return int(connection.execute(query, {"resource": resource}).scalar_one())


class FullInventoryTest(InventoryTestCase):
    def claims(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        """Claims of 1 to LARGEST of a random model that is not full, by the number of its accelerators.

        A refusal of an amount ends the larger ones too: nothing is given back.
        """
        dice, self.largest = random.Random(5), dict.fromkeys(sizes, LARGEST)
        while resources := [resource for resource in sizes if self.largest[resource] > 0]:
            (resource,) = dice.choices(resources, [sizes[resource] for resource in resources])
            yield resource, dice.randint(1, self.largest[resource])

    def test_amounts_of_1_to_8_until_all_is_full(self) -> None:
        """A refusal means that no provider could have taken the claim. Most generated nodes are full from the start."""
        nodes = generated_nodes() if DATA is None else read_nodes(pathlib.Path(DATA) / "gpu_nodes.csv")
        self.assertEqual((4_278, 10_412), (len(nodes), sum(node.gpus for node in nodes)))
        step = FREE[self.backend] if DATA is None else 1
        inventories = [
            (node.name, f"gpu.{node.model}", node.gpus, 0 if number % step else node.gpus)
            for number, node in enumerate(nodes)
        ]
        sizes: Counter[str] = Counter()
        for _, resource, _, free in inventories:
            sizes[resource] += free
        self.assertEqual(6, len(sizes))
        self.engine.capacity.enable(ADMIN)
        self.engine.register_resources(list(sizes))
        clouds.add_inventories(self.sql, inventories)
        granted: Counter[str] = Counter()
        for number, (resource, amount) in enumerate(self.claims(sizes)):
            try:
                self.engine.reserve(base.Context(f"p{number % 12}"), {resource: amount}, provider=ANY)
            except exceptions.OverCapacity:
                self.assertLess(self.largest_free(resource), amount)
                self.largest[resource] = amount - 1
            else:
                granted[resource] += amount
        self.assertEqual(sizes, granted)
        self.assert_invariants()
        report = {one.resource: (one.used, one.free) for one in self.engine.capacity.report(ADMIN)}
        self.assertEqual({resource: (size, 0) for resource, size in sizes.items()}, report)


class CheckedEngine:
    """An engine for a replay: a refusal because of the capacity must mean that no provider could take the claim."""

    def __init__(self, test: ReplayTest) -> None:
        self._test = test
        self.refusals = 0

    def reserve(self, context: Any, deltas: dict[str, int], **options: Any) -> list[str]:
        try:
            return self._test.engine.reserve(context, deltas, **options)
        except exceptions.OverCapacity:
            self.refusals += 1
            ((resource, amount),) = deltas.items()
            self._test.assertLess(self._test.largest_free(resource), amount)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._test.engine, name)


class ReplayTest(InventoryTestCase):
    scenarios = [("generated", {"directory": None}), *([] if DATA is None else [("published", {"directory": DATA})])]
    directory: str | None = None

    def nodes(self) -> list[Node]:
        if self.directory is None:
            return generated_nodes()[:60]
        return read_nodes(pathlib.Path(self.directory) / "gpu_nodes.csv")

    def trace(self) -> Iterable[Row]:
        if self.directory is None:
            return generated_trace(150)
        return read_trace(pathlib.Path(self.directory) / "gpu_attach_trace.csv")

    def place(self, step: int, largest: int = 1) -> tuple[replay.Replay, int]:
        """Replay the trace on every ``step``-th node; instances take 1 to ``largest``. Returns it, and the total."""
        self.engine.capacity.enable(ADMIN)
        nodes = self.nodes()[::step]
        clouds.add_inventories(self.sql, [(node.name, "gpu", node.gpus, node.gpus) for node in nodes])
        path = pathlib.Path(self.useFixture(fx.TempDir()).path) / "trace.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            for row in self.trace():
                amount = 1 + sum(row[2].encode()) % largest
                writer.writerow((*row[:5], amount))
        database = Database(DatabaseSettings(url=self.url))
        self.addCleanup(database.close)
        trace = Trace(str(path))
        engine: Any = CheckedEngine(self)
        done = replay.Replay(engine, ADMIN, trace, replay.Position(database, trace.digest, {}), provider=ANY)
        done.run()
        self.assertEqual(engine.refusals, len(done.over_capacity))
        self.assertEqual(done.refused, done.over_capacity)
        self.assert_invariants()
        (report,) = (one for one in self.engine.capacity.report(ADMIN) if one.resource == "gpu")
        self.assertEqual((len(nodes), sum(node.gpus for node in nodes)), (report.providers, report.capacity))
        self.assertEqual(sum(done.tally.held.values()), report.used)
        self.assertEqual(report.capacity - report.used, report.free)
        self.assertEqual(self.largest_free("gpu"), report.largest_free)
        return done, report.free

    def test_on_all_nodes(self) -> None:
        done, free = self.place(1)
        self.assertEqual(0, len(done.over_capacity))
        self.assertGreater(free, 0)

    def test_on_a_third(self) -> None:
        done, _ = self.place(3)
        self.assertGreater(len(done.over_capacity), 0)

    def test_large_amounts_until_all_is_full(self) -> None:
        """When the trace ends, what is left is claimed by ones, until a claim is refused."""
        done, free = self.place(3, largest=8)
        self.assertGreater(len(done.over_capacity), 0)
        for _ in range(free):
            self.engine.reserve(ADMIN, {"gpu": 1}, provider=ANY)
        self.assertRaises(exceptions.OverCapacity, self.engine.reserve, ADMIN, {"gpu": 1}, provider=ANY)
        self.assert_invariants()
