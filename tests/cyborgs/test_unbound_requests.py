# SPDX-License-Identifier: Apache-2.0
"""[cyborg] max_unbound_requests: the maximum number of ARQs without an instance per project."""

from __future__ import annotations

import concurrent.futures

from tests.cyborgs import quota

MAXIMUM = 5
THREADS = 6


class TestMaximum(quota.QuotaTestCase):
    options = f"max_unbound_requests = {MAXIMUM}"

    def assert_refused(self, profile: str, requested: int) -> None:
        before = set(self.records.arqs())
        answer = self.client.create(profile)
        allowed = f"project {self.project_id} may have {MAXIMUM} accelerator requests that are not bound"
        self.assertEqual(
            (403, f"Quota exceeded: {allowed}, requested {requested} more"), (answer.status, answer.message)
        )
        self.assertEqual(before, set(self.records.arqs()))

    def test_all_of_a_post_or_none(self) -> None:
        three = self.new_profile({"resources:FPGA": "1"}, {"resources:FPGA": "2"})
        self.assert_refused(self.new_profile({"resources:FPGA": "6"}), 6)
        self.assertEqual(3, len(self.client.created(three)))
        self.assert_refused(three, 3)
        self.client.created(self.profile, 2)
        self.assert_refused(self.profile, 1)
        self.assertEqual(MAXIMUM, len(self.admin.created(self.profile, MAXIMUM)), "each project has its own")

    def test_bound_or_deleted_arqs_are_not_counted(self) -> None:
        first, second, *_ = self.client.created(self.profile, MAXIMUM)
        self.bind([first])
        self.client.created(self.profile)
        self.assert_refused(self.profile, 1)
        self.assertEqual(204, self.client.delete([second]).status)
        self.client.created(self.profile)
        self.assert_refused(self.profile, 1)
        self.assertEqual(202, self.client.unbind([first]).status)
        self.assert_refused(self.profile, 1)
        # One whose bind was refused counts until Nova deletes it, because it could be bound again.
        self.set_limit(0)
        self.refused([first])
        self.assert_refused(self.profile, 1)

    def test_at_the_same_time(self) -> None:
        """Concurrent calls may exceed the limit by at most the ARQs that they create; later calls are refused."""
        self.client.created(self.profile, MAXIMUM - 1)
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            answers = list(pool.map(lambda _: self.client.create(self.profile).status, range(THREADS)))
        self.assertLessEqual(set(answers), {201, 403})
        self.assertLessEqual(1, answers.count(201))
        self.assert_refused(self.profile, 1)


class TestNone(quota.QuotaTestCase):
    options = "max_unbound_requests = 0"

    def test_zero_is_a_limit(self) -> None:
        self.assertEqual(403, self.client.create(self.profile).status)
