# SPDX-License-Identifier: Apache-2.0
"""A process that changes limits, the tree or inventories is killed inside each transaction, and after its COMMIT.

The change and its entries in the history are then both stored, or neither is, and the replay gives the present state.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import sqlalchemy as sa
import testscenarios

from cyborg_quota import Inventory, QuotaEngine, exceptions
from cyborg_quota.db import change_log, charges
from cyborg_quota.types import TotalLimit
from tests import base, history_replay, hooks, on_sqlite
from tests.faults import kill_points
from tests.functional import test_limits

load_tests = testscenarios.load_tests_apply_scenarios

SPAN = (datetime.datetime(2090, 1, 1), datetime.datetime(2091, 1, 1))
IMPORTED = {
    "defaults": {"gpu": 50},
    "projects": [
        {
            "id": "a",
            "limits": {"gpu": 21},
            "children": [{"id": "c"}, {"id": "new", "limits": {"gpu": 2}}],
            "overrides": [{"resource": "gpu", "limit": 33, "from": "2090-01-01T00:00Z", "until": "2091-01-01T00:00Z"}],
        }
    ],
}


class Step(NamedTuple):
    """A change, and the calls that restore the state before it."""

    restore: Callable[[], object]
    change: Callable[[], object]


class CrashTestCase(test_limits.LimitsTestCase, kill_points.KillTestCase):
    """The projects a and b, and c below a, which holds 2 gpu."""

    def setUp(self) -> None:
        super().setUp()
        self.import_tree({"a": None, "b": None, "c": "a"}, {"a": 20, "b": 20, "c": 10}, gpu=40, fpga=40)
        self.engine.reserve(base.Context("c"), {"gpu": 2})

    def steps(self) -> dict[str, Step]:
        admin, context = self.admin, base.ADMIN
        return {
            "set": Step(
                lambda: admin.unset_limit(context, "gpu", "b"),
                lambda: admin.set_limit(context, "gpu", 5, "b", reason="more"),
            ),
            "unset": Step(
                lambda: admin.set_limit(context, "gpu", 5, "b"), lambda: admin.unset_limit(context, "gpu", "b")
            ),
            "override": Step(self.cancel_all, self.override),
            "cancel": Step(lambda: self.overrides() or self.override(), self.cancel_all),
            "move": Step(lambda: admin.move_project(context, "c", "a"), lambda: admin.move_project(context, "c", "b")),
            "import": Step(self.undo_import, lambda: admin.import_limits(context, IMPORTED)),
        }

    def overrides(self) -> list[str]:
        return [one.id for one in self.admin.list_overrides(base.ADMIN)[0]]

    def override(self) -> None:
        self.admin.set_overrides(base.ADMIN, {"gpu": 15}, "a", SPAN[1], start=SPAN[0])

    def cancel_all(self) -> None:
        self.admin.cancel_overrides(base.ADMIN, self.overrides())

    def undo_import(self) -> None:
        self.cancel_all()
        self.admin.set_limit(base.ADMIN, "gpu", 40)
        self.admin.move_project(base.ADMIN, "c", "b")
        self.admin.set_limit(base.ADMIN, "gpu", 20, "a")
        if "new" in dict(self.admin.list_projects(base.ADMIN)):
            self.admin.remove_project(base.ADMIN, "new")

    def content(self) -> Any:
        """The limits, overrides and tree."""
        return self.admin.export_limits(base.ADMIN)

    def state(self) -> tuple[Any, int]:
        """The content, and the number of entries of the history."""
        with self.sql.connect() as connection:
            entries = connection.execute(sa.text("SELECT COUNT(*) FROM changes")).scalar_one()
        return self.content(), entries

    def engine_of_process(self) -> QuotaEngine:
        return self.engine  # which the steps use

    def kills_of(self, step: Step) -> Iterator[kill_points.Kill]:
        """The kills of its change, in a process that is connected. ``before`` is the state before each."""

        def restore() -> None:
            step.restore()
            self.before = self.state()

        def connect_and_change(_engine: QuotaEngine) -> None:
            self.admin.list_limits(base.ADMIN)
            step.change()

        return self.kills(restore, connect_and_change)


class TestKilledChanges(CrashTestCase):
    def test_a_change_and_its_history_are_both_stored_or_neither(self) -> None:
        for name, step in self.steps().items():
            outcomes = set()
            for kill in self.kills_of(step):
                is_made = False
                if kill.has_effect:
                    content, entries = self.state()
                    is_made = content != self.before[0]
                    self.assertEqual(is_made, entries > self.before[1], (name, kill))
                    self.assertEqual([], history_replay.differences(self.engine), (name, kill))
                outcomes.add((kill.is_killed, is_made))
            self.assertEqual({(True, False), (True, True), (False, True)}, outcomes, name)
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))


class TestControls(CrashTestCase):
    @on_sqlite
    def test_naive_is_detected(self) -> None:
        """Writes the history in the transaction after that of the change: one of the kills leaves a difference."""
        waiting: list[Any] = []
        record = change_log.record
        step = self.steps()["set"]

        def change() -> None:
            with mock.patch.object(change_log, "record", lambda _connection, *recorded: waiting.append(recorded)):
                step.change()

            def write(connection: sa.Connection) -> None:
                change_log.serialize(connection)
                record(connection, *waiting[0])

            hooks.database_of(self.engine).write(write)

        self.assertTrue(any(history_replay.differences(self.engine) for _ in self.kills_of(Step(step.restore, change))))


class TestKilledTotals(CrashTestCase):
    def test_a_total_limit_is_switched(self) -> None:
        """It is enforced only if all is counted, what it counts is right, and a repeat of the call completes it."""
        self.engine.reserve(base.Context("b"), {"gpu": 3})
        limits = self.engine.limits
        calls: dict[str, Step] = {
            "set": Step(self.unset_total, lambda: limits.set_total_limits(base.ADMIN, {"gpu": 9})),
            "unset": Step(
                lambda: limits.set_total_limits(base.ADMIN, {"gpu": 9}),
                lambda: limits.unset_total_limits(base.ADMIN, ["gpu"]),
            ),
        }
        for name, step in calls.items():
            outcomes = set()
            for kill in self.kills_of(step):
                outcomes.add(tuple(limits.list_total_limits(base.ADMIN)))
                if not kill.has_effect:
                    continue
                self.assert_invariants()
                self.assertEqual([], self.engine.audit(base.ADMIN), (name, kill))
                self.assertEqual([], history_replay.differences(self.engine), (name, kill))
                with contextlib.suppress(exceptions.QuotaError):  # "there is no total limit": the first call removed it
                    step.change()
                self.assert_invariants()
                self.assertEqual(
                    [TotalLimit("gpu", 9, 5)] if name == "set" else [], limits.list_total_limits(base.ADMIN), kill
                )
            self.assertEqual({(), (TotalLimit("gpu", 9, 5),)}, outcomes, name)

    def unset_total(self) -> None:
        with contextlib.suppress(exceptions.QuotaError):
            self.engine.limits.unset_total_limits(base.ADMIN, ["gpu"])

    @on_sqlite
    def test_a_total_that_is_counted_after_its_limit_is_detected(self) -> None:
        """The control: the row and the limit are committed before what the roots hold is added."""
        count = charges.count_totals

        def naive(connection: Any, resources: Any) -> None:
            connection.connection.commit()
            connection.exec_driver_sql("BEGIN")  # a statement after which the process can be killed
            count(connection, resources)

        def change() -> None:
            with mock.patch.object(charges, "count_totals", naive):
                self.engine.limits.set_total_limits(base.ADMIN, {"gpu": 9})

        self.assertTrue(any(self.engine.audit(base.ADMIN) for _ in self.kills_of(Step(self.unset_total, change))))
        self.engine.heal(base.ADMIN)
        self.assert_invariants()


class TestKilledCapacityChanges(TestKilledChanges):
    """The same for the providers n1, which has 8 gpu and 4 fpga, and n2."""

    def setUp(self) -> None:
        super().setUp()
        self.capacity.add_provider(base.ADMIN, "n1")

    def steps(self) -> dict[str, Step]:
        capacity, context = self.capacity, base.ADMIN
        both = {"gpu": Inventory(8), "fpga": Inventory(4)}

        def have(name: str) -> None:
            if name not in {provider.name for provider in capacity.list_providers(context)}:
                capacity.add_provider(context, name)
            capacity.set_inventories(context, name, both)

        def have_not(name: str) -> None:
            have(name)
            capacity.remove_provider(context, name)

        changed = {"gpu": Inventory(5), "fpga": Inventory(2)}
        return {
            "add": Step(lambda: have_not("n2"), lambda: capacity.add_provider(context, "n2", parent="n1")),
            "set": Step(lambda: have("n1"), lambda: capacity.set_inventories(context, "n1", changed, reason="new")),
            "remove": Step(lambda: have("n2"), lambda: capacity.remove_provider(context, "n2")),
        }

    def content(self) -> Any:
        return self.capacity.list_providers(base.ADMIN), self.capacity.list_inventories(base.ADMIN)
