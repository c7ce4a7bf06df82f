# SPDX-License-Identifier: Apache-2.0
"""A sweeper with a backlog expires in parallel lanes, if the database supports several writers."""

from __future__ import annotations

import threading
from typing import Any

import testscenarios

from cyborg_quota import Claim, QuotaEngine, exceptions
from tests import base, fixtures, hooks, trees

load_tests = testscenarios.load_tests_apply_scenarios

PROJECTS = 10
EACH = 10
BATCH = 4


def lanes() -> int:
    """Return the present number of lanes."""
    return sum(thread.name.startswith("expiry") for thread in threading.enumerate())


class Stop(Exception):
    pass


class LanesTestCase(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        trees.plant(hooks.database_of(self.engine), {"top": None, **{f"p{n}": "top" for n in range(PROJECTS // 2)}})
        self.uuids: list[str] = []
        for number in range(PROJECTS):
            claims = [Claim(None, {"gpu": 2}), Claim(None, {"fpga": 1})] * (EACH // 2)
            self.uuids += self.engine.reserve_many(base.Context(f"p{number}"), claims)
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")

    def make_sweeper(self, **changes: object) -> QuotaEngine:
        return self.make_engine(batch_rows=BATCH, **changes)

    def assert_all_expired(self) -> None:
        self.assertEqual({"expired"}, set(self.states(*self.uuids)))
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))

    def assert_nothing_left_behind(self, engine: QuotaEngine) -> None:
        """No lane is running, and no connection is in use. (The next expiry waits for locked rows.)"""
        self.assertEqual(0, lanes())
        database = hooks.database_of(engine)
        assert database._connections is not None
        database._connections.close()
        self.assertEqual(0, database.engine.pool.checkedout())  # type: ignore[attr-defined]


class TestCatchingUp(LanesTestCase):
    def test_everything_is_expired_and_progress_is_reported(self) -> None:
        reports: list[tuple[int, int]] = []
        threads = set()

        def progress(count: int) -> None:
            threads.add(threading.current_thread())
            reports.append((count, lanes()))

        engine = self.make_sweeper()
        self.assertEqual(len(self.uuids), engine.expire(base.ADMIN, progress=progress))
        self.assertEqual({threading.current_thread()}, threads)
        self.assertEqual(len(self.uuids), sum(count for count, _ in reports))
        self.assertLessEqual(max(count for count, _ in reports), BATCH)
        most = max(running for _, running in reports)
        self.assertEqual(0, most) if self.backend == "sqlite" else self.assertGreater(most, 1)
        self.assert_all_expired()
        self.assert_nothing_left_behind(engine)

    def test_few_connections(self) -> None:
        """With one or two connections there are no lanes, and no call waits for ever."""
        for number, size in enumerate((1, 2, 3)):
            engine = self.make_sweeper(max_pool_size=size, max_overflow=0, pool_timeout_seconds=5.0)
            if number:
                self.execute(
                    "UPDATE reservations SET state = 'reserved', live = 1, deleted_at = NULL, deleted = :no", no=False
                )
                self.engine.heal(base.ADMIN)
            self.assertEqual(len(self.uuids), engine.expire(base.ADMIN))
            self.assert_all_expired()

    def test_the_caller_stops_it(self) -> None:
        """A batch that has begun is completed, and leaves no open transaction; the next expiry does the rest."""
        all_reports = 0
        for stop_at in (BATCH, 3 * BATCH, 10 * BATCH):
            engine = self.make_sweeper()
            reports = 0

            def progress(count: int, stop_at: int = stop_at) -> None:
                nonlocal reports, all_reports
                reports += count
                all_reports += count
                if reports >= stop_at:
                    raise Stop

            self.assertRaises(Stop, engine.expire, base.ADMIN, progress=progress)
            self.assertEqual(self.states(*self.uuids).count("expired"), all_reports)
            self.assert_invariants()
            self.assert_nothing_left_behind(engine)
        before = self.states(*self.uuids).count("reserved")
        self.assertGreater(before, 0)
        self.assertEqual(before, self.make_sweeper().expire(base.ADMIN))
        self.assert_all_expired()

    def test_while_another_call_charges(self) -> None:
        """It continues with one lane, in short batches."""
        engine = self.make_sweeper()
        seen: list[int] = []

        def progress(_count: int) -> None:
            seen.append(lanes())
            if len(seen) == 5:
                self.engine.reserve(base.Context("else"), {"gpu": 1})

        self.assertEqual(len(self.uuids), engine.expire(base.ADMIN, progress=progress))
        self.assertEqual(0, seen[-1] if self.backend == "sqlite" else min(seen[5:]))
        self.assert_all_expired()

    def test_others_end_some_of_the_rows_read(self) -> None:
        """Each reservation is counted by the call that ended it; an extended reservation stays."""
        engine = self.make_sweeper()
        others = 0

        def progress(_count: int) -> None:
            nonlocal others
            if not others:
                self.execute(
                    "UPDATE reservations SET expire = '2101-01-01 00:00:00.000000' WHERE uuid = :u", u=self.uuids[-1]
                )
                others = 1
                for uuid in self.uuids[60:-1:9]:
                    project_id = f"p{self.uuids.index(uuid) // EACH}"
                    self.engine.rollback(base.Context(project_id), [uuid])

        engine.expire(base.ADMIN, progress=progress)
        self.assertTrue(others)
        self.assertEqual({"expired"}, set(self.states(*self.uuids[:-1])))
        self.assertEqual(["reserved"], self.states(self.uuids[-1]))
        self.assert_invariants()

    def test_a_counter_has_drifted(self) -> None:
        self.execute("UPDATE quota_usages SET reserved = 1 WHERE project_id = 'p3' AND resource = 'gpu'")
        self.assertEqual(len(self.uuids), self.make_sweeper().expire(base.ADMIN))
        self.assert_all_expired()

    def test_usage_rows_are_missing(self) -> None:
        self.execute("DELETE FROM quota_usages WHERE project_id = 'p11'")
        self.assertEqual(len(self.uuids), self.make_sweeper().expire(base.ADMIN))
        self.assert_all_expired()


class TestErrors(LanesTestCase):
    """(Not on SQLite, which has no lanes.)"""

    scenarios = fixtures.SCENARIOS[1:]

    def break_lanes(self, engine: QuotaEngine, after: int, times: int) -> None:
        """Let ``times`` COMMITs of lanes fail, after a number of others."""
        dialect = hooks.database_of(engine).engine.dialect
        commit = dialect.do_commit
        count = 0

        def commit_or_break(dbapi_connection: Any) -> None:
            nonlocal count
            if threading.current_thread().name.startswith("expiry"):
                count += 1
                if after < count <= after + times:
                    raise hooks.disconnect(self.backend)
            commit(dbapi_connection)

        dialect.do_commit = commit_or_break  # type: ignore[method-assign]
        self.addCleanup(setattr, dialect, "do_commit", commit)

    def test_a_lane_is_disconnected_once(self) -> None:
        engine = self.make_sweeper()
        self.break_lanes(engine, 5, 2)
        self.assertEqual(len(self.uuids), engine.expire(base.ADMIN))
        self.assert_all_expired()

    def test_a_lane_is_disconnected_permanently(self) -> None:
        """The caller gets the error, as from a sweeper without lanes; the batches of the other lanes are complete."""
        engine = self.make_sweeper(retry_seconds=0.2)
        self.break_lanes(engine, 5, 10**6)
        self.assertRaises(exceptions.DatabaseUnavailable, engine.expire, base.ADMIN)
        self.assert_invariants()
        self.assert_nothing_left_behind(engine)
        self.assertIn("reserved", self.states(*self.uuids))
        self.make_sweeper().expire(base.ADMIN)
        self.assert_all_expired()
