# SPDX-License-Identifier: Apache-2.0
"""CERN, "Nested quota models" (2017): its example, rule by rule, and its use cases."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
import uuid
from typing import Any, Final

import webob
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import exceptions
from cyborg_quota.conf import loading
from cyborg_quota.db import models
from tests import base, fixtures, invariants, trees
from tests.api import server
from tests.functional import test_limits, test_policy
from tests.integration import test_project_names


def _project(project_id: str, limit: int, *children: dict[str, Any]) -> dict[str, Any]:
    return {"id": project_id, "limits": {"gpu": limit}, "children": list(children)}


_ATLAS: Final = _project(
    "atlas",
    100,
    _project("operations", 70, _project("web", 30), _project("workflow", 40)),
    _project("physics", 30, _project("higgs", 10), _project("simulation", 10)),
)
_USED: Final = {"web": 5, "workflow": 30, "higgs": 10, "simulation": 10}


class TestNineRules(test_limits.LimitsTestCase):
    """The rules that "would be applied", with the default enforcement model.

    ATLAS is the parent of Physics and Operations, and each of these has two children::

        atlas (limit 100)
            operations (70)     web (30, uses 5), workflow (40, uses 30)
            physics (30)        higgs (10, uses 10), simulation (10, uses 10)
    """

    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.admin.import_limits(base.ADMIN, {"defaults": {"gpu": 0}, "projects": [_ATLAS]})
        for project_id, amount in _USED.items():
            self.hold(project_id, amount)

    def test_limits(self) -> None:
        """Rules 1 to 5."""
        for project_id, limit in (
            ("physics", 31), ("operations", 71), ("workflow", 41), ("web", 31), ("operations", 50),
        ):  # fmt: skip
            self.assertRaises(exceptions.LimitRefused, self.set, project_id, limit)
        for project_id in ("higgs", "simulation"):
            self.set(project_id, 20)
            self.set(project_id, 10)
        self.set("simulation", 5)

    def test_usage(self) -> None:
        """Rules 6 to 9; what a project itself holds is not in its hierarchical usage."""
        self.assertEqual(["simulation"], self.blockers("simulation"))
        self.set("simulation", 5)
        self.set("physics", 20)
        self.set("higgs", 15)
        self.assertEqual(["physics"], self.blockers("higgs"))
        self.assertEqual(["web"], self.blockers("web", 26))
        self.hold("web", 25)
        self.hold("operations", 3)
        self.quotas.reserve(base.ADMIN, {"gpu": 1}, project_id="operations")
        expected = {"web": (30, 0, 30), "operations": (3, 60, 64), "atlas": (0, 84, 84)}
        found = {row.project_id: (row.used, row.hierarchical_usage, row.subtree) for row in self.admin.tree(base.ADMIN)}
        self.assertEqual(expected, {project_id: found[project_id] for project_id in expected})


class TestChannelPartner(test_project_names.ProjectNamesTestCase):
    """ "The SME owns the parent project with the cloud provider and then allocates out to customers".

    A real Keystone has sme and other, each with a customer; the ledger has sme and other.
    """

    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.sme, self.other = self.create("sme"), self.create("other")
        self.customer = self.create_below("customer", self.sme)
        self.of_other = self.create_below("of-other", self.other)
        self.manager = test_policy.User(self.sme, roles=["manager"])
        self.load()
        for project_id, limit in ((self.sme, 20), (self.other, 5)):
            self.admin.add_project(base.ADMIN, project_id)
            self.admin.set_limit(base.ADMIN, "gpu", limit, project_id)

    def load(self) -> None:
        """Make the engine and the REST API from the configuration file."""
        settings = loading.load(cfg.ConfigOpts(), ["--config-file", str(self.conf)])
        self.engine = cyborg_quota.make_engine(settings)
        self.addCleanup(self.engine.close)
        self.admin = self.engine.limits
        self.application = server.make_application(settings, self.engine)

    def create_below(self, name: str, parent_id: str) -> str:
        project_id = self.create(name, parent_id=parent_id)
        # (With trees, Keystone does not start with the model strict_two_level.)
        self.addCleanup(self.keystone.admin.delete, f"/projects/{project_id}", raise_exc=False)
        return project_id

    def ask(self, token: str, method: str, path: str, body: Any) -> tuple[int, str]:
        """The status of a call of the REST API, and its error."""
        request = webob.Request.blank(path, method=method, headers={"X-Auth-Token": token}, json=body)
        answer = request.get_response(self.application)
        return answer.status_int, answer.json["errors"][0]["detail"] if answer.status_int >= 400 else ""

    def test_a_manager_adds_a_new_customer_and_gives_it_a_limit(self) -> None:
        self.admin.add_project(self.manager, self.customer, self.sme, reason="signed")
        refused = self.assertRaises(
            exceptions.OverQuota, self.engine.reserve, base.ADMIN, {"gpu": 1}, project_id=self.customer
        )
        self.assertEqual([(self.customer, 0)], [(over.project_id, over.limit) for over in refused.overs])
        self.admin.set_limit(self.manager, "gpu", 15, self.customer)
        self.engine.reserve(base.ADMIN, {"gpu": 15}, project_id=self.customer)
        self.assertIn((self.customer, self.sme), self.admin.list_projects(base.ADMIN))
        [entry, *_] = self.admin.history(base.ADMIN, self.customer, subject="project")
        self.assertEqual((None, self.sme, "signed"), (entry.before, entry.after, entry.reason))

    def test_no_project_of_others_is_taken(self) -> None:
        """Whether Keystone has it elsewhere or not at all, and whether the ledger knows it or not: one answer."""
        texts = set()
        for project_id in (self.other, self.of_other, self.physics, self.sme, self.dom, "0" * 32, "no-id!"):
            error = self.assertRaises(
                exceptions.ProjectRefused, self.admin.add_project, self.manager, project_id, self.sme
            )
            texts.add(str(error).replace(project_id, "X").replace(self.sme, "X"))
        self.assertEqual({"Project 'X' is not below X in Keystone; only an admin can add it."}, texts)
        add, member = self.admin.add_project, test_policy.User(self.sme, roles=["member"])
        for call, context, parent_id in (
            (add, self.manager, self.other),
            (add, self.manager, "nowhere"),
            (add, self.manager, None),
            (add, member, self.sme),
            (self.admin.move_project, self.manager, self.sme),
        ):
            self.assertRaises(exceptions.NotAuthorized, call, context, self.customer, parent_id)

    def test_only_an_admin_places_what_the_ledger_knows(self) -> None:
        """The usage and the limits of such a project would come under the manager's."""
        self.admin.set_limit(base.ADMIN, "gpu", 1, self.customer)
        error = self.assertRaises(
            exceptions.ProjectRefused, self.admin.add_project, self.manager, self.customer, self.sme
        )
        self.assertIn("is not new", str(error))
        self.admin.add_project(base.ADMIN, self.customer, self.sme)

    def test_rest(self) -> None:
        token, children = f"sue@{self.sme}:manager,member,reader", f"/v2/quotas/{self.sme}/children"
        for forced in ({}, {"force": True}):
            status, text = self.ask(token, "POST", children, {"project_id": self.of_other, **forced})
            self.assertEqual((409, True), (status, "only an admin can add it" in text), text)
        self.assertEqual((201, ""), self.ask(token, "POST", children, {"project_id": self.customer}))

    def test_keystone_does_not_answer(self) -> None:
        """Then nobody knows whose a project is. What the ledger knows is changed as before."""
        self.conf.write_text(self.conf.read_text().replace(self.keystone.url, "http://127.0.0.1:1/v3"))
        self.load()
        self.assertRaises(exceptions.ProjectLookupFailed, self.admin.add_project, self.manager, self.customer, self.sme)
        token, admin, quota = f"sue@{self.sme}:manager,member,reader", "alice@cloud:admin", {"quota": {"gpu": 4}}
        body = {"project_id": self.customer}
        self.assertEqual(503, self.ask(token, "POST", f"/v2/quotas/{self.sme}/children", body)[0])
        self.assertEqual(503, self.ask(admin, "PUT", f"/v2/quotas/{self.physics}", quota)[0])
        self.assertEqual((200, ""), self.ask(admin, "PUT", f"/v2/quotas/{self.physics}", {**quota, "force": True}))
        self.assertEqual((200, ""), self.ask(admin, "PUT", f"/v2/quotas/{self.sme}", quota))

    def test_without_credentials_only_an_admin_adds_projects(self) -> None:
        self.configure("[quota]\nresources = gpu\n[limits]\ndriver = database\n")
        self.load()
        refused = self.assertRaises(
            exceptions.NotAuthorized, self.admin.add_project, self.manager, self.customer, self.sme
        )
        self.assertIn("[oslo_limit]", str(refused))
        self.admin.add_project(base.ADMIN, "anything", self.sme)
        self.assertEqual((200, ""), self.ask("alice@cloud:admin", "PUT", "/v2/quotas/typo", {"quota": {"gpu": 4}}))

    def test_an_id_that_keystone_does_not_know(self) -> None:
        """As in Nova and Cinder; what the ledger knows needs no request."""
        admin, quota = "alice@cloud:admin", {"quota": {"gpu": 4}}
        refused = (400, "Keystone has no project with the name or id 'typo'. Use force to use this id nevertheless.")
        until = {"override": {**quota, "until": "2099-01-01T00:00:00Z"}}
        for method, path, body, good in (
            ("PUT", "", quota, 200),
            ("POST", "/overrides", until, 201),
            ("PUT", "/tree", {"parent_id": None}, 200),
            ("PUT", "/minimums", {"minimums": {"gpu": 1}}, 200),
        ):
            self.assertEqual(refused, self.ask(admin, method, f"/v2/quotas/typo{path}", body))
            self.assertEqual((good, ""), self.ask(admin, method, f"/v2/quotas/{self.physics}{path}", body))
        child = {"project_id": "typo"}
        self.assertEqual(refused, self.ask(admin, "POST", f"/v2/quotas/{self.sme}/children", child))
        # (To remove one needs no request.)
        self.assertEqual((200, ""), self.ask(admin, "PUT", "/v2/quotas/typo/minimums", {"minimums": {"gpu": 0}}))
        self.assertFalse(self.admin.is_known_project(base.ADMIN, "typo"))
        forced = {**child, "force": True}
        self.assertEqual((201, ""), self.ask(admin, "POST", f"/v2/quotas/{self.sme}/children", forced))
        self.assertEqual((200, ""), self.ask(admin, "PUT", "/v2/quotas/typo", quota))


