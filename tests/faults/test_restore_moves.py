# SPDX-License-Identifier: Apache-2.0
"""A restore loses changes that a process, which is not restarted, has in its caches; then they are made differently."""

from __future__ import annotations

import pathlib

import fixtures as fixtures_
import testscenarios

from cyborg_quota import exceptions
from cyborg_quota.capacity_types import Inventory
from tests import base, fixtures, needs
from tests.faults import backups
from tests.functional.test_limits import LimitsTestCase

load_tests = testscenarios.load_tests_apply_scenarios


class TestLostChanges(LimitsTestCase):
    """``self.engine`` belongs to the process that is not restarted."""

    def setUp(self) -> None:
        super().setUp()
        reason = backups.missing_program(self.backend)
        if reason is not None:
            needs.missing(self, reason)
        self.path = pathlib.Path(self.useFixture(fixtures_.TempDir()).path) / "backup"
        self.other = self.make_limited()

    def restore(self, backup: backups.Backup) -> None:
        backup.restore()
        fixtures.plain_engine(self.url).dispose()
        self.other = self.make_limited()

    def test_a_lost_move_and_another_one(self) -> None:
        """The new parent of the lost move is not charged, and the limit of the other one is observed."""
        self.make_tree({"top": None, "a": "top", "b": "top", "old": "top", "leaf": "old"})
        for name, limit in (("top", 50), ("old", 10), ("a", 10), ("b", 3), ("leaf", 3)):
            self.set(name, limit)
        for name in ("a", "b", "b", "leaf"):
            self.hold(name, 1)
        backup = backups.Backup(self.url, self.path)
        self.other.administration.move_project(base.ADMIN, "leaf", "a")
        self.engine.reserve(base.Context("leaf"), {"gpu": 1}, consumer="lost")
        self.restore(backup)
        self.other.administration.move_project(base.ADMIN, "leaf", "b")
        error = self.assertRaises(
            exceptions.OverQuota, self.engine.reserve, base.Context("leaf"), {"gpu": 1}, consumer="new"
        )
        self.assertEqual(["b"], [over.project_id for over in error.overs])
        self.assert_invariants()

    def test_a_lost_import_and_another_one(self) -> None:
        """The same with the moves of an import."""
        self.make_tree({"a": None, "b": None, "leaf": None})
        for name in ("a", "b", "leaf"):
            self.set(name, 9)
            self.hold(name, 1)
        backup = backups.Backup(self.url, self.path)
        for parent in ("a", "b"):
            document = {"projects": [{"id": parent, "children": [{"id": "leaf"}]}]}
            self.other.administration.import_limits(base.ADMIN, document)
            if parent == "a":
                self.engine.reserve(base.Context("leaf"), {"gpu": 1}, consumer="lost")
                self.restore(backup)
        self.engine.reserve(base.Context("leaf"), {"gpu": 1}, consumer="new")
        self.assert_invariants()

    def test_a_lost_provider_and_another_one(self) -> None:
        """The other one gets the lost one's id; its inventory of another resource is added first."""
        self.set(None, 9)
        self.other.capacity.enable(base.ADMIN)
        backup = backups.Backup(self.url, self.path)
        self.other.capacity.add_provider(base.ADMIN, "node-a")
        self.other.capacity.set_inventories(base.ADMIN, "node-a", {"gpu": Inventory(8)})
        self.engine.reserve(self.context, {"gpu": 1}, consumer="lost", provider="node-a")
        self.restore(backup)
        self.other.capacity.add_provider(base.ADMIN, "node-b")
        self.other.capacity.set_inventories(base.ADMIN, "node-b", {"fpga": Inventory(8)})
        self.other.capacity.set_inventories(base.ADMIN, "node-b", {"gpu": Inventory(8)})
        self.assertRaises(
            exceptions.ProviderNotFound,
            self.engine.reserve, self.context, {"gpu": 1}, consumer="new", provider="node-a",
        )  # fmt: skip
        self.assert_invariants()
