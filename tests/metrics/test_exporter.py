# SPDX-License-Identifier: Apache-2.0
"""The server of the metrics: what a scrape gets, from whom, and who may see which project."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fixtures as fx
import oslotest.base
from prometheus_client import parser

import cyborg_quota
from cyborg_quota import exceptions
from cyborg_quota.metric_types import LedgerMetrics, ProjectMetrics
from cyborg_quota.metrics import exporter as exporters
from cyborg_quota.metrics import recorder as recorders
from cyborg_quota.metrics import setup
from cyborg_quota.metrics.engine import MeasuredEngine, result_of
from cyborg_quota.metrics.exporter import Exporter
from cyborg_quota.pod_types import ResourceUse
from tests import base, clouds, needs
from tests.api import server
from tests.servers import machine, prometheus

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """The value of each series, by its name and its sorted labels, as prometheus_client reads them."""
    found: Samples = {}
    for family in parser.text_string_to_metric_families(text):
        for one in family.samples:
            key = one.name, tuple(sorted(one.labels.items()))
            assert key not in found, key
            found[key] = one.value
    return found


def key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return f"cyborg_quota_{name}", tuple(sorted(labels.items()))


class MetricsTestCase(server.ApiTestCase):
    """The cloud of the API's tests; counters in a directory of the test."""

    projects = ["*"]

    def setUp(self) -> None:
        self.files = self.useFixture(fx.TempDir()).path
        self.address = f"127.0.0.1:{machine.free_port()}"
        self.options = {
            "metrics__listen": self.address,
            "metrics__projects": self.projects,
            "metrics__max_age": 0.0,
            "metrics__audit_interval": 0,
            "metrics__lease": 1.0,
        }
        recorders.recorder.cache_clear()
        self.addCleanup(recorders.recorder.cache_clear)
        super().setUp()

    def exporter(self, names: Any = None, **options: Any) -> Exporter:
        """An exporter on the address of the test; serves when it is started."""
        conf = server.settings(self.url, **{**self.options, **options})
        engine = cyborg_quota.make_engine(conf)
        self.addCleanup(engine.close)
        return Exporter(conf, engine, names)

    @contextlib.contextmanager
    def serving(self, *, elected: bool = True, **options: Any) -> Iterator[Exporter]:
        exporter = self.exporter(**options)
        exporter.start()
        try:
            machine.wait_until(lambda: exporter._server is not None and exporter._election.is_elected == elected, 30)
            yield exporter
        finally:
            exporter.stop()

    def scrape(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=30) as response:
            self.assertEqual("text/plain; version=0.0.4; charset=utf-8", response.headers["Content-Type"])
            return str(response.read().decode())


