# SPDX-License-Identifier: Apache-2.0
"""Reservations that a crashed conductor has left are committed by another one. The records are set by the test."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from unittest import mock

import testscenarios

from cyborg_quota import Claim, exceptions
from cyborg_quota.integrations.cyborg import recovery
from cyborg_quota.integrations.cyborg.diff import Attached
from tests import base
from tests.functional.test_reconciler import Cloud

load_tests = testscenarios.load_tests_apply_scenarios


class TestCommitBound(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.cloud = Cloud()

    def recover(self, *own: str) -> int:
        return recovery.commit_bound(self.quotas, self.cloud, own)  # type: ignore[arg-type]

    def reserve(self, arq: str, project_id: str = "p1", **deltas: int) -> list[str]:
        return self.quotas.reserve(base.Context(project_id), deltas or {"gpu": 1}, consumer=arq, group="i1")

    def states(self) -> dict[str | None, str]:
        return {row.consumer: row.state for row in self.quotas.list_reservations(base.ADMIN)}

    def test_only_bound_arqs(self) -> None:
        for arq in ("bound", "not bound", "our own", "of another project"):
            self.reserve(arq)
        self.cloud.bind("bound")
        self.cloud.bind("our own")
        self.cloud.bind("of another project", "p2")
        self.assertEqual(1, self.recover("our own"))
        committed = [arq for arq, state in self.states().items() if state == "committed"]
        self.assertEqual(["bound"], committed)
        self.assertEqual((1, 3), self.figures())
        self.assertEqual(0, self.recover("our own"))

    def test_beside_many_older_reservations(self) -> None:
        """Those of other callers stay reserved, and do not hide a newer one. (A page has two rows here.)"""
        others = [Claim(f"other-{number}", {"gpu": 1}, source="west") for number in range(4)]
        self.quotas.reserve_many(self.context, [*others, Claim("other-4", {"gpu": 1})], group="i0")
        self.reserve("bound")
        for arq in ("bound", "other-0"):
            self.cloud.bind(arq)
        with mock.patch.object(recovery, "_PAGE_ROWS", 2):
            self.assertEqual(1, recovery.commit_bound(self.quotas, self.cloud, (), "east"))  # type: ignore[arg-type]
        self.assertEqual(["bound"], [arq for arq, state in self.states().items() if state == "committed"])

    def test_a_model_and_its_family(self) -> None:
        self.reserve("a", gpu=1, **{"gpu.A100": 1})
        self.cloud.bind("a", gpu=1, **{"gpu.A100": 1})
        self.assertEqual(1, self.recover())
        self.assertEqual([(1, 0), (1, 0)], [self.figures(resource=name) for name in ("gpu", "gpu.A100")])

    def test_on_two_pages(self) -> None:
        """Each page of one row is committed alone; an overdue ARQ is charged again with the first one."""
        both = {"gpu": 1, "gpu.A100": 1}
        for arq in ("a", "b"):
            uuids = self.reserve(arq, **both)
            self.cloud.bind(arq, **both)
        self.make_overdue(*uuids)
        with mock.patch.object(recovery, "_PAGE_ROWS", 1):
            self.recover()
        self.assertEqual([(2, 0), (2, 0)], [self.figures(resource=name) for name in both])

    def test_overdue(self) -> None:
        """No conductor ran in the meantime. It is charged, regardless of the present limit."""
        uuids = self.reserve("a")
        self.cloud.bind("a")
        self.make_overdue(*uuids)
        self.limits.limits[None, "gpu"] = 0
        self.assertEqual(1, self.recover())
        self.assertEqual((1, 0), self.figures())
        self.assertEqual(0, self.quotas.expire(base.ADMIN))

    def test_overdue_and_unbound_during_the_recovery(self) -> None:
        """Unbound and released after the check: the release found nothing live, so the charge is released."""
        uuids = self.reserve("a")
        self.cloud.bind("a")
        self.make_overdue(*uuids)
        real = self.cloud.bound_of

        def then_unbound(arqs: Collection[str]) -> dict[str, Attached]:
            found = real(arqs)
            self.cloud.arqs.clear()
            self.quotas.release(self.context, consumer="a")
            return found

        self.cloud.bound_of = then_unbound  # type: ignore[method-assign]
        self.assertEqual(0, self.recover())
        self.assertEqual((0, 0), self.figures())

    def test_overdue_and_bound_for_another_project(self) -> None:
        """It is bound for another project now, which that bind charges."""
        uuids = self.reserve("a")
        self.cloud.bind("a")
        self.make_overdue(*uuids)
        adopt = self.engine.adopt

        def then_rebound(*arguments: Any, **named: Any) -> list[str]:
            self.cloud.bind("a", "p2")
            return adopt(*arguments, **named)

        with mock.patch.object(self.engine, "adopt", then_rebound):
            self.assertEqual(0, self.recover())
        self.assertEqual((0, 0), self.figures())

    def test_settled_during_the_recovery(self) -> None:
        """Its conductor runs, and was faster; or it was unbound."""
        for settle in (self.quotas.commit, self.quotas.rollback):
            arq = settle.__name__
            self.reserve(arq)
            self.cloud.bind(arq)
            real = self.cloud.bound_of

            def settle_before(arqs: set[str], settle=settle, arq=arq, real=real) -> object:  # type: ignore[no-untyped-def]
                settle(self.context, consumer=arq)
                return real(arqs)

            self.cloud.bound_of = settle_before  # type: ignore[assignment,method-assign]
            self.recover()
            self.cloud.bound_of = real  # type: ignore[method-assign]
        self.assertEqual({"commit": "committed", "rollback": "rolled_back"}, self.states())
        self.assertEqual((1, 0), self.figures())

    def test_others_than_a_failed_one(self) -> None:
        """A commit that the database refuses holds up no other one; a locked row those of its project."""
        for error, committed in (
            (exceptions.DatabaseError("The database refused a statement."), ["b", "c"]),
            (exceptions.DatabaseUnavailable("Lock wait timeout exceeded", 9.0), ["c"]),
        ):
            fail = self.reserve("a")
            for arq, project_id in (("a", "p1"), ("b", "p1"), ("c", "p2")):
                if arq != "a":
                    self.reserve(arq, project_id)
                self.cloud.bind(arq, project_id)
            real = self.engine.commit

            def commit(context: object, uuids: list[str], *, fail=fail, real=real, error=error) -> None:  # type: ignore[no-untyped-def]
                if uuids == fail:
                    raise error
                real(context, uuids)

            with mock.patch.object(self.engine, "commit", commit):
                self.assertEqual(len(committed), self.recover())
            states = self.states()
            self.assertEqual(committed, sorted(str(arq) for arq in states if states[arq] == "committed"))
            self.assertEqual(3 - len(committed), self.recover())
            for project_id in ("p1", "p2"):
                self.quotas.release(base.Context(project_id), group="i1")

    def test_others_than_one_that_cannot_be_released(self) -> None:
        """It is charged, unbound meanwhile, and locked. The next page is recovered."""
        self.make_overdue(*self.reserve("a"))
        self.reserve("b", "p2")
        self.cloud.bind("a")
        self.cloud.bind("b", "p2")
        adopt = self.engine.adopt

        def then_unbound(*arguments: Any, **named: Any) -> list[str]:
            del self.cloud.arqs["a"]
            return adopt(*arguments, **named)

        locked = exceptions.DatabaseUnavailable("Lock wait timeout exceeded", 9.0)
        with (
            mock.patch.object(recovery, "_PAGE_ROWS", 1),
            mock.patch.object(self.engine, "adopt", then_unbound),
            mock.patch.object(self.engine, "release", side_effect=locked),
        ):
            self.assertEqual(1, self.recover())
        self.assertEqual((1, 0), self.figures("p2"))

    def test_nothing_is_reserved(self) -> None:
        """Cyborg's records are not read."""
        self.cloud.bound_of = self.fail  # type: ignore[method-assign]
        self.assertEqual(0, self.recover())
