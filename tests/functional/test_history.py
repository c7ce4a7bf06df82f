# SPDX-License-Identifier: Apache-2.0
"""The history: who changed what, and that its replay gives what is stored (L1); on every database."""

from __future__ import annotations

import datetime
import decimal
import logging
from collections.abc import Callable
from typing import Any

import fixtures as fx
from oslo_context import context as oslo_context

from cyborg_quota import Inventory, QuotaEngine, exceptions
from cyborg_quota.db import change_log
from cyborg_quota.limits.models import Flat
from tests import base, fixtures, history_replay, hooks
from tests.functional import test_limits

NEVER = datetime.datetime(2999, 1, 1)
ALICE = oslo_context.RequestContext(
    user_id="alice", project_id="operators", request_id="req-1", is_admin=True, overwrite=False
)


class HistoryTestCase(test_limits.LimitsTestCase):
    policy = Flat

    def changes(self, project_id: str | None = None) -> list[tuple[Any, ...]]:
        """(action, project_id, resource, before, after) of each entry, oldest first."""
        entries = self.admin.history(base.ADMIN, project_id)
        return [
            (entry.action, entry.project_id, entry.resource, entry.before, entry.after) for entry in reversed(entries)
        ]

    def assert_replayed(self) -> None:
        self.assertEqual([], history_replay.differences(self.engine))

    def age(self, seconds: int) -> None:
        """Make all entries older."""
        for row in self.fetch("SELECT generation, ordinal, created_at FROM changes"):
            at = datetime.datetime.fromisoformat(str(row.created_at)) - datetime.timedelta(seconds=seconds)
            update = "UPDATE changes SET created_at = :t WHERE generation = :g AND ordinal = :o"
            self.execute(update, t=at.isoformat(" ", "microseconds"), g=row.generation, o=row.ordinal)


class TestReplay(HistoryTestCase):
    def test_a_change_whose_answer_is_lost_succeeds_once(self) -> None:
        """What it has done itself is no reason to refuse it; it is recorded once."""
        admin, capacity = self.admin, self.capacity
        admin.add_project(base.ADMIN, "parent")
        admin.set_limits(base.ADMIN, {"gpu": 9}, "parent")
        calls: list[Callable[[], object]] = [  # the last four: another object announces them
            lambda: admin.add_project(base.ADMIN, "child", "parent"),
            lambda: admin.set_limits(base.ADMIN, {"gpu": 3}, "child", generation=0),
            lambda: admin.set_overrides(base.ADMIN, {"gpu": 4}, "child", NEVER),
            lambda: admin.cancel_overrides(base.ADMIN, [admin.list_overrides(base.ADMIN, "child")[0][0].id]),
            lambda: admin.set_minimums(base.ADMIN, {"gpu": 2}, "child"),
            lambda: admin.set_total_limits(base.ADMIN, {"gpu": 20}),
            lambda: admin.unset_total_limits(base.ADMIN, ["gpu"]),
            lambda: admin.move_project(base.ADMIN, "child", None),
            lambda: admin.remove_project(base.ADMIN, "child"),
            lambda: self.pods.add(base.ADMIN, "east"),
            lambda: self.pods.change(base.ADMIN, "east", weight=2),
            lambda: capacity.add_provider(base.ADMIN, "n1"),
            lambda: capacity.add_provider(base.ADMIN, "n2", parent=capacity.show_provider(base.ADMIN, "n1").uuid),
            lambda: capacity.set_inventories(base.ADMIN, "n2", {"gpu": Inventory(3)}),
            lambda: capacity.remove_inventory(base.ADMIN, "n2", "gpu"),
        ]
        announced: list[object] = []
        self.patch(self.engine._driver.history, "listener", announced.append)
        for call in calls:
            with hooks.LostCommits(self.engine, self.backend, table="changes") as lost:
                call()
            self.assertEqual(1, lost.lost)
        self.assertEqual(len(calls) - 4, len(announced))
        found = history_replay.differences(self.engine)
        self.assertEqual([], [one for one in found if one.key[0] != "minimum"])  # (which the replay does not know)

    def test_a_change_that_is_not_recorded_is_found(self) -> None:
        """The control of the replay: the value differs now, or differs from what the next entry says."""
        self.admin.set_limit(base.ADMIN, "gpu", 5, "p")
        self.make_tree({"p": None, "child": "p"})
        self.execute("UPDATE project_limits SET hard_limit = 6")
        self.execute("UPDATE projects SET parent_id = NULL WHERE project_id = 'child'")
        limit, edge = ("limit", "p", "gpu", None, None), ("project", "child", None, None, None)
        self.assertEqual([(None, limit, 5, 6), (None, edge, "p", None)], history_replay.differences(self.engine))
        self.admin.set_limit(base.ADMIN, "gpu", 7, "p")
        entry = self.admin.history(base.ADMIN, "p")[0]
        self.assertIn((entry.id, limit, 5, 6), history_replay.differences(self.engine))

    def test_old_entries_are_deleted(self) -> None:
        for number in range(1, 4):
            self.admin.set_limit(base.ADMIN, "gpu", number, "p")
        self.age(86400)
        self.admin.set_limit(base.ADMIN, "gpu", 4, "p")
        self.assertEqual(0, self.admin.purge_history(base.ADMIN, 2 * 86400))
        self.patch(change_log, "_PURGED_GENERATIONS", 2)
        self.assertEqual(3, self.admin.purge_history(base.ADMIN, 3600))
        self.assertEqual([("set limit", "p", "gpu", 3, 4)], self.changes())
        self.assertEqual(0, self.admin.purge_history(base.ADMIN, 3600))
        self.assertEqual([], history_replay.differences(self.engine, is_purged=True))


