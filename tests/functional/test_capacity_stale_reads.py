# SPDX-License-Identifier: Apache-2.0
"""Claims of capacity on a node of a cluster whose reads are stale."""

from __future__ import annotations

import functools
from typing import Any

from cyborg_quota import ANY, Inventory, exceptions
from cyborg_quota.capacity import tables
from cyborg_quota.capacity.imports.changes import CapacityImporter, WantedProvider
from cyborg_quota.db import inventories, resource_providers
from cyborg_quota.db.database import Database
from tests.functional.test_capacity import ADMIN, CapacityTestCase


class TestStaleReads(CapacityTestCase):
    """A node of a cluster may not have applied yet what other nodes have committed (simulated: it finds nothing)."""

    def setUp(self) -> None:
        super().setUp()
        self.is_synced, self.depth = False, 0
        read_synced = Database.read_synced

        def read(database: Database, work: Any) -> Any:
            self.depth += 1
            try:
                return read_synced(database, work)
            finally:
                self.depth -= 1

        self.patch(Database, "read_synced", read)
        self.patch(Database, "is_galera", lambda *_: True)
        self.patch(Database, "sync_with_cluster", lambda *_: True)

    def hide(self, owner: Any, name: str, nothing: object) -> None:
        """Until this function was called in a synced read, it returns ``nothing``."""
        original = getattr(owner, name)

        def read(*arguments: Any, **options: Any) -> Any:
            self.is_synced = self.is_synced or self.depth > 0
            return original(*arguments, **options) if self.is_synced else nothing

        self.patch(owner, name, read)

    def test_a_claim_is_not_refused_before_a_synced_read(self) -> None:
        self.engine = self.make_engine()  # with empty caches
        self.hide(tables, "find_candidates", [])
        self.hide(inventories, "locations_of", {})
        self.hide(inventories, "read", {})
        reserve = functools.partial(self.engine.reserve, self.context, {"gpu": 4})
        for refuses in (False, True):
            for provider in (ANY, "n1"):
                self.is_synced = False
                if refuses:
                    self.assertRaises(exceptions.OverCapacity, reserve, provider=provider)
                else:
                    reserve(provider=provider)
                self.assertTrue(self.is_synced)
        self.assertEqual(8, self.used())

    def test_an_import_finds_what_another_node_has_added(self) -> None:
        """Otherwise it would try to add the providers that another node has just added."""
        self.hide(resource_providers, "list_providers", [])
        changes = CapacityImporter(self.capacity, ADMIN, ["gpu"]).run(
            lambda: [WantedProvider("n1", inventories={"gpu": Inventory(16)})]
        )
        self.assertEqual(["set inventory"], [one.change for one in changes])
        self.assertTrue(self.is_synced)
