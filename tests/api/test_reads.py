# SPDX-License-Identifier: Apache-2.0
"""What reads answer: with limits that another service stores, and how many rows the tree of one project costs."""

from __future__ import annotations

import datetime
import urllib.parse

from cyborg_quota.limits.sources.config import NoopLimitDriver
from tests import base
from tests.api import server
from tests.api.test_application import MANAGER, READER, ApplicationTestCase


class TestLimitsOfTheConfiguration(ApplicationTestCase):
    """The stored limits and overrides do not apply, and none can be set: calls answer, or say where the limits are."""

    def setUp(self) -> None:
        super().setUp()
        self.engine.limits.set_overrides(base.ADMIN, {"gpu": 18}, "higgs", datetime.datetime(2999, 1, 1))
        self.restart(limits__driver="config", limits__limits={"gpu": 7})

    def test_reads(self) -> None:
        self.assertEqual({"overrides": []}, self.call("/v2/quotas/higgs/overrides", READER))
        self.assertEqual({"quota": {}}, self.call("/v2/quota_totals"))
        for path, token in (("/v2/quotas/higgs/defaults", READER), ("/v2/quota_defaults", server.ADMIN)):
            self.assertEqual(7, self.call(path, token)["quota"]["gpu"], path)
        self.call("/v2/quotas/higgs/overrides/1-0", method="DELETE", status=404)

    def test_the_list_has_what_is_held(self) -> None:
        """Not physics and simulation, which have limits only."""
        quotas = self.call("/v2/quotas")["quotas"]
        self.assertEqual(["detector", "elsewhere", "higgs"], [one["project_id"] for one in quotas])
        expected = {
            "project_id": "higgs",
            "quota": {"fpga": -1, "gpu": 7},
            "overrides": 0,
            "usage": {"gpu": {"in_use": 5, "reserved": 1}},
            "in_force": {},
        }
        self.assertEqual(expected, quotas[2])
        self.assertEqual([expected], self.call("/v2/quotas?project_id=higgs")["quotas"])

    def test_the_tree(self) -> None:
        quota = {"fpga": {"limit": -1, "in_use": 0}, "gpu": {"limit": 7, "in_use": 5}}
        own = {"project_id": "higgs", "depth": 0, "quota": quota}
        self.assertEqual([own], self.call("/v2/quotas/higgs/tree", READER)["tree"])
        quota = {
            "fpga": {**quota["fpga"], "hierarchical_usage": 0, "subtree": 0},
            "gpu": {**quota["gpu"], "hierarchical_usage": 2, "subtree": 8},
        }
        below = {"limit": 7, "in_use": 2, "hierarchical_usage": 0, "subtree": 2}
        for token, parent in ((MANAGER, {}), (server.ADMIN, {"parent_id": "physics"})):
            first, second = self.call("/v2/quotas/higgs/tree", token)["tree"]
            self.assertEqual({**own, **parent, "quota": quota}, first)
            self.assertEqual(("detector", "higgs"), (second["project_id"], second["parent_id"]))
            self.assertEqual(below, second["quota"]["gpu"])

    def test_where_limits_are_set(self) -> None:
        place = "in the configuration, [limits] limits"
        self.assertEqual(place, self.call("/v2/quotas/higgs/detail")["read_only"])
        change = {"quota": {"gpu": 1}}
        for method, path, body in (
            ("PUT", "/v2/quotas/higgs", change),
            ("PUT", "/v2/quotas/higgs", {"quota": {"gpu": 3}, "force": True}),
            ("PUT", "/v2/quota_defaults", change),
            ("PUT", "/v2/quota_totals", change),
            ("DELETE", "/v2/quota_totals/gpu", None),
            ("PUT", "/v2/quotas/higgs", {"quota": {"gpu": 3}, "pod": "north"}),
            ("GET", "/v2/quotas/higgs?pod=north", None),
            ("DELETE", "/v2/quotas/higgs?pod=north", None),
        ):
            error = self.error(self.ask(path, method=method, json=body))
            self.assertEqual((409, "cyborg_quota.limits_read_only"), (error["status"], error["code"]), (method, path))
            self.assertIn(f"The limits in force are set {place}.", error["detail"])


