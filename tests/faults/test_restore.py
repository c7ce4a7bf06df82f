# SPDX-License-Identifier: Apache-2.0
"""The database is restored from a backup that lacks the last minutes, while consumers and their processes continue."""

from __future__ import annotations

import functools
import logging
import pathlib

import fixtures as fixtures_
import testscenarios

from cyborg_quota import Claim, QuotaEngine, exceptions
from cyborg_quota.cyborg.bind_tracker import BindTracker, Caller
from cyborg_quota.cyborg.reconciler import Reconciler
from cyborg_quota.engine import attachment
from cyborg_quota.types.capacity import Inventory
from tests import base, fixtures, needs
from tests.faults import backups
from tests.functional import test_limits
from tests.functional.test_reconciler import Cloud

load_tests = testscenarios.load_tests_apply_scenarios


class RestoreTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        if reason := backups.missing_program(self.backend):
            needs.missing(self, reason)
        self.path = pathlib.Path(self.useFixture(fixtures_.TempDir()).path) / "backup"

    def back_up(self) -> None:
        self.backup = backups.Backup(self.url, self.path)

    def restore(self) -> None:
        self.backup.restore()
        # The restore has closed the connection of the test too.
        fixtures.plain_engine(self.url).dispose()

    def attach(self, consumer: str) -> list[str]:
        uuids = self.quotas.reserve(self.context, {"gpu": 1}, consumer=consumer)
        self.quotas.commit(self.context, uuids)
        return uuids

    def another_process(self) -> QuotaEngine:
        """Return an engine with empty caches."""
        return fixtures.Checked(self.make_engine(), self.url)  # type: ignore[return-value]


class TestAnswers(RestoreTestCase):
    def test_reservations_made_after_the_backup(self) -> None:
        """Each call on a reservation that was made after the backup, from the process that made it and from another
        one.
        """
        self.back_up()
        lost = {name: self.quotas.reserve(self.context, {"gpu": 1}, consumer=name) for name in "abcdefgh"}
        held = self.attach("held")
        self.restore()
        for quotas, names in ((self.quotas, "abcd"), (self.another_process(), "efgh")):
            for call, name in zip(("commit", "rollback", "extend", "release"), names, strict=True):
                settle = functools.partial(self.assertRaises, exceptions.ReservationNotFound, getattr(quotas, call))
                settle(self.context, lost[name])
                if call != "release":
                    settle(self.context, consumer=name)
            for consumer in (names[0], "held"):
                quotas.release(self.context, consumer=consumer)
            self.assertRaises(exceptions.ReservationNotFound, quotas.release, self.context, held)
            again = quotas.reserve(self.context, {"gpu": 1}, consumer=names[0])
            self.assertNotIn(again[0], lost[names[0]])
        self.assertEqual((0, 2), self.figures())

    def test_reservations_made_before_the_backup(self) -> None:
        """What was settled after the backup has its earlier state again; the same call settles it again."""
        reserved, given_up = (self.quotas.reserve(self.context, {"gpu": 1}, consumer=consumer) for consumer in "ab")
        detached, changed = self.attach("c"), self.attach("d")

        def settle() -> None:
            self.quotas.commit(self.context, reserved)
            self.quotas.rollback(self.context, given_up)
            self.quotas.release(self.context, detached)
            self.quotas.release(self.context, changed)
            self.assertEqual((1, 0), self.figures())

        self.back_up()
        settle()
        self.restore()
        self.assertEqual((2, 2), self.figures())
        two = {"gpu": 2}
        self.assertRaises(exceptions.ReservationConflict, self.quotas.reserve, self.context, two, consumer="d")
        settle()

    def test_an_attachment_is_charged(self) -> None:
        """The restore happens while the device is being attached."""
        self.back_up()
        with attachment(self.quotas, self.context, {"gpu": 2}, consumer="a"):
            self.restore()
        self.assertEqual((2, 0), self.figures())

    def test_no_other_project_is_charged(self) -> None:
        """IDs are reused after a restore: a cached ID of a project must not select the row of another project."""
        lost, new = ([base.Context(f"{name}{number}") for number in range(3)] for name in ("lost", "new"))
        self.back_up()
        for context in lost:
            self.quotas.reserve(context, {"gpu": 1})
        self.restore()
        other = self.another_process()
        for quotas, context in zip([other] * 3 + [self.quotas] * 3, new + lost, strict=True):
            quotas.reserve(context, {"gpu": 1})
        self.assertEqual([1] * 6, [other.get_usages(context)["gpu"].reserved for context in (*lost, *new)])


