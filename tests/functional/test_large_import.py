# SPDX-License-Identifier: Apache-2.0
"""Imports that move many projects: charges wait for a few statements only, and an import is atomic."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
from typing import Any

import sqlalchemy as sa
import testscenarios

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.ledger import limit_changes
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models.flat import Flat
from tests import base, clouds
from tests.functional import test_limits
from tests.servers import machine

load_tests = testscenarios.load_tests_apply_scenarios

PROJECTS = 400
CHARGERS = 3
TURNS = 4
ROWS_A_STATEMENT = 512


class LargeImportTestCase(test_limits.LimitsTestCase):
    policy = Flat
    projects = PROJECTS

    def setUp(self) -> None:
        super().setUp()
        self.admin.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
        clouds.add_projects(self.sql, 0, self.projects)

    def make_limited(self, **changes: Any) -> QuotaEngine:
        engine = super().make_limited(**changes)
        driver: Any = engine._driver
        driver.limits.initial_limits = InitialLimits(child=None)
        return engine

    def rotate(self, turns: int, **changes: Any) -> int:
        """Import the moves; returns the number of projects moved."""
        return len(self.admin.import_limits(base.ADMIN, clouds.rotated(self.projects, turns), **changes))

    def turns(self) -> set[int]:
        """Return by how many parents each project has been moved since the start."""
        middles = self.projects // clouds.CHILDREN
        query = sa.text("SELECT project_id, parent_id FROM projects WHERE project_id LIKE 'p%'")
        with self.sql.connect() as connection:
            rows = connection.execute(query).all()
        return {
            (int(row.parent_id.removeprefix("mid")) - int(row.project_id.removeprefix("p")) // clouds.CHILDREN)
            % middles
            for row in rows
        }


    def import_with_statements(self, turns: int) -> list[str]:
        """Import the moves, and return all statements."""
        with clouds.captured() as found:
            self.assertEqual(self.projects, self.rotate(turns))
        return [statement for statement, _ in found]

    def assert_locked_for_few(self, statements: list[str], rows: int) -> None:
        """Assert that the usage rows are locked for a number of statements in proportion to the moved rows.

        Nothing else is done in that time. Charges wait in that time only; each statement is of at most 512 rows.
        """
        first = next(index for index, statement in enumerate(statements) if changes_usages(statement))
        pieces = rows // ROWS_A_STATEMENT + 1
        # Locks (on PostgreSQL one list for each of two depths), amounts, generations.
        self.assertLessEqual(len(statements) - first, 2 * pieces + 4)
        self.assertEqual([], [statement for statement in statements[first:] if "quota_usages" not in statement])


def changes_usages(statement: str) -> bool:
    """Return whether the statement locks or changes existing usage rows."""
    is_locking = "FROM quota_usages" in statement and "FOR UPDATE" in statement.replace("NO KEY ", "")
    return is_locking or statement.startswith("UPDATE quota_usages")


class TestFewStatements(LargeImportTestCase):
    projects = 2000

    def test_usage_rows_are_locked_for_a_few_statements(self) -> None:
        """Each row must not cost a round trip while charges wait, and nothing else may be done in that time."""
        held = {f"p{number}": number % 7 + 1 for number in range(0, self.projects, 50)}
        for project_id, amount in held.items():
            self.engine.reserve(base.Context(project_id), {"fpga": amount})
        statements = self.import_with_statements(1)
        self.assert_locked_for_few(statements, 2 * self.projects)  # with two resources each
        self.assertLessEqual(len(statements), 100)
        self.assert_invariants()
        self.assertEqual({1}, self.turns())
        with self.sql.connect() as connection:
            query = "SELECT SUM(subtree) FROM quota_usages WHERE project_id = 'mid1'"
            total = connection.scalar(sa.text(query))
        self.assertEqual(held["p0"], total)


class TestBound(LargeImportTestCase):
    projects = 60

    def test_too_many_rows_are_refused(self) -> None:
        """The number of moved projects is bounded, and a dry run reports the error too. Nothing is written."""
        name = "MOST_MOVED_ROWS_OF_ONE_WRITER" if self.backend == "sqlite" else "MOST_MOVED_ROWS"
        self.patch(limit_changes, name, 119)
        for dry_run in (True, False):
            error = self.assertRaises(exceptions.LimitRefused, self.rotate, 1, dry_run=dry_run)
            self.assertIn("60 projects that would be moved have 120 usage rows", str(error))
            self.assertIn("one import may move 119", str(error))
        self.assertEqual({0}, self.turns())
        self.patch(limit_changes, name, 120)
        self.assertEqual(60, self.rotate(1))
        self.assertEqual({1}, self.turns())


class TestAtTheBound(LargeImportTestCase):
    """As many usage rows as one import may move: few projects, which have had many resources."""

    projects = 100

    def test_as_many_as_one_import_may_move(self) -> None:
        bounds = {"sqlite": limit_changes.MOST_MOVED_ROWS_OF_ONE_WRITER}
        most = bounds.get(self.backend, limit_changes.MOST_MOVED_ROWS)
        owners = [f"p{number}" for number in range(self.projects)]
        resources = [f"old{number}" for number in range(most // self.projects - len(clouds.RESOURCES))]
        clouds.add_usages(self.sql, [("p0", name) for name in resources])
        self.execute(
            "INSERT INTO quota_usages (project_id, resource, used, reserved, subtree, generation)"
            " SELECT p.project_id, u.resource, 0, 0, 0, 0 FROM projects p CROSS JOIN quota_usages u"
            " WHERE u.resource LIKE 'old%' AND p.project_id LIKE 'p%' AND p.project_id <> 'p0'"
        )
        for owner in owners[::7]:
            self.engine.reserve(base.Context(owner), {"fpga": 3})
        clouds.add_usages(self.sql, [("p0", "one too many")])
        error = self.assertRaises(exceptions.LimitRefused, self.rotate, 1)
        self.assertIn(f"have {most + 1} usage rows, and one import may move {most} (one for each", str(error))
        self.execute("DELETE FROM quota_usages WHERE resource = 'one too many'")
        self.assert_locked_for_few(self.import_with_statements(1), most)
        self.assertEqual({1}, self.turns())
        self.assert_invariants()
        self.engine.reserve(base.Context("p0"), {"fpga": 1})


class TestWhileCharging(LargeImportTestCase):
    def test_charges_continue_and_no_counter_drifts(self) -> None:
        self.engine.close()
        processes = multiprocessing.get_context("fork")
        stop, count = processes.Event(), processes.Value("q", 0)
        crew = [processes.Process(target=self.charge, args=(seed, stop, count)) for seed in range(CHARGERS)]
        for charger in crew:
            charger.start()
        try:
            for turns in range(1, TURNS + 1):
                goal = count.value + 5 * CHARGERS
                machine.wait_until(lambda: count.value >= goal, 60.0)  # noqa: B023
                self.assertGreaterEqual(count.value, goal)
                self.assertEqual(PROJECTS, self.rotate(turns))
        finally:
            stop.set()
            for charger in crew:
                charger.join(60)
        self.assertEqual([0] * CHARGERS, [charger.exitcode for charger in crew])
        self.assertEqual({TURNS}, self.turns())
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))

    def charge(self, seed: int, stop: Any, count: Any) -> None:
        """Reserve, and commit, roll back or release, for random projects. A call that waits too long is an error."""
        engine = self.make_limited()
        rng = random.Random(seed)
        while not stop.is_set():
            context = base.Context(f"p{rng.randrange(PROJECTS)}")
            uuids = engine.reserve(context, {"fpga": rng.randint(1, 3)})
            rng.choice([engine.commit, engine.rollback, engine.release])(context, uuids)
            with count.get_lock():
                count.value += 1


class TestKilled(LargeImportTestCase):
    def test_a_killed_import_is_atomic_and_can_be_repeated(self) -> None:
        """SIGKILL before a statement of an import; then another process makes the same import."""
        for number in range(0, PROJECTS, 7):
            self.hold(f"p{number}", 1, "fpga")
        self.engine.close()
        count = self.import_in_child(1, at=None)
        self.assertGreater(count, 8)
        for turns, number in enumerate((2, count // 3, count // 2, count - 1, count), 2):
            self.assertEqual(-signal.SIGKILL, self.import_in_child(turns, at=number))
            self.assertEqual({turns - 1}, self.turns())
            self.assert_invariants()
            self.assertGreater(self.rotate(turns), 0)
            self.assertEqual({turns}, self.turns())
            self.assert_invariants()

    def import_in_child(self, turns: int, at: int | None) -> int:
        """Import in a process that kills itself before statement ``at``.

        Returns its exit status, or its number of statements.
        """
        reader, writer = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=self.import_and_die, args=(turns, at, writer))
        process.start()
        writer.close()
        process.join(60)
        return int(process.exitcode or 0) if process.exitcode else int(reader.recv())

    def import_and_die(self, turns: int, at: int | None, writer: Any) -> None:
        numbers = itertools.count(1)
        sent = 0
        engine = self.make_limited()
        engine.check(base.Context("p1"), {"fpga": 1})  # connects

        def before(*_arguments: Any) -> None:
            nonlocal sent
            sent = next(numbers)
            if sent == at:
                os.kill(os.getpid(), signal.SIGKILL)

        sa.event.listen(sa.Engine, "before_cursor_execute", before)
        engine.administration.import_limits(base.ADMIN, clouds.rotated(PROJECTS, turns))
        writer.send(sent)

    def hold(self, project_id: str, amount: int, resource: str = "gpu") -> None:
        context = base.Context(project_id)
        self.engine.commit(context, self.engine.reserve(context, {resource: amount}))
