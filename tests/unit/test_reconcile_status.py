# SPDX-License-Identifier: Apache-2.0
"""The exit status of ``reconcile --heal``."""

from __future__ import annotations

import dataclasses
import io
import types

from oslotest import base

from cyborg_quota.cli.reconcile import Reconcile
from cyborg_quota.cyborg.diff import Difference, Record, Report
from tests.unit.test_reconcile_diff import charge


class TestStatus(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.command = Reconcile.__new__(Reconcile)

    def reset(self) -> Reconcile:
        self.command.status = 0
        self.command.app = types.SimpleNamespace(NAME="cyborg-quota", stderr=io.StringIO())
        return self.command

    def result(self) -> tuple[int, str]:
        return self.command.status, self.command.app.stderr.getvalue()

    def report_failed(self, differences: list[Difference], repaired: list[Difference]) -> tuple[int, str]:
        self.reset()._report_failed(Report(9, differences), repaired)
        return self.result()

    def test_more_than_are_listed(self) -> None:
        """Differences that a run cannot repair, and those that it leaves to the next one."""
        lost = Difference("not attached", "a", (charge("1", "p1", "gpu", 1),), None)
        self.reset()._report_others(Report(1, [lost]))
        self.assertEqual((0, ""), self.result())
        self.reset()._report_others(Report(1, [], unclaimed=2))
        self.assertEqual(0, self.result()[0])
        self.assertIn("2 more ARQs are charged correctly, but without a source", self.result()[1])
        self.reset()._report_others(Report(9, [lost], omitted={"lost": 3}))
        rest = (
            "cyborg-quota: 3 further differences are not listed. Run the command again when those above are repaired.\n"
        )
        self.assertEqual((1, rest), self.result())
        self.reset()._report_others(Report(9, [dataclasses.replace(lost, is_own=False)], omitted={"foreign": 4}))
        status, text = self.result()
        self.assertEqual((1, 2), (status, text.count("\n")))
        self.assertIn("cyborg-quota: 5 of these ARQs have charges without a source", text)

    def test_a_difference_is_left(self) -> None:
        attached = Record("a", "p1", "i1", {"gpu": 1})
        done, failed, half = (Difference("not charged", arq, (), attached) for arq in "abc")
        others = dataclasses.replace(failed, arq="d", is_own=False)
        self.assertEqual((0, ""), self.report_failed([done, others], [done]))
        only_released = dataclasses.replace(half, problem="released, not charged")
        status, text = self.report_failed([done, failed, half, others], [done, only_released])
        self.assertEqual(
            (1, "cyborg-quota: 2 differences were not repaired; the log has the reasons.\n"), (status, text)
        )