class TestMoves(RestoreTestCase, test_limits.LimitsTestCase):
    """The backup lacks a move of a project, which moves again after the restore; a process has cached the lost path."""

    def test_a_move_and_an_import(self) -> None:
        """The move to ``a`` is lost; ``b`` allows one more."""
        administration = self.make_limited().limits  # of another process
        tree = {"top": None, "a": "top", "b": "top", "old": "top", "leaf": "old"}
        self.import_tree(tree, {"top": 200, "a": 50, "b": 3, "old": 50, "leaf": 3}, gpu=0)
        for project_id, amount in (("a", 1), ("b", 2), ("leaf", 1)):
            self.hold(project_id, amount)

        def move(parent: str) -> None:
            administration.move_project(base.ADMIN, "leaf", parent)

        def import_move(parent: str) -> None:
            children = [{"id": parent, "children": [{"id": "leaf"}]}]
            administration.import_limits(base.ADMIN, {"projects": [{"id": "top", "children": children}]})

        leaf = base.Context("leaf")
        for call in (move, import_move):
            self.back_up()
            call("a")
            self.quotas.reserve(leaf, {"gpu": 1}, consumer="lost")
            self.restore()
            call("b")
            error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, leaf, {"gpu": 1})
            self.assertEqual(["b"], [over.project_id for over in error.overs])
            self.assertEqual([], self.engine.audit(base.ADMIN))
            call("old")


class TestProviders(RestoreTestCase, test_limits.LimitsTestCase):
    def test_a_lost_provider_and_another_one(self) -> None:
        """The other one gets the lost one's id; its inventory of another resource is added first."""
        self.set(None, 9)
        other = self.make_limited().capacity  # of another process
        self.back_up()
        other.add_provider(base.ADMIN, "node-a")
        other.set_inventories(base.ADMIN, "node-a", {"gpu": Inventory(8)})
        self.engine.reserve(self.context, {"gpu": 1}, consumer="lost", provider="node-a")
        self.restore()
        other = self.make_limited().capacity
        other.add_provider(base.ADMIN, "node-b")
        other.set_inventories(base.ADMIN, "node-b", {"fpga": Inventory(8)})
        other.set_inventories(base.ADMIN, "node-b", {"gpu": Inventory(8)})
        self.assertRaises(
            exceptions.ProviderNotFound,
            self.engine.reserve, self.context, {"gpu": 1}, consumer="new", provider="node-a",
        )  # fmt: skip
        self.assert_invariants()


class TestCyborg(RestoreTestCase):
    """The parts of the Cyborg integration that call the ledger, across a restore."""

    def test_bind_and_unbind(self) -> None:
        """A bind in progress is charged; a rollback or an unbind of a lost reservation is no error."""
        charger = BindTracker(self.quotas, bind_expire_seconds=60)
        self.back_up()
        binds = charger.reserve_binds([(Caller("p1"), Claim(arq, {"gpu": 1})) for arq in ("a", "b", "c")])
        self.attach("e")
        self.restore()
        with fixtures_.FakeLogger(level=logging.ERROR) as log:
            self.assertTrue(binds["c"].extend(60))
            binds["a"].commit(lambda: True)
            binds["b"].give_up()
            self.assertTrue(charger.release("e", "p1"))
        self.assertEqual("", log.output)
        binds["c"].commit(lambda: True)
        self.assertEqual((2, 0), self.figures())
        self.assertEqual([], self.quotas.audit(base.ADMIN))

    def test_reconcile(self) -> None:
        """The documented procedure: afterwards the ledger agrees with Cyborg's records."""
        cloud = Cloud()
        for arq in ("stays", "unbound later"):
            self.attach(arq)
            cloud.bind(arq)
        in_flight = self.quotas.reserve(self.context, {"gpu": 1}, consumer="bound later")
        self.back_up()
        self.attach("bound and lost")
        self.quotas.release(self.context, consumer="unbound later")
        self.quotas.commit(self.context, in_flight)
        del cloud.arqs["unbound later"]
        for arq in ("bound and lost", "bound later"):
            cloud.bind(arq)
        self.restore()
        self.make_overdue(*in_flight)
        self.assertEqual(1, self.quotas.expire(base.ADMIN))
        reconciler = Reconciler(self.quotas, cloud, ("gpu",), grace_seconds=0, share=100)
        report = reconciler.find()
        found = {difference.arq: difference.problem for difference in report.differences}
        expected = {"bound and lost": "not charged", "bound later": "not charged", "unbound later": "not attached"}
        self.assertEqual(expected, found)
        reconciler.heal(report)
        self.assertEqual([], list(reconciler.find().differences))
        self.assertEqual((3, 0), self.figures())
        self.assert_invariants()
