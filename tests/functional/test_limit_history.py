# SPDX-License-Identifier: Apache-2.0
"""The history of limits: who changed what, and that its replay gives the present limits and tree; on every database."""

from __future__ import annotations

import contextlib
import datetime
import random
import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
import testscenarios
from oslo_context import context as oslo_context

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.db import limit_history as tables
from cyborg_quota.ledger.driver import DbQuotaDriver
from cyborg_quota.ledger.settings import DriverSettings
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models.flat import Flat
from cyborg_quota.types import Author, LimitChange
from tests import base, clouds, fixtures
from tests.functional import test_limits

load_tests = testscenarios.load_tests_apply_scenarios

NEVER = datetime.datetime(2999, 1, 1)
ALICE = oslo_context.RequestContext(
    user_id="alice", project_id="operators", request_id="req-1", is_admin=True, overwrite=False
)


class HistoryTestCase(test_limits.LimitsTestCase):
    policy = Flat

    def changes(self, project_id: str | None = None) -> list[tuple[Any, ...]]:
        """(action, project_id, resource, before, after) of each entry, oldest first, without checkpoints."""
        entries = self.admin.limit_history(base.ADMIN, project_id)
        return [
            (entry.action, entry.project_id, entry.resource, entry.before, entry.after)
            for entry in reversed(entries)
            if entry.action != "checkpoint"
        ]

    def assert_verified(self) -> None:
        self.assertEqual([], self.admin.verify_limit_history(base.ADMIN))

    def age(self, seconds: int) -> None:
        """Make all entries older."""
        with self.sql.begin() as connection:
            rows = connection.execute(sa.text("SELECT generation, ordinal, created_at FROM limit_changes")).all()
            for row in rows:
                at = row.created_at
                if isinstance(at, str):
                    at = datetime.datetime.fromisoformat(at)
                at -= datetime.timedelta(seconds=seconds)
                connection.execute(
                    sa.text("UPDATE limit_changes SET created_at = :t WHERE generation = :g AND ordinal = :o"),
                    {"t": at.isoformat(" ", "microseconds"), "g": row.generation, "o": row.ordinal},
                )


