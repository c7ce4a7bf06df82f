# SPDX-License-Identifier: Apache-2.0
"""The application that exports the values of the ledger: what a scrape gets, and which projects it names."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import fixtures as fx
import oslotest.base
import webob
from prometheus_client import parser

from cyborg_quota import exceptions
from cyborg_quota.metrics import exporter
from cyborg_quota.metrics.exporter import LedgerApplication
from cyborg_quota.types import TOTAL
from cyborg_quota.types.capacity import ResourceUse
from cyborg_quota.types.metrics import LedgerMetrics, ProjectMetrics
from tests import base, clouds, keystones, needs
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


def run_promtool(test: oslotest.base.BaseTestCase, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return prometheus.promtool(*arguments, text=text)
    except machine.ServerError as error:
        needs.missing(test, str(error))


def get(application: LedgerApplication) -> webob.Response:
    return webob.Request.blank("/metrics").get_response(application)


class TestScrape(server.ApiTestCase):
    """The cloud of the API's tests."""

    def scrape(self, *projects: str, names: Any = None) -> str:
        answer = get(LedgerApplication(self.engine, list(projects), names))
        self.assertEqual(200, answer.status_int)
        self.assertEqual("text/plain; version=0.0.4; charset=utf-8", answer.headers["Content-Type"])
        return str(answer.text)

    def test_the_values_of_the_ledger(self) -> None:
        self.engine.limits.set_limit(base.ADMIN, "fpga", -1, "elsewhere")
        self.quotas.reserve(base.Context("elsewhere"), {"fpga": 2}, consumer="unlimited")
        found = samples(self.scrape("*"))
        for name, value in {"limit": 20, "used": 5, "reserved": 1, "subtree": 8, "fits": 12}.items():
            self.assertEqual(value, found[key(name, project_id="higgs", resource="gpu")], name)
        of_unlimited = {
            one[0] for one in found if ("project_id", "elsewhere") in one[1] and ("resource", "fpga") in one[1]
        }
        self.assertEqual(
            {f"cyborg_quota_{name}" for name in ("used", "reserved", "subtree", "device_seconds_total")}, of_unlimited
        )
        self.assertEqual(0, found[key("oldest_overdue_seconds")])

    def test_totals_are_series_of_their_own(self) -> None:
        """Also if no project is exported: a total names none. Nothing is over its limit because of them."""
        self.engine.limits.set_total_limits(base.ADMIN, {"gpu": 50})
        held = self.engine.limits.list_total_limits(base.ADMIN)[0].held
        self.assertGreater(held, 0)
        for projects in ([], ["higgs"], ["*"]):
            text = self.scrape(*projects)
            found = samples(text)
            self.assertEqual(50, found[key("total_limit", resource="gpu")], projects)
            self.assertEqual(held, found[key("total_held", resource="gpu")], projects)
            self.assertNotIn(TOTAL, {value for _, labels in found for _, value in labels})

    def test_promtool_accepts_the_text(self) -> None:
        self.engine.capacity.add_provider(base.ADMIN, 'a "quoted" \\ name')
        self.engine.pods.add(base.ADMIN, "north")
        self.engine.pods.set_usage(base.ADMIN, "north", {"gpu": ResourceUse(4, 1)})
        text = self.scrape("*", names=lambda ids: {ids[0]: 'the "first"\\\n'})
        self.assertIn(r'project_name="the \"first\"\\\n"', text)
        self.assertIn('cyborg_quota_capacity_total{resource="gpu",pod="north"} 4', text)
        ended = run_promtool(self, "check", "metrics", text=text)
        self.assertEqual((0, "", ""), (ended.returncode, ended.stdout, ended.stderr))

    def test_values_are_kept(self) -> None:
        """Scrapes within the maximum age read the ledger once."""
        application = LedgerApplication(self.engine, ["*"], max_age_seconds=600.0)
        self.engine.audit(base.ADMIN)  # the first read also checks the schema
        self.engine.list_resources()  # (their copy is used for a minute)
        with clouds.captured() as statements:
            first = application.text()
        (ping, _), *reads = clouds.queries(statements)
        self.assertEqual(("SELECT 1", 6), (ping, len(reads)))
        self.quotas.reserve(base.Context("higgs"), {"gpu": 1})
        self.assertEqual(first, application.text())

    def test_answers_without_values(self) -> None:
        """503: the ledger, or the source of the limits, is unavailable."""
        application = LedgerApplication(self.engine, ["*"])
        read = self.useFixture(fx.MockPatch("cyborg_quota.metrics.monitoring.Monitoring.read")).mock
        for error, what in (
            (exceptions.DatabaseUnavailable("at mysql://quota:secret@db", 1.0), "ledger"),
            (exceptions.LimitsUnavailable("at http://keystone", 1.0), "source of the limits"),
        ):
            read.side_effect = error
            answer = get(application)
            self.assertEqual((503, f"The {what} is unavailable.\n"), (answer.status_int, answer.text))

    def test_only_the_chosen_projects(self) -> None:
        """I8: whoever reaches the port sees the projects that [metrics] projects names, and no others."""
        asked: list[list[str]] = []
        text = self.scrape("elsewhere", names=lambda ids: asked.append(ids) or {})
        self.assertEqual([["elsewhere"]], asked)
        self.assertIn('cyborg_quota_used{project_id="elsewhere",resource="gpu"} 1\n', text)
        for other in ("higgs", "physics", "detector", "simulation"):
            self.assertNotIn(other, text)

    def test_the_projects_of_the_configuration(self) -> None:
        """None by default; and what is no project is reported at the start."""
        text = exporter.make_application(server.settings(self.url), self.engine).text()
        self.assertNotIn("project_id", text)
        self.assertIn("cyborg_quota_schema_info", text)
        conf = server.settings(self.url, metrics__projects=["p1", "", "p2"])
        error = self.assertRaises(exceptions.ConfigurationError, exporter.make_application, conf, self.engine)
        self.assertIn("[metrics] projects", str(error))


