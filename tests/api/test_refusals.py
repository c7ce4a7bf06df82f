# SPDX-License-Identifier: Apache-2.0
"""What the users of a project see of a refusal: the constraint that binds, of each resource; and what check answers."""

from __future__ import annotations

from typing import Any

import jsonschema

from cyborg_quota import Inventory, exceptions
from cyborg_quota.api import schemas
from cyborg_quota.limits import changes, projects
from cyborg_quota.types import MAX_AMOUNT, MAX_COUNTED, TOTAL
from tests import base
from tests.api import server
from tests.api.test_application import READER, ApplicationTestCase

LEAF = "dora@detector:reader"
DETECTOR = base.Context("detector")


class RefusalTestCase(ApplicationTestCase):
    def check_quota(self, amounts: dict[str, int], project_id: str, token: str = server.ADMIN) -> Any:
        response = self.ask(f"/v2/quotas/{project_id}/check", token, "POST", json={"check": amounts})
        self.assertEqual(200, response.status_int, response.text)
        return response.json


class TestTheOneThatBinds(RefusalTestCase):
    """detector has a limit of 2 and holds 2; higgs (20) holds 8 with it, physics (30) too; all projects hold 9."""

    def setUp(self) -> None:
        super().setUp()
        self.engine.limits.set_total_limits(base.ADMIN, {"gpu": 500})

    def test_check_reveals_no_other_limit(self) -> None:
        """Otherwise, the amount at which a limit appears in the answer reveals what the projects above it hold."""
        for amount in (1, 12, 13, 22, 23, 491, 492, MAX_AMOUNT):
            answer = self.check_quota({"gpu": amount}, "detector", LEAF)
            self.assertEqual(["detector"], [one["project_id"] for one in answer["violations"]], amount)
        found = self.check_quota({"gpu": MAX_AMOUNT}, "detector")["violations"]
        self.assertEqual({None, "detector", "higgs", "physics"}, {one["project_id"] for one in found})

    def test_reserve_and_resize_reveal_no_other_limit(self) -> None:
        for call in (
            lambda context: self.quotas.reserve(context, {"gpu": MAX_AMOUNT}, project_id="detector"),
            lambda context: self.quotas.resize(context, {"gpu": MAX_AMOUNT}, "detector", consumer="arq-detector"),
        ):
            error = self.assertRaises(exceptions.OverQuota, call, DETECTOR)
            self.assertEqual([("detector", 2, 0)], [(one.project_id, one.used, one.reserved) for one in error.overs])
            error = self.assertRaises(exceptions.OverQuota, call, base.ADMIN)
            self.assertEqual([TOTAL, "detector", "higgs", "physics"], [one.project_id for one in error.overs])

    def test_the_limit_of_an_ancestor(self) -> None:
        """It is the one that ``detail`` names: the nearest, where several permit the same amount."""
        admin = self.engine.limits
        admin.set_limits(base.ADMIN, {"gpu": 0}, "simulation")
        admin.set_limits(base.ADMIN, {"gpu": 20}, "physics")
        admin.set_limits(base.ADMIN, {"gpu": 20}, "detector")
        self.engine.limits.set_total_limits(base.ADMIN, {"gpu": 21})
        detail = self.ask("/v2/quotas/detector/detail", LEAF).json["quota"]["gpu"]
        self.assertEqual((12, "higgs"), (detail["fits"], detail["bound_by"]["project_id"]))
        [found] = self.check_quota({"gpu": 100}, "detector", LEAF)["violations"]
        self.assertEqual("higgs", found["project_id"])
        self.assertEqual([None] * 3, [found[name] for name in ("in_use", "reserved", "subtree")])
        error = self.assertRaises(exceptions.OverQuota, self.quotas.reserve, DETECTOR, {"gpu": 13})
        self.assertEqual(["higgs"], [one.project_id for one in error.overs])


