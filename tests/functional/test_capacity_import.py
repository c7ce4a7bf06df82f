# SPDX-License-Identifier: Apache-2.0
"""The import of inventories: what it matches, what it refuses, and what other processes see of it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any
from unittest import mock

from fixtures import FakeLogger

from cyborg_quota import ANY, Inventory, exceptions
from cyborg_quota.capacity.imports import changes as capacity_import
from cyborg_quota.capacity.imports.changes import CapacityImporter, Change, WantedProvider
from tests import base, fixtures
from tests.base import ADMIN

KNOWN = "11111111-aaaa-4111-8111-111111111111"
OTHER = "22222222-bbbb-4222-8222-222222222222"
GPU = frozenset({"gpu"})


def host(name: str, total: int, uuid: str | None = None, **used: int) -> WantedProvider:
    """A provider of Placement with GPUs. ``used``: by consumer."""
    return WantedProvider(name, uuid, inventories={"gpu": Inventory(total)}, covers=GPU, used=lambda: {"gpu": used})


class CapacityImportTest(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.importer = CapacityImporter(self.capacity, ADMIN, ["gpu"])

    def run_import(self, *wanted: WantedProvider) -> list[Change]:
        return self.importer.run(lambda: wanted)

    def figures(self) -> list[tuple[str, int, int, int]]:
        return [
            (one.provider, one.total, one.used_elsewhere, one.free) for one in self.capacity.list_inventories(ADMIN)
        ]

    def test_no_claim_between_a_total_and_what_is_used_of_it(self) -> None:
        """A new node that is full in Placement never has anything free here, nor has the growth of a node."""
        taken: list[Sequence[str]] = []

        def try_to_claim() -> None:
            for provider in (ANY, "n1"):
                try:
                    taken.append(self.quotas.reserve(self.context, {"gpu": 1}, provider=provider))
                except exceptions.QuotaError:
                    continue

        def write(*work: Any) -> object:
            try:
                return database.write(*work)
            finally:
                try_to_claim()

        providers = self.engine.capacity
        database = providers._database
        watched = mock.Mock(wraps=database, **{"write.side_effect": write})
        with mock.patch.object(providers, "_database", watched):
            for total in (8, 12):
                self.run_import(host("n1", total, server=total))
                self.assertEqual(([], [("n1", total, total, 0)]), (taken, self.figures()))

    def test_two_entries_for_one_provider(self) -> None:
        """Neither is written: each run would overwrite what the other one has set, and a host would be lost."""
        for pair in (
            (host("n1", 1), host("n1", 2, KNOWN)),
            (host("n1", 1, KNOWN), host("n2", 1, KNOWN.upper())),
        ):
            self.assertRaisesRegex(exceptions.InvalidRequest, "two providers", self.run_import, host("first", 1), *pair)
            self.assertEqual([], self.capacity.list_providers(ADMIN))
        self.capacity.add_provider(ADMIN, "n1", uuid=KNOWN)
        for pair in (
            (host("renamed", 4, KNOWN), host("n1", 8, OTHER)),
            (host("n1", 8), host("n5", 4, KNOWN.upper())),
            (host("n1", 8), host(KNOWN, 4)),
        ):
            self.assertRaisesRegex(exceptions.InvalidRequest, "n1", self.run_import, host("first", 1), *pair)
            self.assertEqual(["n1"], [one.name for one in self.capacity.list_providers(ADMIN)])
        self.assertEqual([], self.figures())

    def test_parents_come_first(self) -> None:
        """A parent is stored, or an earlier entry; otherwise nothing is written."""
        child = WantedProvider("child", parent="n1")
        for wanted in ((host("first", 1), child), (child, host("n1", 1))):
            self.assertRaises(exceptions.ProviderNotFound, self.run_import, *wanted)
            self.assertEqual([], self.capacity.list_providers(ADMIN))
        self.run_import(host("n1", 1, KNOWN), child, WantedProvider("other child", parent=KNOWN))
        self.run_import(WantedProvider("late child", parent="n1"))
        parents = {one.name: one.parent for one in self.capacity.list_providers(ADMIN)}
        self.assertEqual({"n1": None, "child": "n1", "other child": "n1", "late child": "n1"}, parents)

    def test_a_uuid_as_the_name(self) -> None:
        """It names the stored provider, as in every other call; with another UUID beside it, it is refused."""
        self.capacity.add_provider(ADMIN, "n1", uuid=KNOWN)
        for name in (KNOWN, KNOWN.upper()):
            self.run_import(WantedProvider(name, inventories={"gpu": Inventory(len(name) - 30)}))
            self.assertEqual([("n1", 6, 0, 6)], self.figures())
            self.assertRaises(exceptions.InvalidRequest, self.run_import, host("first", 1), host(name, 4, OTHER))
        self.assertEqual(1, len(self.capacity.list_providers(ADMIN)))

    def test_a_pool_that_became_shared(self) -> None:
        """A known provider stays what it is, and the log says how to change it."""
        logged = self.useFixture(FakeLogger("cyborg_quota", level=logging.WARNING))
        pool = host("pool", 4)
        self.run_import(pool, host("n1", 1))
        self.assertEqual("", logged.output)
        self.run_import(dataclasses.replace(pool, can_host=False))
        self.assertIn("cyborg-quota provider set pool --shared", logged.output)
        self.capacity.set_can_host(ADMIN, "pool", can_host=False)
        before = logged.output
        self.run_import(dataclasses.replace(pool, can_host=False), dataclasses.replace(host("n1", 1), can_host=None))
        self.assertEqual(before, logged.output)
        self.run_import(dataclasses.replace(pool, can_host=True))
        self.assertIn("cyborg-quota provider set pool --no-shared", logged.output)

    def test_a_slower_import_does_not_overwrite_a_newer_one(self) -> None:
        """Two conductors import: the one that has read Placement first writes last."""
        logged = self.useFixture(FakeLogger("cyborg_quota", level=logging.WARNING))
        self.run_import(host("n1", 8), host("n2", 8))

        def read_first() -> list[WantedProvider]:
            CapacityImporter(self.capacity, ADMIN, ["gpu"]).run(lambda: [host("n1", 4), host("n2", 8, server=1)])
            return [host("n1", 16, server=8), host("n2", 8, server=5), host("n3", 1)]

        changes = self.importer.run(read_first)
        self.assertEqual([("n1", 4, 0, 4), ("n2", 8, 1, 7), ("n3", 1, 0, 1)], self.figures())
        self.assertEqual({"n3"}, {one.provider for one in changes})
        self.assertIn("changed or removed 2 providers", logged.output)
        self.assertEqual(2, len(self.run_import(host("n1", 16, server=8), host("n2", 8))[1:]))

    def test_a_provider_that_another_writer_adds_or_removes_meanwhile(self) -> None:
        logged = self.useFixture(FakeLogger("cyborg_quota", level=logging.WARNING))
        self.run_import(host("n1", 8), host("n2", 8), host("n3", 8))
        read_inventories = self.capacity.list_inventories

        def added_before(*arguments: Any, **options: Any) -> Any:
            with contextlib.suppress(exceptions.ProviderExists):
                self.capacity.add_provider(ADMIN, "n9")
                self.capacity.set_inventories(ADMIN, "n9", {"gpu": Inventory(1)})
            return read_inventories(*arguments, **options)

        def removed() -> list[WantedProvider]:
            self.capacity.remove_provider(ADMIN, "n2")
            return [host("n1", 4), host("n2", 4), host("n3", 4)]

        with mock.patch.object(self.capacity, "list_inventories", added_before):
            self.importer.run(removed)
        self.assertEqual([("n1", 4), ("n3", 4), ("n9", 1)], [one[:2] for one in self.figures()])
        self.assertIn("changed or removed 1 providers", logged.output)

    def test_a_host_with_two_names(self) -> None:
        """Cyborg may name a host node1 where Placement names it node1.example.org: the log warns of both."""
        logged = self.useFixture(FakeLogger("cyborg_quota", level=logging.WARNING))
        of_placement = [host("n1.example.org", 8, KNOWN), host("n2", 8), host("10.0.0.1", 1)]
        self.run_import(*of_placement)
        self.run_import(*of_placement, host("n3.example.org", 1), host("n1.example.net", 1), host("10.0.0.2", 1))
        self.run_import(WantedProvider("n3"), host("n30", 1), host("n2.example.org", 0), host("n2", 8))
        self.assertEqual("", logged.output)
        self.run_import(host("n1", 8))
        self.assertIn("2 new providers may be hosts that are already stored under another name", logged.output)
        self.assertIn("for example n1 and n1.ex", logged.output)

    def test_the_claims_are_read_if_the_source_knows_what_is_in_use(self) -> None:
        """They are as many as the accelerators of the cloud."""
        with mock.patch.object(self.capacity, "list_allocations", wraps=self.capacity.list_allocations) as listed:
            self.run_import(host("n1", 8, server=1))
            self.assertEqual(2, listed.call_count)
            importer = CapacityImporter(self.capacity, ADMIN, ["gpu"], knows_use=False)
            importer.run(lambda: [WantedProvider("n1", inventories={"gpu": Inventory(4)})])
            self.assertEqual(2, listed.call_count)
        self.assertEqual([("n1", 4, 1, 3)], self.figures())

    def test_the_claims_are_read_in_pages(self) -> None:
        """Claims of all providers are not in memory at once; what each consumer has at each of them is known."""
        wanted = [host(f"n{number}", 8, a=1, b=2, other=1) for number in range(3)]
        self.run_import(*wanted)
        for number in range(3):
            for consumer, amount in (("a", 1), ("b", 2)):
                name = f"{consumer}{number}"
                self.quotas.reserve(self.context, {"gpu": amount}, consumer=name, group=consumer, provider=f"n{number}")
        read = mock.Mock(wraps=self.capacity.list_allocations)
        with (
            mock.patch.object(capacity_import, "PAGE_ROWS", 2),
            mock.patch.object(self.capacity, "list_allocations", read),
        ):
            self.run_import(*wanted)
        self.assertEqual([(f"n{number}", 8, 1, 4) for number in range(3)], self.figures())
        self.assertEqual({2}, {call.kwargs["limit"] for call in read.call_args_list})
        self.assertEqual(8, read.call_count)  # before and after the source, until an empty page