class TestEntries(HistoryTestCase):
    def test_what_is_recorded(self) -> None:
        self.admin.set_limits(ALICE, {"gpu": 5, "fpga": 2}, reason="opening")
        self.admin.set_limit(ALICE, "gpu", 6)
        self.admin.add_project(ALICE, "atlas")
        self.admin.add_project(ALICE, "physics", "atlas")
        self.admin.set_limit(ALICE, "gpu", -1, "physics")
        self.admin.set_limit(ALICE, "gpu", -1, "physics")  # no change
        self.admin.set_limit(ALICE, "gpu", 0, "physics")
        self.admin.unset_limit(ALICE, "gpu", "physics")
        self.admin.unset_limit(ALICE, "gpu", "physics")  # no change
        self.admin.unset_limit(ALICE, "fpga")
        self.admin.set_limit(ALICE, "gpu", 9, "physics")
        self.admin.move_project(ALICE, "physics", None)
        self.admin.move_project(ALICE, "physics", None)  # no change
        self.admin.remove_project(ALICE, "physics")
        self.assertEqual(
            [
                ("set limit", None, "fpga", None, 2),
                ("set limit", None, "gpu", None, 5),
                ("set limit", None, "gpu", 5, 6),
                ("add project", "atlas", None, None, None),
                ("add project", "physics", None, None, "atlas"),
                ("set limit", "physics", "gpu", None, -1),
                ("set limit", "physics", "gpu", -1, 0),
                ("unset limit", "physics", "gpu", 0, None),
                ("unset limit", None, "fpga", 2, None),
                ("set limit", "physics", "gpu", None, 9),
                ("move project", "physics", None, "atlas", None),
                ("unset limit", "physics", "gpu", 9, None),
                ("remove project", "physics", None, None, None),
            ],
            self.changes(),
        )
        self.assert_verified()
        first = self.admin.limit_history(base.ADMIN)[-2]
        self.assertEqual(("alice", "operators", "req-1", "opening"), (
            first.actor, first.actor_project_id, first.request_id, first.reason
        ))  # fmt: skip
        at = first.at
        assert at is not None
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        self.assertLess(abs(now - at), datetime.timedelta(minutes=5))

    def test_an_import_is_recorded(self) -> None:
        self.admin.add_project(base.ADMIN, "higgs")
        document = {
            "defaults": {"gpu": 3},
            "projects": [{"id": "atlas", "limits": {"gpu": 7}, "children": [{"id": "higgs", "limits": {"gpu": None}}]}],
        }
        self.admin.import_limits(ALICE, document, reason="from the file", dry_run=True)
        self.assertEqual(1, len(self.changes()))
        self.admin.import_limits(ALICE, document, reason="from the file")
        self.assertEqual(
            [
                ("add project", "higgs", None, None, None),
                ("set limit", None, "gpu", None, 3),
                ("add project", "atlas", None, None, None),
                ("set limit", "atlas", "gpu", None, 7),
                ("move project", "higgs", None, None, "atlas"),
            ],
            self.changes(),
        )
        entries = self.admin.limit_history(base.ADMIN)[:4]
        self.assertEqual({("import", "from the file", "alice")}, {(e.operation, e.reason, e.actor) for e in entries})
        self.assertEqual(1, len({entry.id.split("-")[0] for entry in entries}))
        self.assert_verified()

    def test_edges_of_a_limit_driver_are_recorded(self) -> None:
        """As Keystone's driver adds them while reserving; then the operator takes over one and detaches the other."""
        tree: Any = self.engine._driver._reserver._tree  # type: ignore[attr-defined]
        for project_id in ("p1", "p2"):
            tree.follow(project_id, "domain", "keystone")
            tree.follow(project_id, "domain", "keystone")
        self.assert_verified()
        entry = self.admin.limit_history(base.ADMIN, "p1")[0]
        self.assertEqual(("keystone", "keystone", "domain"), (entry.actor, entry.origin, entry.after))
        self.admin.move_project(base.ADMIN, "p2", "domain")
        self.assert_verified()
        self.admin.detach_projects(ALICE, "keystone", reason="driver changed")
        self.assert_verified()
        self.assertEqual(
            [
                ("add project", "p1", None, None, "domain"),
                ("add project", "p2", None, None, "domain"),
                ("move project", "p2", None, "domain", "domain"),
                ("move project", "p1", None, "domain", None),
            ],
            self.changes(),
        )
        self.assertEqual("detach", self.admin.limit_history(base.ADMIN)[0].operation)

    def test_a_refused_change_is_not_recorded(self) -> None:
        self.admin.add_project(base.ADMIN, "p")
        before = self.changes()
        self.assertRaises(exceptions.ProjectRefused, self.admin.add_project, base.ADMIN, "q", "nobody")
        self.assertRaises(exceptions.ProjectRefused, self.admin.move_project, base.ADMIN, "p", "p")
        self.hold_one("p")
        self.assertRaises(exceptions.ProjectRefused, self.admin.remove_project, base.ADMIN, "p")
        self.assertEqual(before, self.changes())

    def hold_one(self, project_id: str) -> None:
        self.admin.set_limit(base.ADMIN, "gpu", 1, project_id)
        self.hold(project_id, 1)
        self.admin.unset_limit(base.ADMIN, "gpu", project_id)
        self.execute("DELETE FROM limit_changes WHERE resource = 'gpu'")

    def test_a_context_with_odd_values(self) -> None:
        context = type("Odd", (), {
            "user_id": "line\nbreak", "project_id": 7, "request_id": "x" * 5000, "is_admin": True
        })()  # fmt: skip
        self.admin.set_limit(context, "gpu", 1)
        entry = self.admin.limit_history(base.ADMIN)[0]
        self.assertEqual("'line\\nbreak'", entry.actor)
        self.assertEqual("7", entry.actor_project_id)
        self.assertTrue(str(entry.request_id).startswith("'xxx"))


