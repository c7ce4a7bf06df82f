# SPDX-License-Identifier: Apache-2.0
"""The project tree and its limits, through the command line."""

from __future__ import annotations

import io
import types

import fixtures as fx

from cyborg_quota.types import TOTAL
from tests.cli import base

TREE = [
    "project_id",
    "parent_id",
    "depth",
    "resource",
    "limit",
    "used",
    "hierarchical_usage",
    "subtree_used",
    "available",
    "minimum",
    "promised",
]


class LimitTestCase(base.CliTestCase):
    options = base.DATABASE

    def make_tree(self) -> None:
        """atlas (100) over physics (30) over higgs (10); physics holds 25."""
        self.prepare(
            "set --default gpu=0",
            "project set atlas --no-parent",
            "project set physics --parent atlas",
            "project set higgs --parent physics",
            "set gpu=100 atlas",
            "set gpu=30 physics",
            "set gpu=10 higgs",
            "reserve --project physics --consumer c gpu=25",
            "commit --project physics --consumer c",
        )


class TreeTestCase(LimitTestCase):
    """atlas (100), physics (30), higgs (10); physics holds 25."""

    def setUp(self) -> None:
        super().setUp()
        self.make_tree()


class LimitTest(LimitTestCase):
    def test_add_move_list_and_remove(self) -> None:
        self.done("project", "set", "a", "--no-parent")
        self.prepare("project set b --no-parent", "project set c --parent a", "project set c --parent b")
        expected = [("a", None), ("b", None), ("c", "b")]
        self.assertEqual(
            [{"project_id": project, "parent_id": parent} for project, parent in expected], self.good("project", "list")
        )
        self.prepare("project set c --no-parent", "project delete b")
        self.assertEqual("a None\nc None\n", self.call("project", "list", "-f", "value").out)

    def test_set_list_and_unset(self) -> None:
        self.done("set", "--default", "gpu=10")
        self.prepare("set fpga=5 --default", "set gpu=20 fpga=-1 p")
        rows = self.good("list")
        self.assertEqual(["project_id", "resource", "limit", "is_own", "source", "until"], list(rows[0]))
        self.assertEqual(
            [
                (None, "fpga", 5, True, "default", None),
                (None, "gpu", 10, True, "default", None),
                ("p", "fpga", -1, True, "own", None),
                ("p", "gpu", 20, True, "own", None),
            ],
            [tuple(row.values()) for row in rows],
        )
        self.done("unset", "--resource", "gpu", "p")
        self.assertEqual(
            "p fpga -1 True own None\np gpu 10 False inherited None\n",
            self.call("show", "p", "-f", "value").out,
        )
        rows = table(self.call("list").out)
        self.assertEqual(
            [["(default)", "gpu", "10", "True", "default", ""], ["p", "fpga", "unlimited", "True", "own", ""]], rows[2:]
        )
        self.done("unset", "--default", "--resource", "gpu", "--resource", "fpga")

    def test_limits_of_64_bits(self) -> None:
        """The limit of an ancestor, and that over all projects, may exceed what one project can hold."""
        for scope in ("--default", "--total", "top"):
            for limit in (2**31, 2**62):
                self.assertEqual(0, self.call("set", scope, f"gpu={limit}").status)
            self.assertIn(f"at most {2**62}", self.misused("set", scope, f"gpu={2**62 + 1}"))
        self.assertEqual({2**62}, {row["limit"] for row in self.good("list")})
        self.assertEqual(2**62, self.good("show", "--total")[0]["limit"])

    def test_the_first_limit_of_a_new_project_is_reported(self) -> None:
        """Otherwise a typing error in the id sets a limit for a project that does not exist, without a word."""
        self.prepare("project set atlas --no-parent", "set --default fpga=1", "reserve --project physics fpga=1")
        self.done("set", "gpu=7", "atlas")
        self.done("set", "gpu=7", "physics")
        self.refused(2, "set", "tpu=7", "atlsa")

        ended = self.call("set", "gpu=7", "atlsa")
        self.assertEqual((0, ""), (ended.status, ended.out))
        self.assertRegex(ended.err, r"\Acyborg-quota: Project 'atlsa' is new: [^\n]*`unset`\.\n\Z")
        self.done("set", "gpu=8", "atlsa")

    def test_total(self) -> None:
        self.prepare("set --default gpu=10", "reserve --project p gpu=3")
        self.assertEqual(
            [("set limit", "gpu", None, 5)],
            self.columns("set --total gpu=5 --dry-run", "change resource before after"),
        )
        self.assertEqual([], self.good("show", "--total"))
        self.done("set", "--total", "gpu=5", "--reason", "bought")
        row = {"resource": "gpu", "limit": 5, "held": 3, "available": 2, "promised": 0}
        self.assertEqual([row], self.good("show", "--total"))
        reason = "all projects, resource gpu: limit 5, held 3, requested 3"
        self.refused_each(1, {"reserve --project q gpu=3": reason})
        ended = self.call("check", "gpu=3", "q")
        self.assertEqual((1, f"{reason}, fits 2\n"), (ended.status, ended.out))
        self.assertIn("| 2    | (total)  |", self.call("show", "--usage", "q").out)
        self.assertEqual([(TOTAL, "bought")], self.columns("history list --limit 1", "project_id reason"))
        self.assertIn("| (total)    | gpu", self.call("history", "list", "-c", "project_id", "-c", "resource").out)
        self.assertIn("total:", self.call("limits", "export").out)
        self.done("unset", "--total", "--resource", "gpu")
        self.refused_each(1, {"unset --total --resource gpu": "no total limit for gpu"})

    def test_pod(self) -> None:
        """doc/source/admin/pods.rst shows a refusal and the usage in a pod."""
        self.prepare(
            "set --default gpu=10",
            "pod create p1",
            "provider create n1 --pod p1",
            "inventory set n1 gpu=99",
            "reserve --project p --provider n1 gpu=3",
        )
        of_p = ("p", "--pod", "p1")
        new = self.call("set", "--pod", "p1", "gpu=4", "new")
        self.assertIn("remove the limit with `unset --pod p1`.", new.err)
        self.done("unset", "--pod", "p1", "--resource", "gpu", "new")
        row = {"change": "set limit", "project_id": "p", "resource": "gpu", "before": None, "after": 4, "pod": "p1"}
        self.assertEqual([row], self.good("set", *of_p, "gpu=4", "--dry-run"))
        self.assertEqual([], self.good("list", "--pod"))
        self.done("set", *of_p, "gpu=4", "--reason", "share")
        row = {"project_id": "p", "pod": "p1", "resource": "gpu", "limit": 4}
        for listed in (("list", "--pod"), ("list", "--pod", "p1"), ("list", "--project", *of_p), ("show", *of_p)):
            self.assertEqual([row], self.good(*listed))
        (found,) = self.call("check", *of_p, "gpu=2", "-f", "json").json
        self.assertEqual(("gpu", "p1"), (found["resource"], found["pod"]))
        self.assertEqual([(1, "gpu", "p1")], self.columns("check p --pod p1 --how-many gpu=1", "how_many resource pod"))
        self.assertEqual(
            [("gpu", "p1", 4, "share")], self.columns("history list --limit 1", "resource pod after reason")
        )
        self.check_audit_and_orphans()
        self.assertIn("pods:", self.call("limits", "export").out)
        self.done("unset", "--default", "--resource", "gpu")
        usage = {**row, "used": 0, "reserved": 3, "available": 1, "fits": 0, "bound_by": "p"}
        self.assertEqual([usage], self.good("show", "--usage", *of_p), "without a limit over all pods")
        self.done("unset", *of_p, "--resource", "gpu")
        self.refused_each(
            1, {"unset p --pod p1 --resource gpu": "in pod p1", "list --pod p2": "Pod 'p2' was not found"}
        )

    def check_audit_and_orphans(self) -> None:
        """The pod has a column of its own; the marker of `project list --orphans` names it too."""
        self.sql("UPDATE quota_usages SET reserved = 2 WHERE pod = 'p1'")
        self.assertEqual(
            [("p", "gpu", "p1", 2, 3)],
            self.columns("heal", "project_id resource pod recorded_reserved expected_reserved"),
        )
        self.prepare("set gpu=9 p")
        directory = types.SimpleNamespace(unknown=list)  # as if Keystone had no project
        self.useFixture(fx.MonkeyPatch("cyborg_quota.cli.projects.require_directory", lambda *_names: directory))
        rows = self.call("project", "list", "--orphans", "-f", "json").json
        self.assertEqual(
            [("gpu", 3, 9, None), ("gpu", 3, 4, "p1")],
            [tuple(row[name] for name in ("resource", "reserved", "limit", "pod")) for row in rows],
        )
        for marker, left in ((("p", "gpu"), rows[1:]), (("p", "gpu", "p1"), []), (("p",), [])):
            ended = self.call("project", "list", "--orphans", "--marker", *marker, "-f", "json")
            self.assertEqual((left, ""), (ended.json, ended.err), marker)
        self.refused_each(2, {"project list --orphans --marker p gpu p1 x": "--marker takes"})
        self.done("unset", "--resource", "gpu", "p")

    def test_bad_usage(self) -> None:
        for limit in ("gpu=x", "gpu=-2", "=1", f"gpu={2**62 + 1}"):
            self.misused("set", "--default", limit)
        span = "--until 2030-01-01T00:00Z"
        self.refused_each(
            2,
            {
                "set --default": "required",
                "project set --no-parent": "required",
                "set gpu=1": "Name a project, or give --default",
                "set --default gpu=1 p": "cannot be combined with a project",
                "set --default gpu=1 gpu=2": "given twice",
                "set --default tpu=1": "Unknown resource",
                "set --total gpu=-1": "must be an integer from 0",
                f"set --total gpu=1 {span}": "--until needs a project",
                "set --default --pod p1 gpu=1": "--pod",
                f"set p --pod p1 gpu=1 {span}": "no --pod: only a limit over all pods has a span of time.",
                f"set p --pod p1 gpu=1 {span} --dry-run": "no --pod: only a limit over all pods has a span of time.",
                "show --total p": "--total",
                "show --ancestors": "Name a project",
                "project set a": "--parent --no-parent",
                "project set a --no-parent --parent b": "not allowed with",
                "list --names": "needs Keystone: set its URL",
                "project list --orphans": "needs Keystone: set its URL",
            },
        )

    def tree(self, project: str, *more: str) -> base.Ended:
        return self.call("list", "--tree", "--project", project, *more)

    def test_the_tree(self) -> None:
        """Only its table is indented; doc/source/admin/limits.rst shows one."""
        self.make_tree()
        self.assertEqual([["physics"], ["  higgs"]], [row[:1] for row in table(self.tree("physics").out)[1:]])
        self.assertEqual(
            [
                dict(zip(TREE, row, strict=True))
                for row in (
                    ("atlas", None, 0, "gpu", 100, 0, 25, 25, 75, 0, 0),
                    ("physics", "atlas", 1, "gpu", 30, 25, 0, 25, 5, 0, 0),
                    ("higgs", "physics", 2, "gpu", 10, 0, 0, 0, 10, 0, 0),
                )
            ],
            self.good("list", "--tree"),
        )
        self.assertEqual(
            "physics 0\nhiggs 1\n", self.tree("physics", "-f", "value", "-c", "project_id", "-c", "depth").out
        )
        self.assertIn("| depth |", self.tree("physics", "-c", "depth").out)

    def test_a_resource_without_a_limit(self) -> None:
        """The limit and what is available, as in `list --usage` (test_usage.py): refused, or unlimited."""
        self.configure(f"{base.DATABASE}missing = unlimited\n")
        self.good("reserve", "--project", "p", "gpu=1")
        for missing, limit, shown in (("unlimited", -1, ["unlimited", "unlimited"]), ("refuse", None, ["not set", ""])):
            self.configure(f"{base.DATABASE}missing = {missing}\n")
            (node,) = self.good("list", "--tree")
            self.assertEqual((limit, None), (node["limit"], node["available"]))
            row = table(self.call("list", "--tree").out)[1]
            self.assertEqual(["p", "gpu", shown[0], "0", "0", "1", shown[1]], row)

    def test_show_lists_the_ancestors(self) -> None:
        self.make_tree()
        self.good("reserve", "--project", "higgs", "gpu=2")
        self.assertEqual(
            [("atlas", 0, 73), ("physics", 1, 3), ("higgs", 2, 8)],
            self.columns("show --ancestors higgs", "project_id depth available"),
        )
        self.assertEqual([], self.good("show", "--ancestors", "atlas")[1:])

    def test_over(self) -> None:
        self.make_tree()
        self.assertEqual([], self.good("list", "--over"))
        self.prepare("set gpu=0 higgs", "set gpu=5 physics")
        ended = self.call("list", "--over", "-f", "json")
        self.assertEqual((1, ""), (ended.status, ended.err))
        self.assertEqual(
            [("physics", 5, -20)], [(row["project_id"], row["limit"], row["available"]) for row in ended.json]
        )
        self.assertEqual("physics", table(self.call("list", "--over").out)[1][0])
        self.done("set", "--total", "gpu=5")
        ended = self.call("list", "--over")
        self.assertEqual((1, ["(total)", "gpu", "5", "0", "25", "25", "-20"]), (ended.status, table(ended.out)[1]))
        ended = self.call("list", "--over", "--marker", "(total)", "-f", "value", "-c", "project_id")
        self.assertEqual("physics\n", ended.out)


