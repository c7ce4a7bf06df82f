# SPDX-License-Identifier: Apache-2.0
"""The hook where oslo.limit's enforcement goes."""

from __future__ import annotations

from collections.abc import Mapping

from oslo_limit import exception as oslo_limit

from cyborg_quota import DbQuotaDriver, QuotaEngine, exceptions
from cyborg_quota.driver import DriverSettings
from cyborg_quota.types import Over
from tests import base, fixtures


class TestHook(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[tuple[str, Mapping[str, int]]] = []
        settings = DriverSettings(database=fixtures.settings(self.url), hook=self.enforce)
        self.hooked = QuotaEngine(DbQuotaDriver(settings, self.limits))
        self.addCleanup(self.hooked.close)
        self.hooked.register_resources(["gpu", "fpga"])

    def enforce(self, project_id: str, deltas: Mapping[str, int]) -> None:
        """At most 2 devices of all kinds in one call."""
        self.asked.append((project_id, deltas))
        if deltas.get("tpu"):
            raise ZeroDivisionError
        if sum(deltas.values()) > 2:
            info = oslo_limit.OverLimitInfo("gpu", 2, 0, deltas["gpu"])
            raise oslo_limit.ProjectOverLimit(project_id, [info])

    def test_it_is_asked_about_each_reserve(self) -> None:
        """Its refusal changes nothing. A repeated call is not refused; another error is raised."""
        self.hooked.reserve_many(self.context, [base.claim("a", gpu=1), base.claim("b", fpga=1)])
        self.assertEqual([("p1", {"gpu": 1, "fpga": 1})], self.asked)
        self.hooked.adopt(base.ADMIN, [base.claim("c", gpu=9)], "p1")
        self.assertEqual(1, len(self.asked))
        error = self.assertRaises(exceptions.OverQuota, self.hooked.reserve, self.context, {"gpu": 3})
        self.assertEqual(([Over("p1", "gpu", "project", 2, 3, 9, 1)], (9, 1)), (error.overs, self.figures()))
        uuids = self.engine.reserve(self.context, {"gpu": 3}, consumer="d")  # (without the hook)
        self.assertEqual(uuids, self.hooked.reserve(self.context, {"gpu": 3}, consumer="d"))
        self.hooked.register_resource("tpu")
        self.assertRaises(ZeroDivisionError, self.hooked.reserve, self.context, {"tpu": 1})

    def test_it_is_asked_about_checks_growth_and_transfers(self) -> None:
        [over] = self.hooked.check(self.context, {"gpu": 3})
        self.assertEqual(("gpu", 2, 3, 2), (over.resource, over.limit, over.requested, over.fits))
        self.engine.reserve(self.context, {"gpu": 1}, consumer="a")
        self.assertRaises(exceptions.OverQuota, self.hooked.resize, self.context, {"gpu": 4}, consumer="a")
        self.engine.resize(self.context, {"gpu": 4}, consumer="a")
        self.assertRaises(exceptions.OverQuota, self.hooked.transfer, base.ADMIN, "p2", "p1", consumer="a")
        self.asked.clear()
        self.hooked.resize(self.context, {"gpu": 2}, consumer="a")
        self.hooked.transfer(base.ADMIN, "p2", "p1", consumer="a")
        self.assertEqual(([("p2", {"gpu": 2})], (0, 2)), (self.asked, self.figures("p2")))
