# SPDX-License-Identifier: Apache-2.0
"""Calls with many claims: their cost is linear in the number of claims, not quadratic."""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import cyborg_quota
from cyborg_quota import ANY, Claim, Inventory, exceptions
from tests import base, clouds, hooks, on_sqlite

_PACKAGE = str(cyborg_quota.__path__[0])
FEW = 250


def lines_run(call: Callable[[], object]) -> int:
    """Return the number of our own lines that a call executes; each iteration of a comprehension counts.

    (The loops are the same on each database, so these tests run on one.)
    """
    count = 0

    def in_frame(_frame: types.FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return in_frame

    def enter(frame: types.FrameType, _event: str, _argument: Any) -> Any:
        return in_frame if frame.f_code.co_filename.startswith(_PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


class ManyTestCase(base.LedgerTestCase):
    def assert_linear(self, prepare: Callable[[int], Callable[[], object]], few: int = 50) -> None:
        """``prepare(count)`` returns a call that names so many claims or resources."""
        lines = [lines_run(prepare(count)) for count in (few, 4 * few)]
        self.assertLess(lines[1] / lines[0], 1.2 * 4, lines)
        self.assert_invariants()


class TestAnywhere(ManyTestCase):
    """A reserve_many of claims with ANY, which are placed one after the other."""

    @on_sqlite
    def test_lines_run(self) -> None:
        """Those of claims of one amount, and of four different amounts in turns."""
        clouds.add_inventories(self.sql, [(f"n{number}", "gpu", 8, 8) for number in range(400)])
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}, provider=ANY))

        def prepare(amounts: int, count: int) -> Callable[[], object]:
            self.engine.release(self.context, group="g")
            claims = [Claim(f"c{number}", {"gpu": 1 + number % amounts}, provider=ANY) for number in range(count)]
            return functools.partial(self.engine.reserve_many, self.context, claims, group="g")

        for amounts in (1, 4):
            self.assert_linear(functools.partial(prepare, amounts))

    def test_claims_of_other_amounts_have_used_up_what_was_read(self) -> None:
        """The claim of 2 reads the best candidates of 2, which the claims of 1 have filled, and then reads more."""
        nodes = [*((f"small{number}", 2) for number in range(40)), ("large", 8)]
        clouds.add_inventories(self.sql, [(name, "gpu", total, total) for name, total in nodes])
        claims = [Claim(f"c{number}", {"gpu": 1}, provider=ANY) for number in range(80)]
        self.quotas.reserve_many(self.context, [*claims, Claim("last", {"gpu": 2}, provider=ANY)])
        (row,) = self.engine.get_reservations(self.context, consumer="last")
        self.assertEqual("large", row.provider)


