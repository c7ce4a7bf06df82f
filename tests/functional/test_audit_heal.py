# SPDX-License-Identifier: Apache-2.0
"""Drift made by hand: audit reports it, heal corrects it from the reservations, and no call fails because of it."""

from __future__ import annotations

import itertools
from unittest import mock

import testscenarios

from cyborg_quota import Claim, exceptions
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.types import Counters, Drift, UsageKey
from tests import base, fixtures, hooks, on_sqlite

TRUE = Counters(used=3, reserved=2, subtree=5)
ROOT = Counters(used=1, reserved=0, subtree=10)
ROW = "WHERE project_id = 'p1' AND resource = 'gpu'"
ROOTS = "WHERE project_id = 'root' AND resource"
HELD = "WHERE consumer_id = 'held' AND resource = 'gpu'"
INSERT = (
    "INSERT INTO reservations (uuid, usage_id, project_id, resource, delta, state, deleted, live)"
    " SELECT 'by hand', id, project_id, resource, 4, '{}', FALSE, 1 FROM quota_usages " + ROW
)


def gpus(recorded: Counters | None, expected: Counters = TRUE) -> Drift:
    """Of p1."""
    return Drift(UsageKey("p1", "gpu"), recorded, expected)


def total(recorded: Counters | None, expected: Counters = ROOT) -> Drift:
    """Of root."""
    return Drift(UsageKey("root", "gpu"), recorded, expected)


# What is changed by hand, and what the audit reports. (If the repair differs from it, what is repaired.)
KINDS: dict[str, tuple[list[Drift], ...]] = {
    # (Its meter is 0, unless a second has begun between its reserve and its rollback.)
    "DELETE FROM reservations WHERE state = 'rolled_back' AND meter = 0": ([],),
    f"UPDATE quota_usages SET used = 9 {ROW}": ([gpus(Counters(9, 2, 5))],),
    f"UPDATE quota_usages SET used = 0 {ROW}": ([gpus(Counters(0, 2, 5))],),
    f"UPDATE quota_usages SET reserved = 9 {ROW}": ([gpus(Counters(3, 9, 5))],),
    f"UPDATE quota_usages SET reserved = 1 {ROW}": ([gpus(Counters(3, 1, 5))],),
    f"UPDATE quota_usages SET used = 2147483647, reserved = 0 {ROW}": ([gpus(Counters(2147483647, 0, 5))],),
    # Of a row whose total differs from its parts, the audit reports each; the repair begins with the child.
    f"UPDATE quota_usages SET subtree = 25 {ROW}": (
        [gpus(Counters(3, 2, 25)), total(ROOT, Counters(1, 0, 30))],
        [gpus(Counters(3, 2, 25))],
    ),
    f"UPDATE quota_usages SET subtree = 0 {ROW}": (
        [gpus(Counters(3, 2, 0)), total(ROOT, Counters(1, 0, 5))],
        [gpus(Counters(3, 2, 0))],
    ),
    f"UPDATE quota_usages SET subtree = 99 {ROOTS} = 'gpu'": ([total(Counters(1, 0, 99))],),
    f"UPDATE quota_usages SET subtree = 0 {ROOTS} = 'gpu'": ([total(Counters(1, 0, 0))],),
    f"DELETE FROM quota_usages {ROW}": ([gpus(None), total(ROOT, Counters(1, 0, 5))], [gpus(Counters(0, 0, 0))]),
    # A limit on the subtree is compared with the total of an unused root, too: its loss must be detected.
    f"DELETE FROM quota_usages {ROOTS} = 'gpu'": ([total(None)], [total(Counters(0, 0, 0))]),
    f"DELETE FROM quota_usages {ROOTS} = 'fpga'": (
        [Drift(UsageKey("root", "fpga"), None, Counters(0, 0, 1))],
        [Drift(UsageKey("root", "fpga"), Counters(0, 0, 0), Counters(0, 0, 1))],
    ),
    # The total of the root agreed with the child's counters; it follows the repair of the child.
    f"DELETE FROM reservations {HELD}": (
        [gpus(TRUE, Counters(0, 2, 2))],
        [gpus(TRUE, Counters(0, 2, 2)), total(ROOT, Counters(1, 0, 7))],
    ),
    "DELETE FROM reservations WHERE consumer_id = 'flying'": (
        [gpus(TRUE, Counters(3, 0, 3))],
        [gpus(TRUE, Counters(3, 0, 3)), total(ROOT, Counters(1, 0, 8))],
    ),
    INSERT.format("committed"): (
        [gpus(TRUE, Counters(7, 2, 9))],
        [gpus(TRUE, Counters(7, 2, 9)), total(ROOT, Counters(1, 0, 14))],
    ),
    INSERT.format("reserved"): (
        [gpus(TRUE, Counters(3, 6, 9))],
        [gpus(TRUE, Counters(3, 6, 9)), total(ROOT, Counters(1, 0, 14))],
    ),
    "UPDATE reservations SET state = 'committed' WHERE consumer_id = 'flying'": ([gpus(TRUE, Counters(5, 0, 5))],),
    f"UPDATE reservations SET delta = 1 {HELD}": (
        [gpus(TRUE, Counters(1, 2, 3))],
        [gpus(TRUE, Counters(1, 2, 3)), total(ROOT, Counters(1, 0, 8))],
    ),
}