class TestCheckAgreesWithReserve(RefusalTestCase):
    """check grants what a reserve grants, and reports each bound that would refuse it."""

    def violations(self, amounts: dict[str, int], project_id: str, token: str = READER) -> list[Any]:
        answer = self.check_quota(amounts, project_id, token)
        self.assertEqual(not answer["violations"], answer["granted"])
        return [(one["resource"], one["scope"], one["limit"], one["in_use"]) for one in answer["violations"]]

    def test_the_width_of_the_counter(self) -> None:
        self.engine.limits.set_limits(base.ADMIN, {"gpu": -1}, "elsewhere")
        found = self.violations({"gpu": MAX_AMOUNT}, "elsewhere", server.ADMIN)
        self.assertEqual([("gpu", "counter", MAX_AMOUNT, 1)], found)
        self.assertRaises(exceptions.UsageOverflow, self.quotas.reserve, base.Context("elsewhere"), {"gpu": MAX_AMOUNT})
        self.assertEqual([], self.violations({"gpu": MAX_AMOUNT - 1}, "elsewhere", server.ADMIN))

    def test_the_width_of_the_meter(self) -> None:
        """It is shown as a limit, also of the project itself: no limit that was set has this value."""
        self.engine.limits.set_limits(base.ADMIN, {"gpu": -1}, "elsewhere")
        self.execute(f"UPDATE quota_usages SET subtree = {MAX_COUNTED - 5} WHERE project_id = 'elsewhere'")
        self.assertEqual([("gpu", "subtree", MAX_COUNTED, 1)], self.violations({"gpu": 6}, "elsewhere", server.ADMIN))
        detail = self.ask("/v2/quotas/elsewhere/detail", server.ADMIN).json["quota"]["gpu"]
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
        self.assertIsNone(self.ask("/v2/quotas/elsewhere").json["quota"]["fpga"])


