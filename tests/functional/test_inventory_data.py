# SPDX-License-Identifier: Apache-2.0
"""A trace of accelerator claims is placed on an inventory of nodes until it is full.

The data is generated, in the shape of a published inventory of 4,278 nodes and a published trace of 7,386 instances.
With their directory in CYBORG_QUOTA_DATA, the tests run on these files too.
"""

from __future__ import annotations

import csv
import itertools
import os
import pathlib
import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import fixtures as fx
import sqlalchemy as sa

from cyborg_quota import ANY, Inventory, exceptions
from cyborg_quota.db.database import Database
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.replay import replay
from cyborg_quota.replay.traces import Trace
from tests import base

ADMIN = base.ADMIN
DATA = os.environ.get("CYBORG_QUOTA_DATA")
SHAPE = (("A10", 1, 58), ("S1", 1, 21), ("A100", 8, 10), ("H800", 8, 5), ("S2", 8, 3), ("S1", 8, 2), ("S1", 4, 1))
"""Model, accelerators of a node, and percent of the nodes."""
HEADER = ("time", "event", "consumer", "project", "resource", "amount")


class Node(NamedTuple):
    name: str
    model: str
    gpus: int


Row = tuple[str, ...]


def generated_nodes(count: int) -> list[Node]:
    percentages = [percent for *_, percent in SHAPE]
    chosen = random.Random(7).choices(SHAPE, percentages, k=count)
    return [Node(f"node-{number}", model, gpus) for number, (model, gpus, _) in enumerate(chosen)]


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


class CheckedEngine:
    """An engine for a replay: a refusal because of the capacity must mean that no provider could take the claim."""

    def __init__(self, test: InventoryDataTest) -> None:
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


class InventoryDataTest(base.LedgerTestCase):
    backend = "sqlite"

    def nodes(self) -> list[Node]:
        return generated_nodes(60)

    def trace(self) -> Iterable[Row]:
        return generated_trace(150)

    def place(self, step: int, largest: int = 1) -> tuple[replay.Replay, int]:
        """Replay the trace on every ``step``-th node; instances take 1 to ``largest``. Returns it, and the total."""
        self.engine.capacity.enable(ADMIN)
        nodes = list(self.nodes())[::step]
        for node in nodes:
            self.engine.capacity.add_provider(ADMIN, node.name)
            self.engine.capacity.set_inventories(ADMIN, node.name, {"gpu": Inventory(node.gpus)})
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

    def largest_free(self, resource: str) -> int:
        with self.sql.connect() as connection:
            query = sa.text("SELECT COALESCE(MAX(free), 0) FROM inventories WHERE resource = :resource")
            return int(connection.execute(query, {"resource": resource}).scalar_one())

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


class RealDataTest(InventoryDataTest):
    def setUp(self) -> None:
        if DATA is None:
            self.skipTest("CYBORG_QUOTA_DATA is not set")
        super().setUp()

    def nodes(self) -> list[Node]:
        return read_nodes(pathlib.Path(str(DATA)) / "gpu_nodes.csv")

    def trace(self) -> Iterable[Row]:
        return read_trace(pathlib.Path(str(DATA)) / "gpu_attach_trace.csv")
