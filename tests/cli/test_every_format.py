# SPDX-License-Identifier: Apache-2.0
"""Every command that prints rows or one object: each output format, and bad input.

One that needs arguments is tested only if it has a row here.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import yaml
from cliff import lister, show

from tests.cli import base
from tests.cli.test_history import COLUMNS as HISTORY

FORMATS = ("table", "json", "csv", "yaml", "value")
P = ("--project", "p")
# {format}: the output format, for a command that makes an object with a name.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "budget adjust": ("--hours", "gpu=1", "p", "--long"),
    "budget list": ("--long",),
    "budget set": ("--hours", "gpu=1000", "p", "--long"),
    "budget show": ("p", "--long"),
    "capacity import": ("{nodes}",),
    "check": ("gpu=1000", "p"),
    "history list": ("--limit", "3", "--long"),
    "inventory set": ("node1", "gpu=8"),
    "limits import": ("{document}", "--dry-run"),
    "pod binding set": ("pod1", *P),
    "pod create": ("new-{format}",),
    "pod select": P,
    "pod set": ("pod1", "--weight", "3"),
    "pod show": ("pod1",),
    "provider create": ("new-{format}",),
    "provider set": ("node1", "--no-pod"),
    "provider show": ("node1",),
    "replay": ("{trace}",),
    "reservation show": ("{uuid}",),
    "reserve": (*P, "gpu=1"),
    "resource create": ("gpu", "--unit", "device"),
    "set": ("gpu=7", "p", "--dry-run"),
    "show": ("p",),
    "simulate": ("{document}", "--against", "ledger"),
}
# Other arguments, with which a command prints another table.
VARIANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "capacity show": (("--projects",),),
    "check": (("--how-many", "gpu=1", "p"),),
    "list": (("--usage",), ("--usage", "--pod", "pod1"), ("--over",), ("--tree",), ("--pod",), P),
    "show": (("--usage", "p"), ("--ancestors", "p"), ("--pod", "pod1", "p"), ("--default",), ("--total",)),
}
# A table lacks them if they are empty in each row.
SPARSE = {*HISTORY, "override_until", "otherwise", "minimum", "promised"}
# These need Keystone or Cyborg: tests/integration and tests/cyborgs run them.
NEED_SERVICES = {"project import", "reconcile"}
# These run without the tables of the ledger.
WITHOUT_TABLES = {"db sync", "db version"}
# In a table, sentences.
SENTENCES = {"check"}
# Its JSON has the totals, and its table the projects: see test_replay.py.
OTHER_SHAPES = {"replay"}


def classes() -> dict[str, type[Any]]:
    """The classes of the commands that print rows or one object, by name."""
    found = {name: point.load() for name, point in base.commands().items()}
    return {name: kind for name, kind in found.items() if issubclass(kind, (lister.Lister, show.ShowOne))}


class EveryFormatTest(base.CliTestCase):
    options = base.DATABASE

    def setUp(self) -> None:
        super().setUp()
        self.prepare(
            "set --default gpu=100 fpga=100",
            "set gpu=50 p --reason test",
            "set gpu=60 p --until 2999-01-01",
            "budget set --hours gpu=1000 p",
            "provider create node1",
            "pod create pod1",
        )
        (row,) = self.good("reserve", *P, "gpu=2")
        document = {"defaults": {"gpu": 10}, "projects": [{"id": "p", "limits": {"gpu": 9}}]}
        self.files = {
            "uuid": row["uuid"],
            "nodes": self.write_file("nodes.txt", "provider,resource,total\nnode1,gpu,8\n"),
            "document": self.write_file("document.txt", json.dumps(document)),
            "trace": self.trace("0,reserve,c,p,gpu,1"),
        }

    def arguments(self, name: str, form: str) -> list[str]:
        return [part.format(format=form, **self.files) for part in ARGUMENTS.get(name, ())]

    def needs_arguments(self, name: str) -> bool:
        """Whether the command needs arguments for which ARGUMENTS has no row."""
        return name not in ARGUMENTS and "arguments are required" in self.call(*name.split(), "-c", "none").err

    def test_every_row_is_of_a_command(self) -> None:
        tested = ARGUMENTS.keys() | VARIANTS.keys() | NEED_SERVICES | OTHER_SHAPES
        self.assertEqual(set(), tested - classes().keys())

    def outputs(self, name: str, options: tuple[str, ...]) -> dict[str, str]:
        """The output of a command in each format."""
        out = {}
        for form in FORMATS:
            ended = self.call(*name.split(), *(options or self.arguments(name, form)), "-f", form)
            self.assertIn(ended.status, (0, 1), (name, form, ended.err))
            if ended.status:  # what it found, not an error
                self.assertEqual("", ended.err, (name, form))
            out[form] = ended.out
        return out

    def test_the_columns_are_the_same_in_every_format(self) -> None:
        self.prepare("set gpu=40 p --pod pod1", "set --total gpu=90")
        for name, kind in classes().items():
            if name in NEED_SERVICES | OTHER_SHAPES or self.needs_arguments(name):
                continue
            for options in ((), *VARIANTS.get(name, ())):
                self.check_columns(name, self.outputs(name, options), is_list=issubclass(kind, lister.Lister))

    def check_columns(self, name: str, out: dict[str, str], *, is_list: bool) -> None:
        rows = json.loads(out["json"]) if is_list else [json.loads(out["json"])]
        header, *values = csv.reader(io.StringIO(out["csv"]))
        parsed = yaml.safe_load(out["yaml"])
        self.assertEqual(len(rows), len(values), name)
        self.assertEqual(len(rows), len(parsed) if is_list else 1, name)
        for row in rows:
            self.assertEqual(header, list(row), name)
        for row in parsed if is_list else [parsed]:
            self.assertEqual(set(header), set(row), name)
        if name not in SENTENCES or "how_many" in header:
            sparse = {column for column in SPARSE if not any(row.get(column) for row in rows)}
            for column in set(header) - {"parent_id", "depth", *sparse} if rows else ():  # (a table indents instead)
                self.assertIn(column, out["table"], name)

    def test_a_database_without_tables(self) -> None:
        """A failure is one line, which names the remedy; the exit status is 1."""
        self.configure("[limits]\ndriver = database", url=f"sqlite:///{self.directory}/empty.sqlite")
        for name in sorted(classes().keys() - NEED_SERVICES - WITHOUT_TABLES):
            if not self.needs_arguments(name):
                error = self.refused(1, *name.split(), *self.arguments(name, "bad"))
                self.assertIn("cyborg-quota db sync", error, name)

    def test_bad_options(self) -> None:
        """One line on stderr says what is wrong, and the exit status is 2."""
        for name in classes():
            self.misused(*name.split(), "-f", "xml")
            if name in NEED_SERVICES or self.needs_arguments(name):
                continue
            argv = (*name.split(), *self.arguments(name, "bad"))
            ended = self.call(*argv, "-c", "no_such_column")
            self.assertIn("No recognized column", ended.err, name)
            # (A simulation says first that it does not apply the overrides.)
            self.assertEqual((2, 1 + (name == "simulate")), (ended.status, ended.err.count("\n")), name)
            text = self.call(*name.split(), "--help").out
            if "--project PROJECT" in text:
                for bad in ("", "a\nb", " a", "x" * 256):
                    self.assertIn("project", self.refused(2, *argv, "--project", bad), name)
            if "--limit N" in text:
                self.misused(*argv, "--limit", "0")
