# SPDX-License-Identifier: Apache-2.0
"""The ledger is unavailable during binds: the answers of the API, and the charges afterwards."""

from __future__ import annotations

import re
import uuid

from tests import base as ledger_base
from tests.cyborgs import quota, test_crashes
from tests.cyborgs.test_ledger_outage import UNAVAILABLE
from tests.faults.proxy import Proxy, keep
from tests.servers import machine

CLOSED = "http://127.0.0.1:1/v3"
"""The URL of a Keystone that is not running."""
ADDRESS = re.compile(r"0x[0-9a-f]+")
CREDENTIALS = f"""\
auth_type = password
auth_url = {CLOSED}
username = cyborg
password = secret
user_domain_id = default
"""
KEYSTONE_LIMITS = f"""
[limits]
driver = keystone
[oslo_limit]
{CREDENTIALS}system_scope = all
endpoint_id = cyborg
"""
PLACEMENT = f"""
[placement]
{CREDENTIALS}project_name = service
project_domain_id = default
region_name = RegionOne
"""


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


class TestKeystoneDown(quota.QuotaTestCase):
    """No Keystone is running. (The other tests have none either, but need none: their limits are in the ledger.)"""

    options = KEYSTONE_LIMITS

    def test_the_services_start(self) -> None:
        """The conductor and the API start and serve; a bind is refused while the limits are unknown."""
        [arq] = self.client.created(self.profile)
        refused = self.client.bind([arq], str(uuid.uuid4()), self.rp)
        self.assertEqual((503, UNAVAILABLE), (refused.status, refused.message))
        self.assertIn("limit driver keystone", self.stack.conductor.output())
        self.assertEqual(["Initial"], self.records.states([arq]))
        self.assertEqual(204, self.client.delete([arq]).status)

    def test_what_cyborg_itself_needs(self) -> None:
        """With Placement's endpoint in Keystone's catalogue, Cyborg's conductor does not start, and ours ends as it."""
        text = (self.stack.workdir / "cyborg.conf").read_text()
        path = self.stack.workdir / "catalogue.conf"
        path.write_text(text[: text.index("[placement]")] + PLACEMENT)
        files = [f"--config-file={name}" for name in (path, self.stack.workdir / "extra.conf")]
        ended = [self.run_program(program, *files) for program in ("cyborg-conductor", "cyborg-quota-conductor")]
        self.assertEqual([1, 1], [output.status for output in ended], ended)
        # The log's last line has the error, after its time and process.
        [cyborgs, ours] = [output.out.strip().splitlines()[-2].partition(" ERROR ")[2] for output in ended]
        self.assertIn(f"Unable to establish connection to {CLOSED}", cyborgs)
        self.assertEqual(ADDRESS.sub("", cyborgs), ADDRESS.sub("", ours))
