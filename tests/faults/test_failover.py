# SPDX-License-Identifier: Apache-2.0
"""The primary database server is lost, and its replica is promoted. Clients follow it by their URL or a proxy.

One test for each kind of server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from unittest import mock

import fixtures as fixtures_
import sqlalchemy as sa
import testscenarios
from oslo_config import cfg

from cyborg_quota import Claim, exceptions
from cyborg_quota.cli import expirer
from cyborg_quota.conf import loading
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base, fixtures, needs
from tests.faults import outages
from tests.faults.journal import OK
from tests.faults.load import Ledger
from tests.faults.proxy import Proxy
from tests.servers import machine
from tests.servers.base import session
from tests.servers.replication import PAIRS

load_tests = testscenarios.load_tests_apply_scenarios

WORKERS = 4
MIN_CALLS = 50
"""The calls that succeed before the primary ends, at least: fewer would show little."""
SERVED_SECONDS = 60.0
"""The longest time until all workers are served before the failover, on a busy machine."""
SERVED_AGAIN_SECONDS = 10.0
"""The longest time from the promotion until all are served again, which is promised to operators."""
SHORT = {"statement_timeout_seconds": 2, "retry_seconds": 1.0, "connect_timeout_seconds": 2}


class TestFailover(outages.StepsTestCase, base.BackendTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.pair = PAIRS[self.backend]()
        needs.start(self, self.pair)  # type: ignore[arg-type]
        self.proxy = self.useFixture(Proxy(self.pair.primary.url))

    def url(self, database: str) -> str:
        """What an operator configures so that clients follow a promotion: libpq's list of hosts, or a proxy."""
        url = self.pair.url if self.backend == "postgresql" else self.proxy.url
        return sa.make_url(url).set(database=database).render_as_string(hide_password=False)

    def ledger(self, name: str) -> Ledger:
        self.pair.primary.create_database(name)
        return Ledger(self.url(name))

    def promote(self) -> None:
        self.pair.promote()
        self.proxy.forward_to(self.pair.primary.url)

    def limited_url(self, database: str) -> str:
        """The same for a user without privileges on the server: MariaDB's read_only does not stop an administrator."""
        url = sa.make_url(self.url(database))
        if self.backend == "mariadb":
            with session(self.pair.primary.url) as connection:
                connection.exec_driver_sql(
                    f"CREATE USER IF NOT EXISTS limited@'127.0.0.1' IDENTIFIED BY '{self.pair.primary.password}'"
                )
                connection.exec_driver_sql(f"GRANT ALL PRIVILEGES ON {database}.* TO limited@'127.0.0.1'")
            url = url.set(username="limited")
        return url.render_as_string(hide_password=False)

    def test_promotion(self) -> None:
        with self.step("a replica refuses"), self.ledger("refused") as ledger:
            self.replica_refuses(ledger)
        with self.step("an answer waits for the replica"), self.ledger("waits") as ledger:
            self.answer_waits(ledger)
        with self.step("the primary is killed under load"), self.ledger("killed") as ledger:
            self.under_load(ledger, self.kill)
        self.pair.add_replica()
        with self.step("the primary is demoted under load"), self.ledger("demoted") as ledger:
            self.under_load(ledger, self.pair.demote)
        self.pair.synchronous = False
        self.pair.add_replica()
        with self.step("a replica that lags loses answers"), self.ledger("lags") as ledger:
            self.lagging(ledger)

    def replica_refuses(self, ledger: Ledger) -> None:
        """Calls that change something raise an error with a remedy, without a retry; calls that read are answered."""
        context = base.Context("p")
        held, ended, overdue = ledger.engine.reserve_many(context, [Claim(name, {"gpu": 1}) for name in "abc"])
        ledger.engine.commit(context, [held])
        ledger.engine.rollback(context, [ended])
        ledger.execute(f"UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE uuid = '{overdue}'")
        self.pair.primary.create_database("empty_one")
        # A configuration error: URLs that name the replica only.
        limited = [sa.make_url(self.limited_url(name)) for name in ("refused", "empty_one")]
        where = {"host": "127.0.0.1", "port": self.pair.replica.port, "query": {}}
        urls = [url.set(**where).render_as_string(hide_password=False) for url in limited]  # type: ignore[arg-type]
        self.pair.wait_caught_up()
        engine = ledger.make_engine(urls[0])
        calls: dict[str, Callable[[], object]] = {
            "reserve": lambda: engine.reserve(context, {"gpu": 1}, consumer="d"),
            "reserve of a new project": lambda: engine.reserve(base.Context("new"), {"gpu": 1}, consumer="d"),
            "commit": lambda: engine.commit(context, [overdue]),
            "commit once more": lambda: engine.commit(context, [held]),
            "rollback": lambda: engine.rollback(context, [overdue]),
            "release": lambda: engine.release(context, consumer="a"),
            "extend": lambda: engine.extend(context, [overdue], 60),
            "adopt": lambda: engine.adopt(base.ADMIN, [Claim("e", {"gpu": 1})], "p"),
            "expire": lambda: engine.expire(base.ADMIN),
            "purge": lambda: engine.purge(base.ADMIN, 0),
            "db sync": lambda: schema.sync(Database(fixtures.settings(urls[1]))),
        }
        if self.backend == "mariadb":
            del calls["commit once more"]  # it changes nothing there
        with (
            fixtures_.FakeLogger(level=logging.WARNING) as log,
            mock.patch("cyborg_quota.db.database.backoff", side_effect=AssertionError("it was tried again")),
        ):
            for name, call in calls.items():
                with self.step(name):
                    error = self.assertRaises(exceptions.DatabaseReadOnly, call)
                    self.assertIn("must point to the primary server", str(error))
                    self.assertNotIn(self.pair.primary.password, str(error))
            maintenance = expirer.Maintenance(loading.load(cfg.ConfigOpts(), [], "test"), engine)
            maintenance.run_job(maintenance.expire, "Expired %d reservations.", 0)
        usage = engine.get_usages(context)["gpu"]
        self.assertEqual((1, 1), (usage.used, usage.reserved))
        self.assertEqual(([], []), (engine.audit(base.ADMIN), engine.check(context, {"gpu": 1})))
        self.assertEqual(1, log.output.count("must point to the primary server"), log.output)
        self.assertNotIn("Traceback", log.output)
        self.assertNotIn(self.pair.primary.password, log.output)

    def answer_waits(self, ledger: Ledger) -> None:
        """No answered call can be lost by a promotion."""
        engine, context = ledger.make_engine(**SHORT), base.Context("p")
        engine.rollback(context, engine.reserve(context, {"gpu": 1}))  # the rows of a first use exist
        self.pair.replica.pause()
        try:
            self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, context, {"gpu": 1}, consumer="a")
        finally:
            self.pair.replica.resume()
        engine.reserve(context, {"gpu": 1}, consumer="a")
        self.assertEqual(1, engine.get_usages(context)["gpu"].reserved)

    def under_load(self, ledger: Ledger, end_primary: Callable[[], None]) -> None:
        urls = [self.limited_url(str(sa.make_url(ledger.url).database))]
        with ledger.crew(WORKERS, self.seed, outages.HOT_AND_COLD, urls):
            self.wait_until_served(ledger)
            machine.wait_until(lambda: sum(one.word == OK for one in ledger.journal.entries()) > MIN_CALLS, 60.0)
            end_primary()
            time.sleep(0.3)  # until a worker notices
            self.promote()
            self.wait_until_served(ledger, SERVED_AGAIN_SECONDS)
        report = ledger.assert_right()
        self.assertGreater(report.calls, MIN_CALLS)

    def kill(self) -> None:
        self.pair.primary.kill()
        if self.backend == "postgresql":
            engine = fixtures.open_engine(self, self.url("killed"), retry_seconds=0.1)
            error = self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, base.Context("p"), {"gpu": 1})
            self.assertIn("Connection refused", error.reason)
            self.assertIn("session is read-only", error.reason)

    def wait_until_served(self, ledger: Ledger, seconds: float = SERVED_SECONDS) -> None:
        """Wait until each worker has completed three more calls."""
        seen = ledger.journal.size

        def are_served() -> bool:
            done = [entry.request.split("-")[0] for entry in ledger.journal.entries(seen) if entry.word == OK]
            return all(done.count(f"w{number}") >= 3 for number in range(WORKERS))

        machine.wait_until(are_served, seconds)
        self.assertTrue(are_served(), f"not all workers were served within {seconds:.0f} s")

    def lagging(self, ledger: Ledger) -> None:
        """The control, as in the operator guide: lost reservations are named, and the rest is consistent."""
        with ledger.crew(WORKERS, self.seed, outages.HOT_AND_COLD):
            self.wait_until_served(ledger)
            self.pair.replica.kill()
            self.wait_until_served(ledger)
        self.pair.primary.kill()
        self.pair.replica.start()
        self.promote()
        problems = ledger.check().problems
        self.assertNotEqual([], problems)
        self.assertEqual([], [problem for problem in problems if "an answered call is lost" not in problem])
        self.assertEqual([], ledger.engine.audit(base.ADMIN))
