# SPDX-License-Identifier: Apache-2.0
"""Connections through a real PgBouncer: transaction mode, session mode, and configurations that cannot work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import fixtures as pyfixtures
import sqlalchemy as sa
import testscenarios

from cyborg_quota import ANY, Claim, exceptions
from cyborg_quota.db import schema
from cyborg_quota.db.database import Connection
from tests import base, fixtures, hooks, needs
from tests.faults.proxy import Proxy
from tests.race.test_races import reserve_until_refused
from tests.servers import machine
from tests.servers.pgbouncer import PgBouncer

STATEMENT_SECONDS = 2


class PgBouncerTestCase(base.LedgerTestCase):
    """``self.engine`` connects through PgBouncer; the invariants are checked on a direct connection.

    The database's defaults on the PostgreSQL server are values with which the ledger cannot work.
    """

    pool_mode = "transaction"
    is_option_set = True
    more_settings: ClassVar[dict[str, str]] = {}
    scenarios = [scenario for scenario in fixtures.SCENARIOS if scenario[0] == "postgresql"]

    def server_url(self) -> str:
        """The URL of the PostgreSQL server for PgBouncer."""
        return str(fixtures.admin_url(self.backend))

    def setUp(self) -> None:
        fixtures.need_server(self, self.backend)
        # Two connections, used in turn: a transaction seldom gets the connection of the previous one.
        self.bouncer = PgBouncer(
            self.server_url(),
            self.pool_mode,
            settings={
                "default_pool_size": "2" if self.pool_mode == "transaction" else "20",
                "server_round_robin": "1",
                **self.more_settings,
            },
        )
        needs.start(self, self.bouncer)
        super().setUp()
        self.log = self.useFixture(pyfixtures.FakeLogger(level=0))
        database = str(sa.make_url(self.url).database)
        for name, value in (("default_transaction_isolation", "'repeatable read'"), ("statement_timeout", "'1h'")):
            self.execute(f"ALTER DATABASE {database} SET {name} = {value}")
            self.addCleanup(self.execute, f"ALTER DATABASE {database} RESET {name}")
        self.direct_url, self.url = self.url, self.bouncer.url_of(database)
        self.engine = self.make_engine()
        self.quotas = fixtures.Checked(self.engine, self.direct_url)  # type: ignore[assignment]
        self.database = hooks.database_of(self.engine)
        self.limits.own[None, "gpu"] = 20

    def make_engine(self, **changes: object) -> Any:
        is_transaction = self.is_option_set and self.pool_mode == "transaction"
        return super().make_engine(
            **{
                "transaction_pooling": is_transaction,
                "statement_timeout_seconds": STATEMENT_SECONDS,
                "pool_timeout_seconds": 10.0,
                **changes,
            }
        )

    def assert_log_is_quiet(self) -> None:
        for word in ("Traceback", "WARNING", "ERROR", self.bouncer.password, str(sa.make_url(self.url).password)):
            self.assertNotIn(word, self.log.output)


class TestPooled(PgBouncerTestCase):
    scenarios = testscenarios.multiply_scenarios(
        PgBouncerTestCase.scenarios, [(mode, {"pool_mode": mode}) for mode in ("transaction", "session")]
    )

    def test_calls_without_a_provider(self) -> None:
        """A reserve or settle is one statement. Four threads that reserve until they are refused get the limit."""
        uuids = self.quotas.reserve(self.context, {"gpu": 2, "fpga": 1}, consumer="a", group="g")
        self.quotas.extend(self.context, uuids, 60)
        self.quotas.commit(self.context, uuids)
        claims = [Claim(None, {"gpu": 1}), Claim("b", {"gpu": 1}, "h"), Claim("c", {"gpu": 1})]
        with hooks.recorded_statements(self.engine) as sent:
            self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
            self.quotas.commit(self.context, self.quotas.reserve_many(self.context, claims, group="g"))
        self.assertEqual(4, len(sent), sent)
        self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, {"gpu": 99})
        self.assertRaises(exceptions.ReservationConflict, self.quotas.reserve, self.context, {"gpu": 3}, consumer="b")
        self.quotas.release(self.context, group="g")
        self.plant({"top": None, "p1": "top"})
        self.make_overdue(*self.quotas.reserve(self.context, {"gpu": 1}))
        self.assertEqual(1, self.quotas.expire(base.ADMIN))
        self.assertEqual(([], (1, 0)), (self.quotas.audit(base.ADMIN), self.figures()))
        with ThreadPoolExecutor(4) as pool:
            granted = pool.map(reserve_until_refused, [self.engine] * 4, [self.context] * 4)
        self.assertEqual((19, (1, 19)), (sum(granted), self.figures()))
        self.assert_invariants()
        self.assert_log_is_quiet()

    def test_claims_with_a_provider(self) -> None:
        """Also a resize and a transfer of such a claim."""
        for name, total in (("n1", 2), ("n2", 9)):
            self.add_provider(name, gpu=total)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 2}, consumer="a", provider="n1"))
        anywhere = self.quotas.reserve(self.context, {"gpu": 3}, consumer="b", provider=ANY)
        self.assertEqual(anywhere, self.quotas.reserve(self.context, {"gpu": 3}, consumer="b", provider=ANY))
        self.assertRaises(exceptions.OverCapacity, self.quotas.reserve, self.context, {"gpu": 7}, provider=ANY)
        self.quotas.commit(self.context, anywhere)
        self.quotas.resize(self.context, {"gpu": 4}, consumer="b")
        self.quotas.transfer(base.ADMIN, "p2", "p1", consumer="b")
        self.assertEqual([(2, 0), (4, 0)], [self.figures(project) for project in ("p1", "p2")])
        used = {record.provider: record.used for record in self.capacity.list_inventories(base.ADMIN)}
        self.assertEqual(({"n1": 2, "n2": 4}, []), (used, self.quotas.audit(base.ADMIN)))
        self.assert_log_is_quiet()

    def test_session_settings_are_set(self) -> None:
        """Regardless of PostgreSQL's defaults; in a transaction of several statements, and in a single statement."""
        names = ("transaction_isolation", "statement_timeout", "idle_in_transaction_session_timeout")
        expected = ["read committed", f"{STATEMENT_SECONDS}s", f"{STATEMENT_SECONDS * 625}ms"]

        def settings(connection: Connection) -> list[str]:
            return [str(connection.exec_driver_sql(f"SHOW {name}").scalar()) for name in names]

        for _ in range(4):
            self.assertEqual(expected, self.database.write(settings))
            self.assertEqual(expected, self.database.read(settings))

    def test_a_statement_that_takes_too_long_is_ended(self) -> None:
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))
        engine = self.make_engine(statement_timeout_seconds=1, retry_seconds=0.0)
        engine.check(self.context, {"gpu": 1})
        with self.sql.begin() as holder:
            holder.exec_driver_sql("UPDATE quota_usages SET used = used")
            error = self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, self.context, {"gpu": 1})
        self.assertIn("statement timeout", str(error))

    def test_no_setting_is_left_on_the_server_connections(self) -> None:
        """In session mode, PgBouncer resets the connections. In transaction mode, it does not."""
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.engine.close()
        prepared = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'cyborg_quota%%'"
        queries = ("SHOW statement_timeout", "SHOW enable_seqscan", prepared)
        with sa.create_engine(self.url, poolclass=sa.NullPool).connect() as other:
            for _ in range(4):
                found = [other.exec_driver_sql(query).scalar() for query in queries]
                self.assertEqual(["1h", "on", 0], found)
                other.rollback()

    def test_sync(self) -> None:
        url = self.bouncer.url_of(str(sa.make_url(fixtures.fresh_url(self.backend, "bounced")).database))
        changes = {"transaction_pooling": self.pool_mode == "transaction", "statement_timeout_seconds": None}
        databases = [fixtures.open_database(self, url, **changes) for _ in range(2)]
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(schema.sync, databases))
        self.assertEqual([schema.HEAD] * 2, [after for _, after in results])


