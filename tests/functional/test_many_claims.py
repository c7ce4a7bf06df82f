# SPDX-License-Identifier: Apache-2.0
"""Calls with many claims: their cost is linear in the number of claims, not quadratic."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
import testscenarios

import cyborg_quota
from cyborg_quota import ANY, Claim, Inventory
from tests import base, clouds, fixtures, hooks

load_tests = testscenarios.load_tests_apply_scenarios

_PACKAGE = str(cyborg_quota.__path__[0])
FEW, MANY = 250, 1000


def lines_run(call: Callable[[], object]) -> int:
    """Return the number of our own lines that a call executes; each iteration of a comprehension counts."""
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


class TestAnywhere(base.LedgerTestCase):
    """A reserve_many of claims with ANY, which are placed one after the other."""

    scenarios = fixtures.SCENARIOS[:1]  # the loops are the same on each database

    def test_lines_run(self) -> None:
        """As many candidates are read as there are claims: twice the claims may run four times the lines."""
        clouds.add_inventories(self.sql, [(f"n{number}", "gpu", 1, 1) for number in range(90)])
        lines = []
        for count in (40, 80):
            claims = [Claim(f"c{number}", {"gpu": 1}, provider=ANY) for number in range(count)]
            uuids: list[str] = []
            lines.append(lines_run(lambda: uuids.extend(self.engine.reserve_many(self.context, claims))))  # noqa: B023
            self.engine.rollback(self.context, uuids)
        self.assertLess(lines[1] / lines[0], 4.2, lines)


class TestRepeat(base.LedgerTestCase):
    """A reserve_many that is delivered again finds that all its claims are charged."""

    def claims(self, count: int) -> list[Claim]:
        return [base.claim(f"{count}-{number}", gpu=1) for number in range(count)]

    def test_lines_run(self) -> None:
        lines = []
        for count in (FEW, MANY):
            claims = self.claims(count)
            first = self.engine.reserve_many(self.context, claims)
            lines.append(lines_run(lambda: self.assertEqual(first, self.engine.reserve_many(self.context, claims))))  # noqa: B023
        self.assertLess(lines[1] / lines[0], 1.2 * MANY / FEW, lines)

    def test_statements(self) -> None:
        """One statement selects hundreds of claims; none is sent for each claim."""
        counts = []
        sent: list[str] = []
        sql = hooks.database_of(self.engine).engine
        sa.event.listen(sql, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
        for count in (FEW, MANY):
            claims = self.claims(count)
            self.engine.reserve_many(self.context, claims)
            del sent[:]
            self.engine.reserve_many(self.context, claims)
            counts.append(len(sent))
        self.assertLess(counts[1] - counts[0], 10, counts)

    def test_statements_of_claims_in_a_pod(self) -> None:
        self.engine.pods.add(base.ADMIN, "pod1")
        self.engine.capacity.add_provider(base.ADMIN, "n1", pod="pod1")
        self.engine.capacity.set_inventories(base.ADMIN, "n1", {"gpu": Inventory(FEW)})
        claims = [Claim(f"c{number}", {"gpu": 1}, provider=ANY, pod="pod1") for number in range(FEW)]
        first = self.engine.reserve_many(base.ADMIN, claims, project_id="p1")
        sent: list[str] = []
        sql = hooks.database_of(self.engine).engine
        sa.event.listen(sql, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
        self.assertEqual(first, self.engine.reserve_many(base.ADMIN, claims, project_id="p1"))
        self.assertLess(len(sent), 20, sent)

    def test_half_of_them_new(self) -> None:
        held = self.quotas.reserve_many(self.context, self.claims(300))
        claims = [*self.claims(300), *(base.claim(f"new-{number}", gpu=1) for number in range(300))]
        answer = self.quotas.reserve_many(self.context, claims)
        self.assertEqual(held, answer[:300])
        self.assertEqual((0, 600), self.figures())

    def test_settled_together(self) -> None:
        """More reservations than one statement selects."""
        uuids = self.quotas.reserve_many(self.context, self.claims(2100), group="g")
        self.engine.extend(self.context, uuids, 3600)
        self.quotas.commit(self.context, group="g")
        self.assertEqual((2100, 0), self.figures())
        self.quotas.release(self.context, uuids)
        self.assertEqual((0, 0), self.figures())