class TestPages(test_limits.LimitsTestCase):
    """What the manager of a parent sees: all descendants, page by page."""

    def in_pages(self, size: int) -> list[Any]:
        """The tree in pages of so many projects."""
        rows: list[Any] = []
        after, has_more = None, True
        while has_more:
            page, has_more = self.admin.tree_page(base.ADMIN, "top", size, after)
            self.assertLessEqual(len({row.project_id for row in page}), size)
            rows += page
            after = rows[-1].project_id
        return rows

    def test_pages_of_a_deep_tree(self) -> None:
        tree: dict[str, str | None] = {"top": None, "z": None}
        for name in ("b", "a", "ab", "aa", "ac", "aba", "abb", "ba", "baa", "bb", "c", "ca", "caa", "caaa"):
            tree[name] = name[:-1] or "top"
        self.import_tree(tree, {}, gpu=0)
        whole = self.admin.tree(base.ADMIN, "top")
        self.assertEqual(sorted(set(tree) - {"top", "z"}), [row.project_id for row in whole[1:]])
        for size in range(1, len(whole) + 2):
            self.assertEqual(whole, self.in_pages(size), size)
        self.check_a_large_family()
        for after in ("z", "nothing"):
            self.assertRaises(exceptions.MarkerNotFound, self.admin.tree_page, base.ADMIN, "top", 1, after)

    def check_a_large_family(self) -> None:
        """900 projects below the first child, with a child each: more steps than MariaDB makes in one recursion."""
        parents = {f"w{number:03}": "aa" for number in range(900)} | {
            f"x{number:03}": f"w{number:03}" for number in range(900)
        }
        rows = [{"project_id": name, "parent_id": parent, "generation": 0} for name, parent in parents.items()]
        with self.sql.begin() as connection:
            connection.execute(models.projects.insert(), rows)
        whole = self.admin.tree(base.ADMIN, "top")
        for size in (1_000, 399):
            self.assertEqual(whole, self.in_pages(size))


