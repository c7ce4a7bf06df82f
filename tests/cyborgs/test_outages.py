# SPDX-License-Identifier: Apache-2.0
"""The ledger is unavailable during binds: the answers of the API, and the charges afterwards."""

from __future__ import annotations

import uuid

from tests import base as ledger_base
from tests.cyborgs import quota, test_crashes
from tests.faults.proxy import Proxy
from tests.servers import machine

BACK_SECONDS = 30.0


class TestLedgerUnavailable(test_crashes.PointsTestCase):
    options = "[quota]\nretry_seconds = 0.5"

    def url_for(self, url: str) -> str:
        self.proxy = self.useFixture(Proxy(url))
        return self.proxy.url

    def make_unavailable(self) -> None:
        """The connection is closed on each query."""
        self.proxy.is_cut = lambda _count: True

    def make_available(self) -> None:
        self.proxy.is_cut = lambda _count: False

    def test_at_the_commit(self) -> None:
        """The ARQs stay bound and are charged after the outage, except one that was deleted during it."""
        kept, deleted = self.client.created(self.profile, 2)
        with self.binding("bound", kept, deleted) as calls:
            machine.wait_until(lambda: self.records.bound() == {self.project_id: 2}, test_crashes.REACH_SECONDS)
            self.make_unavailable()
        self.assertEqual([202, 202], [call.result() for call in calls])
        self.assertEqual(204, self.client.delete([deleted]).status)  # it cannot be released
        self.make_available()
        machine.wait_until(lambda: self.figures()[1] == 0, BACK_SECONDS)
        self.assertEqual((1, 0), self.figures())
        self.assert_agree()
        self.assertEqual([], self.engine.audit(ledger_base.ADMIN))


class TestAnswers(quota.QuotaTestCase):
    def test_an_arq_without_a_project(self) -> None:
        """A bind by an administrator without a project, which names none, is refused with one sentence."""
        nobody = self.stack.client("", "admin", "member", "reader", "service")
        [arq] = nobody.created(self.profile)
        refused = nobody.bind([arq], str(uuid.uuid4()), self.rp)
        self.assertEqual(400, refused.status)
        self.assertEqual("Invalid project_id None: neither the call nor its context names a project.", refused.message)
        self.assertEqual(["Initial"], self.records.states([arq]))
        bound = nobody.bind([arq], str(uuid.uuid4()), self.rp, project_id=self.project_id)
        self.assertEqual((202, (1, 0)), (bound.status, self.figures()))
        self.assertEqual(204, nobody.delete([arq]).status)
        self.assert_agree()
