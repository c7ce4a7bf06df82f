# SPDX-License-Identifier: Apache-2.0
"""The files for Prometheus, Grafana and CloudKitty, with Debian's prometheus: its server scrapes a live ledger."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import signal
import sys
import urllib.error
from typing import Any

import fixtures as fx
import yaml
from oslotest import base

from cyborg_quota.cli.expirer import RETRY_SECONDS
from cyborg_quota.conf import opts
from tests import needs
from tests.cli import base as cli
from tests.cyborgs.service import Service
from tests.cyborgs.starting import ProgramStarter
from tests.metrics.test_exporter import run_promtool
from tests.servers import machine
from tests.servers.prometheus import RULES, Prometheus

TOP = pathlib.Path(__file__).parents[2]
ETC = TOP / "etc"
PAGE = TOP / "doc/source/admin/operating.rst"
DASHBOARD = ETC / "grafana/cyborg_quota.json"
RATED = ETC / "cloudkitty/metrics.yml"
RULES_TESTS = sorted(pathlib.Path(__file__).parent.glob("*_test.yaml"))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    """Every expression of the dashboard and of the rules, with values in the place of Grafana's variables."""
    found = [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    found += [rule["expr"] for rule in rules()]
    replaced = [text.replace("$__rate_interval", "1m").replace("$project", ".*") for text in found]
    return [text.replace("$resource", ".*") for text in replaced]


def names(text: str) -> set[str]:
    """The names of metrics in an expression."""
    return set(re.findall(r"\bcyborg_quota[\w:]+", text))


class TestFiles(base.BaseTestCase):
    def test_the_rules_are_valid(self) -> None:
        ended = run_promtool(self, "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
        self.assertEqual(0, ended.returncode, ended.stdout + ended.stderr)

    def test_the_variables_of_the_dashboard(self) -> None:
        """The JSON schema of Grafana requires both of a current value."""
        variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
        self.assertEqual(["datasource", "project", "resource"], [one["name"] for one in variables])
        for one in variables:
            self.assertIn(one.get("current", {"text": "", "value": ""}).keys(), ({"text", "value"},), one["name"])

    def test_a_measurement_of_every_day_is_no_alert(self) -> None:
        """The bound is more than the default interval, and the time until a failed measurement is repeated."""
        [expression] = [rule["expr"] for rule in rules() if rule.get("alert") == "CyborgQuotaPodNotMeasured"]
        [interval] = [option.default for option in opts.OPTIONS["pods"] if option.name == "collect_interval"]
        bound = int(
            re.fullmatch(
                r"max without \(instance\) \(cyborg_quota_pod_measurement_age_seconds\) > ([0-9]+)", expression
            )[1]
        )  # type: ignore[index]
        self.assertGreater(bound, interval + 2 * RETRY_SECONDS)

    def test_each_alert_fires_when_it_must(self) -> None:
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        shutil.copy(RULES, directory / "rules.yaml")
        copies = [shutil.copy(path, directory) for path in RULES_TESTS]
        ended = run_promtool(self, "test", "rules", *map(str, copies))
        self.assertEqual(0, ended.returncode, ended.stdout + ended.stderr)
        tested = {
            one["alertname"]
            for path in RULES_TESTS
            for test in yaml.safe_load(path.read_text())["tests"]
            for one in test["alert_rule_test"]
            if one["exp_alerts"]
        }
        self.assertEqual(set(re.findall(r"alert: (\w+)", RULES.read_text())), tested)


class TestServer(cli.CliTestCase):
    """gunicorn serves the ledger, the expirer its counters, and Prometheus scrapes both."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger, self.counters = (f"127.0.0.1:{machine.free_port()}" for _ in range(2))
        self.configure(
            "[limits]\ndriver = database\n[quota]\nexpire_interval = 1\n"
            f"[metrics]\nlisten = {self.counters}\nprojects = *\naudit_interval = 1"
        )

    def serve_ledger(self) -> None:
        """Start gunicorn with the shipped file, at the address of the test."""
        command = [sys.executable, "-m", "gunicorn", "--config", str(ETC / "wsgi/cyborg-quota-metrics-gunicorn.py")]
        command += ["--bind", self.ledger, "--env", f"OS_CYBORG_QUOTA_CONFIG_FILES={self.conf}"]
        service = Service("gunicorn", command, self.directory, bool, starter=ProgramStarter())
        self.addCleanup(service.stop)
        service.launch()

    def make_ledger(self) -> None:
        over, kept = {"id": "over", "limits": {"gpu": 10}}, {"id": "kept", "limits": {"gpu": 5}, "minimums": {"gpu": 5}}
        roots = [{"id": "parent", "limits": {"gpu": 10}, "children": [over]}, {"id": "lab", "children": [kept]}]
        file = self.write_file(
            "limits.json", json.dumps({"defaults": {"gpu": 10, "fpga": -1}, "total": {"gpu": 20}, "projects": roots})
        )
        self.prepare(
            f"limits import {file}",
            "reserve --project over --consumer c gpu=6",
            "commit --project over --consumer c",
            "reserve --project fine --consumer c gpu=3",
            "commit --project fine --consumer c",
            "set gpu=4 over",
            "set gpu=5 parent",
            "budget set --hours gpu=1 over",
            "reserve --project lab gpu=4",
            "set --force gpu=8 lab",
        )

    def query(self, server: Prometheus, expression: str) -> list[tuple[dict[str, str], float]]:
        """The result of the expression, as soon as it has one."""
        machine.wait_until(lambda: bool(server.query(expression)), 30)
        return server.query(expression)

    def test_a_query_names_the_project_over_its_limit(self) -> None:
        self.make_ledger()
        self.serve_ledger()
        expirer = self.spawn(program="cyborg-quota-expirer", start_new_session=True)
        server = Prometheus(self.ledger, self.counters)
        needs.start(self, server)
        held, of_flat = re.findall(r"(?m)^    (.*(?:held|reserved\)) > .*)$", PAGE.read_text())
        # The parent holds nothing itself: only the first query names it.
        for query, owners in ((held, {("over", 6.0), ("parent", 6.0)}), (of_flat, {("over", 6.0)})):
            found = self.query(server, query)
            self.assertEqual(
                {(project, "gpu", value) for project, value in owners},
                {(one["project_id"], one["resource"], value) for one, value in found},
                query,
            )
        self.assertEqual([0.0], [value for _, value in self.query(server, "cyborg_quota_drift_rows")])
        # The time of the last run is 0 until the first run ends.
        self.query(server, "time() - cyborg_quota_expirer_last_success_timestamp_seconds < 600")
        self.assert_expressions(server)
        for alert, expected in (("OverLimit", {"over", "parent"}), ("Oversubscribed", {"lab"})):
            pending = [
                one for one in server.ask("alerts")["alerts"] if one["labels"]["alertname"] == f"CyborgQuota{alert}"
            ]
            self.assertEqual(expected, {one["labels"]["project_id"] for one in pending})
        expirer.send_signal(signal.SIGTERM)
        expirer.communicate(timeout=60)
        self.assertEqual(0, expirer.returncode)

    def assert_expressions(self, server: Prometheus) -> None:
        """Every expression is valid, and names only metrics that exist, besides those of what this ledger lacks."""
        exported = {one["__name__"] for one in server.ask("series", **{"match[]": '{__name__=~"cyborg_quota.*"}'})}
        lacking = {
            "cyborg_quota_capacity_total",
            "cyborg_quota_capacity_used",
            "cyborg_quota_pod_measurement_age_seconds",
            "cyborg_quota_project_info",  # (there is no Keystone here)
            # Nothing has been retried, and the conductor, which reserves, does not run here.
            "cyborg_quota_retries_total",
            "cyborg_quota_reserves_total",
        }
        recorded = {rule["record"] for rule in rules() if "record" in rule}  # those of the forecast once an hour
        for expression in expressions():
            try:
                server.query(expression)
            except urllib.error.HTTPError as error:
                self.fail(f"{expression}: {error.read().decode()}")
            self.assertEqual(set(), names(expression) - exported - lacking - recorded, expression)
        self.assertEqual(set(), set(yaml.safe_load(RATED.read_text())["metrics"]) - exported)
        self.assertEqual(set(), exported & lacking, "they exist: remove them from the list")