class TestOptionMissing(PgBouncerTestCase):
    """PgBouncer is in transaction mode, and the option transaction_pooling is not set."""

    is_option_set = False

    def test_reserve_and_settle_work(self) -> None:
        """A function call needs nothing of the session."""
        other = sa.create_engine(self.url, poolclass=sa.NullPool)
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        with other.begin() as holder:
            holder.exec_driver_sql("SELECT 1")  # on the server's connection of the calls before
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        with hooks.recorded_statements(self.engine) as sent:
            self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 1}))
        self.assertEqual(2, len([text for text in sent if text.endswith("-- COMMIT")]), sent)
        self.assertEqual((3, 0), self.figures())
        self.assert_log_is_quiet()


class TestStartUpParameters(PgBouncerTestCase):
    """Startup parameters in the URL: PgBouncer does not support them."""

    def test_refused(self) -> None:
        """Unless they have no value."""
        plain = self.url
        url = sa.make_url(plain).update_query_dict({"options": "-c search_path=public"})
        self.url = url.render_as_string(hide_password=False)
        engine = self.make_engine()
        error = self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, self.context, {"gpu": 1})
        self.assertIn("unsupported startup parameter: options", str(error))
        self.assertNotIn("Retrying a transaction", self.log.output)
        self.assertNotIn("Traceback", self.log.output)
        self.url = f"{plain}?options="
        self.make_engine().reserve(self.context, {"gpu": 1})
        self.assertEqual((0, 1), self.figures())


