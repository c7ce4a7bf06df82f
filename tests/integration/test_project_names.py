# SPDX-License-Identifier: Apache-2.0
"""The command line with a real Keystone: names of projects, unknown projects, and what deleted projects still hold."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import fixtures as fx

from tests import doc_examples
from tests.cli import base
from tests.integration import server as servers
from tests.servers import sharing

DIRECTORY = "cyborg_quota.limits.sources.keystone_projects"
CONFIG = """
[quota]
resources = gpu, fpga
[limits]
driver = {driver}
[oslo_limit]
timeout = 30
auth_type = password
auth_url = {url}
username = {username}
password = {password}
system_scope = all
user_domain_id = default
"""


class ProjectNamesTestCase(base.CliTestCase):
    """A domain of its own, ``dom``, with the projects physics and atlas; and [limits] driver = database."""

    driver = "database"

    def setUp(self) -> None:
        super().setUp()
        self.keystone = sharing.need(self, "Keystone", servers.running, "flat")
        self.suffix = uuid.uuid4().hex[:8]
        self.dom_name = f"dom-{self.suffix}"
        self.dom = self.keystone.create("domain", name=self.dom_name)
        self.physics = self.create("physics")
        self.atlas = self.create("atlas")
        self.write_config(self.keystone.people.reader)

    def create(self, name: str, domain_id: str | None = None, **more: str) -> str:
        return self.keystone.create("project", name=self.named(name), domain_id=domain_id or self.dom, **more)

    def named(self, name: str) -> str:
        """A name that no other test has."""
        return f"{name}-{self.suffix}"

    def write_config(self, user: tuple[str, str], more: str = "") -> None:
        username, password = user
        self.configure(
            CONFIG.format(driver=self.driver, url=self.keystone.url, username=username, password=password) + more
        )

    def silent(self, *argv: str) -> None:
        ended = self.call(*argv)
        self.assertEqual((0, "", ""), (ended.status, ended.out, ended.err))

    def limits(self) -> list[tuple[str | None, str, int]]:
        return [(row["project_id"], row["resource"], row["limit"]) for row in self.good("list")]


class TestNames(ProjectNamesTestCase):
    def test_a_name_or_an_id_of_a_project(self) -> None:
        self.silent("set", "--default", "gpu=5")
        self.silent("set", "gpu=20", self.named("physics"))
        self.silent("set", "gpu=30", self.atlas)
        expected = {(None, "gpu", 5), (self.physics, "gpu", 20), (self.atlas, "gpu", 30)}
        self.assertEqual(expected, {*self.limits()})
        self.good("reserve", "--project", self.named("physics"), "--consumer", "c", "gpu=2")
        self.silent("commit", "--project", self.named("physics"), "--consumer", "c")
        (row,) = self.good("show", "--ancestors", self.named("physics"))
        self.assertEqual((self.physics, 20, 2), (row["project_id"], row["limit"], row["used"]))
        self.silent("unset", "--resource", "gpu", self.named("physics"))
        self.assertEqual(2, len(self.limits()))

    def test_a_name_that_two_domains_have(self) -> None:
        other = self.keystone.create("domain", name=f"other-{self.suffix}")
        twin = self.create("physics", other)
        error = self.refused(1, "set", "gpu=1", self.named("physics"))
        self.assertIn(f"2 projects have the name '{self.named('physics')}'", error)
        for text in (f"{self.physics} (domain {self.dom})", f"{twin} (domain {other})", "Give the id of one"):
            self.assertIn(text, error)

    def test_an_id_takes_precedence_over_a_name_and_a_domain_is_a_project(self) -> None:
        self.keystone.create("project", name=self.physics, domain_id=self.dom)
        for limit, name in enumerate((self.physics, self.dom, self.dom_name)):
            self.silent("set", f"gpu={limit}", name)
        self.assertEqual({(self.physics, "gpu", 0), (self.dom, "gpu", 2)}, {*self.limits()})

    def test_names_in_tables(self) -> None:
        self.silent("project", "set", self.named("atlas"), "--no-parent")
        self.silent("project", "set", self.named("physics"), "--parent", self.named("atlas"))
        self.silent("set", "--default", "gpu=5")
        self.silent("set", "gpu=7", self.atlas)
        for words, expected in (
            (["list"], [(None, None), (self.atlas, self.named("atlas"))]),
            (["list", "--tree"], [(self.atlas, self.named("atlas")), (self.physics, self.named("physics"))]),
            (["show", "--ancestors", self.atlas], [(self.atlas, self.named("atlas"))]),
        ):
            rows = self.good(*words, "--names")
            self.assertEqual(expected, [(row["project_id"], row["project_name"]) for row in rows])
        table = self.call("list", "--tree", "--names").out
        self.assertIn(f"|   {self.physics} | {self.named('physics')} |", table)


class TestPages(ProjectNamesTestCase):
    def test_the_commands_of_the_pages(self) -> None:
        """physics is a name in two domains."""
        self.create("physics", self.keystone.create("domain", name=f"other-{self.suffix}"))
        names = {"physics": self.named("physics"), "3e1852cd006f418eaa55445c928838b2": self.physics}
        for shown in doc_examples.commands_of(__name__):
            ended = self.call(*(names.get(word, word) for word in shown.command.split()[1:]))
            is_refused = shown.output.startswith("cyborg-quota: ")
            self.assertEqual(int(is_refused), ended.status, ended.err)
            printed = ended.err if is_refused else ended.out
            self.assertEqual(bool(shown.output), bool(printed))
            begin = re.sub(r"'physics'.*", "", shown.output.partition("\n")[0])
            self.assertEqual(begin, printed[: len(begin)], shown.place)


class TestUnknown(ProjectNamesTestCase):
    def test_a_typing_error_is_refused(self) -> None:
        for argv, hint in (
            (["set", "gpu=7"], "--force"),
            (["project", "set", "--no-parent"], "--force"),
            (["list", "--usage", "--project"], ""),
            (["show", "--ancestors"], ""),
            (["unset", "--resource", "gpu"], ""),
            (["check", "gpu=1"], ""),
            (["delete"], ""),
            (["reserve", "gpu=1", "--project"], ""),
        ):
            error = self.refused(1, *argv, "atlsa")
            self.assertRegex(error, rf"Keystone has no project with the name or id 'atlsa'\..*{hint}")
        self.assertEqual(([], []), (self.good("list"), self.good("project", "list")))
        for text in ("..", "../users", "a?b=c", "x" * 255, uuid.uuid4().hex):
            self.assertIn("Keystone has no project", self.refused(1, "project", "set", "--no-parent", text))
        self.assertIn("Invalid project_id", self.refused(2, "set", "gpu=1", " "))

    def test_force(self) -> None:
        self.assertIn("Project 'elsewhere' is new", self.call("set", "--force", "gpu=7", "elsewhere").err)
        self.silent("project", "set", "elsewhere", "--force", "--no-parent")
        self.assertEqual([("elsewhere", "gpu", 7)], self.limits())
        self.good("show", "--ancestors", "elsewhere")  # known to the ledger now
        self.assertIn("Keystone has no", self.refused(1, "set", "gpu=8", "elsewhere"))
        self.silent("unset", "--resource", "gpu", "elsewhere")

    def test_a_file(self) -> None:
        file = self.directory / "limits.yaml"
        file.write_text(f"projects: [{{id: {self.atlas}, limits: {{gpu: 1}}, children: [{{id: atlsa}}, {{id: b}}]}}]")
        for more in ([], ["--dry-run"]):
            self.assertRegex(self.refused(1, "limits", "import", str(file), *more), "'atlsa'.*--force")
        self.assertEqual([], self.good("project", "list"))
        ended = self.call("limits", "import", str(file), "--force", "-f", "json")
        self.assertEqual((0, 4), (ended.status, len(ended.json)), ended.err)
        self.assertEqual([], self.good("limits", "import", str(file)), "what the file does not change is not looked up")

    def test_a_user_without_the_role(self) -> None:
        self.write_config(self.keystone.people.member_of_the_first)
        error = self.refused(1, "set", "gpu=1", "x")
        self.assertIn("role reader on the system", error)


class TestOrphans(ProjectNamesTestCase):
    def test_what_a_deleted_project_holds(self) -> None:
        self.silent("set", "--default", "gpu=100", "fpga=100")
        gone, empty = self.create("gone"), self.create("empty")
        for project_id in (gone, self.physics, empty):
            self.good("reserve", "--project", project_id, "--consumer", "c", "gpu=3")
            self.silent("commit", "--project", project_id, "--consumer", "c")
        self.good("reserve", "--project", gone, "--consumer", "in flight", "gpu=1")
        self.silent("set", "gpu=7", "fpga=0", gone)
        self.silent("set", "fpga=3", gone, "--until", "2999-01-01")
        self.silent("release", "--project", empty, "--consumer", "c")
        self.assertEqual([], self.good("project", "list", "--orphans"))

        for project_id in (gone, empty):
            self.keystone.admin.delete(f"/projects/{project_id}")
        self.assertEqual([(gone, "fpga", 0, 0, 0, 1, None), (gone, "gpu", 3, 1, 7, 0, None)], self.orphans())
        for consumer in ("c", "in flight"):
            self.silent("release", "--project", gone, "--consumer", consumer)
        self.silent("unset", "--resource", "gpu", "--resource", "fpga", gone)
        self.assertEqual([(gone, "fpga", 0, 0, None, 1, None)], self.orphans())

    def orphans(self, *options: str) -> list[tuple[Any, ...]]:
        ended = self.call("project", "list", "--orphans", "-f", "json", *options)
        self.assertEqual((1, ""), (ended.status, ended.err))
        return [tuple(row.values()) for row in ended.json]

    def test_many_in_batches(self) -> None:
        """13 projects in batches of 5, of which Keystone has three: two of them, and their domain.

        For the names of many projects, the list of all of them is read.
        """
        ids = [f"p{number:02}" for number in range(10)]
        known = {self.atlas: self.named("atlas"), self.physics: self.named("physics"), self.dom: self.dom_name}
        file = self.directory / "limits.json"
        file.write_text(json.dumps({"projects": [{"id": one, "limits": {"gpu": 1}} for one in (*ids, *known)]}))
        self.assertEqual(0, self.call("limits", "import", str(file), "--force").status)
        self.useFixture(fx.MonkeyPatch("cyborg_quota.limits.projects.MAX_LISTED_PROJECTS", 5))
        self.useFixture(fx.MonkeyPatch(f"{DIRECTORY}._MAX_SINGLE_REQUESTS", 2))
        named = {row["project_id"]: row["project_name"] for row in self.good("list", "--names")}
        self.assertEqual({**dict.fromkeys(ids), **known}, named)
        rows = [(one, "gpu", 0, 0, 1, 0, None) for one in ids]
        self.assertEqual(rows[:7], self.orphans("--limit", "7"))
        self.assertEqual(rows[7:], self.orphans("--limit", "7", "--marker", *rows[6][:2]))
        self.assertEqual(rows[7:8], self.orphans("--limit", "1", "--marker", rows[6][0], "--resource", "gpu"))
        self.assertEqual([], self.good("project", "list", "--orphans", "--resource", "fpga"))


class TestLimitsOfKeystone(ProjectNamesTestCase):
    driver = "keystone"

    def test_the_limit_commands_read_and_name_where_limits_are_set(self) -> None:
        service, endpoint = self.keystone.create_service()
        self.keystone.register(service, "gpu", 10)
        self.keystone.set_limit(service, "gpu", 7, project_id=self.physics)
        self.write_config(self.keystone.people.reader, f"endpoint_id = {endpoint}\n")
        limits = {row["resource"]: row["limit"] for row in self.good("show", self.physics)}
        self.assertEqual({"fpga": 0, "gpu": 7}, limits)
        refused = self.refused(1, "set", "gpu=9", self.physics)
        self.assertIn("in Keystone (openstack registered limit set, openstack limit set)", refused)
