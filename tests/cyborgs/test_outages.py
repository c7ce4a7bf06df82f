# SPDX-License-Identifier: Apache-2.0
"""The ledger is unavailable during binds: the answers of the API, and the charges afterwards."""

from __future__ import annotations

from tests import base as ledger_base
from tests.cyborgs import quota, test_crashes
from tests.cyborgs.test_ledger_outage import UNAVAILABLE
from tests.faults.proxy import Proxy, keep
from tests.servers import machine

KEYSTONE_LIMITS = """
[limits]
driver = keystone
[oslo_limit]
auth_type = password
auth_url = http://127.0.0.1:1/v3
username = cyborg
password = secret
user_domain_id = default
system_scope = all
endpoint_id = cyborg
"""
"""Of a Keystone that is not running."""


class TestLedgerUnavailable(test_crashes.PointsTestCase):
    options = "reconcile_heal = true\nreconcile_grace = 1\n[quota]\nretry_seconds = 0.5"

    def url_for(self, url: str) -> str:
        self.proxy = self.useFixture(Proxy(url))
        return self.proxy.url

    def test_at_the_commit(self) -> None:
        """The ARQs stay bound and are charged after the outage, except one that was deleted during it.

        One is charged again because its reservation has expired.
        """
        kept, deleted, overdue = self.client.created(self.profile, 3)
        with self.binding("bound", kept, deleted, overdue) as calls:
            machine.wait_until(lambda: self.records.bound() == {self.project_id: 3}, test_crashes.REACH_SECONDS)
            self.proxy.is_cut = lambda _count: True  # at each query
        self.assertEqual([202] * 3, [call.result() for call in calls])
        with self.sql.begin() as connection:
            past = "UPDATE reservations SET expire = '2001-01-01 00:00:00.000000' WHERE consumer_id = %s"
            connection.exec_driver_sql(past, (overdue,))
        self.assertEqual(204, self.client.delete([deleted]).status)  # it cannot be released
        self.proxy.is_cut = keep
        self.wait_for_figures(2)
        self.assertEqual(["committed", "committed"], [self.reservations(arq)[-1][3] for arq in (kept, overdue)])
        self.assert_agree()
        self.assertEqual([], self.engine.audit(ledger_base.ADMIN))


class TestKeystoneDown(quota.QuotaTestCase):
    """No Keystone is running. (The other tests have none either, but need none: their limits are in the ledger.)"""

    options = KEYSTONE_LIMITS

    def test_the_services_start(self) -> None:
        """The conductor and the API start and serve; a bind is refused while the limits are unknown."""
        arqs = self.client.created(self.profile)
        self.assertEqual(UNAVAILABLE, self.refused(arqs, 503))
        self.assertIn("limit driver keystone", self.stack.conductor.output())
        self.assertEqual(["Initial"], self.records.states(arqs))
        self.assertEqual(204, self.client.delete(arqs).status)
