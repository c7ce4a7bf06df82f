# SPDX-License-Identifier: Apache-2.0
"""Every command, and the projects that it affects.

A command acts with an admin's context: it may name any project, and affects and shows only the objects that it names.
A new command needs a row here.
"""

from __future__ import annotations

from typing import Any

from tests import fixtures, hooks
from tests.cli import base

VICTIM, OTHER = "victim", "other"

# The arguments with which each command acts on the other project only. {uuid}: a reservation of that project.
OF_ONE: dict[str, tuple[str, ...]] = {
    "check": ("gpu=1", OTHER),
    "commit": ("--project", OTHER, "--consumer", "c"),
    "extend": ("--project", OTHER, "--consumer", "c", "--expire", "60"),
    "resize": ("--project", OTHER, "--consumer", "c", "gpu=2"),
    "release": ("--project", OTHER, "--group", "g"),
    "rollback": ("--project", OTHER, "--consumer", "c"),
    "reserve": ("--project", OTHER, "--consumer", "new", "gpu=1"),
    "transfer": ("--project", OTHER, "--consumer", "new", "--to-project", "newer"),
    "reservation list": ("--project", OTHER),
    "reservation show": ("{uuid}",),
    "budget adjust": ("--hours", "gpu=1", OTHER),
    "budget delete": (OTHER,),
    "budget set": ("--hours", "gpu=90", OTHER),
    "budget show": (OTHER,),
    "history list": ("--project", OTHER),
    "usage report": ("--project", OTHER),
    "list": ("--project", OTHER),
    "list --usage": ("--project", OTHER),
    "list --tree": ("--project", OTHER),
    "override list": ("--project", OTHER),
    "override delete": ("{override}",),
    "set": ("gpu=7", OTHER),
    "show": (OTHER,),
    "show --usage": (OTHER,),
    "show --ancestors": (OTHER,),
    "unset": ("--resource", "gpu", OTHER),
    "delete": (OTHER,),
    "pod binding list": ("--project", OTHER),
    "project create": ("newest", "--parent", OTHER),
    "project set": ("new", "--no-parent"),
    "project set --no-parent": (OTHER,),
    "project delete": ("empty",),
}
# These commands affect all projects, as their help says.
OF_ALL = {
    "allocation list", "audit", "budget list", "capacity import", "capacity show", "db purge", "db sync",
    "db version", "expire", "heal", "inventory delete", "inventory list", "inventory set", "limits export",
    "limits import", "pod binding delete", "pod binding set", "pod create", "pod delete", "pod list", "pod measure",
    "pod select", "pod set", "pod show", "project import", "project list", "provider create",
    "provider delete", "provider list", "provider set", "provider show", "reconcile", "replay", "resource create",
    "resource list", "simulate", "trace export",
}  # fmt: skip


class EveryCommandTest(base.CliTestCase):
    """Two projects with the same names in them, and limits of their own."""

    def setUp(self) -> None:
        super().setUp()
        self.configure("[limits]\ndriver = database")
        self.call("set", "--default", "gpu=100")
        self.uuids = {}
        for project in (VICTIM, OTHER):
            self.call("set", "gpu=50", project)
            self.call("budget", "set", "--hours", "gpu=1000", project)
            (row,) = self.good("reserve", "--project", project, "--consumer", "c", "--group", "g", "gpu=1")
            self.uuids[project] = row["uuid"]
            self.call("set", "gpu=40", project, "--until", "2999-01-01")
        self.override = self.good("override", "list", "--project", OTHER)[0]["id"]
        self.call("project", "set", "empty", "--no-parent")
        self.sql("UPDATE quota_usages SET metered = metered + 3600")  # an hour
        self.sql = fixtures.plain_engine(self.url)
        self.before = self.rows_of(VICTIM)
        self.assertEqual(
            {"budgets", "changes", "limit_overrides", "projects", "project_limits", "quota_usages", "reservations"},
            self.before.keys(),
        )

    def rows_of(self, project: str) -> dict[str, list[Any]]:
        """Return the rows that name a project."""
        found = {name: [row for row in rows if project in row] for name, rows in hooks.tables(self.sql).items()}
        return {name: rows for name, rows in found.items() if rows}

    def test_every_command_has_a_row(self) -> None:
        self.assertEqual(base.commands().keys(), {words.partition(" --")[0] for words in OF_ONE} | OF_ALL)

    def test_a_command_for_one_project_changes_no_other(self) -> None:
        for command, arguments in OF_ONE.items():
            argv = [argument.format(uuid=self.uuids[OTHER], override=self.override) for argument in arguments]
            if command == "rollback":  # (what the commit above has committed is not rolled back)
                self.call("reserve", "--project", OTHER, "--consumer", "c", "gpu=1")
            ended = self.call(*command.split(), *argv)
            said = "cyborg-quota: No pod binding found.\n" if command == "pod binding list" else ""
            self.assertEqual((0, said), (ended.status, ended.err), command)
            for hidden in (VICTIM, self.uuids[VICTIM]):
                self.assertNotIn(hidden, ended.out, command)
            self.assertEqual(self.before, self.rows_of(VICTIM), command)
