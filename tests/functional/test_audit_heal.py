# SPDX-License-Identifier: Apache-2.0
"""Drift made by hand: audit reports it, heal corrects it from the reservations, and no call fails because of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from unittest import mock

import testscenarios

from cyborg_quota import Claim, exceptions
from cyborg_quota.ledger.paths import PathCache
from cyborg_quota.types import Counters, Drift, UsageKey
from tests import base, fixtures, hooks, on_sqlite

TRUE = Counters(used=3, reserved=2, subtree=5)
ROW = "WHERE project_id = 'p1' AND resource = 'gpu'"
INSERT = (
    "INSERT INTO reservations (uuid, usage_id, project_id, resource, delta, state, deleted, live)"
    " SELECT 'by hand', id, project_id, resource, 4, '{}', FALSE, 1 FROM quota_usages " + ROW
)
# What is changed by hand: the counters of p1's gpus then, and what they should be.
KINDS: dict[str, tuple[str, Counters | None, Counters]] = {
    "used too high": (f"UPDATE quota_usages SET used = 9 {ROW}", Counters(9, 2, 5), TRUE),
    "used too low": (f"UPDATE quota_usages SET used = 0 {ROW}", Counters(0, 2, 5), TRUE),
    "reserved too high": (f"UPDATE quota_usages SET reserved = 9 {ROW}", Counters(3, 9, 5), TRUE),
    "reserved too low": (f"UPDATE quota_usages SET reserved = 1 {ROW}", Counters(3, 1, 5), TRUE),
    "subtree too high": (f"UPDATE quota_usages SET subtree = 6 {ROW}", Counters(3, 2, 6), TRUE),
    "subtree too low": (f"UPDATE quota_usages SET subtree = 0 {ROW}", Counters(3, 2, 0), TRUE),
    "all three": (
        f"UPDATE quota_usages SET used = 2147483647, reserved = 0, subtree = 1 {ROW}",
        Counters(2147483647, 0, 1),
        TRUE,
    ),
    "usage row deleted": (f"DELETE FROM quota_usages {ROW}", None, TRUE),
    "committed row deleted": (
        "DELETE FROM reservations WHERE consumer_id = 'held' AND resource = 'gpu'",
        TRUE,
        Counters(0, 2, 2),
    ),
    "row in flight deleted": (
        "DELETE FROM reservations WHERE consumer_id = 'flying'",
        TRUE,
        Counters(3, 0, 3),
    ),
    "committed row inserted": (INSERT.format("committed"), TRUE, Counters(7, 2, 9)),
    "row in flight inserted": (INSERT.format("reserved"), TRUE, Counters(3, 6, 9)),
    "committed by hand": (
        "UPDATE reservations SET state = 'committed' WHERE consumer_id = 'flying'",
        TRUE,
        Counters(5, 0, 5),
    ),
    "another delta": (
        "UPDATE reservations SET delta = 1 WHERE consumer_id = 'held' AND resource = 'gpu'",
        TRUE,
        Counters(1, 2, 3),
    ),
}


class DriftTestCase(base.LedgerTestCase):
    """p1 has 3 gpus committed and 2 in flight; other projects and resources have other amounts."""

    parents: Mapping[str, str | None] = {}

    def setUp(self) -> None:
        super().setUp()
        self.plant(self.parents)
        for project_id, name, deltas in (
            ("p1", "held", {"gpu": 3, "fpga": 1}),
            ("p2", "held by p2", {"gpu": 4}),
        ):
            self.quotas.adopt(base.ADMIN, [Claim(name, deltas)], project_id)
        self.quotas.reserve(self.context, {"gpu": 2}, consumer="flying")
        self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 7}))
        self.assertEqual([], self.quotas.audit(base.ADMIN))

    def assert_healed(self) -> None:
        self.assertEqual([], self.engine.audit(base.ADMIN))
        self.assert_invariants()
        self.assertEqual([], self.engine.heal(base.ADMIN))


class TestKinds(DriftTestCase):
    """Each kind of drift in a flat cloud."""

    def test_reported_and_healed(self) -> None:
        saved = hooks.SavedRows(self.sql, ["reservations", "quota_usages"])
        for kind, (statement, recorded, expected) in KINDS.items():
            with self.subTest(kind=kind):
                saved.put_back()
                self.execute(statement)
                drift = Drift(UsageKey("p1", "gpu"), recorded, expected)
                self.assertEqual([drift], self.engine.audit(base.ADMIN))
                repaired = dataclasses.replace(drift, recorded=recorded or Counters(0, 0, 0))
                self.assertEqual([repaired], self.engine.heal(base.ADMIN))
                self.assertEqual((expected.used, expected.reserved), self.figures())
                self.assert_healed()

    @on_sqlite
    def test_several_sorted(self) -> None:
        self.execute("DELETE FROM reservations WHERE state = 'rolled_back'")
        self.assertEqual([], self.engine.audit(base.ADMIN), "an ended row")
        self.execute("UPDATE quota_usages SET used = used + 1, subtree = subtree + 1")
        audited = self.engine.audit(base.ADMIN)
        self.assertEqual([("p1", "fpga"), ("p1", "gpu"), ("p2", "gpu")], [drift.key[:2] for drift in audited])
        self.assertEqual(audited, self.engine.heal(base.ADMIN))
        self.assert_healed()


class TestTree(DriftTestCase):
    """p1 and p2 are children of root, which holds 1 itself."""

    scenarios = fixtures.ON_SQLITE
    parents = {"root": None, "p1": "root", "p2": "root"}

    def setUp(self) -> None:
        super().setUp()
        self.quotas.adopt(base.ADMIN, [base.claim("held by root", gpu=1)], "root")
        self.assertEqual(10, self.subtrees()["root"])

    def test_reported_and_healed(self) -> None:
        """Of a row whose total differs from its parts, the audit reports each; the repair begins with the child."""
        root, gpus = Counters(1, 0, 10), "WHERE project_id = 'root' AND resource = 'gpu'"
        saved = hooks.SavedRows(self.sql, ["reservations", "quota_usages"])
        child = Drift(UsageKey("p1", "gpu"), Counters(3, 2, 25), TRUE)
        lost = Drift(UsageKey("p1", "gpu"), TRUE, Counters(0, 2, 2))
        cases: dict[str, tuple[list[Drift], list[Drift]]] = {}
        for statement, recorded in (
            (
                f"UPDATE quota_usages SET used = 9, reserved = 9 {ROW}",
                Drift(UsageKey("p1", "gpu"), Counters(9, 9, 5), TRUE),
            ),
            (f"UPDATE quota_usages SET subtree = 99 {gpus}", Drift(UsageKey("root", "gpu"), Counters(1, 0, 99), root)),
            (f"UPDATE quota_usages SET subtree = 0 {gpus}", Drift(UsageKey("root", "gpu"), Counters(1, 0, 0), root)),
        ):
            cases[statement] = [recorded], [recorded]
        cases[f"UPDATE quota_usages SET subtree = 25 {ROW}"] = (
            [child, Drift(UsageKey("root", "gpu"), root, Counters(1, 0, 30))],
            [child],
        )
        # The total of the root agreed with the child's counters; it follows the repair of the child.
        cases["DELETE FROM reservations WHERE consumer_id = 'held' AND resource = 'gpu'"] = (
            [lost],
            [lost, Drift(UsageKey("root", "gpu"), root, Counters(1, 0, 7))],
        )
        for statement, (audited, healed) in cases.items():
            with self.subTest(statement):
                saved.put_back()
                self.execute(statement)
                self.assertEqual((audited, healed), (self.engine.audit(base.ADMIN), self.engine.heal(base.ADMIN)))
                self.assert_healed()

    def test_deleted(self) -> None:
        """A limit on the subtree is compared with the total of an unused root: its loss must be detected."""
        saved = hooks.SavedRows(self.sql, ["reservations", "quota_usages"])
        for expected in (
            Drift(UsageKey("p1", "gpu"), None, TRUE),
            Drift(UsageKey("root", "gpu"), None, Counters(1, 0, 10)),
            Drift(UsageKey("root", "fpga"), None, Counters(0, 0, 1)),
        ):
            saved.put_back()
            key = f"project_id = '{expected.key.project_id}' AND resource = '{expected.key.resource}'"
            self.execute(f"DELETE FROM quota_usages WHERE {key}")
            self.assertIn(expected, self.engine.audit(base.ADMIN))
            self.engine.heal(base.ADMIN)
            self.assertEqual(10, self.subtrees()["root"])
            self.assert_healed()


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
    parents = {"root": None, "p1": "root"}

    def make_call(self) -> None:
        named, _ = CALLS[self.call]
        if self.call == "expire":
            self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE consumer_id = 'flying'")
            self.assertEqual(1, self.engine.expire(base.ADMIN))
        else:
            getattr(self.engine, self.call)(self.context, **named)

    def test_recounted_or_healed_afterwards(self) -> None:
        """The row of the project alone is too low, or all are; the usage rows were deleted, or are too high."""
        saved = hooks.SavedRows(self.sql, ["reservations", "quota_usages"])
        for statement, is_recounted in (
            ("UPDATE quota_usages SET used = 0, reserved = 0 WHERE project_id = 'p1'", True),
            ("UPDATE quota_usages SET used = 0, reserved = 0, subtree = 0", True),
            ("DELETE FROM quota_usages", False),
            ("UPDATE quota_usages SET used = used + 5, reserved = reserved + 5, subtree = subtree + 5", False),
        ):
            saved.put_back()
            self.execute(statement)
            self.make_call()
            if is_recounted:
                self.assertEqual(CALLS[self.call][1], self.figures())
                drifted = {drift.key[:2] for drift in self.engine.audit(base.ADMIN)}
                self.assertEqual(set(), drifted & {("p1", "gpu"), ("root", "gpu")})
            self.engine.heal(base.ADMIN)
            self.assertEqual(CALLS[self.call][1], self.figures())
            self.assert_healed()


class TestReserveOnDrift(DriftTestCase):
    """A reserve relies on the counters, and creates missing rows."""

    def test_usage_row_deleted(self) -> None:
        """Its path is cached, with the ID of a row that is gone."""
        self.execute(f"DELETE FROM quota_usages {ROW}")
        self.engine.reserve(self.context, {"gpu": 1, "fpga": 1})
        self.assertEqual((0, 1), self.figures())
        self.engine.heal(base.ADMIN)
        self.assert_healed()


class TestDeletedAgain(DriftTestCase):
    def test_the_error_names_the_usage_row(self) -> None:
        self.execute("DELETE FROM quota_usages")
        with mock.patch.object(PathCache, "get"):  # the usage row is not created
            error = self.assertRaises(exceptions.DatabaseError, self.engine.commit, self.context, consumer="flying")
        self.assertIn("The usage row of project p1 and resource gpu is deleted each time", str(error))
