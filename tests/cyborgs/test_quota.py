# SPDX-License-Identifier: Apache-2.0
"""Charges of binds of the real Cyborg: each outcome of a bind, and each way to release an accelerator."""

from __future__ import annotations

import concurrent.futures
import uuid

from tests import base as ledger_base
from tests.cyborgs import quota
from tests.cyborgs import stack as stacks
from tests.cyborgs.records import HANDLES_PER_HOST


class TestBind(quota.QuotaTestCase):
    def test_bound_and_charged_once(self) -> None:
        """Another call for the ARQ is refused: for the same instance by the API, for another one by the conductor."""
        [arq] = self.client.created(self.profile)
        self.assertEqual([], self.reservations(arq))
        instance = self.bind([arq])
        self.assertEqual({arq: "completed"}, self.stack.nova.told_of(instance))
        self.assertEqual(400, self.client.bind([arq], instance, self.rp).status)
        other = self.client.bind([arq], _id(), self.rp)
        self.assertEqual((500, True), (other.status, "Bad state: Bound" in other.message))
        self.assertEqual([(self.project_id, "fpga", 1, "committed", instance)], self.reservations(arq))
        self.assert_agree()

    def test_charged_to_the_project_of_the_arq(self) -> None:
        """An administrator binds for another project: that project is charged, and the release is for that project.

        An administrator without a project must name one.
        """
        for admin in (self.admin, self.stack.client("", "admin", "member", "reader", "service")):
            [arq] = admin.created(self.profile)
            if not admin.project_id:
                message = self.refused([arq], 400, admin)
                self.assertEqual("Invalid project_id None: neither the call nor its context names a project.", message)
                self.assertEqual(["Initial"], self.records.states([arq]))
            self.assertEqual(202, admin.bind([arq], _id(), self.rp, project_id=self.project_id).status)
            self.assertEqual({self.project_id: 1}, quota.charged(self.engine))
            self.assert_agree()
            self.assertEqual(204, admin.delete([arq]).status)
            self.assertEqual((0, 0), self.figures())

    def test_two_concurrent_calls_for_one_instance(self) -> None:
        """Whether Cyborg accepts both calls or one, the ledger agrees with Cyborg."""
        for _ in range(5):
            instance = _id()
            pairs = [self.client.created(self.profile) for _ in range(2)]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                answers = list(pool.map(lambda arqs, at=instance: self.client.bind(arqs, at, self.rp), pairs))
            self.assertLessEqual({answer.status for answer in answers}, {202, 400})
        self.assert_agree()


class TestRefused(quota.QuotaTestCase):
    def test_over_the_limit(self) -> None:
        """The log of the conductor says why, without a traceback."""
        before = len(self.stack.conductor.output())
        self.bind_refuse_release()
        output = self.stack.conductor.output()[before:]
        self.assertIn(f"Bind refused: Quota exceeded: project {self.project_id}, resource fpga: limit 2", output)
        self.assertNotIn("Traceback", output)

    def test_no_rule_for_a_class(self) -> None:
        arqs = self.client.created(self.new_profile({"resources:CUSTOM_RARE": "1"}))
        message = self.refused(arqs)
        self.assertIn("resource class CUSTOM_RARE are not counted in this cloud; ask its operator.", message)
        self.assertEqual(["Initial"], self.records.states(arqs))

    def test_the_last_accelerator_is_granted_once(self) -> None:
        self.set_limit(1)
        arqs = self.client.created(self.profile, 6)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda arq: self.client.bind([arq], _id(), self.rp), arqs))
        self.assertEqual([202, *[403] * 5], sorted(answer.status for answer in answers))
        self.assert_agree()


class TestModels(quota.QuotaTestCase):
    def test_a_model_and_its_family(self) -> None:
        """The accelerator is charged to both resources, and either limit can refuse it."""
        profile = self.new_profile({"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"})
        self.set_limit(1, "fpga.fake")
        self.bind(self.client.created(profile))
        self.assertEqual([(1, 0), (1, 0)], [self.figures(name) for name in ("fpga", "fpga.fake")])
        self.assertIn("resource fpga.fake: limit 1, used 1", self.refused(self.client.created(profile)))
        self.bind(self.client.created(self.profile))  # another model of the family
        self.set_limit(2, "fpga")
        self.set_limit(9, "fpga.fake")
        self.assertIn("resource fpga: limit 2, used 2", self.refused(self.client.created(profile)))
        self.assert_agree()


