# SPDX-License-Identifier: Apache-2.0
"""The commands of OpenStackClient, without Keystone: what they show, as on the host and by the REST API itself.

Names of users must not change the path of a call.
"""

from __future__ import annotations

import configparser
import contextlib
import datetime
import functools
import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import fixtures as fx
import webob
import yaml
from openstack import exceptions as sdk
from osc_lib import exceptions

from cyborg_quota.api import openapi
from cyborg_quota.api.operations import OPERATIONS
from cyborg_quota.exceptions import InvalidRequest
from cyborg_quota.osc import quota
from cyborg_quota.osc.base import _title
from cyborg_quota.surface import arguments, table
from cyborg_quota.types import TOTAL
from tests import base, hooks
from tests.api import client, server
from tests.cli import base as cli

UNTIL = datetime.datetime(2999, 1, 1, tzinfo=datetime.timezone.utc)


class OscTestCase(server.ApiTestCase):
    unknown: Exception = sdk.ForbiddenException()
    """What Keystone answers to a search for a project."""

    def run_command(self, kind: Any, *arguments: str) -> Any:
        """See ``run_as``. Returns what JSON shows, a row by the names of the columns; and the exit status."""
        shown = ("-f", "json") if hasattr(kind, "formatter_namespace") else ()
        out, status = self.run_as(server.ADMIN, kind, *arguments, *shown)
        return out and json.loads(out), status

    def table(self, kind: Any, *arguments: str, who: str = server.ADMIN) -> list[str]:
        """The lines of a table, without borders."""
        lines = self.run_as(who, kind, *arguments)[0].splitlines()
        return [" ".join(line.replace("|", " | ").split()) for line in lines if not line.startswith("+")]

    def run_as(self, who: str, kind: Any, *arguments: str, application: Any = None) -> tuple[str, int]:
        """See client.run. ``application``: another one than the API of quota."""
        return client.run(application or self.application, who, kind, *arguments, unknown=self.unknown)


