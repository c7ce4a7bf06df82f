# SPDX-License-Identifier: Apache-2.0
"""A replay is interrupted at each of its transactions, before and after the COMMIT, and ends with the same totals."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any
from unittest import mock

from oslo_config import cfg

import cyborg_quota
from cyborg_quota import validation
from cyborg_quota.conf import loading
from cyborg_quota.db.database import Database
from cyborg_quota.replay import replay, tables
from cyborg_quota.replay.traces import Trace
from tests import fixtures
from tests.cli import base

# Every event after a reserve, a consumer that returns, one that is repeated, and refusals (limit 3).
TRACE = (
    "0,reserve,a,p,gpu,2",
    "0,reserve,a,p,gpu,2",
    "0,commit,a,p,gpu,2",
    "0,release,a,p,gpu,2",
    "0,reserve,b,p,gpu,1",
    "0,rollback,b,p,gpu,1",
    "0,reserve,c,p,gpu,3",
    "0,reserve,d,p,gpu,1",
    "0,commit,d,p,gpu,1",
    "0,commit,c,p,gpu,3",
    "0,release,d,p,gpu,1",
    "0,release,c,p,gpu,3",
    "0,reserve,d,p,gpu,1",
    "0,commit,d,p,gpu,1",
    "0,reserve,e,q,gpu,4",
    "0,reserve,a,p,gpu,2",
    "0,release,a,p,gpu,2",
    "0,commit,e,q,gpu,4",
    "0,reserve,a,p,gpu,2",
    "0,commit,a,p,gpu,2",
    "0,release,d,p,gpu,1",
    "0,reserve,d,p,gpu,2",
    "0,release,d,p,gpu,2",
)
EXPECTED = {"admitted": 7, "refused": 3, "committed": 4, "rolled_back": 1, "released": 4, "skipped": 4}
REFUSED = {9, 16, 23}


class PowerCut(BaseException):
    """No code after it has an effect, as after kill -9."""


class CrashTest(base.CliTestCase):
    admin = validation.admin_context()

    def setUp(self) -> None:
        super().setUp()
        self.events = Trace(self.trace(*TRACE))
        self.configure("sqlite_synchronous = false\n[limits]\ndriver = config\nlimits = gpu:3")
        conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(self.conf)])
        self.engine = cyborg_quota.make_engine(conf)
        self.database = Database(fixtures.settings(self.url))
        self.addCleanup(self.engine.close)
        self.addCleanup(self.database.close)

    def run_once(self) -> replay.Replay:
        position = tables.Position(self.database, self.events.digest, {"gpu": 3})
        run = replay.Replay(self.engine, self.admin, self.events, position)
        run.run()
        return run

    def cut(self, first: int) -> bool:
        """Run until writes fail, from the ``first``-th on; returns False if the run came to its end before.

        (A cut after a write leaves the same as one before the next.)
        """
        write, numbers = Database.write, itertools.count(1)

        def cut(*arguments: Any, **named: Any) -> Any:
            if next(numbers) >= first:
                raise PowerCut
            return write(*arguments, **named)

        with mock.patch.object(Database, "write", cut), contextlib.suppress(PowerCut):
            self.run_once()
            return False
        return True

    def assert_same(self, what: str) -> None:
        run = self.run_once()
        self.assertEqual((EXPECTED, REFUSED), (dict(run.tally.totals), run.refused), what)
        usages = {(row.project_id, row.usage.used, row.usage.reserved) for row in self.engine.list_usages(self.admin)}
        self.assertEqual({("p", 2, 0), ("q", 0, 0)}, usages, what)
        self.assertEqual([], self.engine.audit(self.admin), what)

    def test_uninterrupted(self) -> None:
        self.assert_same("uninterrupted")
        self.assert_same("again")

    def test_cut_once(self) -> None:
        """Before each of the writes; in CI, before every third."""
        first = 1
        while self.cut(first):
            self.assert_same(f"cut before write {first}")
            first += 1 if fixtures.MORE > 1 else 3
            self.useFixture(fixtures.EmptyLedger("sqlite"))
            self.engine.close()
        self.assertGreater(first, 20)

    def test_cut_repeatedly(self) -> None:
        """Each run completes a few more transactions than it repeats, so the end is reached."""
        for step in (10, 13):
            cuts = 0
            while self.cut(step):
                cuts += 1
                self.assertLess(cuts, 200, "no run comes further than the one before")
            self.assertGreater(cuts, 1)
            self.assert_same(f"cut before every {step}th write")
            self.useFixture(fixtures.EmptyLedger("sqlite"))
