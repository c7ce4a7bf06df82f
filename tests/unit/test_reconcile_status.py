# SPDX-License-Identifier: Apache-2.0
"""The exit status of ``reconcile --heal``."""

from __future__ import annotations

import dataclasses
import io
import types

from oslotest import base

from cyborg_quota.cmd.reconcile import Reconcile
from cyborg_quota.integrations.cyborg.diff import Attached, Difference, Report


class TestStatus(base.BaseTestCase):
    def report_failed(self, differences: list[Difference], repaired: list[Difference]) -> tuple[int, str]:
        command = Reconcile.__new__(Reconcile)
        command.status = 0
        command.app = types.SimpleNamespace(NAME="cyborg-quota", stderr=io.StringIO())
        command._report_failed(Report(9, differences), repaired)
        return command.status, command.app.stderr.getvalue()

    def test_a_difference_is_left(self) -> None:
        attached = Attached("a", "p1", "i1", {"gpu": 1})
        done, failed, half = (Difference("not charged", arq, (), attached) for arq in "abc")
        others = dataclasses.replace(failed, arq="d", is_own=False)
        self.assertEqual((0, ""), self.report_failed([done, others], [done]))
        only_released = dataclasses.replace(half, problem="released, not charged")
        status, text = self.report_failed([done, failed, half, others], [done, only_released])
        self.assertEqual(
            (1, "cyborg-quota: 2 differences were not repaired; the log has the reasons.\n"), (status, text)
        )
