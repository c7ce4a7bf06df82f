# SPDX-License-Identifier: Apache-2.0
"""Claims of accelerators are placed on an inventory of nodes until it is full.

The data is generated. The inventory that is filled has the shape of a published one: 4,278 nodes with 10,412 GPUs of
six models.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import sqlalchemy as sa
import testscenarios

from cyborg_quota import ANY, exceptions
from tests import base, clouds

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
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


class Node(NamedTuple):
    name: str
    model: str
    gpus: int


Row = tuple[str, ...]


def generated_nodes() -> list[Node]:
    kinds = [(model, gpus) for model, gpus, count in SHAPE for _ in range(count)]
    random.Random(7).shuffle(kinds)
    return [Node(f"node-{number}", model, gpus) for number, (model, gpus) in enumerate(kinds)]


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
        nodes = generated_nodes()
        self.assertEqual((4_278, 10_412), (len(nodes), sum(node.gpus for node in nodes)))
        step = FREE[self.backend]
        inventories = [
            (node.name, f"gpu.{node.model}", node.gpus, 0 if number % step else node.gpus)
            for number, node in enumerate(nodes)
        ]
        sizes: Counter[str] = Counter()
        for _, resource, _, free in inventories:
            sizes[resource] += free
        self.assertEqual(6, len(sizes))
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