class TestFailed(quota.QuotaTestCase):
    def test_an_unknown_provider_and_a_job_that_fails(self) -> None:
        self.fail_binds()

    def test_more_than_there_are(self) -> None:
        arqs = self.client.created(self.profile, HANDLES_PER_HOST + 1)
        self.assertIn("AttachHandle not found", self.refused(arqs, 404))
        self.assertEqual(["Bound"] * HANDLES_PER_HOST + ["BindFailed"], self.records.states(arqs))
        self.assert_agree()

    def test_nova_fails(self) -> None:
        """The call fails, but the accelerator is bound and charged."""
        [arq] = self.client.created(self.profile)
        self.stack.nova.status = 500
        self.refused([arq], 400)
        self.assertEqual((1, 0), self.figures())
        self.assert_agree()

    def test_who_may_not_bind(self) -> None:
        """Another project, and a user without a service token."""
        [others] = self.admin.created(self.profile)
        self.assertEqual(404, self.client.get(others).status)
        self.refused([others], 404)
        [arq] = self.client.created(self.profile)
        self.client.service_roles = ("member",)
        self.assertIn("requires a service token", self.refused([arq]))
        self.assertEqual(["Initial"] * 2, self.records.states([others, arq]))
        self.assertEqual([], self.reservations(others) + self.reservations(arq))


class TestReleased(quota.QuotaTestCase):
    def test_unbound_and_bound_again_then_deleted(self) -> None:
        arqs = self.client.created(self.new_profile({"resources:FPGA": "3"}))
        for _ in range(2):
            self.bind(arqs)
            self.assertEqual(((3, 0), 3), (self.figures(), self.records.handles_in_use()))
            self.assertEqual((200, "Bound"), (self.client.get(arqs[0]).status, self.client.get(arqs[0]).body["state"]))
            self.assertEqual(202, self.client.unbind(arqs).status)
            self.assertEqual(((0, 0), 0), (self.figures(), self.records.handles_in_use()))
        self.assertEqual(["Unbound"] * 3, self.records.states(arqs))
        self.assertEqual(204, self.client.delete(arqs).status)
        self.assertEqual([None] * 3, self.records.states(arqs))
        self.assertEqual(["released"] * 2, [row[3] for row in self.reservations(arqs[0])])
        self.assert_agree()

    def test_deleted_by_instance_repeatedly(self) -> None:
        """The release runs in the API's process. What is charged for others of the project is not released."""
        arqs = self.client.created(self.profile, 2)
        instance = self.bind(arqs)
        self.engine.adopt(ledger_base.ADMIN, [ledger_base.claim("other", fpga=2)], self.project_id)
        for _ in range(2):
            self.assertEqual(204, self.client.delete_instance(instance).status)
            self.assertEqual((2, 0), self.figures())
        self.assertEqual(({}, 0), (self.records.arqs(), self.records.handles_in_use()))


class TestWithStockApi(quota.QuotaTestCase):
    """Cyborg's unmodified API with the conductor of cyborg_quota, and unmapped = ignore."""

    api = stacks.API
    options = "unmapped = ignore"

    def test_refused_or_not_counted(self) -> None:
        """As with the API of cyborg_quota: the message has no class name, and is not repeated."""
        self.set_limit(0)
        expected = f"Quota exceeded: project {self.project_id}, resource fpga: limit 0, used 0, reserved 0, requested 1"
        self.assertEqual(expected, self.refused(self.client.created(self.profile)).strip())
        [arq] = self.client.created(self.new_profile({"resources:CUSTOM_RARE": "1"}))
        self.bind([arq])
        self.assertEqual([], self.reservations(arq))
        self.assertEqual(204, self.client.delete([arq]).status)


def _id() -> str:
    return str(uuid.uuid4())