class TestScrape(MetricsTestCase):
    def test_the_values_of_the_ledger(self) -> None:
        self.engine.administration.set_limit(base.ADMIN, "fpga", -1, "elsewhere")
        self.quotas.reserve(base.Context("elsewhere"), {"fpga": 2}, consumer="unlimited")
        with self.serving():
            found = samples(self.scrape())
        expected = {
            "limit": 20,
            "used": 5,
            "reserved": 1,
            "subtree": 8,
            "fits": 12,
        }
        for name, value in expected.items():
            self.assertEqual(value, found[key(name, project_id="higgs", resource="gpu")], name)
        of_unlimited = {
            one[0] for one in found if ("project_id", "elsewhere") in one[1] and ("resource", "fpga") in one[1]
        }
        self.assertEqual({f"cyborg_quota_{name}" for name in ("used", "reserved", "subtree")}, of_unlimited)
        self.assertEqual(1, found[key("exporter_elected")])
        self.assertEqual(0, found[key("oldest_overdue_seconds")])
        self.assertFalse([one for one in found if one[0] == "cyborg_quota_drift_rows"], "no audit has run")

    def test_promtool_accepts_the_text(self) -> None:
        self.engine.capacity.enable(base.ADMIN)
        self.engine.capacity.add_provider(base.ADMIN, 'a "quoted" \\ name')
        setup.recorder().count_retry("deadlock")
        self.engine.pods.add(base.ADMIN, "north")
        self.engine.pods.set_usage(base.ADMIN, "north", {"gpu": ResourceUse(4, 1)})
        with self.serving(names=lambda ids: {ids[0]: 'the "first"\\\n'}) as exporter:
            exporter._drift_rows = 0
            self.scrape()
            names = exporter._names
            machine.wait_until(lambda: names is not None and names.text != "", 30)
            text = self.scrape()
        self.assertIn(r'project_name="the \"first\"\\\n"', text)
        self.assertIn('cyborg_quota_capacity_total{resource="gpu",pod="north"} 4', text)
        try:
            ended = prometheus.promtool("check", "metrics", text=text)
        except machine.ServerError as error:
            needs.missing(self, str(error))
        self.assertEqual((0, "", ""), (ended.returncode, ended.stdout, ended.stderr))

    def test_paths(self) -> None:
        with self.serving():
            error = self.assertRaises(urllib.error.HTTPError, self.scrape, "/")
            self.assertEqual(404, error.code)
            request = urllib.request.Request(f"http://{self.address}/metrics", data=b"x", method="POST")
            error = self.assertRaises(urllib.error.HTTPError, urllib.request.urlopen, request, timeout=30)
            self.assertEqual(405, error.code)

    def test_values_are_kept(self) -> None:
        """Scrapes within max_age read the ledger once."""
        with self.serving(metrics__max_age=600.0) as exporter:
            exporter._engine.audit(base.ADMIN)  # the first read also checks the schema
            with clouds.captured() as statements:
                first = self.scrape()
                self.assertEqual(5, len([one for one in clouds.queries(statements) if "fences" not in one[0]]))
            self.quotas.reserve(base.Context("higgs"), {"gpu": 1})
            self.assertEqual(
                [line for line in first.splitlines() if "cyborg_quota_reserved" in line],
                [line for line in self.scrape().splitlines() if "cyborg_quota_reserved" in line],
            )

    def test_an_audit_counts_the_drift(self) -> None:
        self.execute("UPDATE quota_usages SET used = used + 1 WHERE project_id = 'higgs' AND resource = 'gpu'")
        with self.serving(metrics__audit_interval=3600) as exporter:
            machine.wait_until(lambda: exporter._drift_rows is not None, 30)
            self.assertEqual(1, samples(self.scrape())[key("drift_rows")])
        self.execute("UPDATE quota_usages SET used = used - 1 WHERE project_id = 'higgs' AND resource = 'gpu'")

    def test_an_unavailable_ledger_is_503(self) -> None:
        with self.serving():

            def fail(*_arguments: object) -> None:
                raise exceptions.DatabaseUnavailable("at mysql://quota:secret@db", 1.0)

            self.useFixture(fx.MonkeyPatch("cyborg_quota.monitoring.Monitoring.read", fail))
            error = self.assertRaises(urllib.error.HTTPError, self.scrape)
            self.assertEqual((503, b"The ledger is unavailable.\n"), (error.code, error.read()))


