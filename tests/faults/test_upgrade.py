# SPDX-License-Identifier: Apache-2.0
"""An upgrade without an outage: the old release continues with the new schema, and ``db sync`` runs under load."""

from __future__ import annotations

import os
import pathlib
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from unittest import mock

import sqlalchemy as sa
import testscenarios

from cyborg_quota import ANY, Inventory, exceptions
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models.flat import Flat
from cyborg_quota.scopes import scoped_name
from cyborg_quota.types import Drift
from tests import base, fixtures, revisions
from tests.faults import ledger_check, old_release
from tests.faults.load import Crew, Ledger
from tests.faults.old_release import OldRelease
from tests.servers import machine

load_tests = testscenarios.load_tests_apply_scenarios

# Changes that a next release may make, and one that it may not.
NEXT_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "c3f2"
down_revision = "{head}"


def upgrade():
    {change}
"""
ADDITIVE = """op.add_column("quota_usages", sa.Column("next_year", sa.Integer, nullable=False, server_default="7"))
    op.create_index("ix_next_year", "reservations", ["resource", "state"])"""
BREAKING = 'op.execute("ALTER TABLE quota_usages RENAME COLUMN generation TO epoch")'


def sync_to_next(url: str, change: str) -> None:
    """Run the ``db sync`` of a next release, in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        config = revisions.with_one_more(directory, "c3f2", NEXT_REVISION.format(head=schema.head(), change=change))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with mock.patch.multiple(schema, alembic_config=config, REVISIONS=("c3f2", *schema.REVISIONS)):
                    schema.sync(Database(fixtures.settings(url, statement_timeout_seconds=None)))
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(pid, 0)[1]:
            raise AssertionError("the next release's db sync failed")


def upgrade_under_old(ledger: Ledger, seconds: float, seed: int) -> None:
    """Old workers at the old revision; db sync; then new workers, in the same projects."""

    def old(number: int, is_over: Callable[[], bool]) -> None:
        client = OldRelease(ledger.url, ledger.journal, ledger.limits["gpu"])
        client.work(("hot", "cold")[number % 2], random.Random(f"{seed} {number}"), is_over)

    with Crew(old, 3):
        time.sleep(seconds)
        database = Database(fixtures.settings(ledger.url, statement_timeout_seconds=None))
        schema.sync(database)
        database.close()
        ledger.engine.close()
        with ledger.crew(3, seed, ("hot", "cold", "new")):
            time.sleep(seconds)


class TestUpgrade(base.BackendTestCase):
    def test_the_old_release_with_the_new_one(self) -> None:
        ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "upgraded"), revision="a1c0"))
        self.assertRaises(exceptions.DatabaseBehind, ledger.engine.reserve, base.ADMIN, {"gpu": 1})
        ledger.engine.close()
        upgrade_under_old(ledger, 0.7, random.randrange(2**32))
        report = ledger.assert_right()
        self.assertEqual([], [kind for kind in report.errors if kind != "OverQuota"])

    def test_this_release_with_the_next_one(self) -> None:
        """The db sync of a future release, while this release's workers run: no caller gets an error."""
        ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "next")))
        with ledger.crew(3, random.randrange(2**32), ("hot", "cold"), retry_seconds=20.0):
            time.sleep(0.4)
            sync_to_next(ledger.url, ADDITIVE)
            time.sleep(0.4)
        report = ledger.assert_right()
        self.assertEqual([], [kind for kind in report.errors if kind != "OverQuota"])

    def test_a_revision_that_breaks_the_old_release_is_detected(self) -> None:
        ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "broken")))
        with ledger.crew(2, 1, ("hot", "cold")):
            sync_to_next(ledger.url, BREAKING)
            size = ledger.journal.size
            machine.wait_until(lambda: ledger.journal.size > size + 5000, 30.0)
        with sa.create_engine(ledger.url, poolclass=sa.NullPool).begin() as connection:
            connection.exec_driver_sql("ALTER TABLE quota_usages RENAME COLUMN epoch TO generation")
        problems = ledger_check.check(ledger.url, ledger.engine, ledger.journal).problems
        self.assertTrue(any("DatabaseError" in problem for problem in problems), problems)


class CapacityTestCase(base.BackendTestCase):
    """A process of a release before capacity, beside this one."""

    def setUp(self) -> None:
        super().setUp()
        url = fixtures.fresh_url(self.backend, "capacity_upgraded")
        ledger = self.useFixture(Ledger(url, revision="a1c0"))
        self.old = OldRelease(url, ledger.journal, 10)
        usage_id, generation = self.old._first_use("p")
        self.facts = {"project": "p", "usage_id": usage_id, "generation": generation}
        self.addCleanup(self.old._sql.dispose)
        database = Database(fixtures.settings(url))
        schema.sync(database)
        database.close()
        self.engine, self.context = ledger.engine, base.Context("p")
        self.capacity = self.engine.capacity
        self.capacity.add_provider(base.ADMIN, "n1")
        self.capacity.set_inventories(base.ADMIN, "n1", {"gpu": Inventory(4)})

    def old_reserve(self, number: int) -> dict[str, object]:
        facts = {**self.facts, "uuid": str(uuid.uuid4()), "request": f"old-{number}"}
        self.assertTrue(self.old._reserve(facts))
        return facts

    def used(self) -> tuple[int, int]:
        """What the inventory and the counters of the project say."""
        usage = self.engine.get_usages(base.ADMIN, "p")["gpu"]
        return self.capacity.list_inventories(base.ADMIN)[0].used, usage.used + usage.reserved

    def assert_no_drift(self) -> None:
        self.assertEqual([], [*self.engine.audit(base.ADMIN), *self.capacity.audit(base.ADMIN)])


