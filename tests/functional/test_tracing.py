# SPDX-License-Identifier: Apache-2.0
"""Tracing of the ledger's statements with osprofiler."""

from __future__ import annotations

from typing import Any

import testscenarios
from osprofiler import notifier, profiler

import cyborg_quota
from cyborg_quota import exceptions
from tests import base
from tests.api import server

load_tests = testscenarios.load_tests_apply_scenarios


class TestStatements(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.points: list[dict[str, Any]] = []
        former = notifier.get()
        notifier.set(lambda payload, **_more: self.points.append(payload))
        self.addCleanup(notifier.set, former)
        self.addCleanup(profiler.clean)

    def traced(self, *, trace: bool) -> list[str]:
        """The statements that the trace of a reserve has."""
        conf = server.settings(self.url, limits__driver="noop", quota__trace_statements=trace)
        engine = cyborg_quota.make_engine(conf)
        self.addCleanup(engine.close)
        engine.reserve(self.context, {"gpu": 1})
        self.points.clear()
        profiler.init("a key")
        with profiler.Trace("reserve"):
            engine.reserve(self.context, {"gpu": 1})
            self.assertRaises(exceptions.QuotaError, engine.commit, self.context, ["unknown"])
        profiler.clean()
        starts = [one for one in self.points if one["name"].endswith("-start")]
        self.assertEqual(len(self.points), 2 * len(starts), "each point has an end, also after an error")
        return [str(one["info"]["db"]["statement"]) for one in starts if one["name"] == "db-start"]

    def test_the_statements_of_a_call_are_traced(self) -> None:
        statements = self.traced(trace=True)
        self.assertTrue(any("reserv" in one for one in statements), statements)

    def test_nothing_is_traced_by_default(self) -> None:
        self.assertEqual([], self.traced(trace=False))
