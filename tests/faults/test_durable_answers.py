# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL is killed immediately after an answer. An answered call is not lost.

The server flushes its log only at a commit, because its log writer is suspended. An answer that did not wait for the
flush is therefore lost.
"""

from __future__ import annotations

import sqlalchemy as sa
import testscenarios

from tests import base
from tests.faults.test_outages import OwnServerTestCase

load_tests = testscenarios.load_tests_apply_scenarios


class TestDurableAnswers(OwnServerTestCase):
    scenarios = [scenario for scenario in OwnServerTestCase.scenarios if scenario[0] == "postgresql"]

    def test_answered_calls_are_durable(self) -> None:
        """The control: with commits that do not wait for the flush, answered calls are lost."""
        server = self.start(autovacuum="off", checkpoint_timeout="1h")
        ledger = self.ledger_on(server)
        for waits in ("on", "off"):
            self.suspend_wal_writer(server)
            context = base.Context(f"waits {waits}")
            url = sa.make_url(ledger.url).update_query_dict({"options": f"-c synchronous_commit={waits}"})
            engine = ledger.make_engine(url.render_as_string(hide_password=False))
            self.addCleanup(engine.close)
            engine.rollback(context, engine.reserve(context, {"gpu": 1}))  # the usage rows exist
            for consumer in ("a", "b"):
                engine.reserve(context, {"gpu": 1}, consumer=consumer)
            engine.commit(context, consumer="b")
            server.kill()
            server.start()
            found = [row.state for row in ledger.engine.list_reservations(base.ADMIN, context.project_id)]
            self.assertEqual(waits == "on", found == ["rolled_back", "reserved", "committed"], found)
