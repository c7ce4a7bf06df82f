# SPDX-License-Identifier: Apache-2.0
"""Overrides of an imported document: their reasons in the history, and an import that is repeated."""

from __future__ import annotations

import re
from typing import Any

import fixtures as fx

from cyborg_quota.limits import cadf, document
from cyborg_quota.types import RecordedChanges
from tests import base, fixtures, history_replay
from tests.functional import test_overrides


class TestDocuments(test_overrides.OverridesTestCase):
    scenarios = fixtures.ON_SQLITE  # the files do not depend on it

    def entry(self, limit: int = 4, **more: str) -> dict[str, Any]:
        return {"resource": "gpu", "limit": limit, "until": f"{self.time(2).isoformat()}Z", **more}

    def load(self, *entries: dict[str, Any], **how: Any) -> int:
        """Import these overrides of the project p; returns the number of changes."""
        given = {"projects": [{"id": "p", "overrides": list(entries)}]}
        return len(self.admin.import_limits(base.ADMIN, given, **how))

    def test_its_own_reason_comes_first(self) -> None:
        """The reason of an override, or else that of the import; in the history, the log and the event."""
        log = self.useFixture(fx.FakeLogger())
        recorded: list[RecordedChanges] = []
        self.engine._driver.history.listener = recorded.append
        self.load(self.entry(4, reason="workshop"), self.entry(5), reason="plan 7")
        self.load(self.entry(7, reason="course"))
        events = [payload["attachments"][0]["content"] for one in recorded for _, payload in cadf.events(one)]
        history = self.admin.history(base.ADMIN, "p")[::-1]
        listed = self.admin.list_overrides(base.ADMIN)[0]
        reasons = {
            "history": [one.reason for one in history if one.override_id],
            "log": re.findall("set override.*reason=(.*)", log.output),
            "events": [content["reason"] for content in events if content["after"] is not None],
        }
        self.assertEqual({name: ["workshop", "plan 7", "course"] for name in reasons}, reasons)
        self.assertEqual(["workshop", None, "course"], [one.reason for one in listed], "their own")
        # A cancelled override is announced, too.
        self.admin.cancel_overrides(base.ADMIN, [listed[0].id], reason="over")
        self.assertRegex(log.output, f"cancel override .*project_id=p resource=gpu override_id={listed[0].id} from=")
        (change,) = recorded[-1].changes
        self.assertEqual(("cancel override", 4, None), (change.action, change.before, change.after))

    def test_without_a_start(self) -> None:
        """It is made once. An override that differs, or that has not begun yet, is another one."""
        self.assertEqual(2, self.load(self.entry()))  # p is added to the tree
        for dry_run in (True, False):
            self.assertEqual(0, self.load(self.entry(), dry_run=dry_run))
        self.assertEqual(1, self.load(self.entry(5)))
        self.override("p", 6, 1, 2)
        self.assertEqual([1, 0], [self.load(self.entry(6)) for _ in range(2)])
        self.assertEqual(4, len(self.rows()))

    def test_twice_in_one_file(self) -> None:
        """Each entry is an override: the last one applies."""
        start = {"from": f"{self.time(1).isoformat()}Z"}
        entries = [self.entry(), self.entry(5), self.entry(), self.entry(**start), self.entry(6), self.entry(**start)]
        self.assertEqual(7, self.load(*entries))
        self.assertEqual([4, 5, 4, 4, 6, 4], [one.limit for one in self.admin.list_overrides(base.ADMIN)[0]])
        self.assertEqual(0, self.load(*entries))
        self.assertEqual(2, self.load(*entries, self.entry(5), self.entry(**start)))
        # An entry without a start does not take the override of one with a start that comes later.
        begun = {"from": f"{self.time(-1).isoformat()}Z"}
        self.load(self.entry(9, **begun))
        for expected_changes in (1, 0):
            self.assertEqual(expected_changes, self.load(self.entry(9), self.entry(9, **begun)))

    def test_another_ledger_gets_the_same_overrides_in_the_same_order(self) -> None:
        self.set("p", 1)
        for limit in (40, 20, 40, 30, 40):
            self.override("p", limit, -1, 2)
        before = self.listed()
        text = document.render(self.admin.export_limits(base.ADMIN))
        self.assertIn("workshop", text)
        parsed = document.parse(text)
        self.assertEqual([], self.admin.import_limits(base.ADMIN, parsed))
        self.admin.cancel_overrides(base.ADMIN, [one.id for one in self.admin.list_overrides(base.ADMIN)[0]])
        for dry_run in (True, False):
            self.assertEqual([], self.rows())
            changes = self.admin.import_limits(base.ADMIN, parsed, dry_run=dry_run)
            self.assertEqual(["set override"] * 5, [change.action for change in changes])
        self.assertEqual(([], before, 40), (history_replay.differences(self.engine), self.listed(), self.room()))

    def listed(self) -> list[tuple[Any, ...]]:
        listed = self.admin.list_overrides(base.ADMIN)[0]
        return [(one.project_id, one.limit, one.starts_at, one.until, one.reason) for one in listed]
