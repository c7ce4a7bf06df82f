# SPDX-License-Identifier: Apache-2.0
"""Cyborg's specification "Quota Usage for Cyborg Resources": its example, and its use cases."""

from __future__ import annotations

from typing import Any

import fixtures as fx

from cyborg_quota import Inventory, exceptions
from cyborg_quota.osc import quota
from tests import base, fixtures, on_sqlite
from tests.api import server, test_application, test_osc
from tests.cli import base as cli
from tests.functional import test_limits

DEMO = base.Context("demo")


class TestExample(test_limits.LimitsTestCase):
    """ "The fpga quota hardlimit is 5 and 3 fgpas have already been used, then two new fpga requests come in"."""

    def figures_of(self) -> tuple[int | None, int, int, int | None]:
        usage = self.quotas.get_usages(DEMO)["fpga"]
        return usage.limit, usage.used, usage.reserved, usage.available

    def test_the_example(self) -> None:
        self.set("demo", 5, "fpga")
        self.quotas.rollback(DEMO, self.quotas.reserve(DEMO, {"fpga": 5}))  # the allocation has failed
        self.assertEqual((5, 0, 0, 5), self.figures_of())
        self.quotas.commit(DEMO, self.quotas.reserve(DEMO, {"fpga": 3}))
        self.assertEqual((5, 3, 0, 2), self.figures_of())
        requests = [self.quotas.reserve(DEMO, {"fpga": 1}) for _ in range(2)]
        self.assertEqual((5, 3, 2, 0), self.figures_of())
        for uuids in requests:
            self.quotas.commit(DEMO, uuids)
        self.assertEqual((5, 5, 0, 0), self.figures_of())
        self.assertRaises(exceptions.OverQuota, self.quotas.reserve, DEMO, {"fpga": 1})


class SurfacesTestCase(test_osc.OscTestCase, test_application.ApplicationTestCase):
    scenarios = fixtures.SCENARIOS

    def on_host(self, *argv: str, **environment: str) -> Any:
        options = {"DATABASE__CONNECTION": self.url, "LIMITS__DRIVER": "database", **environment}
        for name, value in options.items():
            self.useFixture(fx.EnvironmentVariable(f"OS_{name}", value))
        return cli.run_program(cli.main.main, *argv)


class TestAlice(SurfacesTestCase):
    """ "Alice [...] would like to have a feature which will give her details of [...] resource consumptions"."""

    @on_sqlite
    def test_what_all_projects_hold(self) -> None:
        """With Keystone's limits: see tests/integration/test_keystone.py."""
        self.conf.set_override("limits", {"gpu": "7"}, "limits")
        held = {"detector": (2, 0), "elsewhere": (1, 0), "higgs": (5, 1)}
        for driver in ("noop", "config", "database"):
            self.conf.set_override("driver", driver, "limits")
            self.application = server.make_application(self.conf, test_application.deploy_engine(self))
            rows, _ = self.run_command(quota.ListQuota, "--usage", "--resource", "gpu")
            figures = {row["Project ID"]: (row["In Use"], row["Reserved"]) for row in rows}
            self.assertEqual(held, {name: one for name, one in figures.items() if any(one)}, driver)
            ended = self.on_host("list", "--usage", "-f", "json", LIMITS__DRIVER=driver, LIMITS__LIMITS="gpu:7")
            figures = {
                row["project_id"]: (row["used"], row["reserved"]) for row in ended.json if row["resource"] == "gpu"
            }
            self.assertEqual(held, {name: one for name, one in figures.items() if any(one)}, driver)


class TestMoreThanExists(SurfacesTestCase):
    """ "Given that the system constraints are not exceeded": a limit above them is set, and each surface says so."""

    WORDS = "fpga: the limits add up to 190; 4 exist"

    def setUp(self) -> None:
        super().setUp()
        self.engine.capacity.add_provider(base.ADMIN, "node1")
        self.engine.capacity.set_inventories(base.ADMIN, "node1", {"fpga": Inventory(4)})
        self.engine.limits.set_limit(base.ADMIN, "fpga", 90, "physics")

    @on_sqlite
    def test_the_command_line(self) -> None:
        ended = self.on_host("set", "fpga=100", "elsewhere")
        self.assertEqual((0, f"cyborg-quota: {self.WORDS}\n"), (ended.status, ended.err))
        ended = self.on_host("set", "--total", "fpga=4")
        self.assertEqual((0, ""), (ended.status, ended.err))
        ended = self.on_host("set", "gpu=100", "elsewhere")
        self.assertEqual((0, ""), (ended.status, ended.err), "gpu has no inventory")
        self.on_host("unset", "--total", "--resource", "fpga")
        ended = self.on_host("set", "--default", "fpga=-1")
        self.assertEqual(f"cyborg-quota: {self.WORDS}\n", ended.err)
        ended = self.on_host("set", "fpga=-1", "elsewhere")
        self.assertEqual("cyborg-quota: fpga: the limits are unlimited; 4 exist\n", ended.err)
        ended = self.on_host("set", "fpga=100", "elsewhere", "--until", "2099-01-01")
        self.assertEqual(f"cyborg-quota: {self.WORDS}\n", ended.err)

    def test_the_rest_api_and_the_client(self) -> None:
        answer = self.call("/v2/quotas/elsewhere", method="PUT", body={"quota": {"fpga": 100, "gpu": 5}})
        self.assertEqual({"quota": {"fpga": 100, "gpu": 5}, "warnings": [self.WORDS]}, answer)
        answer = self.call("/v2/quota_totals", method="PUT", body={"quota": {"fpga": 150}})
        self.assertEqual(["fpga: the limits add up to 150; 4 exist"], answer["warnings"])
        answer = self.call("/v2/quota_defaults", method="PUT", body={"quota": {"gpu": 150}})
        self.assertNotIn("warnings", answer)
        self.run_command(quota.SetQuota, "fpga=99", "elsewhere")
        self.assertIn("fpga: the limits add up to 150; 4 exist", self.log.output)

    @on_sqlite
    def test_an_override(self) -> None:
        body = {"override": {"quota": {"fpga": 100}, "until": "2099-01-01T00:00:00Z"}}
        answer = self.call("/v2/quotas/elsewhere/overrides", method="POST", body=body, status=201)
        self.assertEqual([self.WORDS], answer["warnings"])
        self.run_command(quota.SetQuota, "fpga=101", "elsewhere", "--until", "2099-01-01")
        self.assertIn("fpga: the limits add up to 191; 4 exist", self.log.output)

    @on_sqlite
    def test_a_manager_does_not_learn_what_all_projects_may_have(self) -> None:
        body = {"quota": {"fpga": 80}}
        answer = self.call("/v2/quotas/higgs", "max@physics:manager,member,reader", "PUT", body)
        self.assertEqual({"quota"}, set(answer))