class TestListing(HistoryTestCase):
    def setUp(self) -> None:
        super().setUp()
        for number in range(1, 6):
            self.admin.set_limit(ALICE, "gpu", number, f"p{number % 2}", reason=f"turn {number}")

    def test_newest_first_in_pages(self) -> None:
        everything = self.admin.limit_history(base.ADMIN)
        self.assertEqual([5, 4, 3, 2, 1], [entry.after for entry in everything if entry.action == "set limit"])
        pages, marker = [], None
        while page := self.admin.limit_history(base.ADMIN, limit=2, marker=marker):
            pages += page
            marker = page[-1].id
        self.assertEqual(everything, pages)
        self.assertEqual([], self.admin.limit_history(base.ADMIN, limit=0))
        self.assertEqual([5, 3, 1], [entry.after for entry in self.admin.limit_history(base.ADMIN, "p1")])

    def test_an_unknown_marker(self) -> None:
        """An entry of another project is not known either (I8)."""
        theirs, own = (self.admin.limit_history(base.ADMIN, name)[-1].id for name in ("p0", "p1"))
        for context, marker in ((base.ADMIN, "99-0"), (base.Context("p1"), "99-0"), (base.Context("p1"), theirs)):
            error = self.assertRaises(exceptions.MarkerNotFound, self.admin.limit_history, context, marker=marker)
            self.assertEqual((marker,), error.marker)
        self.assertEqual([], self.admin.limit_history(base.Context("p1"), marker=own))

    def test_since(self) -> None:
        self.age(3600)
        self.admin.set_limit(base.ADMIN, "gpu", 6, "p1")
        hour, minute = datetime.timedelta(hours=2), datetime.timedelta(minutes=1)
        self.assertEqual(4, len(self.admin.limit_history(base.ADMIN, "p1", since=hour)))
        self.assertEqual(1, len(self.admin.limit_history(base.ADMIN, "p1", since=minute)))
        moment = datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=5))) - 30 * minute
        self.assertEqual(1, len(self.admin.limit_history(base.ADMIN, "p1", since=moment)))
        self.assertEqual(4, len(self.admin.limit_history(base.ADMIN, "p1", since=moment - hour)))

    def test_bad_arguments(self) -> None:
        for changes in (
            {"since": "yesterday"},
            {"since": datetime.timedelta(-1)},
            {"marker": "x"},
            {"marker": "1-"},
            {"marker": 1},
            {"limit": -1},
            {"project_id": ""},
        ):
            self.assertRaises(exceptions.InvalidRequest, self.admin.limit_history, base.ADMIN, **changes)  # type: ignore[arg-type]
        for age in (-1, True, 1.5):
            self.assertRaises(exceptions.InvalidRequest, self.admin.purge_limit_history, base.ADMIN, age)

    def test_a_project_sees_its_own_limits_only(self) -> None:
        self.admin.add_project(ALICE, "p1")
        self.admin.add_project(ALICE, "p2", "p1", reason="new")
        self.admin.set_limit(ALICE, "gpu", 1, "p2", reason="opening")
        self.admin.set_limit(ALICE, "gpu", 100)
        entries = self.admin.limit_history(base.Context("p2"))
        self.assertEqual({"p2"}, {entry.project_id for entry in entries})
        self.assertEqual(["opening", "new"], [entry.reason for entry in entries])
        self.assertNotIn("alice", repr(entries))
        self.assertNotIn("p1", repr(entries))
        self.assertNotIn("operators", repr(entries))
        self.assertRaises(exceptions.NotAuthorized, self.admin.limit_history, base.Context("p2"), "p1")
        self.assertEqual([], self.admin.limit_history(base.Context("nobody")))


