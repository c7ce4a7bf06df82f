# SPDX-License-Identifier: Apache-2.0
"""The usage that `list` and `show` print, check, audit and heal, through the command line."""

from __future__ import annotations

from typing import Any
from unittest import mock

from cyborg_quota.db.database import Database
from tests.cli import base, test_limits

USAGE = ["project_id", "resource", "limit", "used", "reserved", "available", "fits", "bound_by"]

OVER = [
    *("project_id", "resource", "scope", "limit", "used", "reserved", "subtree", "promised"),
    *("requested", "fits", "pod", "message"),
]


class UsageTest(base.CliTestCase):
    def test_list_of_a_project_shows_unused_resources(self) -> None:
        self.limit("gpu:0")
        self.assertEqual(
            [("new", "fpga", -1, 0, 0, None, None, None), ("new", "gpu", 0, 0, 0, 0, 0, "new")],
            self.columns("show --usage new", " ".join(USAGE)),
        )
        self.assertIn("Invalid project_id", self.refused(2, "show", "--usage", " "))

    def test_a_limit_that_is_not_set(self) -> None:
        """The list said `unlimited`, and at the same time that nothing fits."""
        self.good("reserve", "--project", "p", "gpu=3")
        self.configure(base.DATABASE)
        for argv in ((), ("--project", "p", "--resource", "gpu")):
            self.assertEqual(
                [dict(zip(USAGE, ("p", "gpu", None, 0, 3, None, 0, "p"), strict=True))],
                self.good("list", "--usage", *argv),
            )
            self.assertIn(
                "| p          | gpu      | not set |    0 |        3 |           | 0    | p        |",
                self.call("list", "--usage", *argv).out,
            )
        self.prepare("set gpu=-1 p")
        self.assertIn("| p          | gpu      | unlimited |", self.call("list", "--usage").out)
        self.configure(f"{base.DATABASE}missing = unlimited")
        self.prepare("unset --resource gpu p")
        self.assertIn("| p          | gpu      | unlimited |", self.call("list", "--usage").out)

    def test_check(self) -> None:
        self.done("check", "gpu=2", "p1")
        self.limit("gpu:2,fpga:1")
        self.assertEqual([], self.good("check", "gpu=2", "fpga=1", "p1"))
        ended = self.call("check", "gpu=3", "fpga=2", "p1", "-f", "json")
        self.assertEqual((1, "", [OVER] * 2), (ended.status, ended.err, [list(row) for row in ended.json]))
        self.assertEqual(
            [
                ("p1", "fpga", "project", 1, 0, 0, None, 0, 2, 1, None),
                ("p1", "gpu", "project", 2, 0, 0, None, 0, 3, 2, None),
            ],
            [tuple(row.values())[:-1] for row in ended.json],
        )
        self.assertIn("resource gpu: limit 2", ended.json[1]["message"])
        self.assertEqual(
            "project p1, resource fpga: limit 1, used 0, reserved 0, requested 2, fits 1\n"
            "project p1, resource gpu: limit 2, used 0, reserved 0, requested 3, fits 2\n",
            self.call("check", "gpu=3", "fpga=2", "p1").out,
        )
        self.assertIn("| 2    |", self.call("check", "gpu=3", "p1", "-c", "fits").out)
        self.assertEqual([], self.good("list", "--usage"))

    def test_an_override(self) -> None:
        """show names its end, and the limit without it."""
        self.configure(base.DATABASE)
        self.prepare("set --default gpu=4 fpga=2")
        self.assertNotIn("override_until", self.call("show", "--usage", "p").out)
        self.prepare("set gpu=-1 p --until 2999-01-01")
        until = "2999-01-01T00:00:00.000000Z"
        self.assertEqual(
            [("fpga", 2, None, None), ("gpu", -1, until, 4)],
            self.columns("show --usage p", "resource limit override_until otherwise"),
        )
        self.assertIn(f"| {until} | 4 ", self.call("show", "--usage", "p").out)

    def test_an_empty_list(self) -> None:
        self.configure(base.DATABASE)
        for argv, noun in (
            (("list",), "limit"),
            (("list", "--usage"), "usage"),
            (("list", "--tree"), "project"),
            (("show", "p"), "limit"),
            (("override", "list"), "override"),
            (("reservation", "list"), "reservation"),
        ):
            ended = self.call(*argv)
            self.assertEqual((0, "", f"cyborg-quota: No {noun} found.\n"), (ended.status, ended.out, ended.err), argv)
            self.assertEqual((0, ""), (self.call(*argv, "-f", "csv").status, self.call(*argv, "-f", "csv").err))
        self.call("set", "--default", "gpu=1")
        for argv in (("list", "--over"), ("audit",), ("heal",), ("check", "gpu=1", "p")):  # (cron would send a mail)
            self.assertEqual("", self.call(*argv).err, argv)

    def test_check_of_bad_input(self) -> None:
        self.misused("check", "gpu=x", "p1")
        self.refused_each(
            2,
            {
                "check gpu=1": "Name a project",
                "check tpu=1 p1": "Unknown resource",
                "check --how-many tpu=1 p1": "Unknown resource",
                "check p1": "--how-many",
                "check gpu=1 --how-many gpu=1 p1": "--how-many",
                "check gpu=1 --provider any p1": "--how-many",
            },
        )
        for bundle in ("", "gpu", "gpu=0", "gpu=-1", "gpu=1,gpu=2", "gpu=1,", "gpu=x"):
            self.misused("check", "p1", "--how-many", bundle)

    def test_how_many(self) -> None:
        """``physics`` may hold 30 gpu and holds 5; its child ``higgs`` holds 20 of 20."""
        self.configure(base.DATABASE)
        self.prepare(
            "set --default gpu=0 fpga=-1",
            "project set physics --no-parent",
            "project set higgs --parent physics",
            "set gpu=30 physics",
            "set gpu=20 fpga=9 higgs",
            "reserve --project physics gpu=5",
            "reserve --project higgs gpu=20",
        )
        names = ("how_many", "resource", "fits", "bound_by", "pod")
        for bundle, project, expected in (
            ("gpu=2,fpga=1", "physics", (2, "gpu", 5, "physics", None)),
            ("gpu=1,fpga=1", "higgs", (0, "gpu", 0, "higgs", None)),
            ("fpga=1", "physics", (2**31 - 1, "fpga", None, None, None)),
        ):
            row = dict(zip(names, expected, strict=True))
            self.assertEqual([row], self.good("check", "--how-many", bundle, project))
        self.assertEqual([], self.good("check", "gpu=4", "fpga=2", "physics"))
        self.assertEqual(1, self.call("check", "gpu=6", "fpga=3", "physics").status)
        self.assertIn("unlimited", self.call("check", "--how-many", "fpga=1", "physics").out)
        self.prepare("reserve --project physics fpga=1")
        row = {"how_many": 2**30 - 1, "resource": "fpga", "fits": 2**31 - 2, "bound_by": None, "pod": None}
        self.assertEqual([row], self.good("check", "--how-many", "fpga=2", "physics"))
        shown = test_limits.table(self.call("check", "--how-many", "fpga=2", "physics").out)[1]
        self.assertEqual(["unlimited", "fpga", "unlimited", "", ""], shown)

    def test_a_row_shows_one_moment(self) -> None:
        """If something is released between two reads, a row must not say that more fits than is available."""
        self.limit("gpu:10")
        read, consumers = Database.read, ["c"]

        def read_and_release(database: Database, *arguments: Any) -> Any:
            found = read(database, *arguments)
            while consumers:
                self.assertEqual(0, self.call("release", "--project", "p", "--consumer", consumers.pop()).status)
            return found

        for argv, is_first in (
            (("show", "--usage", "p"), True),
            (("check", "gpu=6", "p"), True),
            (("check", "--how-many", "gpu=1", "p"), True),
            (("list", "--usage"), False),  # which finds the rows first, and then reads them again with what fits
        ):
            self.good("reserve", "--project", "p", "--consumer", "c", "gpu=6")
            consumers[:] = ["c"]
            with mock.patch.object(Database, "read", read_and_release):
                rows = self.call(*argv, "-f", "json").json
            (row,) = [row for row in rows if row["resource"] == "gpu"]
            fits = 4 if is_first else 10
            self.assertEqual(fits, row["fits"], argv)
            self.assertEqual(fits, row.get("available", row.get("how_many", fits)), argv)
            self.assertEqual([], consumers)

    def test_audit_and_heal(self) -> None:
        self.good("reserve", "--project", "p1", "gpu=2")
        self.assertEqual([], self.good("audit"))
        self.sql("UPDATE quota_usages SET used = 7, reserved = 1, metered = metered + 3600")
        found = self.call("audit", "-f", "json")
        metered = found.json[0]["expected_metered"]
        row = {
            "project_id": "p1",
            "resource": "gpu",
            "recorded_used": 7,
            "expected_used": 0,
            "recorded_reserved": 1,
            "expected_reserved": 2,
            "recorded_subtree": 2,
            "expected_subtree": 2,
            "recorded_promised": None,
            "expected_promised": None,
            "recorded_metered": metered + 3600,
            "expected_metered": metered,
            "provider": None,
            "pod": None,
        }
        self.assertEqual((1, "", [row]), (found.status, found.err, found.json))
        self.assertEqual([row], self.good("heal"))
        self.assertEqual([], self.good("audit"))
        self.assertEqual([], self.good("heal"))
