# SPDX-License-Identifier: Apache-2.0
"""What a reconciliation repairs automatically, and when it takes Cyborg's records for a wrong or an old database."""

from __future__ import annotations

from unittest import mock

from cyborg_quota import exceptions
from cyborg_quota.cyborg import reconciler as reconciler_module
from tests import base, fixtures
from tests.functional.test_reconciler import ReconcilerTestCase


class TestRefused(ReconcilerTestCase):
    """A repair that the database refuses, or whose rows are locked, holds up no repair of another project.

    The errors are made by the test, so that one database is enough.
    """

    scenarios = fixtures.ON_SQLITE

    def test_a_refused_release(self) -> None:
        """The others of its batch are repaired one by one."""
        refused_uuids = self.charge("refused")
        self.charge("a", "z")
        self.charge("ghost", project_id="p2")
        real = self.engine.release

        def release(context: object, uuids: list[str]) -> None:
            if set(uuids) & set(refused_uuids):
                raise exceptions.DatabaseError("The database refused a statement.")
            real(context, uuids)

        report = self.reconciler().find()
        with (
            mock.patch.object(self.engine, "release", release),
            self.assertLogs(reconciler_module.LOG.logger, "WARNING") as logged,
        ):
            repaired = self.reconciler().heal(report)
        self.assertEqual(["a", "ghost", "z"], [done.arq for done in repaired])
        self.assertEqual(1, len(logged.output))
        self.assertIn("Not repaired: ARQ refused: not attached", logged.output[0])
        self.assertEqual([(1, 0), (0, 0)], [self.figures(project_id) for project_id in ("p1", "p2")])

    def test_a_locked_project(self) -> None:
        """Its other ARQs are not tried; and the ARQs that were repaired before are read again."""
        self.charge("a", "b")
        self.charge("c", project_id="p2")
        self.charge("bound again", project_id="p0")
        report = self.reconciler().find()
        real, calls = self.engine.release, []

        def release(context: object, uuids: list[str]) -> None:
            projects = {row.project_id for row in self.engine.list_reservations(base.ADMIN, reservations=uuids)}
            calls.append(projects)
            if projects == {"p1"}:
                self.cloud.bind("bound again", project_id="p0")
                raise exceptions.DatabaseUnavailable("Lock wait timeout exceeded", 9.0)
            real(context, uuids)

        with mock.patch.object(self.engine, "release", release):
            repaired = self.reconciler().heal(report)
        self.assertEqual((["bound again", "c"], [{"p0"}, {"p1"}, {"p2"}]), ([done.arq for done in repaired], calls))
        self.assertEqual([(1, 0), (2, 0), (0, 0)], [self.figures(project_id) for project_id in ("p0", "p1", "p2")])

    def test_all_are_refused(self) -> None:
        """The repair ends after some failures: the cause is a general one."""
        for number in range(4):
            self.charge(f"ghost {number}", project_id=f"p{number}")
        report = self.reconciler().find()
        refused = exceptions.DatabaseError("The database refused a statement.")
        with (
            mock.patch.object(reconciler_module, "_MAX_FAILURES", 3),
            mock.patch.object(self.engine, "release", side_effect=refused) as release,
        ):
            self.assertRaises(exceptions.DatabaseError, self.reconciler().heal, report)
        self.assertEqual(3, release.call_count)


class TestAutomatic(ReconcilerTestCase):
    scenarios = fixtures.ON_SQLITE

    def automatic(self) -> list[str]:
        reconciler = self.reconciler()
        return [done.arq for done in reconciler.heal(reconciler.find(), is_automatic=True)]

    def test_not_while_it_is_changing(self) -> None:
        """Not ARQs that Cyborg is about to bind or to delete."""
        self.cloud.others.update({"is being deleted": True, "unbound": False})
        self.cloud.bind("stays")
        self.charge("gone", "is being deleted", "unbound", "stays")
        self.assertEqual(["gone", "unbound"], self.automatic())

    def test_a_shrunken_record(self) -> None:
        """An empty one is that of a wrong database, or a new one: nothing is released, however few they are.

        An old backup has less than half of the charged ARQs.
        """
        self.cloud.others = {}
        for charged, bound in ((1, 0), (11, 5)):
            arqs = [f"a{number}" for number in range(charged)]
            self.charge(*arqs)
            self.cloud.bind(*arqs[:bound])
            reconciler = self.reconciler()
            error = self.assertRaises(reconciler_module.RecordsShrunk, reconciler.heal, reconciler.find())
            self.assertEqual((charged - bound, charged, not bound), (error.lost, error.charged, error.is_empty))
            self.assertEqual((charged, 0), self.figures())
            self.assertEqual(charged - bound, len(reconciler.heal(reconciler.find(), force=True)))

    def test_half_is_not_shrunken(self) -> None:
        """A small number is not either: an outage at the end of an instance leaves as many."""
        for count, bound in ((12, 6), (5, 1), (1, 0)):
            arqs = [f"{count} {number}" for number in range(count)]
            self.charge(*arqs)
            self.cloud.bind(*arqs[:bound])
            self.assertEqual(count - bound, len(self.automatic()))
            self.cloud.arqs.clear()
            self.quotas.release(self.context, group="i1")

    def test_a_small_record_of_another_database(self) -> None:
        """A conductor never releases all of several charges; an operator's --heal does, up to the usual bound."""
        self.charge(*[f"a{number}" for number in range(5)])
        self.assertRaises(reconciler_module.RecordsShrunk, self.automatic)
        self.assertEqual((5, 0), self.figures())
        # A charge that is not compared, or that is being bound again, does not make it another case.
        self.charge("of a rule that was removed", fpga=1)
        self.charge("is being bound again")
        self.cloud.others["is being bound again"] = True
        self.quotas.reserve(base.Context("p2"), {"gpu": 1}, consumer="is being bound again")
        self.assertRaises(reconciler_module.RecordsShrunk, self.automatic)
        self.assertEqual(5, len(self.reconciler().heal(self.reconciler().find(), force=True)))
