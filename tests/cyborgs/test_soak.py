# SPDX-License-Identifier: Apache-2.0
"""A short run of the soak test, and its control; see soak.py."""

from __future__ import annotations

import functools
import pathlib

from tests.cyborgs import quota, soak

MOST_ROUNDS = 20
"""On a busy machine, a round may be too short to reach a limit."""
NAIVE_CONDUCTOR = ("python", str(pathlib.Path(__file__).with_name("naive.py")))


class SoakTestCase(quota.QuotaTestCase):
    hosts = 2
    options = soak.OPTIONS

    @property
    def config(self) -> str:  # type: ignore[override]
        return soak.CONFIG.format(seconds=soak.RPC_SECONDS, file=self.conf_file)

    def soak(self) -> soak.Soak:
        reconcile = functools.partial(quota.reconcile, self.stack, self.conf_file, "-f", "json")
        made = soak.Soak(self.stack, self.engine, self.url, reconcile)
        made.set_up()
        self.addCleanup(made.tear_down)
        return made


class TestSoak(SoakTestCase):
    def test_with_and_without_kills(self) -> None:
        made = self.soak()
        report, _ = made.round(2.0, is_deadly=True)
        problems = report.problems
        for _ in range(MOST_ROUNDS):
            report, _ = made.round(0.7, is_deadly=False)
            problems += report.problems
            statuses = {status for what, status in made.outcomes if what == "bind"}
            if {202, 403} <= statuses:
                break
        self.assertEqual([], problems)
        self.assertLessEqual({202, 403}, statuses)


class TestControl(SoakTestCase):
    conductor = NAIVE_CONDUCTOR
    options = "bind_expire = 3"

    def test_missing_releases_are_detected(self) -> None:
        made = self.soak()
        arqs = self.client.created(self.profile)
        self.bind(arqs)
        self.assertEqual(202, self.client.unbind(arqs).status)
        report, _ = made.round(0.0, is_deadly=False)
        self.assertIn("although no process was killed", "\n".join(report.problems))
