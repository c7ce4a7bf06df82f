# SPDX-License-Identifier: Apache-2.0
"""What reads answer: with limits that another service stores, and how many rows the tree of one project costs."""

from __future__ import annotations

import urllib.parse
from typing import Any

from cyborg_quota.limits.sources.config import NoopLimitDriver
from tests import base
from tests.api import server
from tests.api.test_application import MANAGER, READER, ApplicationTestCase, deploy_engine


class TestOtherLimitDrivers(ApplicationTestCase):
    """Nothing is set by these calls: they answer, or say where the limits are."""

    def get(self, path: str, token: str = server.ADMIN) -> Any:
        response = self.ask(path, token)
        self.assertEqual(200, response.status_int, response.text)
        return response.json

    def test_reads_with_limits_from_the_configuration(self) -> None:
        self.restart(limits__driver="config", limits__limits={"gpu": 7})
        self.assertEqual({"overrides": []}, self.get("/v2/quotas/higgs/overrides", READER))
        self.assertEqual({"quota": {}}, self.get("/v2/quota_totals"))
        self.assertEqual(7, self.get("/v2/quotas/higgs/defaults", READER)["quota"]["gpu"])
        self.assertEqual(7, self.get("/v2/quota_defaults")["quota"]["gpu"])
        quota = {"fpga": {"limit": -1, "in_use": 0}, "gpu": {"limit": 7, "in_use": 5}}
        own = {"project_id": "higgs", "depth": 0, "quota": quota}
        self.assertEqual([own], self.get("/v2/quotas/higgs/tree", READER)["tree"])
        quota = {
            "fpga": {**quota["fpga"], "hierarchical_usage": 0, "subtree": 0},
            "gpu": {**quota["gpu"], "hierarchical_usage": 2, "subtree": 8},
        }
        below = {"limit": 7, "in_use": 2, "hierarchical_usage": 0, "subtree": 2}
        for token, parent in ((MANAGER, {}), (server.ADMIN, {"parent_id": "physics"})):
            first, second = self.get("/v2/quotas/higgs/tree", token)["tree"]
            self.assertEqual({**own, **parent, "quota": quota}, first)
            self.assertEqual(("detector", "higgs"), (second["project_id"], second["parent_id"]))
            self.assertEqual(below, second["quota"]["gpu"])
        self.assertEqual(404, self.ask("/v2/quotas/higgs/overrides/1-0", method="DELETE").status_int)

    def test_default_limits_that_are_unlimited_or_not_known_here(self) -> None:
        self.restart(limits__driver="noop")
        unlimited = {"fpga": -1, "gpu": -1}
        for path in ("/v2/quotas/higgs", "/v2/quotas/higgs/defaults", "/v2/quota_defaults"):
            self.assertEqual(unlimited, self.get(path)["quota"], path)
        # They are not known here, as with Keystone, which stores them.
        self.patch(NoopLimitDriver, "defaults", lambda _driver: None)
        self.restart(limits__driver="noop")
        for path in ("/v2/quotas/higgs/defaults", "/v2/quota_defaults"):
            error = self.error(self.ask(path))
            self.assertEqual((409, "cyborg_quota.limits_read_only"), (error["status"], error["code"]))

    def test_a_resource_without_a_limit(self) -> None:
        """Null means that nothing can be reserved; -1 that it is unlimited."""
        self.engine.limits.unset_limit(base.ADMIN, "gpu", "elsewhere")
        self.engine.limits.unset_limit(base.ADMIN, "gpu")
        for missing, expected in (("refuse", None), ("unlimited", -1)):
            self.restart(limits__missing=missing)
            for path in ("/v2/quotas/elsewhere", "/v2/quotas/elsewhere/defaults", "/v2/quota_defaults"):
                self.assertEqual({"fpga": 0, "gpu": expected}, self.get(path)["quota"], path)
            (node,) = self.get("/v2/quotas/elsewhere/tree")["tree"]
            self.assertEqual(expected, node["quota"]["gpu"]["limit"])

    def test_initial_limits_of_a_resource_without_a_default(self) -> None:
        """The defaults of a project without limits of its own are the limits that apply to it."""
        admin = self.engine.limits
        admin.add_project(base.ADMIN, "beam", "physics")
        for resource in ("fpga", "gpu"):
            admin.unset_limit(base.ADMIN, resource)
        admin.unset_limit(base.ADMIN, "gpu", "elsewhere")
        unlimited = {"missing": "unlimited"}
        for options, root, child in (
            ({}, None, 0),
            (unlimited, -1, 0),
            ({"root_initial_limit": "5"}, 5, 0),
            ({"root_initial_limit": "5", **unlimited}, 5, 0),
            ({"child_initial_limit": "default"}, None, None),
            ({"child_initial_limit": "default", **unlimited}, -1, -1),
        ):
            for option in ("missing", "root_initial_limit", "child_initial_limit"):
                self.conf.clear_override(option, "limits")
            self.restart(**{f"limits__{option}": value for option, value in options.items()})
            for project_id, expected in (("elsewhere", root), ("beam", child)):
                limits = {"fpga": expected, "gpu": expected}
                self.assertEqual(limits, self.get(f"/v2/quotas/{project_id}")["quota"], (options, project_id))
                self.assertEqual(limits, self.get(f"/v2/quotas/{project_id}/defaults")["quota"], (options, project_id))
                records = deploy_engine(self).limits.list_limits(base.ADMIN, project_id)
                applying = {} if expected in (None, -1) else limits
                self.assertEqual(applying, {one.resource: one.limit for one in records}, (options, project_id))


