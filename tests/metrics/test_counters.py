# SPDX-License-Identifier: Apache-2.0
"""The counters of a process, and the address at which it serves them."""

from __future__ import annotations

import logging
import socket
import sys
import urllib.request
from unittest import mock

from oslotest import base as oslo_base
from prometheus_client import generate_latest

import cyborg_quota
from cyborg_quota import exceptions
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.metrics import setup
from cyborg_quota.metrics.counters import MeasuredEngine, result_of
from tests import base, hooks
from tests.api import server
from tests.metrics.test_exporter import Samples, key, samples
from tests.servers import machine
from tests.unit.test_forks import is_true_in_child


class TestCounters(server.ApiTestCase):
    options = {"metrics__listen": ["127.0.0.1:1"]}

    def setUp(self) -> None:
        setup.recorder.cache_clear()
        self.addCleanup(setup.recorder.cache_clear)
        super().setUp()
        self.assertIsInstance(self.engine, MeasuredEngine)

    def counted(self) -> Samples:
        return samples(generate_latest(setup.recorder().registry).decode())

    def test_results(self) -> None:
        before = self.counted()
        context = base.Context("detector")
        self.assertRaises(exceptions.OverQuota, self.engine.reserve, context, {"gpu": 99})
        self.assertRaises(exceptions.QuotaError, self.engine.reserve, context, {"gpu": 1, "quantum": 1})
        self.assertRaises(exceptions.QuotaError, self.engine.reserve, context, {"gpu": "many"})  # type: ignore[dict-item]
        self.assertRaises(exceptions.QuotaError, self.engine.reserve_many, context, [None])  # type: ignore[list-item]
        [uuid] = self.engine.reserve(base.Context("simulation"), {"gpu": 1})
        self.engine.rollback(base.Context("simulation"), [uuid])
        found = {name: value - before.get(name, 0) for name, value in self.counted().items()}
        expected = {
            key("reserves_total", resource="gpu", result="over_quota"): 1,
            key("reserves_total", resource="gpu", result="invalid"): 2,
            key("reserves_total", resource="gpu", result="granted"): 1,
            key("call_duration_seconds_count", call="rollback"): 1,
            key("call_duration_seconds_count", call="reserve"): 5,
        }
        self.assertEqual(expected, {name: found[name] for name in expected})
        self.assertFalse([one for one in found if "quantum" in str(one)], "an unknown resource makes no series")

    def test_every_error_of_a_reserve_has_a_result(self) -> None:
        for error, result in (
            (exceptions.LimitNotSet("gpu", ""), "limit_not_set"),
            (exceptions.DatabaseUnavailable("", 1.0), "database_error"),
            (exceptions.InvalidRequest(""), "invalid"),
            (KeyError(), "failed"),
        ):
            self.assertEqual(result, result_of(error))

    def test_retries(self) -> None:
        database = hooks.database_of(self.engine)
        before = self.counted().get(key("retries_total", reason="concurrent_change"), 0)
        for run in (database, database.untimed):
            self.assertEqual(1, run.write(mock.Mock(side_effect=[ConcurrentChange] * 3 + [1])))
        self.assertEqual(6, self.counted()[key("retries_total", reason="concurrent_change")] - before)

    def test_without_metrics_the_engine_is_the_plain_one(self) -> None:
        engine = cyborg_quota.make_engine(server.settings(self.url))
        self.assertIs(cyborg_quota.QuotaEngine, type(engine))


class TestServer(oslo_base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        setup.recorder.cache_clear()
        self.addCleanup(setup.recorder.cache_clear)

    def serve(self, *addresses: str) -> list[str]:
        """Serve at the first of these addresses that is free; returns what is logged."""
        conf = server.settings("sqlite://", metrics__listen=list(addresses))
        with self.assertLogs(setup.LOG.logger, logging.INFO) as logged:
            setup.serve_counters(conf)
        return list(logged.output)

    def free(self) -> str:
        return f"127.0.0.1:{machine.free_port()}"

    def test_the_first_free_address(self) -> None:
        """Each process has one of its own; the log has one line if none is left."""
        with socket.create_server(("127.0.0.1", 0)) as other:
            addresses = [f"127.0.0.1:{other.getsockname()[1]}", self.free(), self.free()]
            setup.recorder().durations.labels("commit").observe(0.01)
            for free in addresses[1:]:
                self.assertIn(free, self.serve(*addresses)[0])
            [line] = self.serve(*addresses)
        self.assertRegex(line, f"WARNING.*{addresses[0]}")
        with urllib.request.urlopen(f"http://{addresses[1]}/metrics", timeout=30) as answer:
            found = samples(answer.read().decode())
        self.assertEqual(1, found[key("call_duration_seconds_count", call="commit")])

    def test_an_address_that_cannot_exist(self) -> None:
        """The process runs without, as if the address were in use. What is no address is refused."""
        for address in ("127.0.0.1:65536", "a..b:1"):
            [line] = self.serve(address)
            self.assertIn(address, line)
        self.assertRaises(ValueError, server.settings, "sqlite://", metrics__listen=["nothing"])

    def test_without_the_library(self) -> None:
        conf = server.settings("sqlite://", metrics__listen=["127.0.0.1:1"])
        with mock.patch.dict("sys.modules", {"prometheus_client": None}):
            sys.modules.pop("cyborg_quota.metrics.counters", None)
            vars(cyborg_quota.metrics).pop("counters", None)
            error = self.assertRaises(exceptions.ConfigurationError, cyborg_quota.make_engine, conf)
        self.assertIn("cyborg_quota[metrics]", str(error))

    def test_a_child_counts_from_zero(self) -> None:
        """It has not made the parent's calls."""
        recorder = setup.recorder()
        recorder.durations.labels("commit").observe(0.01)
        self.assertIn(b'call="commit"', generate_latest(recorder.registry))
        self.assertTrue(is_true_in_child(lambda: b'call="commit"' not in generate_latest(recorder.registry)))