class TestManyResources(ManyTestCase):
    """One claim of many resources."""

    def amounts(self, count: int) -> dict[str, int]:
        amounts = {f"r{number}": 1 + number % 3 for number in range(count)}
        self.engine.register_resources(amounts)
        return amounts

    def test_anywhere(self) -> None:
        """More resources than a server can join. Providers lack one resource, or all of one."""
        amounts = self.amounts(100)
        nodes = [(node, name, 8, 8) for node in ("a", "b") for name in amounts]
        nodes += [("lacks", name, 8, 8) for name in amounts if name != "r50"]
        nodes += [("full", name, 8, 0 if name == "r50" else 8) for name in amounts]
        clouds.add_inventories(self.sql, nodes)
        self.assertEqual(4, self.engine.how_many(base.ADMIN, amounts, "p1", provider=ANY).number)
        with hooks.recorded_statements(self.engine) as sent:
            self.engine.reserve(self.context, amounts, provider=ANY, consumer="c0")
        self.assertEqual(1, len([text for text in sent if "SELECT" in text and "inventories" in text]))
        self.assertEqual(3, self.engine.how_many(base.ADMIN, amounts, "p1", provider=ANY).number)
        left = {self.engine.how_many(base.ADMIN, amounts, "p1", provider=node).number for node in ("a", "b")}
        self.assertEqual({1, 2}, left)
        for number in range(1, 4):
            self.quotas.reserve(self.context, amounts, provider=ANY, consumer=f"c{number}")
        self.assertRaises(exceptions.OverCapacity, self.engine.reserve, self.context, amounts, provider=ANY)
        self.assertEqual(0, self.engine.how_many(base.ADMIN, amounts, "p1", provider=ANY).number)
        self.assertEqual({"a", "b"}, {row.provider for row in self.engine.get_reservations(self.context)})

    def test_units_of_the_third_resource(self) -> None:
        amounts = self.amounts(3)
        for node, units in (("a", Inventory(8, min_unit=4)), ("b", Inventory(8, step_size=3))):
            inventories = {**dict.fromkeys(amounts, Inventory(8)), "r0": units}
            self.engine.capacity.add_provider(base.ADMIN, node)
            self.engine.capacity.set_inventories(base.ADMIN, node, inventories)
        reserve = functools.partial(self.engine.reserve, self.context, provider=ANY, consumer="c")
        self.assertRaises(exceptions.OverCapacity, reserve, {**amounts, "r0": 2})
        reserve({**amounts, "r0": 4})
        self.assertEqual({"a"}, {row.provider for row in self.engine.get_reservations(self.context, consumer="c")})

    def test_statements_of_changes(self) -> None:
        """A resize and a transfer: one statement for each row of reservations, and one that records the changes."""
        counts = []
        for count in (2, 100):
            amounts = self.amounts(count)
            consumer = f"c{count}"
            self.engine.commit(self.context, self.engine.reserve(self.context, amounts, consumer=consumer)[::2])
            others = {name: 5 - amount for name, amount in amounts.items()}
            with hooks.recorded_statements(self.engine) as sent:
                self.engine.resize(self.context, others, consumer=consumer)
                self.engine.transfer(base.ADMIN, "p2", "p1", consumer=consumer)
            of_rows = [text for text in sent if re.search(r"(UPDATE|INTO) (reservations|reservation_changes)\b", text)]
            counts.append(len(of_rows))
            self.assert_invariants()
        self.assertEqual([2 * 3, 2 * 101], counts)

    @on_sqlite
    def test_lines_of_changes(self) -> None:
        self.limits.own = {(None, resource): 99 for resource in self.amounts(200)}

        def prepare(name: str, count: int) -> Callable[[], object]:
            amounts, consumer = self.amounts(count), f"{name}{count}"
            self.engine.reserve(self.context, amounts, consumer=consumer)
            calls: dict[str, Callable[[], object]] = {
                "resize": lambda: self.engine.resize(self.context, dict.fromkeys(amounts, 4), consumer=consumer),
                "transfer": lambda: self.engine.transfer(base.ADMIN, "p2", "p1", consumer=consumer),
                "how_many": lambda: self.engine.how_many(self.context, amounts),
            }
            return calls[name]

        for name in ("resize", "transfer", "how_many"):
            self.assert_linear(functools.partial(prepare, name))


class TestRepeat(ManyTestCase):
    """A reserve_many that is delivered again finds that all its claims are charged."""

    def claims(self, count: int) -> list[Claim]:
        return [base.claim(f"{count}-{number}", gpu=1) for number in range(count)]

    @on_sqlite
    def test_lines_run(self) -> None:
        def prepare(count: int) -> Callable[[], object]:
            claims = self.claims(count)
            first = self.engine.reserve_many(self.context, claims)
            return lambda: self.assertEqual(first, self.engine.reserve_many(self.context, claims))

        self.assert_linear(prepare, FEW)

    def test_statements(self) -> None:
        """One statement selects hundreds of claims; none is sent for each claim, also if they are in a pod."""
        self.engine.pods.add(base.ADMIN, "pod1")
        self.add_provider("n1", pod="pod1", gpu=FEW)
        in_pod = [Claim(f"c{number}", {"gpu": 1}, provider=ANY, pod="pod1") for number in range(FEW)]
        for claims in (self.claims(FEW), self.claims(4 * FEW), in_pod):
            first = self.engine.reserve_many(base.ADMIN, claims, project_id="p1")
            with hooks.recorded_statements(self.engine) as sent:
                self.assertEqual(first, self.engine.reserve_many(base.ADMIN, claims, project_id="p1"))
            self.assertLess(len(sent), 20, sent)

    def test_settled_together(self) -> None:
        """More reservations than one statement selects."""
        uuids = self.quotas.reserve_many(self.context, self.claims(2100), group="g")
        self.engine.extend(self.context, uuids, 3600)
        self.quotas.commit(self.context, group="g")
        self.assertEqual((2100, 0), self.figures())
        self.quotas.release(self.context, uuids)
        self.assertEqual((0, 0), self.figures())
