# SPDX-License-Identifier: Apache-2.0
"""The import of inventories: what it matches, what it refuses, and what other processes see of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from cyborg_quota import ANY, Claim, Inventory, exceptions
from cyborg_quota.capacity.imports import changes as capacity_import
from cyborg_quota.capacity.imports.changes import CapacityImporter, Change, WantedProvider
from tests import base, fixtures
from tests.base import ADMIN

KNOWN = "11111111-aaaa-4111-8111-111111111111"
OTHER = "22222222-bbbb-4222-8222-222222222222"
GPU = frozenset({"gpu"})


def host(name: str, total: int, uuid: str | None = None, **used: int) -> WantedProvider:
    """A provider of Placement with GPUs. ``used``: by consumer."""
    return WantedProvider(name, uuid, inventories={"gpu": Inventory(total)}, covers=GPU, used={"gpu": used})


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
        database, taken = self.engine.capacity._database, list[object]()

        def write(*work: Any) -> object:
            answer = database.write(*work)
            for provider in (ANY, "n1"):
                with contextlib.suppress(exceptions.QuotaError):
                    taken.append(self.quotas.reserve(self.context, {"gpu": 1}, provider=provider))
            return answer

        watched = mock.Mock(wraps=database, **{"write.side_effect": write})
        with mock.patch.object(self.engine.capacity, "_database", watched):
            for total in (8, 12):
                self.run_import(host("n1", total, server=total))
                self.assertEqual(([], [("n1", total, total, 0)]), (taken, self.figures()))
        self.assertGreater(watched.write.call_count, 1)

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

    def test_another_writer_meanwhile(self) -> None:
        """Another conductor has read Placement later, and writes first; or a provider is removed or added."""
        self.run_import(host("n1", 8), host("n2", 8))
        wanted = host("n1", 16, server=8), host("n2", 8, server=5), host("n3", 1)
        newest = ("n1", 16, 8, 8)
        changes: list[tuple[str, Callable[[], object], list[tuple[str, int, int, int]]]] = [
            ("n1", lambda: self.run_import(host("n1", 4), host("n2", 8, server=1)), [("n1", 4, 0, 4), ("n2", 8, 1, 7)]),
            ("n2", lambda: self.capacity.remove_provider(ADMIN, "n2"), [newest]),
            ("n3", lambda: self.capacity.add_provider(ADMIN, "n3"), [newest, ("n2", 8, 5, 3)]),
        ]
        for provider, change, expected in changes:

            def overtaken(change: Callable[[], object] = change) -> Sequence[WantedProvider]:
                change()
                return wanted

            error = f"changed provider '{provider}' .* Run the import again"
            self.assertRaisesRegex(exceptions.QuotaError, error, self.importer.run, overtaken)
            self.assertEqual(expected, self.figures())
        self.run_import(*wanted)
        self.assertEqual([newest, ("n2", 8, 5, 3), ("n3", 1, 0, 1)], self.figures())

    def test_the_claims_are_read_in_pages(self) -> None:
        """What each consumer has at each provider is known. None is read if the source does not know what is in use."""
        wanted = [host(f"n{number}", 8, a=1, b=2, other=1) for number in range(3)]
        self.run_import(*wanted)
        claims = [
            Claim(f"{group}{number}", {"gpu": amount}, group=group, provider=f"n{number}")
            for number in range(3)
            for group, amount in (("a", 1), ("b", 2))
        ]
        self.quotas.reserve_many(self.context, claims)
        read = mock.Mock(wraps=self.capacity.list_allocations)
        with (
            mock.patch.object(capacity_import, "PAGE_ROWS", 2),
            mock.patch.object(self.capacity, "list_allocations", read),
        ):
            self.run_import(*wanted)
            importer = CapacityImporter(self.capacity, ADMIN, ["gpu"], knows_use=False)
            importer.run(lambda: [WantedProvider("n0", inventories={"gpu": Inventory(9)})])
        self.assertEqual([("n0", 9, 1, 5), ("n1", 8, 1, 4), ("n2", 8, 1, 4)], self.figures())
        pages = [call.kwargs["limit"] for call in read.call_args_list]
        self.assertEqual([2] * 8, pages, "before and after the source, until an empty page")
