# SPDX-License-Identifier: Apache-2.0
"""Limits per pod over the REST API: what is held in the pod, who sees its name, and pods that were removed."""

from __future__ import annotations

import functools
import pathlib
from typing import Any
from unittest import mock

import fixtures as fx
import yaml
from oslo_context import context as oslo_context

from cyborg_quota import policy
from cyborg_quota.limits.api import Limits
from tests import base, hooks
from tests.api import server, test_application

ADMIN = base.ADMIN
READER, MANAGER = test_application.READER, test_application.MANAGER
HIGGS = "/v2/quotas/higgs"


class TestPodLimits(test_application.ApplicationTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.make_pod()
        self.add_provider("n1", pod="north", gpu=8)

    def claim(self, amount: int = 3, project_id: str = "higgs") -> list[str]:
        return self.quotas.reserve(base.Context(project_id), {"gpu": amount}, provider="n1")

    def put(
        self,
        limits: dict[str, int | None],
        token: str = server.ADMIN,
        project_id: str = "higgs",
        status: int = 200,
        **more: Any,
    ) -> Any:
        return self.call(f"/v2/quotas/{project_id}", token, "PUT", {"quota": limits, "pod": "north", **more}, status)

    def use_rule(self, rule: str) -> None:
        """Decide by this rule who sees the names of pods."""
        self.ask(HIGGS)  # registers the options of oslo.policy
        path = pathlib.Path(self.useFixture(fx.TempDir()).path, "policy.yaml")
        path.write_text(yaml.safe_dump({policy.SEE_PODS: rule}))
        self.conf.set_override("policy_file", str(path), "oslo_policy")
        # The engine evaluates the rules of limits itself, and has loaded the former file.
        self.application = server.make_application(self.conf, self.deploy_engine())

    def test_what_is_held_in_the_pod_counts(self) -> None:
        self.quotas.commit(base.Context("higgs"), self.claim(2))
        self.claim(1)
        self.claim(2, "simulation")
        [error] = self.put({"gpu": 2}, status=409)["errors"]
        problem = "gpu: 2 is less than 2 in use and 1 reserved in pod north. Nothing was changed."
        expected = ("cyborg_quota.limit_below_usage", f"{problem} Use force to set the limit.")
        self.assertEqual(expected, (error["code"], error["detail"]))
        self.assertEqual([], self.engine.limits.list_pod_limits(ADMIN))
        self.assertEqual({"pod": "north", "quota": {"gpu": 2}}, self.put({"gpu": 2}, force=True))
        self.assertEqual({"gpu": 5}, self.put({"gpu": 5})["quota"])
        gpu = self.call(f"{HIGGS}/detail?pod=north")["quota"]["gpu"]
        self.assertEqual((5, 2, 1, 2), tuple(gpu[name] for name in ("limit", "in_use", "reserved", "fits")))

    def test_no_answer_to_a_tenant_depends_on_the_pod(self) -> None:
        """Every call that may name a pod: a name that exists, one that does not, and the texts of all other answers."""
        self.put({"gpu": 4}, reason="a share")
        self.claim(3)
        for token, project_id in ((READER, "higgs"), (MANAGER, "higgs"), (MANAGER, "detector")):
            path = f"/v2/quotas/{project_id}"
            for method, url, body in (
                ("GET", f"{path}?pod=POD", None),
                ("GET", f"{path}/detail?pod=POD", None),
                ("DELETE", f"{path}?pod=POD", None),
                ("PUT", path, {"quota": {"gpu": 1}}),
                ("PUT", path, {"quota": {"gpu": None}}),
                ("POST", f"{path}/check", {"check": {"gpu": 1}}),
            ):
                answers = [
                    self.told(self.ask(url.replace("POD", pod), token, method, json=body and {**body, "pod": pod}), pod)
                    for pod in ("north", "south")
                ]
                self.assertEqual(answers[0], answers[1], (token, method, url))
                self.assertIn(answers[0][0], (403, 404), (token, method, url))
            for part in test_application.OF_PROJECT:
                self.assertNotIn("north", str(self.call(path + part, token)), part)
            self.assertNotIn("north", str(self.call(f"{path}/check", token, "POST", {"check": {"gpu": 30}})))
        self.assertEqual(4, self.engine.limits.list_pod_limits(ADMIN)[0].limit)

    def test_the_policy_shows_pods_to_a_manager(self) -> None:
        self.put({"gpu": 4})
        self.claim(3)
        self.use_rule("is_admin:True or role:manager")
        self.assertEqual({"gpu": 4}, self.call(f"{HIGGS}?pod=north", MANAGER)["quota"])
        self.assertEqual(1, self.call(f"{HIGGS}/detail?pod=north", MANAGER)["quota"]["gpu"]["fits"])
        self.assertEqual({"gpu": 1}, self.put({"gpu": 1}, MANAGER, "detector")["quota"])
        self.put({"gpu": 1}, MANAGER, status=403)
        entry = self.call(f"{HIGGS}/history", MANAGER)["history"][0]
        self.assertEqual(("gpu", "north", 4, None), tuple(entry[x] for x in ("resource", "pod", "after", "user_id")))
        entry = self.call("/v2/quotas/detector/history")["history"][0]
        self.assertEqual(("north", "max"), (entry["pod"], entry["user_id"]))
        self.engine.limits.set_limits(ADMIN, {"gpu": 8}, "detector")
        check = {"check": {"gpu": 9}, "pod": "north"}
        for limit, expected in ((1, ("detector", "north", 0, None)), (3, ("higgs", "north", None, None))):
            self.put({"gpu": limit}, project_id="detector")
            [found] = self.call("/v2/quotas/detector/check", MANAGER, "POST", check)["violations"]
            self.assertEqual(expected, tuple(found[x] for x in ("project_id", "pod", "in_use", "subtree")))
        self.call(f"{HIGGS}?pod=north", READER, status=404)
        history = self.deploy_engine().limits.history
        for role, pod in (("manager", "north"), ("reader", "")):
            context = oslo_context.RequestContext(user_id="max", project_id="higgs", roles=[role])
            [entry, *_] = history(context, limit=1)
            self.assertEqual((pod, None), (entry.pod, entry.user_id), role)

    def test_a_project_that_moves_during_the_call(self) -> None:
        """The manager of the former parent may not set the limits after the move."""
        self.use_rule("is_admin:True or role:manager")
        self.put({"gpu": 2}, project_id="detector")
        move = functools.partial(self.engine.limits.move_project, ADMIN, "detector")
        detector = "/v2/quotas/detector"
        for method, path, body in (
            ("PUT", detector, {"quota": {"gpu": 1}, "pod": "north"}),
            ("DELETE", f"{detector}?pod=north", None),
        ):
            with hooks.Meanwhile(Limits, "get_parent", functools.partial(move, "elsewhere"), after=True):
                self.call(path, MANAGER, method, body, status=403)
            move("higgs")
        self.assertEqual([2], [one.limit for one in self.engine.limits.list_pod_limits(ADMIN, "detector")])
        self.call(f"{detector}?pod=north", MANAGER, "DELETE", status=204)

    def test_the_projects_with_limits_in_a_pod(self) -> None:
        for project_id in ("simulation", "higgs", "elsewhere"):
            self.put({"gpu": 4}, project_id=project_id)
        with mock.patch.object(Limits, "list_pod_limits", autospec=True, side_effect=Limits.list_pod_limits) as listed:
            self.call("/v2/quotas?pod=north&limit=2")
        self.assertEqual(3, listed.call_args.kwargs["projects"])
        for query, expected in (
            ("&limit=2", ["elsewhere", "higgs", "simulation"]),
            ("&project_id=higgs", ["higgs"]),
            ("&project_id=detector", []),
        ):
            quotas = self.whole(f"/v2/quotas?pod=north{query}", "quotas")
            self.assertEqual([(name, {"gpu": 4}) for name in expected], [(x["project_id"], x["quota"]) for x in quotas])
        for pod in ("north", "south"):
            [error] = self.call(f"/v2/quotas?pod={pod}", "nova@service:service", status=404)["errors"]
            self.assertEqual(f"Pod '{pod}' was not found.", error["detail"])

    def test_the_policy_may_refuse_an_admin(self) -> None:
        self.put({"gpu": 4})
        self.use_rule("!")
        self.call(f"{HIGGS}?pod=north", status=404)
        self.put({"gpu": 3}, status=404)
        entry = self.call(f"{HIGGS}/history")["history"][0]
        self.assertEqual(("", "alice"), (entry["pod"], entry["user_id"]))

    def test_the_limits_in_a_pod_that_was_removed(self) -> None:
        self.put({"gpu": 4, "fpga": 1})
        self.engine.capacity.remove_provider(ADMIN, "n1")
        self.engine.pods.remove(ADMIN, "north")
        self.assertEqual({"fpga": 1, "gpu": 4}, self.call(f"{HIGGS}?pod=north")["quota"])
        self.assertEqual("Pod 'north' was not found.", self.put({"gpu": 5}, status=404)["errors"][0]["detail"])
        self.assertEqual([{"fpga": 1}, {}], [self.put({name: None})["quota"] for name in ("gpu", "fpga")])
        self.call(f"{HIGGS}?pod=north", method="DELETE", status=404)
