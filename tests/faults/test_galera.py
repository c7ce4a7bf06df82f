# SPDX-License-Identifier: Apache-2.0
"""Three MariaDB nodes that replicate to each other, and workers that write to all of them concurrently.

One test, because the cluster takes longer to start than all of its steps.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import sqlalchemy as sa
from oslotest import base as test_base

from cyborg_quota import ANY, Inventory, QuotaEngine, exceptions
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.db.dialects import mariadb
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import EnforcementModel, Flat
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.types.capacity import ResourceUse
from tests import base, fixtures, history_replay, invariants, needs
from tests.faults import cluster as cluster_faults
from tests.faults import outages
from tests.faults.load import Ledger
from tests.functional import test_cached_limits
from tests.race import test_override_races as override_races
from tests.race import test_pod_claim_races as pod_claim_races
from tests.race import test_pod_races as pod_races
from tests.race import test_provider_races as provider_races
from tests.race import test_total_limit_races as total_races
from tests.race.workers import PATIENT, PROCESSES, race
from tests.servers import galera, machine
from tests.servers.base import session

# The time after which a node is considered lost: a fifth of the default, because the test waits for it.
QUICK = {
    "evs.suspect_timeout": "PT1S",
    "evs.inactive_timeout": "PT3S",
    "evs.inactive_check_period": "PT0.3S",
    "evs.keepalive_period": "PT0.3S",
    "evs.join_retrans_period": "PT0.3S",
    "evs.install_timeout": "PT3S",
}
OUTAGE = "DatabaseUnavailable"
EVERYWHERE = {"projects": cluster_faults.HOT_AND_SPREAD, "pause_seconds": None}
PAUSED = {"pause_seconds": 0.1}
"""Between two requests of a worker while a node is away: without pauses, the workers delay its return by seconds."""


class TestCluster(outages.StepsTestCase, test_base.BaseTestCase):
    TIMEOUT_SCALING_FACTOR = 2  # (three nodes, and the processes of each step, beside other tests)

    def setUp(self) -> None:
        super().setUp()
        if reason := galera.missing():
            needs.missing(self, reason)
        self.cluster = galera.Galera(provider_options=QUICK)
        self.addCleanup(self.cluster.close)
        self.cluster.start()

    def test_under_load(self) -> None:
        for step in (
            self.several_syncs,
            self.a_stale_read,
            self.an_override_begins_and_ends,
            self.a_limit_is_changed_on_another_node,
            self.capacity_is_claimed,
            self.pods_are_selected,
            self.a_total_limit_is_switched,
            self.a_sync_was_killed,
        ):
            with self.step(step.__name__):
                step()
        impatient = {"statement_timeout_seconds": 3, "retry_seconds": 2.0, "connect_timeout_seconds": 1}
        faults: list[tuple[str, Callable[[Any], None], str | None, dict[str, Any]]] = [
            ("all nodes are up", lambda _: time.sleep(1.0), None, EVERYWHERE),
            ("a node is killed", cluster_faults.away(self.cluster, "kill", 0.5), "OverCapacity", {}),
            ("the network parts", cluster_faults.away(self.cluster, "isolate", 4.0), OUTAGE, {"retry_seconds": 1.0}),
            ("a node stands still", cluster_faults.away(self.cluster, "pause", 5.0), OUTAGE, impatient),
        ]
        for name, act, expected, how in faults:
            with self.step(name), self.ledger() as ledger:
                cluster_faults.load(self.cluster, ledger, act, seed=self.seed, **{**PAUSED, **how})
                errors = ledger.assert_right().errors
                if expected is None:  # no error reaches a caller
                    self.assertLessEqual(set(errors), {"OverQuota", "OverCapacity"})
                else:
                    self.assertGreater(errors[expected], 0)
        with self.step("a node without a quorum is unreachable"), self.ledger():
            self.a_node_without_a_quorum()

    def ledger(self) -> Ledger:
        return cluster_faults.create_ledger(self.cluster, "ledger", with_capacity=True)

    def engines(self, name: str, model: EnforcementModel | None = None, **changes: Any) -> list[QuotaEngine]:
        """Return an engine for each node, on a new ledger. ``model``: with limits in the ledger."""
        urls = cluster_faults.create_database(self.cluster, name)
        fixtures.create_schema(urls[0])
        limits = DatabaseLimitDriver(model, InitialLimits()) if model else None
        return [fixtures.open_engine(self, url, limits, **changes) for url in urls]

    def end_connections(self, engines: Sequence[QuotaEngine]) -> None:
        """Before a race, whose processes open connections of their own."""
        for engine in engines:
            engine.close()
        cluster_faults.wait_until_replicated(self.cluster)

    def race_on_nodes(self, engines: Sequence[QuotaEngine], job: Callable[[QuotaEngine, int], Any]) -> list[Any]:
        """Call the job in processes, each with its number and the engine of one of the nodes."""
        self.end_connections(engines)
        answers = race(*(functools.partial(job, engines[number % 3], number) for number in range(PROCESSES)))
        cluster_faults.wait_until_replicated(self.cluster)
        return answers

    def several_syncs(self) -> None:
        """Run one sync on each node concurrently: GET_LOCK on one node does not block the others."""
        urls = cluster_faults.create_database(self.cluster, "synced")
        databases = [Database(fixtures.settings(url, statement_timeout_seconds=None)) for url in urls]
        race(*(functools.partial(schema.sync, database) for database in databases))
        engine = fixtures.open_engine(self, urls[1])
        engine.commit(base.ADMIN, engine.reserve(base.ADMIN, {"gpu": 1}))
        self.assertEqual([], engine.audit(base.ADMIN))

    def a_sync_was_killed(self) -> None:
        """Its claim is reported on another node, and not overridden; the next sync on the same node takes it over."""
        urls = cluster_faults.create_database(self.cluster, "killed")
        with session(urls[0]) as connection:
            node = connection.exec_driver_sql("SHOW STATUS LIKE 'wsrep_gcomm_uuid'").one()[1]
            connection.exec_driver_sql(f"CREATE TABLE cyborg_quota_sync (id INTEGER PRIMARY KEY) COMMENT='{node}'")
        cluster_faults.wait_until_replicated(self.cluster)
        same, other = (fixtures.open_database(self, url) for url in urls[:2])
        with mock.patch.object(mariadb, "SCHEMA_LOCK_SECONDS", 0.3):
            error = self.assertRaises(exceptions.DatabaseUnavailable, schema.sync, other)
        self.assertIn("drop it if none does", str(error))
        self.assertEqual((None, schema.HEAD), schema.sync(same))
        self.assertNotIn("cyborg_quota_sync", sa.inspect(sa.create_engine(urls[0])).get_table_names())

    def a_stale_read(self) -> None:
        """Reserve on one node, and commit on another immediately: the commit waits for the cluster, and finds the
        reservation.
        """
        engines = self.engines("stale")
        for turn in range(8):
            first, second, third = (engines[(turn + step) % 3] for step in range(3))
            # (The release on the third node is not known to the first one yet, which must not answer with the ended
            # attempt.) The next attempt of the same consumer is selected by name where only its first attempt is known.
            for named in ("reservations", "consumer"):
                how: dict[str, Any] = {"consumer": f"c{turn}"}
                how["reservations"] = first.reserve(base.ADMIN, {"gpu": 1}, consumer=how["consumer"])
                second.commit(base.ADMIN, **{named: how[named]})
                third.release(base.ADMIN, consumer=how["consumer"])
            # A group that has got another member just now.
            for engine, consumer in ((first, f"d{turn}"), (second, f"e{turn}")):
                engine.reserve(base.ADMIN, {"gpu": 1}, consumer=consumer, group=f"g{turn}")
            third.commit(base.ADMIN, group=f"g{turn}")
            first.release(base.ADMIN, group=f"g{turn}")
        cluster_faults.wait_until_replicated(self.cluster)
        self.assertEqual(0, engines[0].get_usages(base.ADMIN)["gpu"].used)
        rows = engines[0].list_reservations(base.ADMIN, base.ADMIN.project_id)
        self.assertEqual(["released"] * 32, [row.state for row in rows])

    def an_override_begins_and_ends(self) -> None:
        """Reserves on all nodes race with the beginning and the end of an override: one of the two limits applies."""
        engines = self.engines("spans", Flat())
        database = fixtures.open_database(self, self.cluster.nodes[0].url_of("spans"))
        raised, lowered, admitted = override_races.race_with_overrides(
            self, engines * 2, database, lambda: cluster_faults.wait_until_replicated(self.cluster)
        )
        cluster_faults.wait_until_replicated(self.cluster)
        for project_id, held in ((raised, admitted), (lowered, override_races.LIMIT)):
            usage = engines[0].get_usages(base.ADMIN, project_id)["gpu"]
            self.assertEqual((override_races.LIMIT, held), (usage.limit, usage.reserved))
        self.assertEqual([], engines[0].audit(base.ADMIN))

    def a_limit_is_changed_on_another_node(self) -> None:
        """No charge is granted by a limit that was lowered on another node, nor refused by one that was raised."""
        engines = self.engines("lowered", Flat())
        context, granted = base.Context("p"), []

        def is_granted(engine: QuotaEngine) -> bool:
            try:
                engine.rollback(context, engine.reserve(context, {"gpu": 4}))
            except exceptions.OverQuota:
                return False
            return True

        for turn in range(20):
            limit, writer = 9 if turn % 2 == 0 else 3, engines[turn % 3]
            with test_cached_limits.without_renewal() if turn == 19 else contextlib.nullcontext():
                writer.limits.set_limit(base.ADMIN, "gpu", limit, None if turn < 8 else "p")
            granted.append([is_granted(engine) for engine in engines])
        self.assertEqual([[turn % 2 == 0] * 3 for turn in range(19)], granted[:-1])
        self.assertIn(True, granted[-1])  # the control

    def capacity_is_claimed(self) -> None:
        """Processes on three nodes claim 1 to 5 of a provider with 100: see tests/race/test_provider_races.py."""
        engines = self.engines("capacity", **PATIENT)
        settle = functools.partial(cluster_faults.wait_until_replicated, self.cluster)
        for name in provider_races.RACES:
            with self.step(name):
                provider_races.run(self, name, engines, settle)
        capacity = engines[0].capacity
        for number in range(10):  # what one node has answered exists for a claim on another one
            capacity.add_provider(base.ADMIN, f"new{number}")
            capacity.set_inventories(base.ADMIN, f"new{number}", {"gpu": Inventory(2)})
            names = [provider.name for provider in engines[2].capacity.list_providers(base.ADMIN)]
            self.assertIn(f"new{number}", names)
            for provider in (f"new{number}", ANY):
                engines[1].reserve(base.Context("late"), {"gpu": 1}, provider=provider)
        settle()
        self.assertEqual([], history_replay.differences(engines[0]))
        with self.step("naive code"):
            provider_races.detect_naive_code(self, engines, self.cluster.nodes[0].url_of("capacity"), settle)

    def pods_are_selected(self) -> None:
        """Processes on three nodes select pods for many tenants, also when one pod becomes full; then they claim
        until both pods are full.
        """
        engines = self.engines("pods", **PATIENT)
        pod_claim_races.add_pods(engines[0])
        for engine in engines:
            pod_races.prefer_random_pods(engine)
        # Two processes, on two nodes, select for each tenant.
        select = functools.partial(pod_races.select_for_all, tenants=pod_races.TENANTS, share=PROCESSES // 2)
        shares = self.race_on_nodes(engines, select)
        half = shares[: PROCESSES // 2]
        self.assertEqual(half * 2, shares)
        answers = {tenant: pod for share in half for tenant, pod in share.items()}
        self.assertEqual(pod_races.TENANTS, len(answers))
        self.assertEqual(pod_races.TENANTS, len(engines[0].pods.list_bindings(base.ADMIN, history=True)))
        with self.step("bindings move"):
            self.bindings_move(engines, answers)
        with self.step("claims in pods"):
            self.pods_are_filled(engines)

    def bindings_move(self, engines: Sequence[QuotaEngine], answers: Mapping[str, str | None]) -> None:
        """One pod becomes full: the binding of each of its tenants moves once. ``answers``: the pods of the tenants."""
        engines[0].pods.set_usage(base.ADMIN, "p1", {"gpu": ResourceUse(1, 1)})
        selected = self.race_on_nodes(engines, functools.partial(pod_races.select_for_all, tenants=pod_races.MOVED))
        self.assertEqual([{f"tenant{one}": "p2" for one in range(pod_races.MOVED)}] * PROCESSES, selected)
        history = engines[0].pods.list_bindings(base.ADMIN, history=True)
        moved = sum(pod == "p1" for pod in (answers[f"tenant{one}"] for one in range(pod_races.MOVED)))
        self.assertEqual(pod_races.TENANTS + moved, len(history), "each binding has moved once, at the most")
        engines[0].pods.set_usage(base.ADMIN, "p1", {"gpu": ResourceUse(1, 0)})
        for number in range(10):  # what one node has answered decides the next selection on each node
            tenant = f"tenant{number}"
            engines[0].pods.change(base.ADMIN, "p2", state="maintenance")
            self.assertEqual(["p1", "p1"], [one.pods.select(base.ADMIN, project_id=tenant).pod for one in engines[1:]])
            engines[0].pods.change(base.ADMIN, "p2", state="available")

    def pods_are_filled(self, engines: Sequence[QuotaEngine]) -> None:
        claimed = self.race_on_nodes(engines, pod_claim_races.fill)
        used = sum(record.used for record in engines[0].capacity.list_inventories(base.ADMIN))
        self.assertEqual((4 * pod_claim_races.TOTAL,) * 2, (sum(claimed), used), claimed)
        self.assertEqual([], engines[0].audit(base.ADMIN))
        self.assertEqual(pod_races.TENANTS, len(engines[0].pods.list_bindings(base.ADMIN)))

    def a_total_limit_is_switched(self) -> None:
        """On one node, while processes on all nodes reserve and settle: see tests/race/test_total_limit_races.py."""
        engines = self.engines("totals", Flat(), **PATIENT)
        engines[0].limits.set_limits(base.ADMIN, {"gpu": -1})
        for project_id in total_races.ROOTS:
            engines[0].reserve(base.Context(project_id), {"gpu": 1})
        self.end_connections(engines)
        total_races.switch_while_processes_reserve(self, engines[0], engines)
        cluster_faults.wait_until_replicated(self.cluster)
        self.assertEqual([], engines[1].audit(base.ADMIN))
        with session(self.cluster.nodes[1].url_of("totals")) as connection:
            self.assertEqual([], invariants.find_violations(connection))

    def a_node_without_a_quorum(self) -> None:
        """It answers each statement with an error: for a client, that is an outage. So is its ping."""
        node = self.cluster.nodes[-1]
        connected, fresh = (fixtures.open_engine(self, node.url_of("ledger"), retry_seconds=0.2) for _ in range(2))
        context = base.Context("p1")
        connected.rollback(context, connected.reserve(context, {"gpu": 1}))
        node.isolate(True)
        try:
            machine.wait_until(lambda: not connected.ping(), 20.0)
            for engine in (connected, fresh, connected):
                self.assertRaises(exceptions.DatabaseUnreachable, engine.reserve, context, {"gpu": 1})
                self.assertFalse(engine.ping())
        finally:
            node.isolate(False)
            node.wait_rejoined()
        self.assertTrue(connected.ping())
        connected.rollback(context, connected.reserve(context, {"gpu": 1}))