class TestImportFromKeystone(test_project_names.ProjectNamesTestCase):
    """ "Currently, we have around 3,400 projects in the CERN cloud": limits are kept here, and the tree is Keystone's.

    "Typically around 50 child projects for each parent", and "up to 400 child projects per parent".
    """

    scenarios = fixtures.ON_SQLITE
    SECONDS = 30.0
    COMMAND = ("project", "import", "--from", "keystone")

    def make_projects(self) -> dict[str, str]:
        """Add the projects to Keystone's tables, which takes minutes by its API. Return their parents."""
        personal, *experiments = [uuid.uuid4().hex for _ in range(5)]
        parents = dict.fromkeys([personal, *experiments], self.dom)
        parents |= {uuid.uuid4().hex: personal for _ in range(400)}
        groups = {uuid.uuid4().hex: experiments[number % 4] for number in range(59)}
        parents |= groups
        names = itertools.cycle(groups)
        parents |= {uuid.uuid4().hex: next(names) for _ in range(3400 - len(parents))}
        columns = "id, name, extra, enabled, is_domain, domain_id, parent_id"
        rows = [(name, name, "{}", True, False, self.dom, above) for name, above in parents.items()]
        self.change_keystone(f"INSERT INTO project ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self.addCleanup(self.change_keystone, "DELETE FROM project WHERE domain_id = ?", [(self.dom,)])
        return parents

    def change_keystone(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        with contextlib.closing(sqlite3.connect(self.keystone.workdir / "keystone.sqlite", timeout=60)) as database:
            database.executemany(statement, rows)
            database.commit()

    def changes(self, *argv: str) -> dict[str, tuple[str, str | None, str | None]]:
        """Return the changes of these projects that the command prints."""
        rows = {row["project_id"]: row for row in self.good(*self.COMMAND, *argv)}
        return {name: (row["action"], row["before"], row["after"]) for name, row in rows.items() if name in self.wanted}

    def edges(self) -> dict[str, str | None]:
        """Those of this test's projects: the domains of other tests are imported too."""
        rows = {row["project_id"]: row["parent_id"] for row in self.good("project", "list")}
        return {name: rows[name] for name in self.wanted if name in rows}

    def test_3400_projects(self) -> None:
        parents = self.make_projects()
        self.wanted = {**parents, self.physics: self.dom, self.atlas: self.dom, self.dom: None}
        holder, elsewhere = list(parents)[-2:]
        self.silent("set", "--default", "gpu=5")
        self.good("reserve", "--project", holder, "gpu=2")
        for name in ("team", self.dom):
            self.silent("project", "set", name, "--force", "--no-parent")
        for name in (elsewhere, self.dom):
            self.silent("project", "set", name, "--parent", "team")
        expected = {name: ("add project", None, above) for name, above in self.wanted.items()}
        expected[holder] = ("move project", None, parents[holder])
        expected[elsewhere] = ("move project", "team", parents[elsewhere])
        expected[self.dom] = ("move project", "team", None)

        self.assertEqual(expected, self.changes("--dry-run"))
        self.assertEqual({holder: None, elsewhere: "team", self.dom: "team"}, self.edges())
        began = time.monotonic()
        self.assertEqual(expected, self.changes("--reason", "one tree"))
        self.assertLess(time.monotonic() - began, self.SECONDS)
        self.assertEqual(self.wanted, self.edges())
        self.assertEqual({}, self.changes())
        [entry, *_] = self.good("history", "list", "--project", elsewhere)
        self.assertEqual(("team", parents[elsewhere]), (entry["before"], entry["after"]), entry)
        self.assertEqual("one tree", entry["reason"])
        with fixtures.plain_engine(self.url).connect() as connection:
            invariants.assert_hold(connection)
            held = trees.subtrees(connection, "gpu")
        self.assertEqual((2, 2), (held[parents[holder]], held[self.dom]))

        new = self.create("susy", parent_id=holder)
        self.wanted[new] = holder
        self.assertEqual({new: ("add project", None, holder)}, self.changes())
        self.assertEqual({}, self.changes())

    def test_refused(self) -> None:
        """If the tree is that of Keystone, by one line, before Keystone is read."""
        self.misused("project", "import", "--from", "nova")
        self.addCleanup(self.keystone.start, "flat")
        self.keystone.stop()
        line = self.refused(1, *self.COMMAND)
        self.assertIn(f"Projects cannot be looked up: Keystone at {self.keystone.url} cannot be reached", line)
        self.driver = "keystone"
        self.write_config(self.keystone.people.reader, "endpoint_id = cyborgs\n")
        for options in ((), ("--dry-run",)):
            line = self.refused(1, *self.COMMAND, *options)
            reason = "The project tree is kept in Keystone, because [limits] driver is keystone: change it there."
            self.assertEqual(f"cyborg-quota: {reason}\n", line)
        self.configure()
        self.assertIn("--from keystone needs Keystone", self.refused(2, *self.COMMAND))
