# SPDX-License-Identifier: Apache-2.0
"""Resizing what a consumer holds, on each database."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cyborg_quota import ANY, Inventory, exceptions
from tests import base, fixtures, hooks
from tests.base import ADMIN


class ResizeTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.plant({"root": None, "p1": "root", "p2": "root", "side": None})

    def hold(self, consumer: str = "c", commit: bool = True, **deltas: int) -> list[str]:
        uuids = self.quotas.reserve(self.context, deltas, consumer=consumer)
        if commit:
            self.quotas.commit(self.context, uuids)
        return uuids

    def resize(self, consumer: str = "c", expected: dict[str, int] | None = None, **amounts: int) -> None:
        self.quotas.resize(self.context, amounts, consumer=consumer, expected=expected)

    def transfer(self, to_project: str = "p2", project_id: str = "p1") -> None:
        self.quotas.transfer(ADMIN, to_project, project_id, consumer="c")

    def deltas(self, consumer: str = "c", project_id: str = "p1") -> dict[str, int]:
        rows = self.engine.get_reservations(ADMIN, project_id, consumer=consumer)
        return {row.resource: row.delta for row in rows if row.ended_at is None}

    def rows(self) -> list[Any]:
        """What a call may change, without the times of changes."""
        columns = {
            "reservations": "id, uuid, project_id, usage_id, delta, state, consumer_id, claim_ordinal, generation,"
            " expire",
            "quota_usages": "id, project_id, resource, used, reserved, subtree, generation",
            "inventories": "id, used, free",
            "reservation_changes": "id",
        }
        return [self.fetch(f"SELECT {names} FROM {table} ORDER BY id") for table, names in columns.items()]

    def refuse(self, error: type[Exception], call: Callable[..., object], *args: Any, **named: Any) -> Any:
        """The call raises ``error`` and changes nothing."""
        before = self.rows()
        raised = self.assertRaises(error, call, *args, **named)
        self.assertIs(error, type(raised))
        self.assertEqual(before, self.rows())
        return raised


class TestResize(ResizeTestCase):
    def test_both_directions_and_states(self) -> None:
        """What follows uses the new amounts."""
        for is_committed, end, left in (
            (True, "release", 0),
            (False, "rollback", 0),
            (False, "release", 0),
            (False, "expire", 0),
            (False, "commit", 5),
        ):
            consumer = f"{is_committed} {end}"
            uuids = self.hold(consumer, is_committed, gpu=2, fpga=3)
            self.resize(consumer, gpu=5, fpga=1)
            figures = [self.figures(), self.figures(resource="fpga")]
            self.assertEqual([(5, 0), (1, 0)] if is_committed else [(0, 5), (0, 1)], figures)
            rows = self.engine.get_reservations(self.context, consumer=consumer)
            self.assertEqual(list(zip(uuids, (5, 1), strict=True)), [(row.uuid, row.delta) for row in rows])
            if end == "expire":
                self.make_overdue(*uuids)
                self.assertEqual(2, self.quotas.expire(ADMIN))
            else:
                getattr(self.quotas, end)(self.context, consumer=consumer)
            self.assertEqual((left, 0), self.figures())

    def test_a_repeat_is_a_no_op(self) -> None:
        self.hold(gpu=2, fpga=1)
        error = self.refuse(exceptions.AmountChanged, self.resize, expected={"gpu": 3}, gpu=4)
        self.assertEqual(({"gpu": 2}, {"gpu": 3}), (error.held, error.requested))
        self.resize(expected={"gpu": 2}, gpu=4, fpga=2)
        before = self.rows()
        self.resize(gpu=4)
        self.resize(expected={"gpu": 2}, gpu=4)
        self.assertEqual(before, self.rows())
        self.refuse(exceptions.AmountChanged, self.resize, expected={"gpu": 2}, gpu=5)
        self.refuse(exceptions.InvalidRequest, self.resize, expected={"fpga": 2}, gpu=5)

    def test_all_or_nothing_over_quota(self) -> None:
        """A reduction ignores limits."""
        self.limits.own["p1", "gpu"] = 6
        self.limits.subtree_limits["root", "fpga"] = 4
        self.hold(gpu=2, fpga=3)
        self.hold("other", gpu=1)
        error = self.refuse(exceptions.OverQuota, self.resize, gpu=6, fpga=1)
        self.assertEqual([("p1", "gpu", 4)], [(over.project_id, over.resource, over.requested) for over in error.overs])
        error = self.refuse(exceptions.OverQuota, self.resize, gpu=1, fpga=5)
        self.assertEqual([("root", None)], [(over.project_id, over.subtree) for over in error.overs])
        self.resize(gpu=5, fpga=4)
        self.assertEqual((6, 0), self.figures())
        self.limits.own["p1", "gpu"] = self.limits.subtree_limits["root", "gpu"] = 0
        self.resize(gpu=3)
        self.assertEqual((4, 0), self.figures())
        self.refuse(exceptions.OverQuota, self.resize, gpu=4)
        self.execute("UPDATE quota_usages SET used = 0, subtree = 0 WHERE resource = 'gpu'")
        self.resize(gpu=2)
        self.assertEqual((3, 0), self.figures(), "a counter that has drifted")

    def test_capacity(self) -> None:
        self.capacity.add_provider(ADMIN, "n1")
        self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(9, min_unit=2, step_size=2), "fpga": Inventory(2)})
        self.quotas.reserve(self.context, {"gpu": 4, "fpga": 1}, consumer="c", provider=ANY)
        self.resize(gpu=8, fpga=2)
        self.assertEqual({8, 2}, {record.used for record in self.capacity.list_inventories(ADMIN)})
        (over,) = self.refuse(exceptions.OverCapacity, self.resize, gpu=2, fpga=3).overs
        self.assertEqual(("n1", "fpga", 3, None), (over.provider, over.resource, over.requested, over.capacity))
        # The unit rules apply to the new amount, also of a reduction.
        self.assertIn("step_size is 2", self.refuse(exceptions.OverCapacity, self.resize, gpu=3).overs[0].rule)
        # A reduction ignores the capacity.
        self.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(2, min_unit=2, max_unit=8, step_size=2)})
        self.resize(gpu=6)
        self.refuse(exceptions.OverCapacity, self.resize, gpu=8)
        self.limits.own["p1", "gpu"] = 1
        self.refuse(exceptions.OverQuota, self.resize, gpu=8)  # reported first
        self.assertEqual([], self.engine.audit(ADMIN))
        self.quotas.release(self.context, consumer="c")
        self.assertEqual({0}, {record.used for record in self.capacity.list_inventories(ADMIN)})

    def test_what_is_not_held_and_bad_input(self) -> None:
        error = self.refuse(exceptions.ReservationNotFound, self.resize, "nobody", gpu=2)
        self.assertEqual("Reservation, consumer or group 'nobody' was not found.", str(error))
        self.hold(gpu=1)
        self.hold("most", gpu=2**31 - 2)
        error = self.refuse(exceptions.ResourceNotHeld, self.resize, gpu=2, fpga=1)
        self.assertEqual(("p1", "c", "fpga"), (error.project_id, error.uuid, error.resource))
        self.assertIn("'c' of project 'p1' holds no 'fpga'. Reserve it for another consumer.", str(error))
        for kind, amounts, consumer, expected in (
            *((exceptions.InvalidDelta, {"gpu": wrong}, "c", None) for wrong in (0, -1, True, 2**31, "2")),
            (exceptions.InvalidDelta, {"gpu": 1}, "c", {"gpu": 0}),
            (exceptions.UnknownResource, {"tpu": 1}, "c", None),
            (exceptions.InvalidClaim, {}, "c", None),
            (exceptions.InvalidSelection, {"gpu": 1}, None, None),
            (exceptions.UsageOverflow, {"gpu": 2**31 - 1}, "c", None),
        ):
            resize = functools.partial(self.quotas.resize, self.context, amounts, consumer=consumer, expected=expected)
            self.refuse(kind, resize)

    def test_a_lost_answer(self) -> None:
        """The retry finds its own change, also if another call has changed the amount since."""
        self.hold(gpu=4)
        other, disconnect = self.make_engine(), hooks.disconnect

        def resize_and_disconnect(backend: str) -> Exception:
            other.resize(self.context, {"gpu": 9}, consumer="c")
            return disconnect(backend)

        self.patch(hooks, "disconnect", resize_and_disconnect)
        with hooks.LostCommits(self.engine, self.backend) as loss:
            self.resize(expected={"gpu": 4}, gpu=6)
        self.assertEqual((1, (9, 0)), (loss.lost, self.figures()))


class TestStaleCaches(ResizeTestCase):
    """Another process has cached the reservation as it was inserted: what it ends is what is held now."""

    def check(self, change: Callable[[str], object], project_id: str, amount: int, provider: str | None = None) -> None:
        other = fixtures.Checked(self.make_engine(), self.url)
        for end, expected in (("commit", (amount, 0)), ("rollback", (0, 0)), ("release", (0, 0))):
            for by_uuid in (True, False):
                consumer = f"{end} {by_uuid} {project_id} {provider}"
                uuids = other.reserve(self.context, {"gpu": 2}, consumer=consumer, provider=provider)
                change(consumer)
                by_name = {"project_id": project_id, "consumer": consumer}
                getattr(other, end)(ADMIN, **({"reservations": uuids} if by_uuid else by_name))
                self.assertEqual(expected, self.figures(project_id))
                self.engine.release(ADMIN, uuids)

    def test_resize_and_transfer(self) -> None:
        self.add_provider("n1", gpu=9)
        for provider in (None, "n1"):
            self.check(lambda consumer: self.resize(consumer, gpu=7), "p1", 7, provider)
            self.check(lambda consumer: self.quotas.transfer(ADMIN, "p2", "p1", consumer=consumer), "p2", 2, provider)

    def test_the_rows_are_cached(self) -> None:
        """Otherwise the tests above could not fail: without a resize, nothing is read before a commit."""
        other = self.make_engine()
        other.rollback(self.context, other.reserve(self.context, {"gpu": 1}))
        uuids = other.reserve(self.context, {"gpu": 2}, consumer="c")
        with hooks.recorded_statements(other) as sent:
            other.commit(self.context, uuids)
        if self.backend != "sqlite":  # (it has no single statements)
            self.assertFalse([text for text in sent if text.startswith("SELECT reservations")], sent)


class TestTransfer(ResizeTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_all_that_is_live_moves(self) -> None:
        self.add_provider("n1", gpu=9, fpga=9)
        gpu, fpga = self.quotas.reserve(self.context, {"gpu": 2, "fpga": 3}, consumer="c", group="g", provider="n1")
        self.quotas.commit(self.context, [gpu])
        self.transfer()
        self.assertEqual({"gpu": 2, "fpga": 3}, self.deltas(project_id="p2"))
        figures = [self.figures(project_id, resource) for project_id in ("p1", "p2") for resource in ("gpu", "fpga")]
        self.assertEqual([(0, 0), (0, 0), (2, 0), (0, 3)], figures)
        self.assertEqual({2, 3}, {record.used for record in self.capacity.list_inventories(ADMIN)})
        self.assertRaises(exceptions.ReservationNotFound, self.quotas.commit, self.context, [fpga])
        self.quotas.commit(base.Context("p2"), group="g")
        self.quotas.release(base.Context("p2"), consumer="c")
        self.assertEqual({0}, {record.used for record in self.capacity.list_inventories(ADMIN)})
        self.assertEqual((0, 0), self.figures("p2"))

    def test_a_repeat_is_a_no_op(self) -> None:
        """A consumer of the same name is none. Nor is it after a further transfer."""
        self.quotas.reserve(base.Context("p2"), {"gpu": 1}, consumer="c")
        self.refuse(exceptions.ReservationNotFound, self.transfer)
        self.hold(gpu=2)
        self.refuse(exceptions.InvalidRequest, self.transfer, "p1")
        self.refuse(exceptions.InvalidName, self.transfer, "")
        error = self.refuse(exceptions.ReservationConflict, self.transfer)
        self.assertEqual(({"gpu": 1}, {"gpu": 2}), (error.held, error.requested))
        self.make_overdue(*(row.uuid for row in self.engine.get_reservations(ADMIN, "p2")))
        self.transfer()
        self.assertEqual([(0, 0), (2, 0)], [self.figures("p1"), self.figures("p2")])
        before = self.rows()
        self.transfer()
        self.assertEqual(before, self.rows())
        self.transfer("side", project_id="p2")
        self.refuse(exceptions.ReservationNotFound, self.transfer)

    def test_the_limits_of_the_receiver(self) -> None:
        """A limit above both does not apply: its total does not change. Also from a project to its parent, and back."""
        self.hold(gpu=3)
        self.quotas.rollback(base.Context("p2"), self.quotas.reserve(base.Context("p2"), {"gpu": 1}))
        self.limits.own["p1", "gpu"] = 0
        self.limits.subtree_limits["root", "gpu"] = 1
        self.limits.own["p2", "gpu"] = self.limits.own["root", "gpu"] = 2
        self.assertEqual(["p2"], [over.project_id for over in self.refuse(exceptions.OverQuota, self.transfer).overs])
        self.refuse(exceptions.OverQuota, self.transfer, "root")
        self.limits.subtree_limits["side", "gpu"] = 2
        error = self.assertRaises(exceptions.OverQuota, self.transfer, "side")
        self.assertEqual([("side", 0)], [(over.project_id, over.subtree) for over in error.overs])
        self.limits.own["p2", "gpu"] = self.limits.own["root", "gpu"] = 3
        self.transfer("root")
        self.assertEqual([(0, 0), (3, 0)], [self.figures("p1"), self.figures("root")])
        self.transfer("p2", project_id="root")
        self.assertEqual([(3, 0), (0, 0)], [self.figures("p2"), self.figures("root")])
        self.refuse(exceptions.OverQuota, self.transfer, "p1", project_id="p2")


class TestKnownAs(ResizeTestCase):
    scenarios = fixtures.ON_SQLITE

    def reserve(self, **deltas: int) -> list[str]:
        return self.quotas.reserve(self.context, deltas, group="g")

    def commit(self, uuids: list[str], name: str = "volume", context: Any = None) -> None:
        self.quotas.commit(context or self.context, uuids, known_as=name)

    def test_both_names_release(self) -> None:
        """Of what was committed before, too. A repeat is a no-op. (See also the example of the proposal Delimiter.)"""
        uuids = self.reserve(gpu=2, fpga=1)
        self.quotas.commit(self.context, uuids)
        self.commit(uuids)
        before = self.rows()
        self.commit(uuids[::-1])
        self.quotas.commit(self.context, uuids)
        again = self.quotas.reserve(self.context, {"gpu": 2, "fpga": 1}, consumer="volume")
        self.assertEqual((before, sorted(uuids)), (self.rows(), sorted(again)))
        self.resize("volume", gpu=3)
        self.assertEqual({"gpu": 3, "fpga": 1}, self.deltas("volume"))
        self.quotas.release(self.context, consumer="volume")
        self.assertEqual(["released"] * 2, self.states(*uuids))

    def test_conflicts_and_errors(self) -> None:
        """With what another claim holds under the name; if that is overdue, it expires."""
        held = self.hold("volume", commit=False, fpga=1)
        uuids = self.reserve(gpu=2)
        error = self.refuse(exceptions.NameConflict, self.commit, uuids)
        self.assertEqual(({"fpga": 1}, {"gpu": 2}), (error.held, error.requested))
        self.refuse(exceptions.NameConflict, self.commit, self.hold("other", commit=False, gpu=1), "new")
        self.refuse(exceptions.NameConflict, self.commit, [*uuids, *self.reserve(fpga=1)])
        self.make_overdue(*held)
        self.commit(uuids)
        self.assertEqual(["expired", "committed"], self.states(*held, *uuids))
        # The errors of a commit.
        stranger, one, two = base.Context("p2"), self.reserve(gpu=1), self.reserve(gpu=1)
        foreign = self.quotas.reserve(stranger, {"fpga": 1})
        for kind, context, rows, name in (
            (exceptions.ReservationNotFound, self.context, ["5b5d71cd-2f3a-44ee-9d33-64a6a5f2a9cc"], "volume"),
            (exceptions.ReservationNotFound, stranger, one, "volume"),
            (exceptions.InvalidSelection, self.context, one + two, "volume"),
            (exceptions.InvalidSelection, ADMIN, one + foreign, "volume"),
            *((exceptions.InvalidName, self.context, one, name) for name in ("", " x", 7)),
        ):
            self.refuse(kind, functools.partial(self.commit, rows, name, context))
        self.refuse(exceptions.InvalidSelection, self.quotas.commit, self.context, group="g", known_as="volume")
