# SPDX-License-Identifier: Apache-2.0
"""DatabaseUnreachable: no connection, or a server that does not answer; and never a lock that was not granted."""

from __future__ import annotations

import time

import sqlalchemy as sa

from cyborg_quota import QuotaEngine, exceptions
from tests import base, fixtures
from tests.faults.proxy import Proxy
from tests.servers import machine

SHORT_TIMEOUTS = {"statement_timeout_seconds": 2, "retry_seconds": 0.2, "connect_timeout_seconds": 1}


class UnreachableTestCase(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.proxy = self.useFixture(Proxy(self.url))
        self.away = self.engine_at(self.proxy.url)
        self.quotas.rollback(self.context, self.quotas.reserve(self.context, {"gpu": 1}))

    def engine_at(self, url: str) -> QuotaEngine:
        return fixtures.open_engine(self, url, self.limits, **SHORT_TIMEOUTS)

    def reserve(self, engine: QuotaEngine) -> exceptions.DatabaseUnavailable:
        return self.assertRaises(exceptions.DatabaseUnavailable, engine.reserve, self.context, {"gpu": 1})


class TestUnreachable(UnreachableTestCase):
    def test_refused_or_no_answer(self) -> None:
        """Open connections, and new ones. A ping opens a connection of its own, because those of the pool are dead."""
        for state in ("is_refusing", "is_dead"):
            self.away.reserve(self.context, {"gpu": 1})
            setattr(self.proxy, state, True)
            self.assertIs(exceptions.DatabaseUnreachable, type(self.reserve(self.away)))
            self.assertFalse(self.away.ping())
            self.assertIs(exceptions.DatabaseUnreachable, type(self.reserve(self.engine_at(self.proxy.url))))
            setattr(self.proxy, state, False)
            machine.wait_until(self.away.ping, 60.0)  # (the proxy listens again soon)

    def test_no_greeting(self) -> None:
        """A server that accepts a connection and is silent gets the connect timeout, not the statement timeout."""
        engine = fixtures.open_engine(self, self.proxy.url, **{**SHORT_TIMEOUTS, "statement_timeout_seconds": 60})
        self.proxy.is_dead = True
        began = time.monotonic()
        self.assertIs(exceptions.DatabaseUnreachable, type(self.reserve(engine)))
        self.assertLess(time.monotonic() - began, 30)
        self.proxy.is_dead = False

    def test_a_row_that_is_locked(self) -> None:
        engine = self.engine_at(self.url)
        with self.sql.begin() as connection:
            connection.exec_driver_sql("SELECT id FROM quota_usages WHERE project_id = 'p1' FOR UPDATE").all()
            self.assertIs(exceptions.DatabaseUnavailable, type(self.reserve(engine)))
            self.assertTrue(engine.ping())

    def test_the_user_has_too_many_connections(self) -> None:
        """The server answers; the call is retried, because a connection may end."""
        database, password = str(self.sql.url.database), str(self.sql.url.password)
        user = f"few_{database}"[:32]
        self.addCleanup(self.execute, f"DROP USER {user}")
        statements = {
            "mariadb": (
                f"CREATE USER {user} IDENTIFIED BY '{password}' WITH MAX_USER_CONNECTIONS 1",
                f"GRANT ALL PRIVILEGES ON {database}.* TO {user}",
            ),
            "postgresql": (f"CREATE USER {user} PASSWORD '{password}' CONNECTION LIMIT 1",),
        }
        for statement in statements[self.backend]:
            self.execute(statement)
        url = self.sql.url.set(username=user)
        engine = self.engine_at(url.render_as_string(hide_password=False))
        with sa.create_engine(url, poolclass=sa.NullPool).connect():
            error = self.reserve(engine)
            self.assertTrue(engine.ping())
        self.assertIs(exceptions.DatabaseUnavailable, type(error))
        self.assertGreaterEqual(error.seconds, SHORT_TIMEOUTS["retry_seconds"] / 2)

    def test_a_wrong_password(self) -> None:
        """The server answers, and refuses."""
        engine = self.engine_at(self.sql.url.set(username="nobody", password="x").render_as_string(False))
        self.assertIs(exceptions.DatabaseUnavailable, type(self.reserve(engine)))
        self.assertTrue(engine.ping())


class TestListOfServers(UnreachableTestCase):
    """libpq's list of servers, of which the first does not answer, as after a power failure of its machine."""

    scenarios = [scenario for scenario in fixtures.SCENARIOS if scenario[0] == "postgresql"]

    def test_the_next_server_is_used(self) -> None:
        """Each new connection waits for the connect timeout of the silent server; so does the ping of the breaker."""
        url = self.sql.url.set(host=None, port=None)
        hosts = [f"{one.host}:{one.port}" for one in (sa.make_url(self.proxy.url), self.sql.url)]
        self.proxy.is_dead = True
        engine = self.engine_at(url.update_query_dict({"host": hosts}).render_as_string(hide_password=False))
        engine.reserve(self.context, {"gpu": 1})
        self.assertTrue(engine.ping())
        self.proxy.is_dead = False


class TestLocation(base.LedgerTestCase):
    def test_location(self) -> None:
        """Without user, password and parameters."""
        self.assertTrue(self.engine.ping())
        url = self.sql.url
        place = f"{url.host}:{url.port}/" if url.host else "/"
        self.assertEqual(f"{url.drivername}://{place}{url.database}", self.engine.location)


class TestReadOnlyFile(base.LedgerTestCase):
    scenarios = fixtures.ON_SQLITE

    def test_a_change(self) -> None:
        """The error names the file's directory as a remedy. (The tests may run as root, so the URL forbids writes.)"""
        self.quotas.reserve(self.context, {"gpu": 1})
        engine = fixtures.open_engine(self, f"sqlite:///file:{self.sql.url.database}?mode=ro&uri=true", self.limits)
        self.assertRaisesRegex(
            exceptions.DatabaseReadOnly, "directory that this user may write", engine.reserve, self.context, {"gpu": 1}
        )
