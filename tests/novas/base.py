# SPDX-License-Identifier: Apache-2.0
"""The base class of the tests of the real Nova: a cloud shared by a process, and one project per test."""

from __future__ import annotations

import os

import sqlalchemy as sa
from oslo_config import cfg
from oslotest import base

import cyborg_quota
from cyborg_quota.conf import loading
from tests import base as ledger_base
from tests import fixtures
from tests.cyborgs import quota
from tests.integration import test_openstackclient
from tests.novas.cloud import Cloud
from tests.servers import machine
from tests.servers.sharing import need, once_per_process

VARIABLE = "CYBORG_QUOTA_TEST_NOVA"
AGREE_SECONDS = 60.0
OPTIONS = "bind_expire = 30"
"""No reconciliation: the charges must be correct without one."""


@once_per_process
def of_this_process() -> Cloud:
    """Return the cloud that this process's tests share. Raises NotAvailable, ServiceError."""
    made = Cloud(OPTIONS)
    fixtures.at_exit(made.close)
    made.start()
    return made


class Ledger:
    """Read access to the ledger, and its comparison with Cyborg."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(cloud.quota_conf)])
        self.engine = cyborg_quota.make_engine(conf)
        self._sql = sa.create_engine(cloud.databases["ledger"], poolclass=sa.NullPool)

    def set_limit(self, project_id: str, limit: int) -> None:
        self.engine.limits.set_limit(ledger_base.ADMIN, "fpga", limit, project_id)

    def used(self, project_id: str) -> tuple[int, int]:
        """Return (used, reserved)."""
        usage = self.engine.get_usages(ledger_base.ADMIN, project_id)["fpga"]
        return usage.used, usage.reserved

    def problems(self, *, arqs: bool = True) -> list[str]:
        """The differences between the counters and Cyborg's bound ARQs. ``arqs``: include other ARQs that are left."""
        found = self._cloud.records.arqs().values() if arqs else ()
        problems = [f"ARQ {arq.uuid} is {arq.state}" for arq in found if arq.state != "Bound"]
        return problems + quota.differences(self.engine, self._cloud.records, self._sql)

    def wait_until_equal(self, *, arqs: bool = True) -> list[str]:
        """Wait until there is no difference; returns those that remain."""
        machine.wait_until(lambda: not self.problems(arqs=arqs), AGREE_SECONDS)
        return self.problems(arqs=arqs)


class NovaTestCase(base.BaseTestCase):
    """``cloud``; ``user`` of a new project, whose limit is 3; ``ledger``. Skipped unless it is enabled."""

    def setUp(self) -> None:
        super().setUp()
        if not os.environ.get(VARIABLE):
            self.skipTest(f"a whole cloud takes minutes: tox -e nova, or {VARIABLE}=1")
        self.cloud = need(self, "Nova", of_this_process)
        self.ledger = Ledger(self.cloud)
        self.addCleanup(self.ledger.engine.close)
        self.user = self.cloud.create_user()
        self.project_id = self.user.project_id
        self.ledger.set_limit(self.project_id, 3)
        self.one_device, self.two_devices = self.cloud.flavors
        # Free the hosts' devices for the next test.
        self.addCleanup(lambda: self.user.delete(*self.user.servers()))

    def assert_charged(self, count: int, of_admin: int = 0) -> None:
        """Assert what is charged to the project and to the admin's, and that every counter agrees with Cyborg."""
        self.assertEqual([], self.ledger.wait_until_equal())
        charged = [self.ledger.used(one) for one in (self.project_id, self.cloud.admin_project_id)]
        self.assertEqual([(count, 0), (of_admin, 0)], charged)

    def openstack(self, *arguments: str) -> str:
        """Run `openstack`, which takes longer than the APIs; returns its output."""
        # (In this process, it would keep the clients of its first user.)
        return test_openstackclient.run_program(self.user.environ, *arguments)

    def active(self, flavor: str, count: int = 1) -> list[str]:
        """Create servers, and wait until they are active."""
        servers = self.user.create_servers(flavor, count)
        self.assertEqual(["ACTIVE"] * count, [self.user.wait(server) for server in servers])
        return servers
