# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's functions: who may create them, and what happens without them."""

from __future__ import annotations

import logging

import fixtures as pyfixtures
import sqlalchemy as sa

from cyborg_quota import QuotaEngine
from cyborg_quota.db import dialects, schema
from cyborg_quota.db.dialects.postgresql import DEFINITIONS
from tests import base, fixtures

PASSWORD = "no-secret"


class TestFunctions(base.BackendTestCase):
    """The ledger's user owns the tables; a test takes its privilege to create functions away."""

    scenarios = [item for item in fixtures.SCENARIOS if item[0] == "postgresql"]

    def setUp(self) -> None:
        super().setUp()
        url = fixtures.fresh_url(self.backend, "functions")
        self.admin = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        self.user = f"{sa.make_url(url).database}_user"
        for statement in (
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            f"DROP ROLE IF EXISTS {self.user}",
            f"CREATE ROLE {self.user} LOGIN PASSWORD '{PASSWORD}'",
        ):
            self.execute(statement)
        self.addCleanup(self.execute, f"DROP OWNED BY {self.user}; DROP ROLE {self.user}")
        self.grant()
        self.url = sa.make_url(url).set(username=self.user, password=PASSWORD).render_as_string(hide_password=False)
        self.log = self.useFixture(pyfixtures.FakeLogger(level=logging.WARNING))

    def execute(self, statement: str) -> None:
        with self.admin.connect() as connection:
            connection.exec_driver_sql(statement)

    def grant(self) -> None:
        self.execute(f"GRANT CREATE ON SCHEMA public TO {self.user}")

    def sync(self) -> tuple[str | None, str]:
        return schema.sync(fixtures.open_database(self, self.url))

    def missing(self) -> list[str]:
        with self.admin.connect() as connection:
            return dialects.of(connection).missing_functions(connection)

    def make_engine(self) -> QuotaEngine:
        return fixtures.open_engine(self, self.url)

    def attach(self, engine: QuotaEngine) -> None:
        many = {f"r{number}": 1 for number in range(9)}  # are charged together
        engine.register_resources(many)
        for _ in range(2):
            for deltas in ({"fpga": 1, "gpu": 1}, {"gpu": 1}, many):
                engine.commit(base.Context("p"), engine.reserve(base.Context("p"), deltas))
        self.assertEqual([], engine.audit(base.ADMIN))

    def test_without_the_privilege(self) -> None:
        """A sync reports the privilege, the ledger works without the functions, and a later sync creates them."""
        self.sync()
        self.execute(f"DROP FUNCTION {', '.join(DEFINITIONS)}")
        self.execute(f"REVOKE CREATE ON SCHEMA public FROM {self.user}")
        self.assertEqual((schema.HEAD, schema.HEAD), self.sync())
        self.assertEqual(list(DEFINITIONS), self.missing())
        self.assertIn("CREATE ON SCHEMA public", self.log.output)
        engine = self.make_engine()
        for _ in range(2):
            self.attach(engine)
        self.assertEqual(1, self.log.output.count("Run cyborg-quota db sync"))
        self.assertNotIn("Traceback", self.log.output)
        self.sync()
        self.assertEqual(2, self.log.output.count("lacks privileges to create the functions"))
        self.grant()
        self.sync()
        self.assertEqual([], self.missing())
        self.attach(self.make_engine())
        self.assertEqual(1, self.log.output.count("Run cyborg-quota db sync"))

    def test_without_the_language_or_the_privilege_to_call_them(self) -> None:
        """The tables are made without the functions; then with them."""
        self.execute("REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")
        self.sync()
        self.assertIn("USAGE ON LANGUAGE plpgsql", self.log.output)
        self.assertEqual(list(DEFINITIONS), self.missing())
        self.attach(self.make_engine())
        self.execute("GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC")
        self.sync()
        self.execute(f"REVOKE EXECUTE ON FUNCTION {', '.join(DEFINITIONS)} FROM PUBLIC, {self.user}")
        self.attach(self.make_engine())
        self.assertEqual(2, self.log.output.count("A function of the ledger cannot be called"), "once each time")
        self.assertNotIn("Traceback", self.log.output)

    def test_a_user_that_may_create_them(self) -> None:
        """A refusal by a function is not logged: one of the reservations has been committed by another process."""
        self.assertEqual((None, schema.HEAD), self.sync())
        self.assertEqual([], self.missing())
        engine, context = self.make_engine(), base.Context("p")
        self.attach(engine)
        uuids = engine.reserve(context, {"fpga": 1, "gpu": 1})
        self.make_engine().commit(context, uuids[1:])
        engine.commit(context, uuids)
        self.assertEqual("", self.log.output)

    def test_their_rights_and_their_tables(self) -> None:
        """They have the caller's privileges, and do not find tables by the caller's search path."""
        self.sync()
        with self.admin.connect() as connection:
            for name in DEFINITIONS:
                query = "SELECT prosecdef, pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s"
                has_owners_rights, text = connection.exec_driver_sql(query, (name,)).one()
                self.assertFalse(has_owners_rights)
                self.assertNotRegex(text, r"(?<!public\.)\b(quota_usages|reservations)\b")
