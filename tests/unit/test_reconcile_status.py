# SPDX-License-Identifier: Apache-2.0
"""The exit status of ``reconcile --heal``."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

from oslotest import base

from cyborg_quota.cli import reconcile
from cyborg_quota.cyborg.diff import Difference, Record, Report
from tests.unit.test_reconcile_diff import charge


class TestStatus(base.BaseTestCase):
    def result(self, report: Callable[..., None], *arguments: Any) -> tuple[int, str]:
        """The exit status, and what a part of the command prints."""
        printed: list[str] = []
        run = types.SimpleNamespace(status=0, print_message=printed.append, conf=mock.Mock(), engine=mock.Mock())
        report(run, *arguments)
        return run.status, "".join(f"{line}\n" for line in printed)

    def heal(self, differences: list[Difference], repaired: list[Difference]) -> tuple[int, str, list[Any]]:
        """The exit status, what is printed, and the columns arq and result, of a repair that has repaired these."""
        host = "cyborg_quota.cyborg.cyborg_host"
        found = mock.Mock(find=lambda: Report(9, differences), heal=lambda *_arguments, **_options: repaired)
        rows: list[Any] = []

        def run(command: Any) -> None:
            rows.extend(reconcile._reconcile(command, None, None, None, heal=True, force=False))

        with mock.patch(f"{host}.records", uncounted={}) as records, mock.patch(f"{host}.reconciler") as reconciler:
            records.return_value.uncounted = {}
            reconciler.return_value = found
            return *self.result(run), [(row[0], row[-1]) for row in rows]

    def test_more_than_are_listed(self) -> None:
        """Differences that a run cannot repair, and those that it leaves to the next one."""
        lost = Difference("not attached", "a", (charge("1", "p1", "gpu", 1),), None)
        foreign = dataclasses.replace(lost, is_own=False)
        further = "3 further differences are not listed. Run the command again when those above are repaired.\n"
        for report, status, lines, text in (
            (Report(1, [lost]), 0, 0, ""),
            (Report(1, [], unclaimed=2), 0, 1, "2 more ARQs are charged correctly, but without a source"),
            (Report(9, [lost], omitted_own=3), 1, 1, further),
            (Report(9, [foreign], omitted_others=4), 1, 2, "5 of these ARQs have charges without a source"),
        ):
            found, printed = self.result(reconcile._report_others, report)
            self.assertEqual((status, lines, True), (found, printed.count("\n"), text in printed), printed)

    def test_a_difference_is_left(self) -> None:
        attached = Record("a", "p1", "i1", {"gpu": 1})
        done, failed, half = (Difference("not charged", arq, (), attached) for arq in "abc")
        others = dataclasses.replace(failed, arq="d", is_own=False)
        self.assertEqual((0, "Differences repaired: 1.\n", [("a", "repaired")]), self.heal([done], [done]))
        only_released = dataclasses.replace(half, problem="released, not charged")
        status, text, rows = self.heal([done, failed, half, others], [done, only_released])
        self.assertEqual(1, status)
        self.assertIn("Differences repaired: 1.\n2 differences were not repaired; the log has", text)
        self.assertEqual([("a", "repaired"), *((arq, "not repaired") for arq in "bcd")], rows)
