# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL is killed immediately after an answer. An answered call is not lost.

The server flushes its log only at a commit, because its log writer is suspended. An answer that did not wait for the
flush is therefore lost.
"""

from __future__ import annotations

from typing import ClassVar

import sqlalchemy as sa
import testscenarios

from cyborg_quota import QuotaEngine
from tests import base, fixtures, servers
from tests.faults.test_outages import OwnServerTestCase

load_tests = testscenarios.load_tests_apply_scenarios


class TestDurableAnswers(OwnServerTestCase):
    scenarios = [scenario for scenario in OwnServerTestCase.scenarios if scenario[0] == "postgresql"]

    server: ClassVar[servers.Server]

    @classmethod
    def setUpClass(cls) -> None:
        """Start one server for all tests: each restarts it, and has a database of its own."""
        super().setUpClass()
        cls.server = servers.PostgreSQL(settings={"autovacuum": "off", "checkpoint_timeout": "1h"})
        cls.addClassCleanup(cls.server.close)
        if fixtures.missing_server("postgresql") is None:
            cls.server.start()

    def setUp(self) -> None:
        super().setUp()
        self.ledger = self.ledger_on(self.server)
        self.suspend_wal_writer(self.server)  # (DROP DATABASE would wait for it)
        self.context = base.Context("p")

    def states_after_a_crash(self, engine: QuotaEngine) -> list[str]:
        """Reserve for two consumers, commit one of them, and kill the server. Returns the states that are left."""
        for consumer in ("a", "b"):
            engine.reserve(self.context, {"gpu": 1}, consumer=consumer)
        engine.commit(self.context, consumer="b")
        self.server.kill()
        self.server.start()
        return [row.state for row in self.ledger.engine.list_reservations(base.ADMIN, project_id="p")]

    def make_engine(self, url: str | None = None) -> QuotaEngine:
        engine = self.ledger.make_engine(url)
        self.addCleanup(engine.close)
        engine.rollback(self.context, engine.reserve(self.context, {"gpu": 1}))  # the usage rows exist
        return engine

    def test_answered_calls_are_durable(self) -> None:
        self.assertEqual(["rolled_back", "reserved", "committed"], self.states_after_a_crash(self.make_engine()))

    def test_control(self) -> None:
        """With commits that do not wait for the flush, answered calls are lost."""
        url = sa.make_url(self.ledger.url).update_query_dict({"options": "-c synchronous_commit=off"})
        engine = self.make_engine(url.render_as_string(hide_password=False))
        self.assertNotEqual(["rolled_back", "reserved", "committed"], self.states_after_a_crash(engine))