class TestConflicts(RefusalTestCase):
    """What contradicts what is stored is a conflict (409) with a code; what contradicts itself is invalid (400)."""

    def answer(self, method: str, path: str, body: Any = None, token: str = server.ADMIN) -> tuple[int, str]:
        response = self.ask(f"/v2/{path}", token, method, **({} if body is None else {"json": body}))
        code = response.json["errors"][0]["code"] if response.status_int >= 400 else ""
        return response.status_int, code.removeprefix("cyborg_quota.")

    def test_pods_and_providers(self) -> None:
        self.engine.pods.add(base.ADMIN, "p1")
        self.engine.pods.add(base.ADMIN, "p2")
        self.engine.pods.change(base.ADMIN, "p2", state="disabled")
        self.engine.capacity.add_provider(base.ADMIN, "n1", pod="p1")
        self.engine.capacity.set_inventories(base.ADMIN, "n1", {"gpu": Inventory(8)})
        self.quotas.reserve(base.Context("higgs"), {"gpu": 1}, consumer="at n1", provider="n1")
        one = "quota_providers/n1"
        for code, method, path, body in (
            ("pod_exists", "POST", "quota_pods", {"name": "p1", "weight": 3}),
            ("pod_in_use", "DELETE", "quota_pods/p1", None),
            ("pod_not_available", "PUT", "quota_pod_bindings", {"pod": "p2", "project_id": "higgs"}),
            ("provider_exists", "POST", "quota_providers", {"name": "n1"}),
            ("provider_in_use", "DELETE", one, None),
            ("provider_in_use", "DELETE", f"{one}/inventories/gpu", None),
            ("provider_in_use", "PUT", one, {"pod": "p2"}),
            ("provider_conflict", "PUT", f"{one}/inventories", {"totals": {"gpu": 9}, "generation": 0}),
        ):
            self.assertEqual((409, code), self.answer(method, path, body), (method, path))
        for method, path, body in (
            ("PUT", "quota_pods/p1", {"endpoint": "c", "no_endpoint": True}),
            ("PUT", one, {"pod": "p2", "no_pod": True}),
            ("POST", "quota_preview", {"quota": {"gpu": 1}, "total": True, "project_id": "higgs"}),
            ("POST", "quota_preview", {"quota": {"gpu": 1}, "pod": "p1"}),
            ("POST", "quota_preview", {"quota": {"gpu": 1}, "pod": "p1", "project_id": "higgs", "until": "2999-01-01"}),
            ("POST", "quota_preview", {"quota": {"gpu": 1}, "until": "2999-01-01"}),
            ("POST", "quota_preview", {"quota": {"gpu": 1}, "project_id": "higgs", "start": "2999-01-01"}),
            ("POST", "quota_pods", {"name": "az1/p"}),
            ("POST", "quota_resources", {"name": "a/b"}),
        ):
            self.assertEqual((400, "bad_request"), self.answer(method, path, body), body)

    def test_what_answers_say(self) -> None:
        [held] = self.ask("/v2/quota_reservations?state=committed&project_id=detector", server.ADMIN).json[
            "reservations"
        ]
        self.assertIsNone(held["expire"])
        schema = {**schemas.ref("Tree"), "components": {"schemas": schemas.COMPONENTS}}
        jsonschema.validate(self.ask("/v2/quotas/detector/tree", LEAF).json, schema)

    def test_every_project_is_on_a_page(self) -> None:
        self.patch(projects, "MAX_LISTED_PROJECTS", 3)
        self.assertEqual(sorted(server.TREE), [one["project_id"] for one in self.whole("/v2/quotas", "quotas")])

    def test_a_refused_limit_names_no_grandchild(self) -> None:
        """The manager of physics may set the limit of higgs, and does not see detector, which is below it."""
        manager, detector = "mia@physics:manager,member,reader", "/v2/quotas/detector"
        self.assertEqual(404, self.ask(detector, manager).status_int)
        for project_id in ("physics", "higgs", "detector"):
            self.engine.limits.set_limit(base.ADMIN, "gpu", -1, project_id)
        told = {}
        for token in (manager, server.ADMIN):
            refused = self.ask("/v2/quotas/higgs", token, "PUT", json={"quota": {"gpu": 9}})
            span = {"quota": {"gpu": 9}, "until": "2999-01-01T00:00:00Z"}
            of_span = self.ask("/v2/quotas/higgs/overrides", token, "POST", json={"override": span})
            self.assertEqual((409, 409), (refused.status_int, of_span.status_int))
            [error], [error_of_span] = refused.json["errors"], of_span.json["errors"]
            self.assertEqual("cyborg_quota.limit_refused", error["code"])
            self.assertEqual(error["detail"], error_of_span["detail"])
            told[token] = error["detail"]
        sentence = (
            "Not allowed: {} cannot be unlimited in gpu: the limit of its parent higgs is 9. Nothing was changed."
        )
        self.assertEqual({manager: sentence.format("a child"), server.ADMIN: sentence.format("detector")}, told)

    def test_too_many_overrides(self) -> None:
        self.patch(changes, "MAX_OVERRIDES", 1)
        body: dict[str, Any] = {"override": {"quota": {"gpu": 21}, "until": "2999-01-01T00:00:00Z"}}
        ids = set()
        for _ in range(2):
            made = self.ask("/v2/quotas/higgs/overrides", server.ADMIN, "POST", json=body)
            ids.add((made.status_int, made.json["overrides"][0]["id"]))
        self.assertEqual([201], [status for status, _ in ids], ids)
        body["override"]["quota"]["gpu"] = 22
        refused = self.ask("/v2/quotas/higgs/overrides", server.ADMIN, "POST", json=body)
        [error] = refused.json["errors"]
        self.assertEqual((409, "cyborg_quota.too_many_overrides"), (refused.status_int, error["code"]))
        self.assertIn("'higgs' would have more than 1 overrides of 'gpu'", error["detail"])