class TestCommands(OscTestCase):
    def rows(self, kind: Any, *arguments: str) -> Any:
        rows, status = self.run_command(kind, *arguments)
        self.assertEqual(0, status)
        return [tuple(row.values()) for row in rows]

    def refused(self, kind: Any, *arguments: str) -> str:
        return str(self.assertRaises(exceptions.CommandError, self.run_command, kind, *arguments))

    def shown(self, kind: Any, *arguments: str) -> tuple[list[str], list[str]]:
        """The lines of a table, and those on stderr."""
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            lines = self.table(kind, *arguments)
        return lines, error.getvalue().splitlines()

    def test_force_permits_the_id_of_a_project_that_keystone_does_not_have(self) -> None:
        self.unknown = sdk.NotFoundException("No Project found for gone")
        for kind, words in (
            (quota.SetQuota, ("gpu=0", "gone")),
            (quota.project_set, ("gone", "--no-parent")),
            (quota.budget_set, ("--hours", "gpu=5", "gone")),
        ):
            self.assertRaises(sdk.NotFoundException, self.run_command, kind, *words)
            self.run_command(kind, "--force", *words)
        self.assertTrue(self.engine.limits.is_known_project(base.ADMIN, "gone"))

    def test_what_is_shown(self) -> None:
        """Lists have all pages."""
        self.conf.set_override("max_limit", 2, "api")
        self.application = server.make_application(self.conf, self.engine)
        admin = self.engine.limits
        admin.set_total_limits(base.ADMIN, {"gpu": 8})
        admin.set_limits(base.ADMIN, {"gpu": 1}, "detector")
        admin.set_limits(base.ADMIN, {"fpga": 5})
        admin.set_overrides(base.ADMIN, {"gpu": 19}, "higgs", UNTIL)
        self.engine.reserve(base.Context("another"), {"fpga": 1})
        until = "2999-01-01T00:00:00Z"
        no_fpga = ("fpga", 0, 0, 0, 0, "the project's limit", None, None, None)
        for kind, words, expected in (
            (quota.ShowQuota, "elsewhere", [("fpga", 5), ("gpu", 4)]),
            (quota.ShowQuota, "--total", [("gpu", 8, 9, None)]),
            (
                quota.ShowQuota,
                "--usage higgs",
                [no_fpga, ("gpu", 19, 5, 1, 0, "all projects (total)", until, 20, None)],
            ),
            (
                quota.ShowQuota,
                "--usage detector",
                [no_fpga, ("gpu", 1, 2, 0, 0, "the project's limit", None, None, None)],
            ),
            (quota.ListQuota, "--over", [(None, "gpu", 8, 0, 9, None), ("detector", "gpu", 1, 2, 2, None)]),
            (
                quota.ListQuota,
                "--tree higgs",
                [
                    (0, "higgs", "physics", "fpga", 0, 0, 0, 0, None, None),
                    (0, "higgs", "physics", "gpu", 19, 5, 2, 8, None, None),
                    (1, "detector", "higgs", "fpga", 0, 0, 0, 0, None, None),
                    (1, "detector", "higgs", "gpu", 1, 2, 0, 2, None, None),
                ],
            ),
            (
                quota.ListQuota,
                "--usage --limit 3",
                [
                    ("another", "fpga", None, 0, 1, "default"),
                    ("detector", "gpu", 1, 2, 0, "own"),
                    ("elsewhere", "gpu", 4, 1, 0, "own"),
                ],
            ),
            (
                quota.ListQuota,
                "",
                [
                    ("detector", "gpu", 1, "own"),
                    ("elsewhere", "gpu", 4, "own"),
                    ("higgs", "gpu", 20, "override"),
                    ("physics", "gpu", 30, "own"),
                    ("simulation", "gpu", 5, "own"),
                ],
            ),
        ):
            self.assertEqual(expected, self.rows(kind, *words.split()), words)

    def test_a_dry_run(self) -> None:
        before = hooks.tables(self.sql)
        for words, status, expected in (
            (("gpu=21", "higgs"), 0, ("set limit", "higgs", "gpu", 20, 21, None)),
            (("gpu=31", "higgs"), 1, ("set limit", "higgs", "gpu", 20, 31, None)),
            (("gpu=3", "higgs", "--until", "2999-01-01T00:00Z"), 0, ("set override", "higgs", "gpu", None, 3, None)),
            (("--total", "gpu=99"), 0, ("set limit", None, "gpu", None, 99, None)),
            (("--default", "gpu=1"), 0, ("set limit", None, "gpu", 0, 1, None)),
        ):
            rows, found = self.run_command(quota.SetQuota, *words, "--dry-run")
            self.assertEqual((status, [expected]), (found, [tuple(row.values()) for row in rows]), words)
        self.assertEqual(before, hooks.tables(self.sql))

    def test_lists_in_a_body(self) -> None:
        """They were sent as the text of a marker."""
        for words in (("pool", "--shared"), ("n1",), ("n2",)):
            self.run_command(quota.provider_create, *words)
        for option, expected in (("--serves", ["pool", "pool", None]), ("--stop-serving", [None] * 3)):
            self.run_command(quota.provider_set, "pool", option, "n1", option, "n2")
            served = [one.served_by for one in self.engine.capacity.list_providers(base.ADMIN)]
            self.assertEqual(expected, served)

    def test_totals(self) -> None:
        """If one of the total limits is not set, none is removed."""
        self.run_command(quota.SetQuota, "--total", "gpu=50", "--reason", "the pool")
        words = ("--total", "--resource", "gpu", "--resource", "fpga")
        error = self.refused(quota.UnsetQuota, *words)
        self.assertEqual("There is no total limit for fpga. Nothing was changed.", error)
        self.assertEqual(["gpu"], [total.resource for total in self.engine.limits.list_total_limits(base.ADMIN)])
        self.run_command(quota.UnsetQuota, *words[:3], "--reason", "it ends")
        self.assertEqual(
            [
                ("unset limit", 50, None, "it ends", TOTAL, "alice"),
                ("set limit", None, 50, "the pool", TOTAL, "alice"),
            ],
            [
                (one.action, one.before, one.after, one.reason, one.project_id, one.user_id)
                for one in self.engine.limits.history(base.ADMIN, limit=2)
            ],
        )

    def test_what_was_done_before_an_error(self) -> None:
        """It said that nothing was changed."""
        [made] = self.engine.limits.set_overrides(base.ADMIN, {"gpu": 9}, "higgs", UNTIL)
        words = (made.id, "999-0", "--project", "higgs")
        error = self.refused(quota.override_delete, *words)
        self.assertTrue(error.startswith(f"Done: higgs {made.id}. Not done: "), error)
        self.assertIn("999-0", error)
        self.assertNotIn("Nothing was changed", error)
        self.assertNotIn("Done", self.refused(quota.override_delete, *words))

    def test_the_history_as_json(self) -> None:
        """What a budget has was shown as tags, and the action without the operation."""
        self.run_command(quota.budget_set, "--hours", "gpu=50", "higgs")
        document = {"projects": [{"id": "physics", "children": [{"id": "higgs", "limits": {"gpu": 17}}]}]}
        self.engine.limits.import_limits(base.ADMIN, document)
        rows, _status = self.run_command(quota.history_list, "--project", "higgs")
        self.assertEqual(["set limit (import)", "set budget"], [row["Action"] for row in rows[:2]])
        self.assertEqual(50, rows[1]["After"]["hours"])

    def test_a_check_that_is_refused_is_a_sentence_for_each_limit(self) -> None:
        """It was one line of key=value for all."""
        words, asked = "limit {} (project and its descendants)", "subtree 8, requested 99, fits 12"
        self.assertEqual(
            [
                f"project higgs, resource gpu: {words.format(20)}, used 5, reserved 1, {asked}",
                f"project physics, resource gpu: {words.format(30)}, used 0, reserved 0, {asked}",
            ],
            self.table(quota.CheckQuota, "gpu=99", "higgs"),
        )
        self.assertEqual(
            ["project detector, resource gpu: limit 2, used 2, reserved 0, requested 1, fits 0"],
            self.table(quota.CheckQuota, "gpu=1", "detector", who="bob@detector:member,reader"),
        )
        self.engine.limits.set_limit(base.ADMIN, "gpu", 20, "detector")
        self.assertEqual(
            [f"project higgs, resource gpu: {words.format(20)}, requested 13, fits 12"],
            self.table(quota.CheckQuota, "gpu=13", "detector", who="bob@detector:member,reader"),
        )
        rows, status = self.run_command(quota.CheckQuota, "gpu=99", "higgs")
        self.assertEqual((1, ("higgs", "gpu", "subtree", 20, 99, 5, 1, 8, None)), (status, tuple(rows[0].values())))
        self.assertEqual([], self.shown(quota.CheckQuota, "gpu=99", "higgs")[1])

    def test_an_empty_list(self) -> None:
        for kind, words, expected in (
            (quota.CheckQuota, ("gpu=1", "higgs"), "No violation found."),
            (quota.override_list, ("--project", "higgs"), "No override found."),
            (quota.pod_list, (), "No pod found."),
            (quota.ListQuota, ("--over",), "No exceeded limit found."),
            (quota.ListQuota, ("--resource", "none"), "No limit found."),
            (quota.ListQuota, ("--usage", "--resource", "none"), "No usage found."),
        ):
            self.assertEqual(([], 0), self.run_command(kind, *words))
            self.assertEqual(([], [expected]), self.shown(kind, *words))

    def test_what_binds(self) -> None:
        """The limit of the project was None; and an override was not named."""
        admin, shown = self.engine.limits, functools.partial(self.table, quota.ShowQuota, "--usage")
        admin.set_limits(base.ADMIN, {"fpga": -1}, "elsewhere")
        rows = [
            "| Resource | Limit | In Use | Reserved | Fits | Bound By |",
            "| fpga | unlimited | 0 | 0 | unlimited | |",
            "| gpu | 4 | 1 | 0 | 3 | the project's limit |",
        ]
        self.assertEqual(rows, shown("elsewhere"))
        self.quotas.reserve(base.Context("elsewhere"), {"fpga": 3}, consumer="some")
        self.assertEqual("| fpga | unlimited | 0 | 3 | unlimited | |", shown("elsewhere")[1])
        self.assertEqual(2**31 - 4, self.rows(quota.ShowQuota, "--usage", "elsewhere")[0][4])
        for limit in (8, 9):
            admin.set_overrides(base.ADMIN, {"gpu": limit}, "elsewhere", UNTIL)
        for who in (server.ADMIN, "bob@elsewhere:member,reader"):
            header, _, row = shown("elsewhere", who=who)
            self.assertEqual("| gpu | 9 | 1 | 0 | 8 | the override | 2999-01-01T00:00:00Z | 4 |", row)
            self.assertTrue(header.endswith("Override Until | Otherwise |"))
        for project_id in ("elsewhere", None):
            admin.unset_limit(base.ADMIN, "gpu", project_id)
        gpu = self.rows(quota.ShowQuota, "--usage", "elsewhere")[1]
        self.assertEqual((9, "the override", "2999-01-01T00:00:00Z", None, None), (gpu[1], *gpu[5:]))
        self.assertIn("| 2999-01-01T00:00:00Z | not set |", shown("elsewhere")[2])
        self.assertIn("| gpu | not set | 0 | 0 | 0 | no limit is set |", shown("unknown"))

    def test_a_cyborg_without_the_api(self) -> None:
        cyborg = webob.Response(status=404, json={"error_message": '{"faultstring": null}'})
        error = self.assertRaises(
            exceptions.CommandError, self.run_as, server.ADMIN, quota.ShowQuota, "higgs", application=cyborg
        )
        self.assertEqual("This Cyborg serves no quota API (HTTP 404).", str(error))
        self.assertIn("Pod 'none' was not found", self.refused(quota.pod_show, "none"))

    def test_defaults(self) -> None:
        self.assertEqual([], self.rows(quota.SetQuota, "--default", "gpu=10", "--reason", "opening day"))
        self.assertEqual([("fpga", 0), ("gpu", 10)], self.rows(quota.ShowQuota, "--default", "new"))
        self.run_command(quota.UnsetQuota, "--default", "--resource", "gpu")
        self.assertEqual({"fpga": 0}, self.engine.limits.list_defaults(base.ADMIN))
        error = self.refused(quota.SetQuota, "--default", "gpu=1", "p")
        self.assertIn("cannot be combined with a project", error)

    def test_misuse(self) -> None:
        """Neither of two amounts is checked silently. And an option is not abbreviated.

        --project was taken for --project-domain, and the command acted on another project, or on the defaults.
        """
        for kind, words, expected in (
            (quota.SetQuota, ("gpu=many",), "argument RESOURCE=LIMIT|PROJECT: 'gpu=many': "),
            (quota.SetQuota, ("gpu=-2",), "argument RESOURCE=LIMIT|PROJECT: 'gpu=-2': "),
            (quota.CheckQuota, ("gpu=1", "higgs", "physics"), "argument RESOURCE=AMOUNT|PROJECT: 'physics': "),
            (quota.ListQuota, ("--limit", "0"), "argument --limit: '0': "),
            (quota.SetQuota, ("gpu=1", "higgs", "--project", "physics"), "unrecognized arguments: --project"),
            (quota.ShowQuota, ("--project", "physics"), "unrecognized arguments: --project"),
            (quota.CheckQuota, ("gpu=1", "--project", "physics"), "unrecognized arguments: --project"),
            (quota.UnsetQuota, ("--resource", "gpu", "higgs", "--project", "p"), "unrecognized arguments: --project"),
        ):
            error = io.StringIO()
            with contextlib.redirect_stderr(error):
                refused = self.assertRaises(SystemExit, self.run_command, kind, *words)
            self.assertEqual(2, refused.code)
            self.assertIn(f"error: {expected}", error.getvalue())
        for kind in (quota.CheckQuota, quota.SetQuota):
            twice = self.assertRaises(InvalidRequest, self.run_command, kind, "gpu=1", "gpu=2", "higgs")
            self.assertIn("'gpu' is given twice", str(twice))

    def test_a_project_or_an_override_that_is_a_path(self) -> None:
        """Otherwise, this removes the limits of the project elsewhere."""
        words = ("../../elsewhere", "--project", "higgs")
        self.assertIn("HTTP 404", self.refused(quota.override_delete, *words))
        for name in ("x/../elsewhere", "..", "elsewhere?reason=x", "elsewhere#x"):
            with contextlib.suppress(exceptions.CommandError):
                self.run_command(quota.DeleteQuota, name)
            self.assertEqual({"fpga": 0, "gpu": 4}, self.call("/v2/quotas/elsewhere")["quota"], name)

    def test_the_history_is_not_wide(self) -> None:
        """At most 8 columns, and none that is empty in each row."""
        self.make_pod()
        self.engine.limits.set_overrides(base.ADMIN, {"gpu": -1}, "elsewhere", UNTIL)
        self.engine.limits.set_limit(base.ADMIN, "gpu", 2, "elsewhere")
        self.engine.limits.set_limits(base.ADMIN, {"gpu": 1}, "elsewhere", pod="north")
        header, *rows = self.table(quota.history_list, "--project", "elsewhere")
        self.assertEqual("| At | Action | Project ID | Resource | Before | After | Reason |", header)
        self.assertEqual(
            [
                "| set limit | elsewhere | gpu in pod north | | 1 | |",
                "| set limit | elsewhere | gpu | 4 | 2 | |",
                "| set override | elsewhere | gpu | | unlimited until 2999-01-01T00:00:00Z | |",
                "| set limit | elsewhere | gpu | | 4 | for the tests |",
                "| add project | elsewhere | | | | |",
            ],
            [row[row.index("Z |") + 2 :] for row in rows],
        )
        self.assertRegex(rows[0], r"^\| \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \|")
        header, *_ = self.table(quota.history_list, "--project", "elsewhere", "--long")
        self.assertIn("| Reason | User Project ID |", header)


