# SPDX-License-Identifier: Apache-2.0
"""A Cyborg with the entry point cyborg.quota, its own conductor and its own API, and this package as its driver."""

from __future__ import annotations

import sqlalchemy as sa

from tests import base as ledger_base
from tests import fixtures
from tests.cyborgs import environment, quota, test_crashes
from tests.cyborgs import stack as stacks
from tests.cyborgs.quota import LEDGER

QUOTA_TABLES = sa.text(
    "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN "
    "('quota_usages', 'reservations')"
)


class PatchedTestCase(quota.QuotaTestCase):
    version = environment.PATCHED
    conductor = stacks.CONDUCTOR
    api = stacks.API
    ledger = f"{LEDGER}upstream"  # the other Cyborgs' conductors expire the reservations in their own ledgers
    options = "reconcile_grace = 0"
    driver = "cyborg_quota"

    @property
    def config(self) -> str:  # type: ignore[override]
        return f"{super().config}[quota]\ndriver = {self.driver}\n"


class TestNoop(PatchedTestCase):
    driver = "noop"

    def test_counts_nothing(self) -> None:
        """Cyborg's revisions upgrade an empty database, and the last one drops the tables that nothing uses."""
        self.set_limit(0)
        arqs = self.client.created(self.profile)
        self.bind(arqs)
        self.assertEqual([], self.reservations(arqs[0]))
        self.assertEqual(204, self.client.delete(arqs).status)
        with fixtures.plain_engine(self.stack.url).connect() as connection:
            self.assertEqual(0, connection.scalar(QUOTA_TABLES))


class TestPatched(PatchedTestCase):
    def test_bind_refuse_release(self) -> None:
        self.bind_refuse_release()

    def test_failed_binds_roll_back(self) -> None:
        self.fail_binds()
        [bound] = [arq.uuid for arq in self.records.arqs().values() if arq.state == "Bound"]
        self.refused([bound], 500)
        self.assertEqual(["committed"], [row[3] for row in self.reservations(bound)])

    def test_the_expirer_reconciles(self) -> None:
        """Without a conductor of this package: what is bound and not charged, and what is charged and not bound."""
        bound, deleted = self.client.created(self.profile, 2)
        self.bind([bound, deleted])
        self.engine.release(ledger_base.ADMIN, consumer=bound, project_id=self.project_id)
        with fixtures.plain_engine(self.stack.url).begin() as connection:
            connection.execute(sa.text("DELETE FROM extended_accelerator_requests WHERE uuid = :arq"), {"arq": deleted})
        more = self.stack.workdir / "expirer.conf"
        names = "".join(f"config_file = {name.split('=')[1]}\n" for name in self.stack.config_files())
        more.write_text(f"[cyborg]\n{names}reconcile_heal = true\n")
        files = [f"--config-file={name}" for name in (self.conf_file, more)]
        ended = self.run_program("cyborg-quota-expirer", *files, "--once", "--reconcile")
        self.assertEqual((0, "expired 0\npurged 0\n"), (ended.status, ended.out), ended.err)
        self.assertEqual((1, 0), self.figures())
        self.assertEqual("committed", self.reservations(bound)[-1][3])
        self.assertEqual("released", self.reservations(deleted)[-1][3])
        self.assert_agree()


class TestLong(PatchedTestCase, test_crashes.TestLong):
    """No periodic task extends the reservation, but a thread that runs as long as a bind."""

    conductor = (*quota.POINTED_CONDUCTOR, "--own")
    options = "bind_expire = 3"
    detached = "Unbound"