class TestCapacity(CapacityTestCase):
    def test_claims_wait_until_they_are_enabled(self) -> None:
        for provider in ("n1", ANY):
            self.assertRaises(
                exceptions.CapacityNotEnabled, self.engine.reserve, self.context, {"gpu": 1}, provider=provider
            )
        first = self.old_reserve(1)
        uuids = self.engine.reserve(self.context, {"gpu": 1})
        self.old._settle({**first, "uuid": uuids[0]}, "rollback")
        self.engine.commit(self.context, [str(first["uuid"])])
        self.assertEqual((0, 1), self.used())
        self.assert_no_drift()
        self.capacity.enable(base.ADMIN)
        self.engine.reserve(self.context, {"gpu": 1}, provider=ANY)
        self.assertEqual((1, 2), self.used())
        self.assert_no_drift()

    def test_why_they_wait(self) -> None:
        """An old process that ends a claim does not give its capacity back. ``heal`` does."""
        self.capacity.enable(base.ADMIN)
        (claimed,) = self.engine.reserve(self.context, {"gpu": 1}, provider="n1")
        self.old._settle({**self.facts, "uuid": claimed}, "rollback")
        self.assertEqual([(1, 0)], [(one.recorded, one.expected) for one in self.capacity.audit(base.ADMIN)])
        self.engine.heal(base.ADMIN)
        self.assertEqual((0, 0), self.used())
        self.assert_no_drift()


class TestPodLimits(CapacityTestCase):
    """A process of a release that knows no counters of pods, beside this one, where a limit per pod is set.

    It refuses and charges nothing wrongly over all pods. The counter of the pod keeps what the old process has ended,
    so that the limit is not exceeded, until a heal of this release.
    """

    def setUp(self) -> None:
        super().setUp()
        self.engine.close()
        limits = DatabaseLimitDriver(Flat(), InitialLimits())
        self.engine = fixtures.make_engine(self.old._sql.url.render_as_string(hide_password=False), limits)
        self.addCleanup(self.engine.close)
        self.capacity = self.engine.capacity
        self.capacity.enable(base.ADMIN)
        self.engine.pods.add(base.ADMIN, "p1")
        self.capacity.set_inventories(base.ADMIN, "n1", {"gpu": Inventory(40)})
        self.capacity.set_pod(base.ADMIN, "n1", "p1")
        self.engine.administration.set_limits(base.ADMIN, {"gpu": 10})
        self.engine.pod_limits.set(base.ADMIN, {"gpu": 3}, "p", "p1")

    def claim(self) -> str:
        (claimed,) = self.engine.reserve(self.context, {"gpu": 1}, provider="n1")
        return claimed

    def assert_room(self, room: int) -> None:
        """``room`` claims fit in the pod, and not one more."""
        claims = [self.claim() for _ in range(room)]
        self.assertRaises(exceptions.OverQuota, self.claim)
        for claimed in claims:
            self.engine.rollback(self.context, [claimed])

    def heal(self) -> list[tuple[str, str | None]]:
        """Heal, and return what was repaired in the counters of usage."""
        repaired = self.of_usage(self.engine.heal(base.ADMIN))
        self.assert_no_drift()
        return repaired

    @staticmethod
    def of_usage(drifts: Sequence[object]) -> list[tuple[str, str | None]]:
        return [(one.resource, one.pod) for one in drifts if isinstance(one, Drift)]

    def test_claims_of_both(self) -> None:
        claims = [self.claim() for _ in range(3)]
        old = self.old_reserve(1)  # in no pod
        self.assert_no_drift()
        self.old._settle(old, "commit")
        self.engine.release(self.context, [str(old["uuid"])])
        self.assert_no_drift()
        for call, claimed in zip(("commit", "rollback", "expire"), claims, strict=True):
            self.old._settle({**self.facts, "uuid": claimed}, call)
            self.assert_room(0)
            usage = self.engine.get_usages(base.ADMIN, "p")["gpu"]
            self.assertEqual(3 - claims.index(claimed) if call != "commit" else 3, usage.used + usage.reserved)
            self.assertEqual([("gpu", "p1")], self.of_usage(self.engine.audit(base.ADMIN)))
        self.assertEqual([("gpu", "p1")], self.heal())
        self.assert_room(2)

    def test_a_heal_of_the_old_release(self) -> None:
        """It sets the counters of pods to 0. Claims then end as usual, and a heal of this release counts again."""
        claims = [self.claim() for _ in range(3)]
        self.assertEqual([scoped_name("gpu", "p1")], old_release.heal(self.old._sql, "p"))
        self.engine.commit(self.context, claims[:1])
        self.engine.rollback(self.context, claims[1:2])
        self.heal()
        self.assert_room(1)
        self.engine.release(self.context, claims[:1])
        self.assert_room(2)
        self.assertEqual([scoped_name("gpu", "p1")], old_release.heal(self.old._sql, "p"))
