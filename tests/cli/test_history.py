# SPDX-License-Identifier: Apache-2.0
"""The history through the command line."""

from __future__ import annotations

import os
import pwd

import fixtures as fx
from oslo_context import context

from cyborg_quota.cli import main
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import fixtures
from tests.cli import base, test_limits

COLUMNS = [
    "id",
    "at",
    "user_id",
    "action",
    "project_id",
    "provider",
    "resource",
    "pod",
    "before",
    "after",
    "from",
    "until",
    "reason",
    "user_project_id",
    "request_id",
]


class HistoryTest(test_limits.LimitTestCase):
    def test_what_is_shown(self) -> None:
        self.prepare(
            "set --default gpu=5 --reason opening",
            "project set p --no-parent",
            "set gpu=-1 p",
            "unset --resource gpu --reason closed p",
        )
        rows = self.good("history", "list")
        self.assertEqual([COLUMNS] * 4, [list(row) for row in rows])
        self.assertEqual(
            [
                ("unset limit", "p", "gpu", -1, None, "closed"),
                ("set limit", "p", "gpu", None, -1, None),
                ("add project", "p", None, None, None, None),
                ("set limit", None, "gpu", None, 5, "opening"),
            ],
            self.columns("history list", "action project_id resource before after reason"),
        )
        self.assertEqual({f"os:{pwd.getpwuid(os.getuid()).pw_name}"}, {row["user_id"].split(" ")[0] for row in rows})
        self.assertTrue(rows[0]["at"].endswith("Z"))
        table = self.call("history", "list").out
        self.assertIn("(default)", table)
        self.assertIn("unlimited", table)
        header = ["at", "user_id", "action", "project_id", "resource", "before", "after", "reason"]
        self.assertEqual(header, table.splitlines()[1].replace("|", "").split())
        self.done("set", "gpu=7", "p", "--until", "2999-01-01")
        self.assertIn("| 7 until 2999-01-01T00:00:00Z |", self.call("history", "list").out)
        newest = self.call("history", "list", "--limit", "1").out
        self.assertNotIn("before", newest)
        self.assertIn(f"| {rows[0]['id']} ", self.call("history", "list", "--long").out)
        ended = self.call("history", "list", "--project", "nobody")
        self.assertEqual((0, "", "cyborg-quota: No history found.\n"), (ended.status, ended.out, ended.err))

    def test_the_project_and_the_request_of_the_user(self) -> None:
        """A table has them only with --long, or if -c selects them."""
        bob = context.RequestContext(
            user_id="bob", project_id="office", request_id="req-7b9e", is_admin=True, overwrite=False
        )
        engine = fixtures.open_engine(self, self.url, DatabaseLimitDriver(Flat(), InitialLimits()))
        engine.limits.set_limit(bob, "gpu", 5)
        self.assertEqual(
            [("bob", "office", "req-7b9e")], self.columns("history list", "user_id user_project_id request_id")
        )
        for options in ((), ("--long",), ("-c", "user_id", "-c", "request_id")):
            table = self.call("history", "list", *options).out
            for value, is_shown in (("bob", True), ("office", "--long" in options), ("req-7b9e", bool(options))):
                self.assertEqual(is_shown, value in table, (options, value))
        # The commands: one request each, without a project.
        self.done("set", "--default", "gpu=6", "fpga=1")
        [one, other] = self.columns("history list --limit 2", "user_project_id request_id")
        self.assertEqual(one, other)
        self.assertRegex(str(one), r"^\(None, 'req-")

    def test_who_runs_it_with_sudo(self) -> None:
        self.useFixture(fx.MonkeyPatch("os.getuid", lambda: 0))
        self.useFixture(fx.EnvironmentVariable("SUDO_USER", "alice"))
        self.done("set", "--default", "gpu=5")
        self.assertEqual(f"os:{pwd.getpwuid(0).pw_name} (sudo: alice)", self.good("history", "list")[0]["user_id"])
        self.useFixture(fx.MonkeyPatch("os.getuid", lambda: 4_000_000))
        self.assertEqual("os:4000000", main._os_user())

    def test_filters(self) -> None:
        self.prepare(*(f"set gpu={number} p{number % 2}" for number in range(1, 5)))
        self.assertEqual([3, 1], [row["after"] for row in self.good("history", "list", "--project", "p1")])
        for since, count in (("1h", 4), ("2001-01-01", 4), ("2001-01-01T10:00+02:00", 4), ("2999-01-01T00:00Z", 0)):
            self.assertEqual(count, len(self.good("history", "list", "--since", since)), since)
        for argv in (("--since", "soon"), ("--since", "30x"), ("--limit", "many"), ("--subject", "nothing")):
            self.misused("history", "list", *argv)
        self.refused_each(2, {"history list --marker first": "marker"})

    def test_a_required_reason(self) -> None:
        self.configure(base.DATABASE + "require_reason = true\n")
        file = self.write_file("limits.yaml", "defaults: {gpu: 2}\n")
        total, override = "set --total gpu=9", "set gpu=1 p --until 2999-01-01"
        self.prepare(*(f"{line} --dry-run" for line in (f"limits import {file}", override, total)))
        for line in (
            "set --default gpu=1",
            "project set p --no-parent",
            "project set q --parent p",
            "project set q --no-parent",
            override,
            total,
            "override delete ID",
            "unset --total --resource gpu",
            "project delete p",
            f"limits import {file}",
        ):
            (row,) = self.good("override", "list") or [{"id": "ID"}]
            command = line.replace("ID", row["id"])
            self.refused_each(2, {command: "--reason"})
            self.prepare(f"{command} --reason because")

    def test_of_capacity_and_pods(self) -> None:
        self.prepare(
            "provider create n1 --reason rack",
            "inventory set n1 gpu=8",
            "inventory set n1 gpu=9 fpga=1 --reserved 1 --reason because",
            "pod create east",
            "pod set --state maintenance east",
        )
        self.assertEqual(
            [
                ("set pod", None, None, "east", None),
                ("add pod", None, None, "east", None),
                ("set inventory", "n1", "gpu", None, "because"),
                ("set inventory", "n1", "fpga", None, "because"),
                ("set inventory", "n1", "gpu", None, None),
                ("add provider", "n1", None, None, "rack"),
            ],
            self.columns("history list", "action provider resource pod reason"),
        )
        (row,) = self.good("history", "list", "--provider", "n1", "--resource", "gpu", "--limit", "1")
        self.assertEqual((8, 9), (row["before"]["total"], row["after"]["total"]))
        table = self.call("history", "list", "--provider", "n1", "--resource", "gpu", "--limit", "1").out
        self.assertIn("| set inventory n1 | gpu ", table)
        self.assertIn("total 9, reserved 1, max_unit 9", table)
        self.assertNotIn("step_size", table)
        self.assertIn("| set pod east ", self.call("history", "list", "--pod", "east").out)
        self.assertEqual(2, len(self.good("history", "list", "--pod", "east", "--subject", "pod")))
        self.assertEqual([], self.good("history", "list", "--user", "nobody"))
        self.assertEqual([], self.good("history", "list", "--until", "1h"))
        # Every other command of capacity takes a reason, too.
        path = self.write_file("nodes.csv", "provider,resource,total\nn1,gpu,3\n")
        for command in (
            f"capacity import {path}",
            "provider set n1 --shared",
            "inventory delete n1 gpu",
            "inventory delete n1 fpga",
            "provider delete n1",
        ):
            self.prepare(f"{command} --reason because")
        self.assertEqual(["because"] * 5, [row["reason"] for row in self.good("history", "list", "--limit", "5")])
        self.assertIn("reason", self.refused(2, "provider", "create", "n2", "--reason", ""))

    def test_the_expirer_purges_the_history(self) -> None:
        """By [limits] history_age; without it, never."""
        self.prepare(*(f"set --default gpu={number}" for number in range(3)))
        self.sql("UPDATE changes SET created_at = '2001-01-01 00:00:00.000000'")
        for age, count in (("", 3), ("history_age = 86400\n", 0)):
            self.configure(base.DATABASE + age)
            ended = self.call_expirer("--once")
            self.assertEqual((0, count), (ended.status, len(self.good("history", "list"))), ended.err)
        self.assertIn("purged 3", ended.out)