BY_HAND = {"check", "delete", "list", "set", "show", "unset"}
"""The commands of the client that are not generated."""
STEPS: tuple[tuple[str, tuple[str, ...], str, int], ...] = (
    ("project create", ("muon", "--parent", "physics"), "", 0),
    ("project set", ("muon", "--no-parent"), "", 0),
    ("project list", (), "/v2/quota_projects", 6),
    ("project delete", ("muon",), "", 0),
    ("project list", ("--limit", "9"), "/v2/quota_projects?limit=9", 5),
    ("provider create", ("node1", "--parent", "pool"), "", 0),
    ("provider set", ("node1", "--shared"), "", 0),
    ("provider set", ("node1", "--no-shared"), "", 0),
    ("provider show", ("node1",), "/v2/quota_providers/node1", 1),
    ("inventory set", ("node1", "gpu=8", "fpga=1", "--reserved", "1"), "", 0),
    ("inventory list", (), "/v2/quota_capacity", 3),
    ("inventory delete", ("node1", "gpu"), "", 0),
    ("inventory list", ("--provider", "node1"), "/v2/quota_capacity?provider=node1", 1),
    ("allocation list", ("--resource", "gpu"), "/v2/quota_allocations?resource=gpu", 1),
    ("capacity show", (), "/v2/quota_capacity/report", 2),
    ("provider delete", ("node1",), "", 0),
    ("provider list", (), "/v2/quota_providers", 1),
    ("pod create", ("south", "--zone", "az1", "--affinity", "b=2", "--affinity", "a=1"), "", 0),
    ("pod set", ("south", "--no-affinity", "--weight", "-3"), "", 0),
    ("pod show", ("south",), "/v2/quota_pods/south", 1),
    ("pod select", ("--project", "higgs", "gpu=1"), "", 0),
    ("pod binding set", ("south", "--project", "higgs"), "", 0),
    ("pod binding list", ("--history",), "/v2/quota_pod_bindings?history=true", 2),
    ("pod binding delete", ("--pod", "south"), "", 0),
    ("pod delete", ("south",), "", 0),
    ("pod list", (), "/v2/quota_pods", 1),
    ("override list", ("--project", "higgs"), "/v2/quotas/higgs/overrides", 2),
    ("override delete", ("{override}", "--project", "higgs"), "", 0),
    ("override list", ("--project", "higgs"), "/v2/quotas/higgs/overrides", 1),
    ("reservation list", ("--state", "reserved"), "/v2/quota_reservations?state=reserved", 2),
    ("reservation show", ("{uuid}",), "/v2/quota_reservations/{uuid}", 1),
    ("resource create", ("nic", "--unit", "port"), "", 0),
    ("resource list", (), "/v2/quota_resources", 3),
    ("budget set", ("--hours", "gpu=90", "--hours", "fpga=2", "--carry", "gpu=9", "simulation"), "", 0),
    ("budget set", ("--hours", "nic=90", "--from", "2026-01-01", "--until", "2090-01-01", "simulation"), "", 0),
    ("budget adjust", ("--hours", "gpu=45", "simulation"), "", 0),
    ("budget show", ("simulation",), "/v2/quotas/simulation/budgets", 3),
    ("budget list", ("--above", "50"), "/v2/quota_budgets?above=50", 1),
    ("budget delete", ("--resource", "gpu", "simulation"), "", 0),
    ("budget list", (), "/v2/quota_budgets", 2),
    ("usage report", ("--from", "2020-01", "--to", "2020-02"), "/v2/quota_usage?from=2020-01&to=2020-02", 0),
    ("history list", ("--project", "higgs", "--long"), "/v2/quotas/higgs/history", 5),
)
"""Generated operations, their arguments, the call that reads the same from the REST API, and the number of rows."""


