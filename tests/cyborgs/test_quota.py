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
        """An administrator binds for another project: that project is charged, and the release is for that project."""
        [arq] = self.admin.created(self.profile)
        self.assertEqual(202, self.admin.bind([arq], _id(), self.rp, project_id=self.project_id).status)
        self.assertEqual([(1, 0), (0, 0)], [self.figures(), self.figures(project_id=self.admin.project_id)])
        self.assert_agree()
        self.assertEqual(204, self.admin.delete([arq]).status)
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
        self.set_limit(2)
        self.bind(self.client.created(self.profile))
        arqs, instance = self.client.created(self.new_profile({"resources:FPGA": "2"})), _id()
        before = len(self.stack.conductor.output())
        answer = self.client.bind(arqs, instance, self.rp)
        self.assertEqual(403, answer.status)
        expected = f"Quota exceeded: project {self.project_id}, resource fpga: limit 2, used 1, reserved 0, requested 2"
        self.assertEqual(expected, answer.message)
        self.assertEqual(["Initial"] * 2, self.records.states(arqs))
        self.assertEqual({}, self.stack.nova.told_of(instance))
        self.assertEqual((1, 0), self.figures())
        output = self.stack.conductor.output()[before:]
        self.assertIn(f"Bind refused: {expected}", output)
        self.assertNotIn("Traceback", output)
        # A refused ARQ can be bound after another one was released.
        self.set_limit(3)
        self.assertEqual(202, self.client.bind(arqs, instance, self.rp).status)
        self.assert_agree()

    def test_no_rule_for_a_class(self) -> None:
        [arq] = self.client.created(self.new_profile({"resources:CUSTOM_RARE": "1"}))
        answer = self.client.bind([arq], _id(), self.rp)
        self.assertEqual(403, answer.status)
        self.assertIn("resource class CUSTOM_RARE are not counted in this cloud; ask its operator.", answer.message)
        self.assertEqual(["Initial"], self.records.states([arq]))

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
        refused = self.client.bind(self.client.created(profile), _id(), self.rp)
        self.assertIn("resource fpga.fake: limit 1, used 1", refused.message)
        self.bind(self.client.created(self.profile))  # another model of the family
        self.set_limit(2, "fpga")
        self.set_limit(9, "fpga.fake")
        refused = self.client.bind(self.client.created(profile), _id(), self.rp)
        self.assertIn("resource fpga: limit 2, used 2", refused.message)
        self.assert_agree()


class TestFailed(quota.QuotaTestCase):
    def test_unknown_provider_for_the_second_of_three(self) -> None:
        """Cyborg stops at the failed ARQ: the first is bound, and the bind of the third is not started."""
        first, second, third = self.client.created(self.profile, 3)
        answer = self.client.bind([first, second, third], _id(), [self.rp, _id(), self.rp])
        self.assertEqual(404, answer.status)
        self.assertEqual(["Bound", "BindStarted", "Initial"], self.records.states([first, second, third]))
        states = [self.reservations(arq)[0][3] for arq in (first, second, third)]
        self.assertEqual((["committed", "rolled_back", "rolled_back"], 1), (states, self.records.handles_in_use()))
        self.assert_agree()

    def test_more_than_there_are(self) -> None:
        arqs, instance = self.client.created(self.profile, HANDLES_PER_HOST + 1), _id()
        answer = self.client.bind(arqs, instance, self.rp)
        self.assertEqual((404, True), (answer.status, "AttachHandle not found" in answer.message))
        self.assertEqual(["Bound"] * HANDLES_PER_HOST + ["BindFailed"], self.records.states(arqs))
        self.assertEqual({}, self.stack.nova.told_of(instance))
        self.assertEqual((HANDLES_PER_HOST, 0), self.figures())
        self.assert_agree()

    def test_nova_fails(self) -> None:
        """The call fails, but the accelerator is bound and charged."""
        [arq] = self.client.created(self.profile)
        with self.stack.nova.failing():
            self.assertEqual(400, self.client.bind([arq], _id(), self.rp).status)
        self.assertEqual((1, 0), self.figures())
        self.assert_agree()

    def test_a_job_fails(self) -> None:
        """The call is answered before the job starts; the reservation is rolled back when the job fails.

        Without an image service for the bitstream, Cyborg does not change the state of the ARQ.
        """
        [arq] = self.client.created(self.new_profile({"resources:FPGA": "1", "accel:bitstream_id": _id()}))
        instance = self.bind([arq])
        self.wait_for_figures(0)
        self.assertEqual({}, self.stack.nova.told_of(instance))
        self.assertEqual(["rolled_back"], [row[3] for row in self.reservations(arq)])
        self.assertEqual(["BindStarted"], self.records.states([arq]))
        self.assert_agree()

    def test_who_may_not_bind(self) -> None:
        """Another project, and a user without a service token."""
        [others] = self.admin.created(self.profile)
        self.assertEqual(404, self.client.get(others).status)
        self.assertEqual(404, self.client.bind([others], _id(), self.rp).status)
        [arq] = self.client.created(self.profile)
        self.client.service_roles = ("member",)
        answer = self.client.bind([arq], _id(), self.rp)
        self.assertEqual((403, True), (answer.status, "requires a service token" in answer.message))
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
        """The release runs in the API's process."""
        arqs = self.client.created(self.profile, 2)
        instance = self.bind(arqs)
        for _ in range(2):
            self.assertEqual(204, self.client.delete_instance(instance).status)
            self.assertEqual((0, 0), self.figures())
        self.assertEqual(({}, 0), (self.records.arqs(), self.records.handles_in_use()))
        self.assert_agree()

    def test_never_bound_and_charged_by_hand_in_between(self) -> None:
        """Only the charge of the ARQ is released, not the other charges of its project."""
        [arq, never_bound] = self.client.created(self.profile, 2)
        self.bind([arq])
        self.engine.adopt(ledger_base.ADMIN, [ledger_base.claim("other", fpga=2)], self.project_id)
        self.assertEqual(204, self.client.delete([arq, never_bound]).status)
        self.assertEqual([], self.reservations(never_bound))
        self.assertEqual((2, 0), self.figures())


class TestWithStockApi(quota.QuotaTestCase):
    """Cyborg's unmodified API with the conductor of cyborg_quota, and unmapped = ignore."""

    api = stacks.API
    options = "unmapped = ignore"

    def test_refused_or_not_counted(self) -> None:
        """As with the API of cyborg_quota: the message has no class name, and is not repeated."""
        self.set_limit(0)
        refused = self.client.bind(self.client.created(self.profile), _id(), self.rp)
        self.assertEqual(403, refused.status)
        expected = f"Quota exceeded: project {self.project_id}, resource fpga: limit 0, used 0, reserved 0, requested 1"
        self.assertEqual(expected, refused.message.strip())
        [arq] = self.client.created(self.new_profile({"resources:CUSTOM_RARE": "1"}))
        self.bind([arq])
        self.assertEqual([], self.reservations(arq))
        self.assertEqual(204, self.client.delete([arq]).status)


def _id() -> str:
    return str(uuid.uuid4())