class TestStatementMode(PgBouncerTestCase):
    """In this mode a transaction cannot have more than one statement."""

    pool_mode = "statement"

    def test_refused(self) -> None:
        """PgBouncer closes the connection; the reason is in its own log."""
        engine = self.make_engine(retry_seconds=0.1)
        self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, self.context, {"gpu": 1})
        self.assertIn("transaction blocks not allowed in statement pooling mode", self.bouncer.log.read_text())
        self.assertNotIn("Traceback", self.log.output)


class TestPoolerIsFull(PgBouncerTestCase):
    """PgBouncer accepts no more clients: it answers, and the connections of clients before work."""

    more_settings: ClassVar[dict[str, str]] = {"max_client_conn": "1"}

    def test_the_breaker_stays_closed(self) -> None:
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))  # keeps its connection
        late = self.make_engine(retry_seconds=0.2)
        error = self.assertRaises(exceptions.DatabaseUnavailable, late.reserve, self.context, {"gpu": 1})
        self.assertIn("no more connections allowed", str(error))
        self.assertIs(exceptions.DatabaseUnavailable, type(error))
        self.assertTrue(self.engine.ping())
        self.engine.reserve(self.context, {"gpu": 1})


class TestServerIsDown(PgBouncerTestCase):
    """PgBouncer runs, and the PostgreSQL server behind it refuses connections, or does not answer."""

    more_settings: ClassVar[dict[str, str]] = {"server_login_retry": "1"}
    scenarios = testscenarios.multiply_scenarios(
        PgBouncerTestCase.scenarios, [(how, {"how": how}) for how in ("is_refusing", "is_dead")]
    )
    how: str

    def server_url(self) -> str:
        self.proxy = self.useFixture(Proxy(super().server_url()))
        return self.proxy.url

    def test_unreachable(self) -> None:
        """Also for a client that was connected before, and for the ping, which detects the return of the server."""
        short = {"statement_timeout_seconds": 1, "retry_seconds": 0.2, "connect_timeout_seconds": 1}
        connected, fresh = self.make_engine(**short), self.make_engine(**short)
        connected.rollback(self.context, connected.reserve(self.context, {"gpu": 1}))
        setattr(self.proxy, self.how, True)
        for engine in (connected, fresh):
            error = self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, self.context, {"gpu": 1})
            self.assertIs(exceptions.DatabaseUnreachable, type(error), error)
        self.assertFalse(connected.ping())
        setattr(self.proxy, self.how, False)
        machine.wait_until(connected.ping, 20.0)
        self.assertTrue(connected.ping())
        connected.reserve(self.context, {"gpu": 1})