EXAMPLE = """\
defaults: {gpu: 10}
projects:
- id: atlas
  limits: {gpu: 100}
  children:
  - id: physics
    limits: {gpu: 30}
"""


class FileTest(LimitTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.directory / "limits.yaml"
        self.file.write_text(EXAMPLE)

    def test_import_and_export(self) -> None:
        rows = self.good("limits", "import", str(self.file))
        self.assertEqual(["change", "project_id", "resource", "before", "after", "pod"], list(rows[0]))
        self.assertEqual(
            [
                ("set limit", None, "gpu", None, 10, None),
                ("add project", "atlas", None, None, None, None),
                ("set limit", "atlas", "gpu", None, 100, None),
                ("add project", "physics", None, None, "atlas", None),
                ("set limit", "physics", "gpu", None, 30, None),
            ],
            [tuple(row.values()) for row in rows],
        )
        for argv in ((), ("-",)):
            self.assertEqual(EXAMPLE, self.call("limits", "export", *argv).out)
        copy = self.directory / "copy.yaml"
        self.done("limits", "export", str(copy))
        self.assertEqual(EXAMPLE, copy.read_text())
        self.done("limits", "import", str(copy))

    def test_a_dry_run_shows_both_and_writes_nothing(self) -> None:
        ended = self.call("limits", "import", "--dry-run", str(self.file), "-f", "json")
        self.assertEqual((0, 5), (ended.status, len(ended.json)))
        self.assertEqual([], self.good("list"))
        self.file.write_text(EXAMPLE.replace("30", "-1").replace("atlas", "at las"))
        ended = self.call("limits", "import", "--dry-run", str(self.file), "-f", "json")
        self.assertEqual((1, 5), (ended.status, len(ended.json)))
        self.assertEqual(
            "cyborg-quota: Not allowed: physics cannot be unlimited in gpu: the limit of its parent at las is 100. "
            "Nothing was changed.\n",
            ended.err,
        )
        self.assertEqual(ended.err, self.refused(1, "limits", "import", str(self.file)))
        self.assertEqual([], self.good("project", "list"))

    def test_a_refusal_with_many_reasons(self) -> None:
        """One short line, which counts the others; -v logs each of the others."""
        children = "".join(f"  - {{id: p{number}, limits: {{gpu: -1}}}}\n" for number in range(30))
        self.file.write_text(f"projects:\n- id: top\n  limits: {{gpu: 5}}\n  children:\n{children}")
        for argv in ((), ("--dry-run",)):
            ended = self.call("limits", "import", str(self.file), *argv)
            self.assertEqual((1, 1), (ended.status, ended.err.count("\n")), ended.err)
            self.assertLess(len(ended.err), 1000)
            self.assertIn("; and 20 more. Nothing was changed. With -v before", ended.err)
            ended = self.call("-v", "limits", "import", str(self.file), *argv)
            self.assertEqual(30, ended.err.count(" cannot be unlimited"), ended.err)

    def test_an_invalid_file(self) -> None:
        self.file.write_text("projects: [{id: a, limit: {gpu: 1}}]")
        error = self.refused(2, "limits", "import", str(self.file))
        self.assertRegex(error, r"limits\.yaml.*projects\[0\] has an unknown key 'limit'")
        self.file.write_bytes(b"\xff\xfe\x00")
        self.refused_each(
            2,
            {
                f"limits import {self.file}": "is not valid YAML",
                f"limits import {self.directory}/none": "No such file",
                f"limits export {self.directory}": "Cannot write",
            },
        )

    def test_from_stdin(self) -> None:
        self.useFixture(fx.MonkeyPatch("sys.stdin", io.TextIOWrapper(io.BytesIO(EXAMPLE.encode()))))
        ended = self.call("limits", "import", "-", "-f", "value", "-c", "after")
        self.assertEqual((0, "10\nNone\n100\natlas\n30\n"), (ended.status, ended.out))


class OtherDriverTest(LimitTestCase):
    def test_config_and_noop(self) -> None:
        self.limit("gpu:5,fpga:-1")
        expected = "None fpga -1 True config None\nNone gpu 5 True config None\n"
        self.assertEqual(expected, self.call("list", "-f", "value").out)
        rows = self.good("show", "p")
        self.assertEqual([("p", "fpga", -1, False), ("p", "gpu", 5, False)], [tuple(row.values())[:4] for row in rows])
        self.refused_each(
            1,
            {
                "set --default gpu=1": "[limits] limits",
                "project set p --no-parent": "[limits] limits",
                "override list": "[limits] driver",
            },
        )
        self.configure()
        for listed in (("list",), ("history", "list"), ("list", "--over")):
            self.assertEqual([], self.good(*listed))
        changes = ("set --default gpu=1", "unset --default --resource gpu", "list --tree")
        self.refused_each(1, dict.fromkeys(changes, "noop"))


def table(text: str) -> list[list[str]]:
    """Return the cells of a printed table; the first of each row with its leading blanks."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if not line.startswith("+")]
    return [[first[1:].rstrip(), *(cell.strip() for cell in rest)] for first, *rest in rows]
