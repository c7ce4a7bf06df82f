# SPDX-License-Identifier: Apache-2.0
"""Limits per pod over the REST API: what is held in the pod, who sees its name, and pods that were removed."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import fixtures as fx
import yaml
from oslo_context import context as oslo_context

from cyborg_quota import Inventory, policy
from cyborg_quota.limits.api import Limits
from tests import base
from tests.api import server, test_application

ADMIN = base.ADMIN
READER, MANAGER = test_application.READER, test_application.MANAGER
HIGGS = "/v2/quotas/higgs"


class TestPodLimits(test_application.ApplicationTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.make_pod()
        self.engine.capacity.add_provider(ADMIN, "n1", pod="north")
        self.engine.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(8)})

    def claim(self, amount: int = 3, project_id: str = "higgs") -> list[str]:
        context = base.Context(project_id)
        found: list[str] = self.quotas.reserve(context, {"gpu": amount}, provider="n1")
        return found

    def put(self, limits: dict[str, Any], token: str = server.ADMIN, project_id: str = "higgs", **more: Any) -> Any:
        body = {"quota": limits, "pod": "north", **more}
        return self.ask(f"/v2/quotas/{project_id}", token, "PUT", json=body)

    def use_rule(self, rule: str) -> None:
        """Decide by this rule who sees the names of pods."""
        self.ask(HIGGS)  # registers the options of oslo.policy
        path = self.useFixture(fx.TempDir()).join("policy.yaml")
        with open(path, "w") as file:
            yaml.safe_dump({policy.SEE_PODS: rule}, file)
        self.conf.set_override("policy_file", path, "oslo_policy")
        # The engine evaluates the rules of limits itself, and has loaded the former file.
        self.application = server.make_application(self.conf, test_application.deploy_engine(self))

    def test_what_is_held_in_the_pod_counts(self) -> None:
        self.quotas.commit(base.Context("higgs"), self.claim(2))
        self.claim(1)
        self.claim(2, "simulation")
        response = self.put({"gpu": 2})
        self.assertEqual((409, "cyborg_quota.limit_below_usage"), (response.status_int, self.error(response)["code"]))
        problem = "gpu: 2 is less than 2 in use and 1 reserved in pod north. Nothing was changed."
        self.assertEqual(f"{problem} Use force to set the limit.", self.error(response)["detail"])
        self.assertEqual([], self.engine.limits.list_pod_limits(ADMIN))
        self.assertEqual({"pod": "north", "quota": {"gpu": 2}}, self.put({"gpu": 2}, force=True).json)
        self.assertEqual({"gpu": 5}, self.put({"gpu": 5}).json["quota"])
        expected = {
            "limit": 5,
            "in_use": 2,
            "reserved": 1,
            "fits": 2,
            "bound_by": None,
            "override": None,
            "in_force": None,
        }
        self.assertEqual(expected, self.ask(f"{HIGGS}/detail?pod=north").json["quota"]["gpu"])
        [record] = [one for one in self.engine.get_detail(ADMIN, "higgs", pod="north") if one.resource == "gpu"]
        self.assertEqual(("north", 5, 2), (record.pod, record.usage.limit, record.headroom and record.headroom.fits))
        refused = self.ask(f"{HIGGS}/check", method="POST", json={"check": {"gpu": 3}, "pod": "north"}).json
        self.assertEqual([("gpu", "north", 2)], [(x["resource"], x["pod"], x["in_use"]) for x in refused["violations"]])

    def test_no_answer_to_a_tenant_depends_on_the_pod(self) -> None:
        """Every call that may name a pod: a name that exists, one that does not, and the texts of all other answers."""
        self.put({"gpu": 4}, reason="a share")
        self.claim(3)
        for token, project_id in ((READER, "higgs"), (MANAGER, "higgs"), (MANAGER, "detector")):
            path = f"/v2/quotas/{project_id}"
            calls: list[tuple[str, str, Any]] = [
                ("GET", f"{path}?pod=POD", None),
                ("GET", f"{path}/detail?pod=POD", None),
                ("DELETE", f"{path}?pod=POD", None),
                ("PUT", path, {"quota": {"gpu": 1}, "pod": "POD"}),
                ("PUT", path, {"quota": {"gpu": None}, "pod": "POD"}),
                ("POST", f"{path}/check", {"check": {"gpu": 1}, "pod": "POD"}),
            ]
            for method, url, body in calls:
                answers = []
                for pod in ("north", "south"):
                    named = {} if body is None else {"json": {**body, "pod": pod}}
                    response = self.ask(url.replace("POD", pod), token, method, **named)
                    error = {name: text for name, text in self.error(response).items() if name != "request_id"}
                    answers.append(json.dumps(error).replace(pod, "POD"))
                self.assertEqual(answers[0], answers[1], (token, method, url))
                self.assertIn(response.status_int, (403, 404), (token, method, url))
            for part in test_application.OF_PROJECT:
                self.assertNotIn("north", self.ask(path + part, token).text, part)
            check = self.ask(f"{path}/check", token, "POST", json={"check": {"gpu": 30}})
            self.assertNotIn("north", check.text)
        self.assertEqual(4, self.engine.limits.list_pod_limits(ADMIN)[0].limit)

    def test_the_policy_shows_pods_to_a_manager(self) -> None:
        self.put({"gpu": 4})
        self.claim(3)
        self.use_rule("is_admin:True or role:manager")
        self.assertEqual({"gpu": 4}, self.ask(f"{HIGGS}?pod=north", MANAGER).json["quota"])
        self.assertEqual(1, self.ask(f"{HIGGS}/detail?pod=north", MANAGER).json["quota"]["gpu"]["fits"])
        self.assertEqual({"gpu": 1}, self.put({"gpu": 1}, MANAGER, "detector").json["quota"])
        self.assertEqual(403, self.put({"gpu": 1}, MANAGER).status_int)
        [entry, *_] = self.ask(f"{HIGGS}/history", MANAGER).json["history"]
        self.assertEqual(("gpu", "north", 4, None), tuple(entry[x] for x in ("resource", "pod", "after", "user_id")))
        [entry, *_] = self.ask("/v2/quotas/detector/history").json["history"]
        self.assertEqual(("north", "max"), (entry["pod"], entry["user_id"]))
        self.engine.limits.set_limits(ADMIN, {"gpu": 8}, "detector")
        for limit, expected in ((1, ("detector", "north", 0, None)), (3, ("higgs", "north", None, None))):
            self.put({"gpu": limit}, project_id="detector")
            refused = self.ask("/v2/quotas/detector/check", MANAGER, "POST", json={"check": {"gpu": 9}, "pod": "north"})
            [found] = refused.json["violations"]
            self.assertEqual(expected, tuple(found[x] for x in ("project_id", "pod", "in_use", "subtree")))
        self.assertEqual(404, self.ask(f"{HIGGS}?pod=north", READER).status_int)
        history = test_application.deploy_engine(self).limits.history
        for role, pod in (("manager", "north"), ("reader", "")):
            context = oslo_context.RequestContext(user_id="max", project_id="higgs", roles=[role])
            [entry, *_] = history(context, limit=1)
            self.assertEqual((pod, None), (entry.pod, entry.user_id), role)

    def test_a_project_that_moves_during_the_call(self) -> None:
        """The manager of the former parent may not set the limits after the move."""
        self.use_rule("is_admin:True or role:manager")
        self.put({"gpu": 2}, project_id="detector")
        get_parent = Limits.get_parent

        def read_and_move(limits: Limits, context: Any, project_id: str) -> str | None:
            parent_id = get_parent(limits, context, project_id)
            self.engine.limits.move_project(ADMIN, project_id, "elsewhere")
            return parent_id

        detector = "/v2/quotas/detector"
        for path, method, options in (
            (detector, "PUT", {"json": {"quota": {"gpu": 1}, "pod": "north"}}),
            (f"{detector}?pod=north", "DELETE", {}),
        ):
            with mock.patch.object(Limits, "get_parent", read_and_move):
                self.assertEqual(403, self.ask(path, MANAGER, method, **options).status_int, method)
            self.engine.limits.move_project(ADMIN, "detector", "higgs")
        self.assertEqual([2], [one.limit for one in self.engine.limits.list_pod_limits(ADMIN, "detector")])
        self.assertEqual(204, self.ask(f"{detector}?pod=north", MANAGER, "DELETE").status_int)

    def test_the_projects_with_limits_in_a_pod(self) -> None:
        for project_id in ("simulation", "higgs", "elsewhere"):
            self.put({"gpu": 4}, project_id=project_id)
        with mock.patch.object(Limits, "list_pod_limits", autospec=True, side_effect=Limits.list_pod_limits) as listed:
            first = self.ask("/v2/quotas?pod=north&limit=2").json
        self.assertEqual(3, listed.call_args.kwargs["projects"])
        self.assertEqual(["elsewhere", "higgs"], [one["project_id"] for one in first["quotas"]])
        second = self.ask(first["quotas_links"][0]["href"]).json
        simulation = {"project_id": "simulation", "quota": {"gpu": 4}, "overrides": 0, "usage": {}, "in_force": {}}
        self.assertEqual({"quotas": [simulation]}, second)
        [one] = self.ask("/v2/quotas?pod=north&project_id=higgs").json["quotas"]
        self.assertEqual(("higgs", {"gpu": 4}), (one["project_id"], one["quota"]))
        self.assertEqual([], self.ask("/v2/quotas?pod=north&project_id=detector").json["quotas"])
        answers = [self.ask(f"/v2/quotas?pod={pod}", "nova@service:service") for pod in ("north", "south")]
        self.assertEqual(
            [(404, f"Pod '{pod}' was not found.") for pod in ("north", "south")],
            [(answer.status_int, self.error(answer)["detail"]) for answer in answers],
        )

    def test_the_policy_may_refuse_an_admin(self) -> None:
        self.put({"gpu": 4})
        self.use_rule("!")
        self.assertEqual(404, self.ask(f"{HIGGS}?pod=north").status_int)
        self.assertEqual(404, self.put({"gpu": 3}).status_int)
        [entry, *_] = self.ask(f"{HIGGS}/history").json["history"]
        self.assertEqual(("", "alice"), (entry["pod"], entry["user_id"]))

    def test_the_limits_in_a_pod_that_was_removed(self) -> None:
        self.put({"gpu": 4, "fpga": 1})
        self.engine.capacity.remove_provider(ADMIN, "n1")
        self.engine.pods.remove(ADMIN, "north")
        self.assertEqual({"fpga": 1, "gpu": 4}, self.ask(f"{HIGGS}?pod=north").json["quota"])
        response = self.put({"gpu": 5})
        self.assertEqual((404, "Pod 'north' was not found."), (response.status_int, self.error(response)["detail"]))
        self.assertEqual({"fpga": 1}, self.put({"gpu": None}).json["quota"])
        self.assertEqual({}, self.put({"fpga": None}).json["quota"])
        self.assertEqual(404, self.ask(f"{HIGGS}?pod=north", method="DELETE").status_int)
