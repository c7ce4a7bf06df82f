# SPDX-License-Identifier: Apache-2.0
"""The same commands on every database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, TimeoutError

import sqlalchemy as sa
import testscenarios

from tests import fixtures
from tests.cli import base

load_tests = testscenarios.load_tests_apply_scenarios

TRACE = (
    "0,reserve,a,ABC,gpu,2",
    "0,reserve,b,abc,gpu,1",
    "1,commit,a,ABC,gpu,2",
    "1,reserve,c,ABC,gpu,1",
    "2,commit,c,ABC,gpu,1",
    "3,release,a,ABC,gpu,2",
)

OTHER_SYNC = {
    "mariadb": "SELECT GET_LOCK(CONCAT(LEFT(DATABASE(), 40), '.cyborg_quota'), 5)",
    "postgresql": "SELECT pg_advisory_xact_lock(6216302001)",
}
"""The lock that db sync on another host holds."""


class DatabasesTest(base.CliTestCase):
    scenarios = fixtures.SCENARIOS

    def test_sync_and_version(self) -> None:
        self.configure(url=fixtures.fresh_url(self.backend, "cli"))
        made = self.good("db", "sync")
        self.assertIsNone(made["from_revision"])
        self.assertEqual(made["to_revision"], self.good("db", "version")["revision"])
        self.assertEqual(made["to_revision"], self.good("db", "sync")["from_revision"])

    def test_from_reserve_to_release(self) -> None:
        self.limit("gpu:3")
        self.good("reserve", "--project", "p1", "--consumer", "c", "gpu=2")
        self.assertIn(
            "limit 3, used 0, reserved 2, requested 2", self.refused(1, "reserve", "--project", "p1", "gpu=2")
        )
        self.prepare("commit --project p1 --consumer c")
        self.assertEqual((3, 2, 0, 1), tuple(self.good("list", "--usage")[0].values())[2:6])
        self.good("release", "--project", "p1", "--consumer", "c")
        self.assertEqual([], self.good("audit"))
        self.assertEqual({"expired": 0}, self.good("expire"))

    def test_replay(self) -> None:
        path = self.trace(*TRACE)
        first = self.good("replay", path, "--limit", "gpu=2")
        self.assertEqual([2, 1, 1, 1, 1, 0, 1], [
            first[name] for name in ("admitted", "refused", "committed", "released", "skipped", "used", "reserved")
        ])  # fmt: skip
        again = self.call("replay", path, "--limit", "gpu=2", "-f", "json")
        self.assertEqual(first["projects"], again.json["projects"])
        self.assertIn("already replayed", again.err)
        self.assertEqual([], self.good("audit"))


class OtherSyncTest(base.CliTestCase):
    """(SQLite locks the file, with a timeout of its own.)"""

    scenarios = fixtures.SCENARIOS[1:]

    def test_sync_waits_for_another_host_s(self) -> None:
        """It once failed after the timeout of a charge's statement."""
        url = fixtures.fresh_url(self.backend, "cli")
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        self.configure("[quota]\nstatement_timeout = 1\nretry_seconds = 0.5", url=url)
        with ThreadPoolExecutor(1) as aside:
            with engine.connect() as other:
                other.execute(sa.text(OTHER_SYNC[self.backend]))
                syncing = aside.submit(self.call, "db", "sync", "-f", "json")
                self.assertRaises(TimeoutError, syncing.result, 3)
            ended = syncing.result(30)
        self.assertEqual((0, ""), (ended.status, ended.err))
        self.assertEqual([], self.good("list", "--usage"))
