# SPDX-License-Identifier: Apache-2.0
"""A replay is interrupted at each of its transactions, before and after the COMMIT, and ends with the same totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fixtures as fx
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import QuotaEngine, validation
from cyborg_quota.conf import loading
from cyborg_quota.db.database import Database
from cyborg_quota.replay import replay, tables
from cyborg_quota.replay.traces import Trace
from tests import fixtures
from tests.cli import base

# Every event after a reserve, a consumer that returns, one that is repeated, and refusals (limit 3).
TRACE = """\
time,event,consumer,project,resource,amount
0,reserve,a,p,gpu,2
0,reserve,a,p,gpu,2
0,commit,a,p,gpu,2
0,release,a,p,gpu,2
0,reserve,b,p,gpu,1
0,rollback,b,p,gpu,1
0,reserve,c,p,gpu,3
0,reserve,d,p,gpu,1
0,commit,d,p,gpu,1
0,commit,c,p,gpu,3
0,release,d,p,gpu,1
0,release,c,p,gpu,3
0,reserve,d,p,gpu,1
0,commit,d,p,gpu,1
0,reserve,e,q,gpu,4
0,reserve,a,p,gpu,2
0,release,a,p,gpu,2
0,commit,e,q,gpu,4
0,reserve,a,p,gpu,2
0,commit,a,p,gpu,2
0,release,d,p,gpu,1
0,reserve,d,p,gpu,2
0,release,d,p,gpu,2
"""
EXPECTED = {"admitted": 7, "refused": 3, "committed": 4, "rolled_back": 1, "released": 4, "skipped": 4}
REFUSED = {9, 16, 23}


class PowerCut(BaseException):
    """No code after it has an effect, as after kill -9."""


class Power(fx.Fixture):
    """Makes writes fail from the ``last``-th on; that one is committed if ``is_done``."""

    def __init__(self, last: int, *, is_done: bool) -> None:
        super().__init__()
        self._left = last
        self._is_done = is_done

    def _setUp(self) -> None:
        write = Database.write

        def cut(database: Database, work: Callable[[Any], Any], at_once: Callable[[Any], Any] | None = None) -> Any:
            if self._left <= 0:
                raise PowerCut
            self._left -= 1
            if self._left:
                return write(database, work, at_once)
            if self._is_done:
                write(database, work, at_once)
            raise PowerCut

        self.useFixture(fx.MonkeyPatch("cyborg_quota.db.database.Database.write", cut))


class CrashTest(base.CliTestCase):
    admin = validation.admin_context()

    def setUp(self) -> None:
        super().setUp()
        path = self.directory / "trace.csv"
        path.write_text(TRACE)
        self.trace = Trace(str(path))
        self.useFixture(fx.MonkeyPatch("cyborg_quota.replay.replay.CHECKPOINT_EVENTS", 7))
        conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(self.conf)])
        conf.set_override("sqlite_synchronous", False, group="database")
        conf.set_override("driver", "config", group="limits")
        conf.set_override("limits", {"gpu": 3}, group="limits")
        self.engine: QuotaEngine = cyborg_quota.make_engine(conf)
        self.database = Database(fixtures.settings(self.url))
        self.addCleanup(self.engine.close)
        self.addCleanup(self.database.close)

    def run_once(self) -> replay.Replay:
        position = tables.Position(self.database, self.trace.digest, {"gpu": 3})
        run = replay.Replay(self.engine, validation.admin_context(), self.trace, position)
        run.run()
        return run

    def cut(self, last: int, *, is_done: bool) -> bool:
        """Run until the simulated power cut; returns False if the run came to its end before."""
        with Power(last, is_done=is_done):
            try:
                self.run_once()
            except PowerCut:
                return True
        return False

    def assert_same(self, what: str) -> None:
        run = self.run_once()
        self.assertEqual(EXPECTED, dict(run.tally.totals), what)
        self.assertEqual(REFUSED, run.refused, what)
        listed = self.engine.list_usages(self.admin)
        usages = {(row.project_id, row.usage.used, row.usage.reserved) for row in listed}
        self.assertEqual({("p", 2, 0), ("q", 0, 0)}, usages, what)
        self.assertEqual([], self.engine.audit(self.admin), what)

    def test_uninterrupted(self) -> None:
        self.assert_same("uninterrupted")
        self.assert_same("again")

    def test_cut_once_at_every_transaction(self) -> None:
        last = 1
        while self.cut(last, is_done=False):
            self.assert_same(f"cut before write {last}")
            last += 1
            self.useFixture(fixtures.EmptyLedger("sqlite"))
            self.engine.close()
        self.assertGreater(last, 20)

    def test_cut_repeatedly(self) -> None:
        """Each run completes a few more transactions than it repeats, so the end is reached."""
        for step in (10, 13):
            for is_done in (False, True):
                cuts = 0
                while self.cut(step, is_done=is_done):
                    cuts += 1
                    self.assertLess(cuts, 200, "no run comes further than the one before")
                self.assertGreater(cuts, 1)
                self.assert_same(f"cut every {step} writes, done: {is_done}")
                self.useFixture(fixtures.EmptyLedger("sqlite"))