class TestOtherLimits(ApplicationTestCase):
    def test_default_limits_that_are_unlimited_or_not_known_here(self) -> None:
        self.restart(limits__driver="noop")
        unlimited = {"fpga": -1, "gpu": -1}
        for path in ("/v2/quotas/higgs", "/v2/quotas/higgs/defaults", "/v2/quota_defaults"):
            self.assertEqual(unlimited, self.call(path)["quota"], path)
        # They are not known here, as with Keystone, which stores them.
        self.patch(NoopLimitDriver, "defaults", lambda _driver: None)
        self.restart(limits__driver="noop")
        for path in ("/v2/quotas/higgs/defaults", "/v2/quota_defaults"):
            error = self.error(self.ask(path))
            self.assertEqual((409, "cyborg_quota.limits_read_only"), (error["status"], error["code"]))

    def test_initial_limits_of_a_resource_without_a_default(self) -> None:
        """The defaults of a project without limits of its own are the limits that apply to it.

        Null means that nothing can be reserved; -1 that it is unlimited.
        """
        admin = self.engine.limits
        admin.add_project(base.ADMIN, "beam", "physics")
        for resource in ("fpga", "gpu"):
            admin.unset_limit(base.ADMIN, resource)
        admin.unset_limit(base.ADMIN, "gpu", "elsewhere")
        unlimited = {"missing": "unlimited"}
        for options, default, root, child in (
            ({}, None, None, 0),
            (unlimited, -1, -1, 0),
            ({"root_initial_limit": "5"}, None, 5, 0),
            ({"root_initial_limit": "5", **unlimited}, -1, 5, 0),
            ({"child_initial_limit": "default"}, None, None, None),
            ({"child_initial_limit": "default", **unlimited}, -1, -1, -1),
        ):
            for option in ("missing", "root_initial_limit", "child_initial_limit"):
                self.conf.clear_override(option, "limits")
            self.restart(**{f"limits__{option}": value for option, value in options.items()})
            self.assertEqual({"fpga": default, "gpu": default}, self.call("/v2/quota_defaults")["quota"], options)
            [node] = self.call("/v2/quotas/elsewhere/tree")["tree"]
            self.assertEqual(root, node["quota"]["gpu"]["limit"], options)
            for project_id, expected in (("elsewhere", root), ("beam", child)):
                limits = {"fpga": expected, "gpu": expected}
                self.assertEqual(limits, self.call(f"/v2/quotas/{project_id}")["quota"], (options, project_id))
                self.assertEqual(limits, self.call(f"/v2/quotas/{project_id}/defaults")["quota"], (options, project_id))
                records = self.deploy_engine().limits.list_limits(base.ADMIN, project_id)
                applying = {} if expected in (None, -1) else limits
                self.assertEqual(applying, {one.resource: one.limit for one in records}, (options, project_id))

    def test_an_unregistered_resource(self) -> None:
        """It is held, and cannot be reserved: not because of the limit of the project."""
        self.restart(quota__resources=["fpga"])
        detail = self.call("/v2/quotas/higgs/detail", READER)["quota"]["gpu"]
        bound = {"project_id": "higgs", "scope": "not_registered", "limit": None}
        self.assertEqual((20, 5, 0, bound), tuple(detail[name] for name in ("limit", "in_use", "fits", "bound_by")))


class TestUnusualNames(ApplicationTestCase):
    NAMES = ("a?b", "x%2Fy", "a b#c", "r\u00e4ck", "\u65e5", "\u00e4" * 100, "z" * 255)

    def test_links_and_addresses(self) -> None:
        """They are ASCII, and name the same project."""
        self.restart(api__max_limit=2)
        for name in self.NAMES:
            path = f"/v2/quotas/{urllib.parse.quote(name, safe='')}"
            for limit in (1, 2, 3):
                self.engine.limits.set_limit(base.ADMIN, "gpu", limit, name)
            self.engine.reserve(base.Context(name), {"gpu": 1})
            body = {"override": {"quota": {"gpu": 0}, "until": "2999-01-01T00:00:00Z"}}
            address = self.ask(f"{path}/overrides", method="POST", json=body).headers["Location"]
            self.assertTrue(address.isascii(), address)
            self.assertEqual(name, self.call(address)["override"]["project_id"])
            self.assertEqual([2, 2], [len(page) for page in self.pages(f"{path}/history", "history")], name)
        exceeded = [row["project_id"] for row in self.whole("/v2/quota_over?limit=1", "over")]
        self.assertEqual(sorted(self.NAMES), sorted(exceeded))
