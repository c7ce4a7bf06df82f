# SPDX-License-Identifier: Apache-2.0
"""The headroom at providers: what the quota and a provider permit together."""

from __future__ import annotations

import functools
from typing import Any

from cyborg_quota import ANY, Headroom, Inventory, exceptions
from cyborg_quota.ledger.enforcement import Bundles
from cyborg_quota.types import MAX_AMOUNT
from tests import base, fixtures
from tests.functional.test_capacity import ADMIN, CapacityTestCase


class TestHeadroom(CapacityTestCase):
    """tests/model/test_capacity_model.py compares it with reserves."""

    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.add_provider("n2", gpu=6)
        self.add_provider("pool", can_host=False, gpu=100)

    def headroom(self, provider: str | None = ANY, context: Any = ADMIN) -> Headroom:
        return self.engine.headroom(context, "p1", provider=provider)["gpu"]

    def test_any_and_a_named_provider(self) -> None:
        self.assertEqual(Headroom(None), self.headroom(None))
        self.claim(3, "n1")
        self.assertEqual(0, self.engine.headroom(ADMIN, "p1", provider=ANY)["gpu.A100"].fits)
        uuid_of_n2 = self.capacity.show_provider(ADMIN, "n2").uuid
        for provider, expected in (
            (ANY, Headroom(6, ANY, "provider", None, 11)),
            ("pool", Headroom(100, "pool", "provider", None, 100)),
            (uuid_of_n2, Headroom(6, "n2", "provider", None, 6)),
        ):
            self.assertEqual(expected, self.headroom(provider))
        self.assertRaises(exceptions.ProviderNotFound, self.headroom, "n9")
        self.set("n1", gpu=Inventory(2))  # below its use
        self.assertEqual(Headroom(0, "n1", "provider", None, 0), self.headroom("n1"))
        for name in ("n3", "n4"):  # equal inventories are counted by the database: three nodes with 6 free are one row
            self.add_provider(name, gpu=6)
        self.assertEqual(Headroom(6, ANY, "provider", None, 18), self.headroom())
        self.assertEqual(Bundles(3, None), self.engine.how_many(ADMIN, {"gpu": 6}, "p1", provider=ANY))

    def test_units_and_quota_together(self) -> None:
        """The quota permits 7; in steps of 3, that is 6. With a quota of 6, it is the quota that binds."""
        self.set("n1", gpu=Inventory(8, min_unit=2, step_size=3))
        self.set("n2", gpu=Inventory(0))
        for limit, expected in (
            (7, Headroom(6, ANY, "provider", None, 8)),
            (6, Headroom(6, "p1", "project", 6, 8)),
            (2, Headroom(2, "p1", "project", 2, 8)),
            (1, Headroom(0, ANY, "provider", None, 8)),
        ):
            self.limits.own["p1", "gpu"] = limit
            self.assertEqual(expected, self.headroom())

    def test_a_user_gets_quota_only(self) -> None:
        """Not even whether the provider exists."""
        user = base.Context("p1")
        self.limits.own["p1", "gpu"] = 40
        for provider in (ANY, "n1", "n9"):
            self.assertEqual(Headroom(40, "p1", "project", 40), self.headroom(provider, user))
            self.assertEqual(Bundles(40, "gpu"), self.engine.how_many(user, {"gpu": 1}, provider=provider))

    def test_bundles(self) -> None:
        """n1 takes two of gpu=3,fpga=1 and n2 none, because it has no fpga."""
        count = functools.partial(self.engine.how_many, ADMIN, project_id="p1")
        for bundle, provider, expected in (
            ({"gpu": 3, "fpga": 1}, ANY, Bundles(2, None)),
            ({"gpu": 3}, ANY, Bundles(4, None)),
            ({"gpu": 3}, "n2", Bundles(2, None)),
            ({"gpu": 3}, None, Bundles(MAX_AMOUNT // 3, "gpu")),
        ):
            self.assertEqual(expected, count(bundle, provider=provider))
        self.limits.own["p1", "gpu"] = 5
        self.assertEqual(Bundles(1, "gpu"), count({"gpu": 3, "fpga": 1}, provider=ANY))
        for bundle in ({}, {"gpu": 0}, {"gpu": -1}, {"nothing": 1}):
            self.assertRaises(exceptions.QuotaError, count, bundle, provider=ANY)
        self.assertRaises(exceptions.ProviderNotFound, count, {"gpu": 1}, provider="n9")