class TestOneRead(oslotest.base.BaseTestCase):
    """What a scrape reads, without a server and without a ledger."""

    def test_threads_share_one_read(self) -> None:
        """The first thread reads while the second asks; without the lock, both would read."""
        both_read = threading.Barrier(2)
        reads: list[int] = []

        def read(*_arguments: object) -> LedgerMetrics:
            reads.append(1)
            with contextlib.suppress(threading.BrokenBarrierError):
                both_read.wait(1)
            return LedgerMetrics([], {}, {}, 0.0, "f9e0")

        engine = mock.Mock(**{"monitoring.read": read})
        text = exporters.LedgerText(engine, ["*"], 60.0)
        threads = [threading.Thread(target=text.get) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(1, len(reads))

    def exporter(self, names: Any = None, **engine: Any) -> Exporter:
        options = mock.Mock(listen="127.0.0.1:1", projects=["a"], max_age=0.0, lease=1.0, audit_interval=60)
        return Exporter(mock.Mock(metrics=options), mock.Mock(**engine), names)

    def test_only_the_elected_process_audits(self) -> None:
        audits: list[object] = []
        exporter = self.exporter(audit=lambda _context: audits.append(1) or ["drift"])
        for is_elected, expected in ((False, None), (True, 1), (False, None), (True, 1)):
            exporter._election = mock.Mock(is_elected=is_elected)
            exporter._audit_if_due(0.0)
            self.assertEqual(expected, exporter._drift_rows)
        self.assertEqual(2, len(audits))

    def test_a_circuit_breaker(self) -> None:
        """While it is open, nothing calls the ledger, and a scrape gets 503 at once."""

        def refuse(*_arguments: object) -> None:
            raise exceptions.DatabaseUnavailable("the circuit breaker is open", 0.0)

        engine, breaker = mock.Mock(), mock.Mock(call=refuse, call_untimed=refuse)
        options = mock.Mock(listen="127.0.0.1:1", projects=["a"], max_age=0.0, lease=1.0, audit_interval=60)
        exporter = Exporter(mock.Mock(metrics=options), engine, None, breaker)
        exporter._election = mock.Mock(is_elected=True)
        engine.reset_mock()
        answers: list[str] = []
        scrape = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET"}
        list(exporter.respond(scrape, lambda status, _headers: answers.append(status)))
        self.assertEqual(["503 Service Unavailable"], answers)
        exporter._audit_if_due(0.0)
        exporter._stopped = mock.Mock(**{"is_set.side_effect": [False, True]})
        exporter._campaign()
        self.assertEqual(([], 0), (engine.mock_calls, exporter._election.campaign.call_count))

    def test_a_new_term_begins_with_an_audit(self) -> None:
        """The number of an earlier term is not exported: another process may have repaired the ledger meanwhile."""
        found = iter((["drift"], []))
        exporter = self.exporter(audit=lambda _context: next(found))
        due = 0.0
        for is_elected, expected in ((True, 1), (True, 1), (False, None), (True, 0)):
            exporter._election = mock.Mock(is_elected=is_elected)
            due = exporter._audit_if_due(due)
            self.assertEqual(expected, exporter._drift_rows)

    def test_a_scrape_does_not_wait_for_keystone(self) -> None:
        """Keystone does not answer until the scrape has ended."""
        is_asked, may_answer = threading.Event(), threading.Event()

        def names(project_ids: list[str]) -> dict[str, str]:
            is_asked.set()
            assert may_answer.wait(60)
            return dict.fromkeys(project_ids, "Higgs")

        metrics = LedgerMetrics([ProjectMetrics("a", "gpu", 2, 1, 0, 1, 1)], {}, {}, 0.0, "f9e0")
        exporter = self.exporter(names, **{"monitoring.read": lambda *_arguments: metrics})
        exporter._election = mock.Mock(is_elected=True)
        self.assertNotIn(b"Higgs", exporter.text())
        exporter._run(exporter._read_names)
        self.assertTrue(is_asked.wait(60))
        self.assertNotIn(b"Higgs", exporter.text())
        may_answer.set()
        expected = b'project_info{project_id="a",project_name="Higgs"} 1'
        machine.wait_until(lambda: expected in exporter.text(), 30)
        self.assertIn(expected, exporter.text())
        exporter.stop()

    def test_names_are_read_again_soon_after_an_error(self) -> None:
        def names(project_ids: list[str]) -> dict[str, str]:
            asked.append(project_ids)
            if len(asked) == 1:
                raise exceptions.ProjectLookupFailed("Keystone is down")
            return {}

        asked: list[list[str]] = []
        clock = self.useFixture(fx.MockPatch("cyborg_quota.metrics.exporter.time.monotonic", return_value=0.0)).mock
        text = exporters.NamesText(names)
        text.refresh([])
        for now, expected in ((0, 1), (59, 1), (61, 2), (3660, 2), (3662, 3)):
            clock.return_value = now
            text.refresh(["a"])
            self.assertEqual(expected, len(asked), now)

    def test_the_name_of_a_new_project_is_read_soon(self) -> None:
        asked: list[list[str]] = []
        clock = self.useFixture(fx.MockPatch("cyborg_quota.metrics.exporter.time.monotonic", return_value=0.0)).mock
        text = exporters.NamesText(lambda ids: asked.append(ids) or {})
        for now, ids, expected in ((0, ["a"], 1), (59, ["a", "b"], 1), (61, ["a", "b"], 2), (600, ["b"], 2)):
            clock.return_value = now
            text.refresh(ids)
            self.assertEqual(expected, len(asked), now)

    def test_stop_returns_at_every_moment_of_a_start(self) -> None:
        """Also between the creation of the server and its first request."""
        is_bound, may_go_on = threading.Event(), threading.Event()
        bind = Exporter._bind

        def bind_and_wait(exporter: Exporter) -> Any:
            server = bind(exporter)
            exporter._server = server
            is_bound.set()
            may_go_on.wait(60)
            return server

        exporter = self.exporter()
        exporter._address = ("127.0.0.1", machine.free_port())
        exporter._election = mock.Mock(is_elected=False, campaign=lambda: False)
        with mock.patch.object(Exporter, "_bind", bind_and_wait):
            exporter.start()
            self.assertTrue(is_bound.wait(60))
            stopping = threading.Thread(target=exporter.stop, daemon=True)
            stopping.start()
            machine.wait_until(exporter._stopped.is_set, 30)
            may_go_on.set()
            stopping.join(30)
        self.assertFalse(stopping.is_alive())
        self.assertFalse([one for one in exporter._threads if one.is_alive()])


class TestChosenProjects(MetricsTestCase):
    """I8: whoever reaches the address sees the projects that [metrics] projects names, and no others."""

    projects = ["elsewhere"]

    def test_only_these(self) -> None:
        with self.serving():
            text = self.scrape()
        self.assertIn('cyborg_quota_used{project_id="elsewhere",resource="gpu"} 1\n', text)
        for other in ("higgs", "physics", "detector", "simulation"):
            self.assertNotIn(other, text)

    def test_only_their_names(self) -> None:
        asked: list[list[str]] = []
        with self.serving(names=lambda ids: asked.append(ids) or {}):
            self.scrape()
            machine.wait_until(lambda: bool(asked), 30)
        self.assertEqual(["elsewhere"], asked[0])

    def test_none_by_default(self) -> None:
        with self.serving(metrics__projects=[]):
            text = self.scrape()
        self.assertNotIn("project_id", text)
        self.assertIn("cyborg_quota_schema_info", text)


class TestSeveralProcesses(MetricsTestCase):
    """Exporters on other addresses are those of other hosts; on the same address, those of one host."""

    def test_one_of_two_hosts_exports_the_ledger(self) -> None:
        first_address = self.address
        with self.serving() as first:
            other = f"127.0.0.1:{machine.free_port()}"
            second = self.exporter(metrics__listen=other)
            second.start()
            self.addCleanup(second.stop)
            machine.wait_until(lambda: second._server is not None, 30)
            self.assertIn("cyborg_quota_used{", self.scrape())
            self.address = other
            self.assertNotIn("cyborg_quota_used{", self.scrape())
            self.address = first_address
            self.assertTrue(first._election.is_elected)
        # It resigned when it was stopped.
        machine.wait_until(lambda: second._election.is_elected, 30)
        self.address = other
        self.assertIn("cyborg_quota_used{", self.scrape())

    def test_on_one_address_another_process_takes_over(self) -> None:
        with self.serving():
            second = self.exporter()
            second.start()
            self.addCleanup(second.stop)
            self.assertIsNone(second._server)
        machine.wait_until(lambda: second._election.is_elected, 30)
        self.assertIn("cyborg_quota_used{", self.scrape())


class TestCounters(MetricsTestCase):
    """The counters of all processes of a host are in files of one directory."""

    def setUp(self) -> None:
        super().setUp()
        self.assertIsInstance(self.engine, MeasuredEngine)
        self.recorder = setup.recorder()

    def counted(self) -> Samples:
        return samples(self.recorder.text().decode())

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
        self.assertEqual(1, found[key("reserves_total", resource="gpu", result="over_quota")])
        self.assertEqual(2, found[key("reserves_total", resource="gpu", result="invalid")])
        self.assertEqual(1, found[key("reserves_total", resource="gpu", result="granted")])
        self.assertFalse([one for one in found if "quantum" in str(one)], "an unknown resource makes no series")
        self.assertEqual(1, found[key("call_duration_seconds_count", call="rollback")])
        self.assertEqual(5, found[key("call_duration_seconds_count", call="reserve")])

    def test_every_error_of_a_reserve_has_a_result(self) -> None:
        found = {
            result_of(error)
            for error in (
                exceptions.LimitNotSet("gpu", ""),
                exceptions.DatabaseUnavailable("", 1.0),
                exceptions.InvalidRequest(""),
                KeyError(),
            )
        }
        self.assertEqual({"limit_not_set", "database_error", "invalid", "failed"}, found)

    def test_retries(self) -> None:
        from cyborg_quota.db.errors import ConcurrentChange
        from tests import hooks

        database = hooks.database_of(self.engine)
        attempts: list[int] = []

        def work(_connection: object) -> int:
            attempts.append(1)
            if len(attempts) < 4:
                raise ConcurrentChange
            return 1

        before = self.counted().get(key("retries_total", reason="concurrent_change"), 0)
        for run in (database, database.long_transactions):
            attempts.clear()
            run.write(work)
        self.assertEqual(6, self.counted()[key("retries_total", reason="concurrent_change")] - before)

    def test_a_child_is_counted_too(self) -> None:
        """Its counters are in files of its own, and stay after its end, even if it is killed."""
        self.recorder.flush()  # what the test has done so far does not belong in the directory
        self.useFixture(fx.EnvironmentVariable(recorders.VARIABLE, self.files))
        from prometheus_client import values

        self.useFixture(fx.MonkeyPatch("prometheus_client.metrics.values.ValueClass", values.MultiProcessValue()))
        recorder = recorders.Recorder()
        recorder.count_retry("deadlock")
        recorder._last_success.set(2000)
        recorder._has_thread = True  # the call below is not counted before the fork
        recorder.record("commit", 0.01)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                recorder.count_retry("deadlock")
                recorder._last_success.set(1000)
                recorder.record("reserve", 0.01, ["gpu"], "granted")
                signal.pause()
            os._exit(1)

        def counted() -> Samples:
            return samples(recorder.text().decode())

        reserve = key("call_duration_seconds_count", call="reserve")
        machine.wait_until(lambda: counted().get(reserve) == 1, 30)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        found = counted()
        self.assertEqual(1, found[reserve])
        self.assertEqual(1, found[key("reserves_total", resource="gpu", result="granted")])
        self.assertEqual(1, found[key("call_duration_seconds_count", call="commit")], "the parent's, and only its")
        self.assertEqual(2, found[key("retries_total", reason="deadlock")])
        self.assertEqual(2000, found[key("expirer_last_success_timestamp_seconds")], "the last one of all processes")

    def counted_by(self, *program: str) -> float:
        """The number of reserves that a program has counted, which has ended."""
        self.recorder.flush()
        lines = ("import threading, time", "from cyborg_quota.metrics import recorder", "it = recorder.recorder()")
        environment = os.environ | {recorders.VARIABLE: self.files}
        subprocess.run([sys.executable, "-c", "\n".join((*lines, *program))], env=environment, check=True)
        self.useFixture(fx.EnvironmentVariable(recorders.VARIABLE, self.files))
        return self.counted()[key("call_duration_seconds_count", call="reserve")]

    def test_the_calls_before_the_end_of_a_process_are_counted(self) -> None:
        self.assertEqual(1, self.counted_by("it._has_thread = True", "it.record('reserve', 0.01)"))

    def test_a_process_ends_while_its_thread_counts(self) -> None:
        program = (
            "apply, applies = it._apply, threading.Event()",
            "def apply_slowly(*arguments):",
            "    applies.set()",
            "    time.sleep(0.3)",
            "    apply(*arguments)",
            "it._apply = apply_slowly",
            "it.record('reserve', 0.01)",
            "applies.wait()",
        )
        self.assertEqual(1, self.counted_by(*program))

    def test_a_process_that_may_not_start_a_thread(self) -> None:
        """Its calls succeed; they are counted by a scrape, or by a later thread."""
        recorder = recorders.Recorder()
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            recorder.record("reserve", 0.01)
        self.assertIn('call_duration_seconds_count{call="reserve"} 1.0', recorder.text().decode())
        self.assertFalse(recorder._has_thread)

    def test_calls_that_nobody_counts_need_bounded_memory(self) -> None:
        recorder = recorders.Recorder()
        recorder._has_thread = True
        for _ in range(recorders._MAX_RECORDS + 10):
            recorder.record("reserve", 0.01)
        self.assertEqual(recorders._MAX_RECORDS, len(recorder._records))

    def test_a_missing_directory_is_an_error_at_the_start(self) -> None:
        self.useFixture(fx.EnvironmentVariable(recorders.VARIABLE, "/nonexistent"))
        recorders.recorder.cache_clear()
        error = self.assertRaises(exceptions.ConfigurationError, cyborg_quota.make_engine, server.settings(self.url))
        self.assertIn("/nonexistent", str(error))

    def test_a_full_disk_fails_no_call(self) -> None:
        def fail(*_labels: str) -> None:
            raise OSError(28, "No space left on device")

        self.useFixture(fx.MonkeyPatch("prometheus_client.metrics.MetricWrapperBase.labels", fail))
        self.recorder._children.clear()
        [uuid] = self.engine.reserve(base.Context("simulation"), {"gpu": 1})
        self.engine.rollback(base.Context("simulation"), [uuid])

    def test_without_metrics_the_engine_is_the_plain_one(self) -> None:
        engine = cyborg_quota.make_engine(server.settings(self.url))
        self.assertIs(cyborg_quota.QuotaEngine, type(engine))
