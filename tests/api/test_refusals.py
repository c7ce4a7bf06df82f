# SPDX-License-Identifier: Apache-2.0
"""What the users of a project see of a refusal: the constraint that binds, of each resource; and what check answers."""

from __future__ import annotations

from typing import Any

from cyborg_quota import Inventory, exceptions
from cyborg_quota.limits import changes, projects
from cyborg_quota.types import MAX_AMOUNT, MAX_COUNTED, TOTAL
from tests import base
from tests.api import server
from tests.api.test_application import READER, ApplicationTestCase

LEAF = "dora@detector:reader"
DETECTOR = base.Context("detector")


class TestCheckAgreesWithReserve(ApplicationTestCase):
    """check grants what a reserve grants, and reports each bound that would refuse it."""

    def check_quota(self, amounts: dict[str, int], project_id: str, token: str = server.ADMIN) -> Any:
        return self.call(f"/v2/quotas/{project_id}/check", token, "POST", {"check": amounts})

    def violations(self, amounts: dict[str, int], project_id: str, token: str = READER) -> list[Any]:
        answer = self.check_quota(amounts, project_id, token)
        self.assertEqual(not answer["violations"], answer["granted"])
        return [(one["resource"], one["scope"], one["limit"], one["in_use"]) for one in answer["violations"]]

    def test_the_width_of_the_meter(self) -> None:
        """It is shown as a limit, also of the project itself: no limit that was set has this value."""
        self.engine.limits.set_limits(base.ADMIN, {"gpu": -1}, "elsewhere")
        self.execute(f"UPDATE quota_usages SET subtree = {MAX_COUNTED - 5} WHERE project_id = 'elsewhere'")
        self.assertEqual([("gpu", "subtree", MAX_COUNTED, 1)], self.violations({"gpu": 6}, "elsewhere", server.ADMIN))
        detail = self.call("/v2/quotas/elsewhere/detail")["quota"]["gpu"]
        bound = {"project_id": "elsewhere", "scope": "subtree", "limit": MAX_COUNTED}
        self.assertEqual((-1, 5, bound), (detail["limit"], detail["fits"], detail["bound_by"]))

    def test_limits_that_are_not_set(self) -> None:
        """A resource without a limit hides neither the violations of others nor the project's own usage."""
        self.engine.limits.set_limits(base.ADMIN, {"fpga": None})
        expected = [("fpga", "project", None, 0), ("gpu", "subtree", 4, 1)]
        for token in (server.ADMIN, "eve@elsewhere:reader"):
            self.assertEqual(expected, self.violations({"gpu": 4, "fpga": 1}, "elsewhere", token))
        [found] = self.check_quota({"fpga": 1}, "higgs", READER)["violations"]
        self.assertEqual(("physics", None, None), (found["project_id"], found["limit"], found["in_use"]))
        detail = self.ask("/v2/quotas/elsewhere/detail", "eve@elsewhere:reader").json["quota"]["fpga"]
        expected = {
            "limit": None,
            "in_use": 0,
            "reserved": 0,
            "fits": 0,
            "bound_by": None,
            "override": None,
            "in_force": "default",
        }
        self.assertEqual(expected, detail)

    def test_reserve_and_resize_reveal_no_other_limit(self) -> None:
        """Otherwise, the amount at which a limit appears in the answer reveals what the projects above it hold.

        detector has a limit of 2 and holds 2; higgs (20) holds 8 with it, physics (30) too; all projects hold 9.
        """
        self.engine.limits.set_total_limits(base.ADMIN, {"gpu": 500})
        for call in (
            lambda context: self.quotas.reserve(context, {"gpu": MAX_AMOUNT}, project_id="detector"),
            lambda context: self.quotas.resize(context, {"gpu": MAX_AMOUNT}, "detector", consumer="arq-detector"),
        ):
            error = self.assertRaises(exceptions.OverQuota, call, DETECTOR)
            self.assertEqual([("detector", 2, 0)], [(one.project_id, one.used, one.reserved) for one in error.overs])
            error = self.assertRaises(exceptions.OverQuota, call, base.ADMIN)
            self.assertEqual([TOTAL, "detector", "higgs", "physics"], [one.project_id for one in error.overs])