class TestWithoutLimits(ApplicationTestCase):
    """A tree of which nothing is limited or used yet."""

    def make_cloud(self) -> None:
        for project_id, parent_id in server.TREE.items():
            self.engine.limits.add_project(base.ADMIN, project_id, parent_id)

    def test_the_tree(self) -> None:
        nodes = self.whole("/v2/quotas/physics/tree?limit=1", "tree")
        self.assertEqual(nodes, self.ask("/v2/quotas/physics/tree").json["tree"])
        self.assertEqual(["physics", "higgs", "detector", "simulation"], [node["project_id"] for node in nodes])
        self.assertEqual({"fpga", "gpu"}, nodes[0]["quota"].keys())
        rows = self.engine.limits.tree(base.ADMIN)
        self.assertEqual(server.TREE.keys(), {row.project_id for row in rows})


class TestUnusualNames(ApplicationTestCase):
    NAMES = ("a?b", "x%2Fy", "a b#c", "r\u00e4ck", "\u65e5")

    def test_links_and_addresses(self) -> None:
        """They are ASCII, and name the same project."""
        self.restart(api__max_limit=2)
        for name in self.NAMES:
            path = f"/v2/quotas/{urllib.parse.quote(name, safe='')}"
            for limit in (1, 2, 3):
                self.engine.limits.set_limit(base.ADMIN, "gpu", limit, name)
            body = {"override": {"quota": {"gpu": 9}, "until": "2999-01-01T00:00:00Z"}}
            made = self.ask(f"{path}/overrides", method="POST", json=body)
            address = made.headers["Location"]
            self.assertTrue(address.isascii(), address)
            self.assertEqual(name, self.ask(address).json["override"]["project_id"])
            self.assertEqual([2, 2], [len(page) for page in self.pages(f"{path}/history", "history")], name)

    def test_the_pages_of_what_exceeds_a_limit(self) -> None:
        self.restart(api__max_limit=1)
        names = {"\u00e4" * 100, "z" * 255}
        for name in names:
            self.engine.limits.set_limits(base.ADMIN, {"gpu": 1}, name)
            self.engine.reserve(base.Context(name), {"gpu": 1})
            self.engine.limits.set_limits(base.ADMIN, {"gpu": 0}, name)
        self.assertEqual(names, {row["project_id"] for row in self.whole("/v2/quota_over", "over")})


class TestAnUnregisteredResource(ApplicationTestCase):
    def test_what_binds(self) -> None:
        """It is held, and cannot be reserved: not because of the limit of the project."""
        self.restart(quota__resources=["fpga"])
        detail = self.ask("/v2/quotas/higgs/detail", READER).json["quota"]["gpu"]
        bound = {"project_id": "higgs", "scope": "not_registered", "limit": None}
        self.assertEqual((20, 5, 0, bound), tuple(detail[name] for name in ("limit", "in_use", "fits", "bound_by")))