class TestEntries(HistoryTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_what_is_recorded(self) -> None:
        admin = self.admin
        admin.set_limits(ALICE, {"gpu": 5, "fpga": 2}, reason="opening")
        calls: list[tuple[Any, ...]] = [
            (admin.set_limit, "gpu", 6),
            (admin.add_project, "atlas"),
            (admin.add_project, "higgs"),
            (admin.add_project, "physics", "atlas"),
            *[(admin.set_limit, "gpu", -1, "physics")] * 2,  # the second one is no change
            (admin.set_limit, "gpu", 0, "physics"),
            *[(admin.unset_limit, "gpu", "physics")] * 2,
            (admin.unset_limit, "fpga"),
            (admin.set_limit, "gpu", 9, "physics"),
            *[(admin.move_project, "physics", None)] * 2,
            (admin.remove_project, "physics"),
        ]
        for call, *arguments in calls:
            call(ALICE, *arguments)
        child = {"id": "higgs", "limits": {"gpu": None}}
        document = {"defaults": {"gpu": 3}, "projects": [{"id": "atlas", "limits": {"gpu": 7}, "children": [child]}]}
        for dry_run in (True, False):
            admin.import_limits(ALICE, document, reason="from the file", dry_run=dry_run)
        self.assertEqual(
            [
                ("set limit", None, "fpga", None, 2),
                ("set limit", None, "gpu", None, 5),
                ("set limit", None, "gpu", 5, 6),
                ("add project", "atlas", None, None, None),
                ("add project", "higgs", None, None, None),
                ("add project", "physics", None, None, "atlas"),
                ("set limit", "physics", "gpu", None, -1),
                ("set limit", "physics", "gpu", -1, 0),
                ("unset limit", "physics", "gpu", 0, None),
                ("unset limit", None, "fpga", 2, None),
                ("set limit", "physics", "gpu", None, 9),
                ("move project", "physics", None, "atlas", None),
                ("unset limit", "physics", "gpu", 9, None),
                ("remove project", "physics", None, None, None),
                ("set limit", None, "gpu", 6, 3),
                ("set limit", "atlas", "gpu", None, 7),
                ("move project", "higgs", None, None, "atlas"),
            ],
            self.changes(),
        )
        self.assert_replayed()
        found = {(one.operation, one.reason, one.id.split("-")[0]) for one in self.admin.history(base.ADMIN)[:3]}
        self.assertEqual([("import", "from the file")], [one[:2] for one in found], "it is one change")
        first = self.admin.history(base.ADMIN)[-2]
        self.assertEqual(("alice", "operators", "req-1", "opening"), (
            first.user_id, first.user_project_id, first.request_id, first.reason
        ))  # fmt: skip
        age = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) - (first.at or NEVER)
        self.assertLess(abs(age), datetime.timedelta(minutes=5))

    def test_edges_of_a_limit_driver_are_recorded(self) -> None:
        """As Keystone's driver adds them while reserving; then another source gives one of them another parent."""
        follow: Any = self.engine._driver.reserver._projects._follow
        for project_id in ("p1", "p2"):
            for _ in range(2):
                follow([project_id, "domain"], "keystone")
        entry = self.admin.history(base.ADMIN, "p1")[0]
        self.assertEqual(("keystone", "keystone", "domain"), (entry.user_id, entry.operation, entry.after))
        self.admin.move_project(base.ADMIN, "p2", "domain")
        self.admin.import_projects(ALICE, {"p1": None}, reason="driver changed")
        self.assert_replayed()
        self.assertEqual(
            [
                ("add project", "p1", None, None, "domain"),
                ("add project", "p2", None, None, "domain"),
                ("move project", "p1", None, "domain", None),
            ],
            self.changes(),
        )

    def test_it_can_be_required(self) -> None:
        engine = QuotaEngine(self.engine._driver, require_reason=True)
        engine.register_resources(["fpga", "gpu"])
        admin = engine.limits
        calls: list[Callable[..., Any]] = [
            lambda **reason: admin.set_limit(ALICE, "gpu", 1, **reason),
            lambda **reason: admin.set_limits(ALICE, {"gpu": 1}, "p", **reason),
            lambda **reason: admin.unset_limit(ALICE, "gpu", **reason),
            lambda **reason: admin.add_project(ALICE, "q", **reason),
            lambda **reason: admin.move_project(ALICE, "q", None, **reason),
            lambda **reason: admin.import_limits(ALICE, {"defaults": {"gpu": 9}}, **reason),
            lambda **reason: admin.remove_project(ALICE, "q", **reason),
            lambda **reason: admin.import_projects(ALICE, {"q": None}, **reason),
            lambda **reason: admin.set_overrides(ALICE, {"gpu": 1}, "p", NEVER, **reason),
            lambda **reason: admin.cancel_overrides(
                ALICE, [one.id for one in admin.list_overrides(base.ADMIN)[0]], **reason
            ),
            lambda **reason: engine.limits.set_total_limits(ALICE, {"gpu": 1}, **reason),
            lambda **reason: engine.limits.unset_total_limits(ALICE, ["gpu"], **reason),
        ]
        for call in calls:
            before = self.changes()
            error = self.assertRaises(exceptions.ReasonRequired, call)
            self.assertIn("[limits] require_reason", str(error))
            self.assertNotIn("--", str(error), "the REST API and Horizon show it too")
            self.assertEqual(before, self.changes())
            call(reason="because")
        admin.import_limits(ALICE, {"defaults": {"gpu": 7}}, dry_run=True)
        admin.set_overrides(ALICE, {"gpu": 1}, "p", NEVER, dry_run=True)
        admin.import_limits(ALICE, {"total": {"gpu": 7}}, dry_run=True)
        self.assertEqual(0, admin.purge_history(ALICE, 10**6))

    def test_bad_reasons(self) -> None:
        for reason in ("", "  ", "a\nb", "x" * 1001, 7, "\x1b[2J", "\ud800"):
            self.assertRaises(exceptions.InvalidRequest, self.admin.set_limit, ALICE, "gpu", 1, reason=reason)
        self.assertEqual([], self.changes())
        self.admin.set_limit(ALICE, "gpu", 1, reason=" 😀" * 500)
        self.assertEqual(("😀 " * 500).strip(), self.admin.history(base.ADMIN)[0].reason)
        values = {"user_id": "line\nbreak", "project_id": 7, "request_id": "x" * 5000, "is_admin": True}
        self.admin.set_limit(type("Odd", (), values)(), "gpu", 2)
        entry = self.admin.history(base.ADMIN)[0]
        self.assertEqual(("'line\\nbreak'", "7"), (entry.user_id, entry.user_project_id))
        self.assertTrue(str(entry.request_id).startswith("'xxx"))

    def of(self, **wanted: Any) -> list[tuple[Any, ...]]:
        """(action, provider, pod, resource, before, after) of each entry, oldest first."""
        return [
            (entry.action, entry.provider, entry.pod, entry.resource, entry.before, entry.after)
            for entry in reversed(self.admin.history(base.ADMIN, **wanted))
        ]

    def test_of_a_provider(self) -> None:
        self.pods.add(base.ADMIN, "east")
        capacity = self.capacity
        capacity.add_provider(base.ADMIN, "n1")
        capacity.add_provider(ALICE, "n2", parent="n1", can_host=False, reason="new rack")
        wanted = {"gpu": Inventory(4, reserved=1, allocation_ratio=decimal.Decimal("1.50")), "fpga": Inventory(2)}
        for _ in range(2):  # the second time, it is no change
            capacity.set_provider(ALICE, "n2", pod="east")
            capacity.set_inventories(ALICE, "n2", wanted)
        capacity.set_inventories(ALICE, "n2", {**wanted, "fpga": Inventory(3)}, reason="one more")
        capacity.set_inventories(ALICE, "n2", {}, used_elsewhere={"gpu": 1})  # a measurement
        for _ in range(2):
            capacity.remove_inventory(ALICE, "n2", "fpga")
        self.assert_replayed()
        uuid = self.capacity.show_provider(base.ADMIN, "n2").uuid
        self.capacity.remove_provider(ALICE, "n2", reason="sold")
        provider = {"name": "n2", "parent": "n1", "can_host": False, "pod": None, "served_by": None}
        in_pod = {**provider, "pod": "east"}
        units = {"min_unit": 1, "step_size": 1}
        gpu = {"total": 4, "reserved": 1, "max_unit": 4, **units, "allocation_ratio": "1.5"}
        fpga = {"total": 2, "reserved": 0, "max_unit": 2, **units, "allocation_ratio": "1"}
        more = {**fpga, "total": 3, "max_unit": 3}
        expected = [
            ("add provider", "n2", None, None, None, provider),
            ("set provider", "n2", None, None, provider, in_pod),
            ("set inventory", "n2", None, "fpga", None, fpga),
            ("set inventory", "n2", None, "gpu", None, gpu),
            ("set inventory", "n2", None, "fpga", fpga, more),
            ("remove inventory", "n2", None, "fpga", more, None),
            ("remove inventory", "n2", None, "gpu", gpu, None),
            ("remove provider", "n2", None, None, in_pod, None),
        ]
        for filters, part in (
            ({"provider": "n2"}, expected),
            ({"provider": uuid}, expected),
            ({"provider": "n2", "subject": "inventory"}, expected[2:-1]),
            ({"provider": "n2", "subject": "provider"}, expected[:2] + expected[-1:]),
        ):
            self.assertEqual(part, self.of(**filters))
        self.assert_replayed()
        newest = self.admin.history(base.ADMIN)[0]
        self.assertEqual(("alice", "operators", "req-1", "sold"), (
            newest.user_id, newest.user_project_id, newest.request_id, newest.reason
        ))  # fmt: skip

    def test_of_a_pod(self) -> None:
        self.pods.add(ALICE, "east", zone="z1", affinity={"purpose": "CAD"})
        for change in (*[{"state": "maintenance"}] * 2, {"state": "available", "weight": 3}):  # the second one is none
            self.pods.change(ALICE, "east", **change)
        self.assertRaises(exceptions.PodExists, self.pods.add, ALICE, "east")
        self.assertRaises(exceptions.PodNotFound, self.pods.remove, ALICE, "west")
        self.assert_replayed()
        self.pods.remove(ALICE, "east")
        new = {
            "availability_zone": "z1",
            "resource_affinity": {"purpose": "CAD"},
            "state": "available",
            "weight": 0,
            "threshold": 100,
            "endpoint": None,
            "region": None,
        }
        drained, enabled = {**new, "state": "maintenance"}, {**new, "weight": 3}
        expected = [
            ("add pod", None, "east", None, None, new),
            ("set pod", None, "east", None, new, drained),
            ("set pod", None, "east", None, drained, enabled),
            ("remove pod", None, "east", None, enabled, None),
        ]
        self.assertEqual(expected, self.of(pod="east"))

    def test_one_log_line_for_many_changes(self) -> None:
        names = [f"gpu{number}" for number in range(101)]
        self.engine.register_resources(names)
        self.add_provider("n1")
        self.capacity.set_inventories(ALICE, "n1", {"gpu": Inventory(8)})
        log = self.useFixture(fx.FakeLogger(level=logging.INFO))
        self.capacity.set_inventories(ALICE, "n1", {"gpu": Inventory(9)}, reason="one more")
        self.assertRegex(
            log.output,
            r"changed: set inventory generation=\d+ user_id=alice request_id=req-1 resource=gpu provider=n1 "
            r"before=.*'total': 8.* after=.*'total': 9.* reason=one more",
        )
        self.capacity.set_inventories(ALICE, "n1", {name: Inventory(1) for name in names})
        self.assertIn("changed: 101 changes", log.output)
        self.assertNotIn("gpu100", log.output)