class TestEverySurface(OscTestCase):
    def on_host(self, *argv: str) -> Any:
        ended = cli.run_program(cli.main.main, *argv, "-f", "json")
        self.assertEqual((0, ""), (ended.status, ended.err), argv)
        return ended.json

    def test_a_generated_operation_is_the_same_on_each(self) -> None:
        for name, value in (("DATABASE__CONNECTION", self.url), ("LIMITS__DRIVER", "database")):
            self.useFixture(fx.EnvironmentVariable(f"OS_{name}", value))
        self.make_pod()
        self.add_provider("pool", gpu=3)
        [claim] = self.engine.reserve(base.Context("elsewhere"), {"gpu": 1}, consumer="c", provider="pool")
        for limit in (9, 8):
            [override] = self.engine.limits.set_overrides(base.ADMIN, {"gpu": limit}, "higgs", UNTIL)
        for words, template, path, count in STEPS:
            names = {"uuid": claim, "override": override.id}
            argv = [one.format(**names) for one in template]
            shown, status = self.run_command(getattr(quota, words.replace(" ", "_")), *argv)
            self.assertEqual(0, status, words)
            if path:
                self.assertEqual(count, len(shown) if isinstance(shown, list) else 1, words)
                self.compare(words, shown, self.on_host(*words.split(), *argv), self.call(path.format(**names)))
        generated = {words for words, one in table.operations().items() if one.route is not None}
        self.assertEqual(generated, {words for words, *_ in STEPS})

    def compare(self, words: str, shown: Any, on_host: Any, answer: Any) -> None:
        operation = table.operations()[words]
        [call_of] = [one for one in OPERATIONS if (one.method, one.path) == operation.route[:2]]
        self.assert_agrees(str(call_of.answer), answer)
        columns = [one for one in operation.columns if one.schema is not None and one.cell is not None]
        records = answer[operation.route.member]
        if not operation.is_list:
            shown, on_host, records = [shown], [on_host], [records]
        for row, host, record in zip(shown, on_host, records, strict=True):
            self.assertEqual([_title(one.name) for one in columns], list(row), words)
            for one, value in zip(columns, row.values(), strict=True):
                if one.name != "age_seconds":  # (it changes)
                    values = [_value(host[one.name]), _value(record[one.member])]
                    self.assertEqual([_value(value)] * 2, values, (words, one.name))

    def test_each_operation_is_on_each(self) -> None:
        self.assertLessEqual(BY_HAND | table.operations().keys(), cli.commands().keys())
        paths = yaml.safe_load(openapi.FILE.read_text())["paths"]
        expected = {f"accelerator_quota_{words}": f"{words.capitalize()}Quota" for words in BY_HAND}
        for words, one in table.operations().items():
            if one.route is not None:
                self.assertIn(one.route.method.lower(), paths[one.route.path])
                name = words.replace(" ", "_")
                expected[f"accelerator_quota_{name}"] = name
        parser = configparser.ConfigParser()
        parser.read(pathlib.Path(__file__).parents[2] / "setup.cfg")
        entries = parser["options.entry_points"]["openstack.accelerator.v2"].strip().splitlines()
        self.assertEqual({f"{name} = cyborg_quota.osc.quota:{one}" for name, one in expected.items()}, set(entries))
        self.assertEqual([], [one for one in expected.values() if not hasattr(quota, one)])


def _value(value: Any) -> Any:
    """A value of any surface, as a table of the client has it."""
    if isinstance(value, list):
        return len(value)
    if isinstance(value, Mapping):
        uses = {key: f"{one['in_use']}/{one['capacity']}" for key, one in value.items() if isinstance(one, Mapping)}
        return arguments.tags_text(uses or value)
    return value.replace(".000000Z", "Z") if isinstance(value, str) else value