class DriftTestCase(base.LedgerTestCase):
    """p1 has 3 gpus committed and 2 in flight; p2, the root above both, and another resource have other amounts."""

    def setUp(self) -> None:
        super().setUp()
        self.plant({"root": None, "p1": "root", "p2": "root"})
        for name, deltas in (("p1", {"gpu": 3, "fpga": 1}), ("p2", {"gpu": 4}), ("root", {"gpu": 1})):
            self.quotas.adopt(base.ADMIN, [Claim("held" if name == "p1" else None, deltas)], name)
        self.quotas.reserve(self.context, {"gpu": 2}, consumer="flying")
        self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 7}))
        self.saved = hooks.SavedRows(self.sql, ["reservations", "quota_usages"])

    def assert_healed(self) -> None:
        self.assertEqual(([], []), (self.engine.audit(base.ADMIN), self.engine.heal(base.ADMIN)))
        self.assert_invariants()


class TestKinds(DriftTestCase):
    def test_reported_and_healed(self) -> None:
        for statement, drifts in KINDS.items():
            with self.subTest(statement):
                self.saved.put_back()
                self.execute(statement)
                expected = drifts[0], drifts[-1]
                self.assertEqual(expected, (self.engine.audit(base.ADMIN), self.engine.heal(base.ADMIN)))
                self.assert_healed()

    @on_sqlite
    def test_several_sorted(self) -> None:
        self.execute("UPDATE quota_usages SET used = used + 1, subtree = subtree + 1")
        keys = [drift.key[:2] for drift in self.engine.audit(base.ADMIN)]
        self.assertEqual(sorted([("p2", "gpu"), *itertools.product(("p1", "root"), ("fpga", "gpu"))]), keys)
        self.engine.heal(base.ADMIN)
        self.assert_healed()

    def test_a_reserve_creates_missing_rows(self) -> None:
        """Its path is cached, with the ID of a row that is gone."""
        self.execute(f"DELETE FROM quota_usages {ROW}")
        self.engine.reserve(self.context, {"gpu": 1, "fpga": 1})
        self.assertEqual((0, 1), self.figures())
        self.engine.heal(base.ADMIN)
        self.assert_healed()

    def test_the_error_names_the_usage_row(self) -> None:
        self.execute("DELETE FROM quota_usages")
        with mock.patch.object(PathCache, "get"):  # the usage row is not created
            error = self.assertRaises(exceptions.DatabaseError, self.engine.commit, self.context, consumer="flying")
        self.assertIn("The usage row of project p1 and resource gpu is deleted each time", str(error))


CALLS = {
    # call: (used, reserved) of p1's gpus after it
    "commit": ({"consumer": "flying"}, (5, 0)),
    "rollback": ({"consumer": "flying"}, (3, 0)),
    "release": ({"consumer": "held"}, (0, 2)),
    "expire": ({}, (3, 0)),
}


class TestCallsOnDrift(DriftTestCase):
    """A counter that is too low for a call does not make it fail: the row is recounted."""

    scenarios = testscenarios.multiply_scenarios(fixtures.SCENARIOS, [(call, {"call": call}) for call in CALLS])
    call = ""

    def make_call(self) -> None:
        named, _ = CALLS[self.call]
        if self.call == "expire":
            self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE consumer_id = 'flying'")
            self.assertEqual(1, self.engine.expire(base.ADMIN))
        else:
            getattr(self.engine, self.call)(self.context, **named)

    def test_recounted_or_healed_afterwards(self) -> None:
        """The row of the project alone is too low, or all are; the usage rows were deleted, or are too high."""
        for statement, is_recounted in (
            ("UPDATE quota_usages SET used = 0, reserved = 0 WHERE project_id = 'p1'", True),
            ("UPDATE quota_usages SET used = 0, reserved = 0, subtree = 0", True),
            ("DELETE FROM quota_usages", False),
            ("UPDATE quota_usages SET used = used + 5, reserved = reserved + 5, subtree = subtree + 5", False),
        ):
            self.saved.put_back()
            self.execute(statement)
            self.make_call()
            if is_recounted:
                self.assertEqual(CALLS[self.call][1], self.figures())
                drifted = {drift.key[:2] for drift in self.engine.audit(base.ADMIN)}
                self.assertEqual(set(), drifted & {("p1", "gpu"), ("root", "gpu")})
            self.engine.heal(base.ADMIN)
            self.assertEqual(CALLS[self.call][1], self.figures())
            self.assert_healed()