class TestListing(HistoryTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        for number in range(1, 6):
            self.admin.set_limit(ALICE, "gpu", number, f"p{number % 2}", reason=f"turn {number}")

    def test_filters(self) -> None:
        self.age(3600)
        self.admin.set_limit(base.ADMIN, "gpu", 6, "p1")
        self.admin.add_project(base.ADMIN, "p9")
        hour, minute = datetime.timedelta(hours=1), datetime.timedelta(minutes=1)
        now = datetime.datetime.now(datetime.timezone(5 * hour))
        moment = now - 30 * minute
        cases: list[tuple[list[int | None], dict[str, Any]]] = [
            ([6], {"project_id": "p1", "since": moment}),
            ([6, 5, 3, 1], {"project_id": "p1", "since": moment - 2 * hour}),
            ([6, 5, 3, 1], {"project_id": "p1", "resource": "gpu"}),
            ([5, 4, 3, 2, 1], {"until": now - minute}),
            ([], {"until": now - 2 * hour}),
            ([5, 4, 3, 2, 1], {"user_id": "alice"}),
        ]
        for limits, wanted in cases:
            entries = self.admin.history(base.ADMIN, subject="limit", **wanted)
            self.assertEqual(limits, [entry.after for entry in entries], wanted)
        (entry,) = self.admin.history(base.ADMIN, "p9", subject="project")
        self.assertEqual(("add project", "p9"), (entry.action, entry.project_id))

    def test_bad_arguments(self) -> None:
        for changes in (
            {"since": "yesterday"},
            {"since": datetime.timedelta(1)},
            {"marker": "x"},
            {"marker": "1-"},
            {"marker": 1},
            {"until": "tomorrow"},
            {"subject": "reservation"},
            {"provider": ""},
            {"pod": ""},
            {"user_id": ""},
            {"limit": -1},
            {"project_id": ""},
        ):
            self.assertRaises(exceptions.InvalidRequest, self.admin.history, base.ADMIN, **changes)  # type: ignore[arg-type]
        for age in (-1, True, 1.5):
            self.assertRaises(exceptions.InvalidRequest, self.admin.purge_history, base.ADMIN, age)

    def test_a_project_sees_its_own_limits_only(self) -> None:
        self.admin.add_project(ALICE, "p1")
        self.admin.add_project(ALICE, "p2", "p1", reason="new")
        self.admin.set_limit(ALICE, "gpu", 1, "p2", reason="opening")
        self.admin.set_limit(ALICE, "gpu", 100)
        entries = self.admin.history(base.Context("p2"))
        self.assertEqual([("p2", "opening"), ("p2", "new")], [(entry.project_id, entry.reason) for entry in entries])
        self.assertNotRegex(repr(entries), "alice|p1|operators")
        for wanted in ({"project_id": "p1"}, {"user_id": "alice"}, {"pod": "east"}, {"provider": "n1"}):
            self.assertRaises(exceptions.NotAuthorized, self.admin.history, base.Context("p2"), **wanted)  # type: ignore[arg-type]
        self.assertEqual([], self.admin.history(base.Context("nobody")))