def metrics_of(*project_ids: str) -> LedgerMetrics:
    return LedgerMetrics([ProjectMetrics(one, "gpu", 2, 1, 0, 1, 1) for one in project_ids], [], {}, {}, 0.0, "0001")


class TestReads(oslotest.base.BaseTestCase):
    """What a scrape reads, without a ledger."""

    def test_threads_share_one_read(self) -> None:
        """The first thread reads while the second asks; without the lock, both would read."""
        both_read = threading.Barrier(2)
        reads: list[int] = []

        def read(*_arguments: object) -> LedgerMetrics:
            reads.append(1)
            with contextlib.suppress(threading.BrokenBarrierError):
                both_read.wait(1)
            return metrics_of()

        application = LedgerApplication(mock.Mock(**{"monitoring.read": read}), ["*"], max_age_seconds=60.0)
        with ThreadPoolExecutor() as pool:
            for _ in range(2):
                pool.submit(application.text)
        self.assertEqual(1, len(reads))

    def test_names_are_read_at_most_once_an_hour(self) -> None:
        """Also if Keystone does not answer; the names of the last read are kept."""
        asked: list[list[str]] = []

        def names(project_ids: list[str]) -> dict[str, str]:
            asked.append(project_ids)
            if len(asked) == 2:
                raise exceptions.ProjectLookupFailed("Keystone is down")
            return dict.fromkeys(project_ids, f"Name {len(asked)}")

        clock = self.useFixture(fx.MockPatch("cyborg_quota.metrics.exporter.time.monotonic", return_value=0.0)).mock
        engine = mock.Mock(**{"monitoring.read": lambda *_arguments: metrics_of("a", "b")})
        application = LedgerApplication(engine, ["*"], names)
        for now, count, name in ((0, 1, 1), (3599, 1, 1), (3600, 2, 1), (7199, 2, 1), (7200, 3, 3)):
            clock.return_value = float(now)
            self.assertIn(f'project_info{{project_id="a",project_name="Name {name}"}} 1\n', application.text())
            self.assertEqual(count, len(asked), now)

    def test_a_scrape_waits_two_seconds_for_keystone(self) -> None:
        """Keystone accepts connections and does not answer."""
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        conf = keystones.settings(
            oslo_limit__auth_type="password",
            oslo_limit__auth_url=f"http://127.0.0.1:{silent.getsockname()[1]}/v3",
            metrics__project_names=True,
            metrics__projects=["*"],
        )
        engine = mock.Mock(**{"monitoring.read": lambda *_arguments: metrics_of("a")})
        application = exporter.make_application(conf, engine)
        began = time.monotonic()
        text = application.text()
        elapsed = time.monotonic() - began
        self.assertIn('cyborg_quota_used{project_id="a"', text)
        self.assertNotIn("project_info", text)
        least = exporter.NAMES_TIMEOUT_SECONDS - 0.1
        self.assertTrue(least < elapsed < least + 2.1, elapsed)