class TestReason(HistoryTestCase):
    def make_strict(self) -> QuotaEngine:
        limits = DatabaseLimitDriver(Flat(), InitialLimits())
        driver = DbQuotaDriver(DriverSettings(database=fixtures.settings(self.url)), limits)
        engine = QuotaEngine(driver, require_reason=True)
        engine.register_resources(["fpga", "gpu"])
        self.addCleanup(engine.close)
        return engine

    def test_it_can_be_required(self) -> None:
        engine = self.make_strict()
        admin = engine.administration
        calls: list[Callable[..., Any]] = [
            lambda **reason: admin.set_limit(ALICE, "gpu", 1, **reason),
            lambda **reason: admin.set_limits(ALICE, {"gpu": 1}, "p", **reason),
            lambda **reason: admin.unset_limit(ALICE, "gpu", **reason),
            lambda **reason: admin.add_project(ALICE, "q", **reason),
            lambda **reason: admin.move_project(ALICE, "q", None, **reason),
            lambda **reason: admin.import_limits(ALICE, {"defaults": {"gpu": 9}}, **reason),
            lambda **reason: admin.remove_project(ALICE, "q", **reason),
            lambda **reason: admin.detach_projects(ALICE, "keystone", **reason),
            lambda **reason: admin.checkpoint_limits(ALICE, **reason),
            lambda **reason: admin.set_overrides(ALICE, {"gpu": 1}, "p", NEVER, **reason),
            lambda **reason: admin.cancel_overrides(
                ALICE, [one.id for one in admin.list_overrides(base.ADMIN)[0]], **reason
            ),
            lambda **reason: engine.total_limits.set(ALICE, {"gpu": 1}, **reason),
            lambda **reason: engine.total_limits.unset(ALICE, ["gpu"], **reason),
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
        engine.total_limits.preview(ALICE, {"gpu": 7})
        self.assertEqual(0, admin.purge_limit_history(ALICE, 10**6))

    def test_bad_reasons(self) -> None:
        for reason in ("", "  ", "a\nb", "x" * 1001, 7, "\x1b[2J", "\ud800"):
            self.assertRaises(exceptions.InvalidRequest, self.admin.set_limit, ALICE, "gpu", 1, reason=reason)
        self.assertEqual([], self.changes())
        self.admin.set_limit(ALICE, "gpu", 1, reason=" 😀" * 500)
        self.assertEqual(("😀 " * 500).strip(), self.admin.limit_history(base.ADMIN)[0].reason)


class TestReplay(HistoryTestCase):
    def test_random_changes(self) -> None:
        """After any changes, refused ones included, the replay gives the present limits and tree."""
        chance = random.Random(14)
        names = [f"p{number}" for number in range(6)]
        changes = 150 if self.backend == "sqlite" else 80
        for _ in range(changes):
            self.change(chance, names)
        self.assertGreater(len({change[0] for change in self.changes()}), 4)
        self.assert_verified()
        self.assertEqual(0, self.admin.purge_limit_history(base.ADMIN, 3600))
        self.age(7200)
        self.admin.set_limit(base.ADMIN, "gpu", 1234)
        self.assertGreater(self.admin.purge_limit_history(base.ADMIN, 3600), changes // 3)
        self.assert_verified()
        for _ in range(30):
            self.change(chance, names)
        self.assert_verified()

    def change(self, chance: random.Random, names: list[str]) -> None:
        project, resource = chance.choice(names), chance.choice(["fpga", "gpu"])
        limit = chance.choice([-1, 0, 5, 10])
        document = {"projects": [{"id": project, "limits": {resource: limit}, "children": [{"id": "p0"}]}]}
        calls: list[Callable[[], Any]] = [
            lambda: self.admin.set_limit(base.ADMIN, resource, limit),
            lambda: self.admin.unset_limit(base.ADMIN, resource),
            lambda: self.admin.set_limit(base.ADMIN, resource, limit, project),
            lambda: self.admin.set_limits(base.ADMIN, {"fpga": limit, "gpu": None}, project),
            lambda: self.admin.add_project(base.ADMIN, project, chance.choice([None, *names])),
            lambda: self.admin.move_project(base.ADMIN, project, chance.choice([None, *names])),
            lambda: self.admin.remove_project(base.ADMIN, project),
            lambda: self.admin.import_limits(base.ADMIN, document),
            lambda: self.engine._driver._reserver._tree.follow(project, "domain", "keystone"),  # type: ignore[attr-defined]
            lambda: self.admin.detach_projects(base.ADMIN, "keystone", keep=chance.random() < 0.5),
        ]
        with contextlib.suppress(exceptions.ProjectRefused, exceptions.LimitRefused, exceptions.InvalidDocument):
            chance.choice(calls)()

    def test_a_change_that_is_not_recorded_is_found(self) -> None:
        """SQL: the value differs now, or differs from what the next entry says."""
        self.admin.set_limit(base.ADMIN, "gpu", 5, "p")
        self.admin.set_limit(base.ADMIN, "fpga", 1)
        self.make_tree({"p": None, "child": "p"})
        self.execute("UPDATE project_limits SET hard_limit = 6")
        self.execute("UPDATE limit_defaults SET hard_limit = 2")
        self.execute("UPDATE projects SET parent_id = NULL WHERE project_id = 'child'")
        self.assertEqual(
            [(None, None, "fpga", 1, 2), (None, "p", "gpu", 5, 6), (None, "child", None, "p", None)],
            [self.columns(one) for one in self.admin.verify_limit_history(base.ADMIN)],
        )
        self.admin.set_limit(base.ADMIN, "gpu", 7, "p")
        entry = self.admin.limit_history(base.ADMIN, "p")[0]
        self.assertIn(
            (entry.id, "p", "gpu", 5, 6), [self.columns(one) for one in self.admin.verify_limit_history(base.ADMIN)]
        )
        self.assertEqual(4, self.admin.checkpoint_limits(ALICE, reason="repaired") + 1)
        self.assert_verified()

    @staticmethod
    def columns(one: Any) -> tuple[Any, ...]:
        return one.before_entry, one.project_id, one.resource, one.recorded, one.actual

    def test_a_purge_keeps_the_replay(self) -> None:
        for number in range(1, 4):
            self.admin.set_limit(base.ADMIN, "gpu", number, "p")
        self.make_tree({"p": None, "child": "p"})
        self.age(86400)
        self.admin.set_limit(base.ADMIN, "gpu", 4, "p")
        self.assertEqual(0, self.admin.purge_limit_history(base.ADMIN, 2 * 86400))
        oldest = self.admin.limit_history(base.ADMIN)[1].at
        self.assertEqual(5, self.admin.purge_limit_history(ALICE, 3600))
        entries = self.admin.limit_history(base.ADMIN)
        self.assertEqual(["set limit", *["checkpoint"] * 3], [entry.action for entry in entries])
        self.assertEqual({(oldest, "purge", "alice")}, {(one.at, one.operation, one.actor) for one in entries[1:]})
        self.assert_verified()
        self.assertEqual(0, self.admin.purge_limit_history(base.ADMIN, 3600))
        self.age(86400)
        self.assertEqual(4, self.admin.purge_limit_history(base.ADMIN, 3600))
        self.assert_verified()
        self.assertEqual(0, self.admin.purge_limit_history(base.ADMIN, 3600))

    def test_repeated_purges_do_not_rewrite_the_checkpoint(self) -> None:
        """Otherwise, each purge that finds one old entry writes all limits again, and blocks changes meanwhile."""
        self.admin.set_limit(base.ADMIN, "gpu", 1)
        self.age(60)
        self.admin.set_limit(base.ADMIN, "gpu", 2)
        self.age(1020)
        before = self.fence()
        self.assertEqual(0, self.admin.purge_limit_history(base.ADMIN, 1000))
        self.assertEqual(before, self.fence())
        self.age(40)
        self.assertEqual(2, self.admin.purge_limit_history(base.ADMIN, 1000))
        self.assertEqual(["checkpoint"] * 2, [entry.action for entry in self.admin.limit_history(base.ADMIN)])
        self.assert_verified()

    def fence(self) -> int:
        """The number of transactions that have locked the fence row."""
        with self.sql.connect() as connection:
            return tables.generation(connection)

    def test_verifying_waits_for_a_moment_without_changes(self) -> None:
        """A change between its statements makes it start again, so that it reports no false difference."""
        self.admin.set_limit(base.ADMIN, "gpu", 1)
        read_state, turns = tables.read_state, []

        def change_first(connection: sa.Connection) -> tables.StoredState:
            if len(turns) < 2 and self.backend != "sqlite":  # (where the transaction reads one snapshot)
                turns.append(1)
                self.admin.set_limit(base.ADMIN, "gpu", 10 + len(turns))
            return read_state(connection)

        self.patch(tables, "read_state", change_first)
        self.assert_verified()
        self.assertEqual(0 if self.backend == "sqlite" else 2, len(turns))


class TestCost(HistoryTestCase):
    def test_a_large_import_writes_a_hundred_entries_per_statement(self) -> None:
        clouds.add_projects(self.sql, 0, 1000)
        self.admin.checkpoint_limits(base.ADMIN)
        with clouds.captured() as found:
            self.admin.import_limits(base.ADMIN, clouds.rotated(1000, 1))
        inserts = [statement for statement, _ in found if statement.startswith("INSERT INTO limit_changes")]
        self.assertEqual(10, len(inserts))
        self.assert_verified()


class TestPlan(HistoryTestCase):
    """The history of one project is read by an index: its cost does not depend on the length of the history."""

    EXPLAINS = {"sqlite": "EXPLAIN QUERY PLAN", "mariadb": "EXPLAIN", "postgresql": "EXPLAIN"}

    def test_of_one_project(self) -> None:
        changes = [LimitChange("set limit", f"p{number}", "gpu", None, 1) for number in range(3000)]
        self.database.write(lambda connection: tables.record(connection, Author(), changes))
        sent: list[tuple[str, Any]] = []

        def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
            sent.append((statement, parameters))

        sa.event.listen(self.database.engine, "before_cursor_execute", record)
        for options in ({}, {"limit": 20, "before": (1, 7)}):
            found = self.database.read(lambda connection: tables.read(connection, project_id="p7", **options))  # type: ignore[arg-type]  # noqa: B023
            self.assertEqual(1, len(found))
            statement, parameters = sent[-1]
            self.assertIn("limit_changes", statement)
            analyze = {
                "sqlite": "ANALYZE",
                "mariadb": "ANALYZE TABLE limit_changes",
                "postgresql": "ANALYZE limit_changes",
            }
            with self.sql.connect() as connection:
                connection.exec_driver_sql(analyze[self.backend])
            self.assertIn("ix_limit_changes_project", self.used_indexes(statement, parameters))
        self.database.read(lambda connection: tables.read(connection, limit=20))
        self.assertNotIn("ix_limit_changes_project", self.used_indexes(*sent[-1]))

    def used_indexes(self, statement: str, parameters: Any) -> set[str]:
        """The indexes that the plan uses. (MariaDB's column possible_keys has others too.)"""
        with self.sql.connect() as connection:
            explain = f"{self.EXPLAINS[self.backend]} {statement}"
            plan = connection.exec_driver_sql(explain, parameters).mappings().all()
        if self.backend == "mariadb":
            return {row["key"] for row in plan}
        return set(re.findall(r"(?:USING (?:COVERING )?INDEX|using|Index Scan on) (\w+)", str(plan)))
