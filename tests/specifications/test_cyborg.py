# SPDX-License-Identifier: Apache-2.0
"""Cyborg's specification "Quota Usage for Cyborg Resources": its example, and its use cases."""

from __future__ import annotations

from typing import Any

import fixtures as fx

from cyborg_quota import exceptions
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
        held = {("detector", 2, 0), ("elsewhere", 1, 0), ("higgs", 5, 1)}
        shown = ("list", "--usage", "--resource", "gpu")
        for driver in ("noop", "config", "database"):
            self.conf.set_override("driver", driver, "limits")
            self.application = server.make_application(self.conf, self.deploy_engine())
            rows, _ = self.run_command(quota.ListQuota, *shown[1:])
            of_client = [(row["Project ID"], row["In Use"], row["Reserved"]) for row in rows]
            ended = self.on_host(*shown, "-f", "json", LIMITS__DRIVER=driver, LIMITS__LIMITS="gpu:7")
            of_host = [(row["project_id"], row["used"], row["reserved"]) for row in ended.json]
            for figures in (of_client, of_host):
                self.assertEqual(held, {row for row in figures if any(row[1:])}, driver)


class TestMoreThanExists(SurfacesTestCase):
    """ "Given that the system constraints are not exceeded": a limit above them is set, and each surface says so."""

    WORDS = "fpga: the limits add up to 190; 4 exist"
    UNTIL = "2099-01-01T00:00:00Z"

    def setUp(self) -> None:
        super().setUp()
        self.add_provider("node1", fpga=4)
        self.engine.limits.set_limit(base.ADMIN, "fpga", 90, "physics")

    @on_sqlite
    def test_the_command_line(self) -> None:
        """(gpu has no inventory.)"""
        for words, warning in (
            (("set", "fpga=100", "elsewhere"), self.WORDS),
            (("set", "--total", "fpga=4"), ""),
            (("set", "gpu=100", "elsewhere"), ""),
            (("unset", "--total", "--resource", "fpga"), ""),
            (("set", "--default", "fpga=-1"), self.WORDS),
            (("set", "fpga=-1", "elsewhere"), "fpga: the limits are unlimited; 4 exist"),
            (("set", "fpga=100", "elsewhere", "--until", "2099-01-01"), self.WORDS),
        ):
            ended = self.on_host(*words)
            self.assertEqual((0, f"cyborg-quota: {warning}\n" if warning else ""), (ended.status, ended.err), words)

    def test_the_rest_api_and_the_client(self) -> None:
        """Also of an override. A manager does not learn what all projects may have."""
        elsewhere, manager = "/v2/quotas/elsewhere", "max@physics:manager,member,reader"
        override = {"override": {"quota": {"fpga": 100}, "until": self.UNTIL}}
        total = "fpga: the limits add up to 150; 4 exist"
        for method, path, token, body, status, warnings in (
            ("POST", f"{elsewhere}/overrides", server.ADMIN, override, 201, [self.WORDS]),
            ("PUT", elsewhere, server.ADMIN, {"quota": {"fpga": 100, "gpu": 5}}, 200, [self.WORDS]),
            ("PUT", "/v2/quotas/higgs", manager, {"quota": {"fpga": 80}}, 200, None),
            ("PUT", "/v2/quota_totals", server.ADMIN, {"quota": {"fpga": 150}}, 200, [total]),
            ("PUT", "/v2/quota_defaults", server.ADMIN, {"quota": {"gpu": 150}}, 200, None),
        ):
            answer = self.call(path, token, method, body, status)
            self.assertEqual(warnings, answer.get("warnings"), path)
        for words in (("fpga=101", "elsewhere", "--until", self.UNTIL), ("fpga=99", "elsewhere")):
            self.run_command(quota.SetQuota, *words)
            self.assertIn(total, self.log.output)
            self.log.reset_output()