class TestConflicts(ApplicationTestCase):
    """What contradicts what is stored is a conflict (409) with a code; what contradicts itself is invalid (400)."""

    def refusal(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        error = self.error(self.ask(f"/v2/{path}", method=method, json=body))
        return error["status"], error["code"].removeprefix("cyborg_quota.")

    def test_pods_and_providers(self) -> None:
        self.engine.pods.add(base.ADMIN, "p1")
        self.engine.pods.add(base.ADMIN, "p2")
        self.engine.pods.change(base.ADMIN, "p2", state="disabled")
        self.engine.capacity.add_provider(base.ADMIN, "n1", pod="p1")
        self.engine.capacity.set_inventories(base.ADMIN, "n1", {"gpu": Inventory(8)})
        self.quotas.reserve(base.Context("higgs"), {"gpu": 1}, consumer="at n1", provider="n1")
        one, limit, higgs = "quota_providers/n1", {"quota": {"gpu": 1}}, {"project_id": "higgs"}
        for status, code, method, path, body in (
            (409, "pod_exists", "POST", "quota_pods", {"name": "p1", "weight": 3}),
            (409, "pod_in_use", "DELETE", "quota_pods/p1", None),
            (409, "pod_not_available", "PUT", "quota_pod_bindings", {"pod": "p2", "project_id": "higgs"}),
            (409, "provider_exists", "POST", "quota_providers", {"name": "n1"}),
            (409, "provider_in_use", "DELETE", one, None),
            (409, "provider_in_use", "DELETE", f"{one}/inventories/gpu", None),
            (409, "provider_in_use", "PUT", one, {"pod": "p2"}),
            (409, "provider_conflict", "PUT", f"{one}/inventories", {"totals": {"gpu": 9}, "generation": 0}),
            (400, "bad_request", "PUT", "quota_pods/p1", {"endpoint": "c", "no_endpoint": True}),
            (400, "bad_request", "PUT", one, {"pod": "p2", "no_pod": True}),
            (400, "bad_request", "POST", "quota_preview", {**limit, "total": True, **higgs}),
            (400, "bad_request", "POST", "quota_preview", {**limit, "pod": "p1"}),
            (400, "bad_request", "POST", "quota_preview", {**limit, "pod": "p1", **higgs, "until": "2999-01-01"}),
            (400, "bad_request", "POST", "quota_preview", {**limit, "until": "2999-01-01"}),
            (400, "bad_request", "POST", "quota_preview", {**limit, **higgs, "start": "2999-01-01"}),
            (400, "bad_request", "POST", "quota_pods", {"name": "az1/p"}),
            (400, "bad_request", "POST", "quota_resources", {"name": "a/b"}),
        ):
            self.assertEqual((status, code), self.refusal(method, path, body), (method, path, body))

    def test_what_answers_say(self) -> None:
        [held] = self.call("/v2/quota_reservations?state=committed&project_id=detector")["reservations"]
        self.assertIsNone(held["expire"])
        self.assert_agrees("Tree", self.call("/v2/quotas/detector/tree", LEAF))

    def test_every_project_is_on_a_page(self) -> None:
        self.patch(projects, "MAX_LISTED_PROJECTS", 3)
        self.assertEqual(sorted(server.TREE), [one["project_id"] for one in self.whole("/v2/quotas", "quotas")])

    def test_a_refused_limit_names_no_grandchild(self) -> None:
        """The manager of physics may set the limit of higgs, and does not see detector, which is below it."""
        manager = "mia@physics:manager,member,reader"
        self.call("/v2/quotas/detector", manager, status=404)
        for project_id in ("physics", "higgs", "detector"):
            self.engine.limits.set_limit(base.ADMIN, "gpu", -1, project_id)
        limit = {"quota": {"gpu": 9}}
        override = {"override": {**limit, "until": "2999-01-01T00:00:00Z"}}
        sentence = (
            "Not allowed: {} cannot be unlimited in gpu: the limit of its parent higgs is 9. Nothing was changed."
        )
        for token, child in ((manager, "a child"), (server.ADMIN, "detector")):
            for method, path, body in (("PUT", "", limit), ("POST", "/overrides", override)):
                error = self.error(self.ask(f"/v2/quotas/higgs{path}", token, method, json=body))
                found = error["status"], error["code"], error["detail"]
                self.assertEqual((409, "cyborg_quota.limit_refused", sentence.format(child)), found)

    def test_too_many_overrides(self) -> None:
        self.patch(changes, "MAX_OVERRIDES", 1)
        path, until = "/v2/quotas/higgs/overrides", {"until": "2999-01-01T00:00:00Z"}
        body = {"override": {"quota": {"gpu": 21}, **until}}
        ids = [self.call(path, method="POST", body=body, status=201)["overrides"][0]["id"] for _ in range(2)]
        self.assertEqual(ids[0], ids[1])
        error = self.error(self.ask(path, method="POST", json={"override": {"quota": {"gpu": 22}, **until}}))
        self.assertEqual((409, "cyborg_quota.too_many_overrides"), (error["status"], error["code"]))
        self.assertIn("'higgs' would have more than 1 overrides of 'gpu'", error["detail"])
