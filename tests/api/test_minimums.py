# SPDX-License-Identifier: Apache-2.0
"""Minimums by the REST API and by the client."""

from __future__ import annotations

from cyborg_quota.osc import quota
from tests import base
from tests.api import server, test_osc


class TestMinimums(test_osc.OscTestCase):
    """physics, with higgs below it, which has detector."""

    def test_it_is_set_and_shown(self) -> None:
        """Users whom the policy allows can set a minimum."""
        path = "/v2/quotas/detector"
        self.assertEqual(([], 0), self.run_command(quota.SetQuota, "--minimum", "gpu=2", "detector"))
        shown = self.run_command(quota.ShowQuota, "--usage", "detector")[0]
        self.assertEqual([("fpga", None), ("gpu", 2)], [(row["Resource"], row["Minimum"]) for row in shown])
        figures = self.call(f"{path}/detail")["quota"]
        self.assertEqual((None, 2), tuple(figures[name].get("minimum") for name in ("fpga", "gpu")))
        for who, status, minimum, expected in (
            (server.ADMIN, 200, 0, None),
            ("max@higgs:manager,member,reader", 200, 1, 1),
            ("rita@detector:reader", 403, 2, 1),
        ):
            self.call(f"{path}/minimums", who, "PUT", {"minimums": {"gpu": minimum}}, status)
            self.assertEqual(expected, self.call(f"{path}/detail")["quota"]["gpu"].get("minimum"), who)

    def test_a_dry_run_says_what_would_refuse_it(self) -> None:
        rows, status = self.run_command(quota.SetQuota, "--minimum", "--dry-run", "gpu=21", "detector")
        self.assertEqual((1, "set minimum", 21), (status, rows[0]["Change"], rows[0]["After"]))
        body = {"minimums": {"gpu": 2}, "dry_run": True}
        self.assertEqual([], self.call("/v2/quotas/detector/minimums", method="PUT", body=body)["problems"])
        self.assertEqual([], self.fetch("SELECT minimum FROM quota_usages WHERE minimum > 0"))

    def test_a_default_below_it_needs_force(self) -> None:
        admin = self.engine.limits
        admin.set_limits(base.ADMIN, {"gpu": 5})
        admin.add_project(base.ADMIN, "lab")
        self.assertEqual(([], 0), self.run_command(quota.SetQuota, "--minimum", "--force", "gpu=5", "lab"))
        self.call("/v2/quota_defaults", method="PUT", body={"quota": {"gpu": 4}}, status=409)
        for options, expected in ((("--dry-run",), 1), (("--dry-run", "--force"), 0)):
            rows, status = self.run_command(quota.SetQuota, "--default", *options, "gpu=4")
            self.assertEqual((expected, 4), (status, rows[0]["After"]))
        self.assertEqual(([], 0), self.run_command(quota.SetQuota, "--default", "--force", "gpu=4"))
        self.assertEqual(4, admin.list_defaults(base.ADMIN)["gpu"])
