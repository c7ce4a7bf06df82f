# SPDX-License-Identifier: Apache-2.0
"""CERN, "Nested quota models" (2017): its example, rule by rule, and its use cases."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
import uuid
from typing import Any, ClassVar, Final

import webob
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import exceptions
from cyborg_quota.conf import loading
from cyborg_quota.db import models
from tests import base, fixtures, invariants, trees
from tests.api import server
from tests.functional import test_limits, test_policy
from tests.integration import test_keystone, test_project_names


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
        self.quotas.limits.import_limits(base.ADMIN, {"defaults": {"gpu": 0}, "projects": [_ATLAS]})
        for project_id, amount in _USED.items():
            self.use(project_id, amount)

    def use(self, project_id: str, amount: int) -> None:
        """Reserve and commit."""
        self.quotas.commit(
            base.ADMIN, self.quotas.reserve(base.ADMIN, {"gpu": amount}, project_id=project_id), project_id
        )

    def set_limit(self, project_id: str, limit: int) -> None:
        """Set the limit of a project."""
        self.quotas.limits.set_limit(base.ADMIN, "gpu", limit, project_id)

    def assert_not_allowed(self, project_id: str, limit: int) -> None:
        """Assert that the model refuses this limit."""
        self.assertRaises(exceptions.LimitRefused, self.set_limit, project_id, limit)

    def assert_exceeds(self, project_id: str, *owners: str, amount: int = 1) -> None:
        """Assert that a reserve is refused, and that the error names these projects, whose limits it would exceed."""
        with self.assertRaises(exceptions.OverQuota) as refused:
            self.use(project_id, amount)
        self.assertEqual(list(owners), [over.project_id for over in refused.exception.overs])

    def test_1_the_children_of_atlas_cannot_get_more(self) -> None:
        self.assert_not_allowed("physics", 31)
        self.assert_not_allowed("operations", 71)

    def test_2_either_child_of_physics_can_get_10_more(self) -> None:
        for project_id in ("higgs", "simulation"):
            self.set_limit(project_id, 20)
            self.set_limit(project_id, 10)

    def test_3_the_children_of_operations_cannot_get_more(self) -> None:
        self.assert_not_allowed("workflow", 41)
        self.assert_not_allowed("web", 31)

    def test_4_operations_cannot_get_less_than_its_children(self) -> None:
        self.assert_not_allowed("operations", 50)

    def test_5_a_limit_can_be_below_the_usage(self) -> None:
        self.set_limit("simulation", 5)

    def test_6_a_full_project_gets_no_more(self) -> None:
        self.assert_exceeds("simulation", "simulation")

    def test_7_a_full_parent_refuses_and_is_named(self) -> None:
        self.set_limit("simulation", 5)
        self.set_limit("physics", 20)
        self.set_limit("higgs", 15)
        self.assert_exceeds("higgs", "physics")

    def test_8_what_fits_at_every_level_is_granted(self) -> None:
        self.assert_exceeds("web", "web", amount=26)
        self.use("web", 25)

    def test_9_the_usage_afterwards(self) -> None:
        self.use("web", 25)
        rows = {row.project_id: row for row in self.quotas.limits.tree(base.ADMIN)}
        self.assertEqual(30, rows["web"].used)
        self.assertEqual(60, rows["operations"].hierarchical_usage)
        self.assertEqual(80, rows["atlas"].hierarchical_usage)


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

    def test_the_model_still_decides(self) -> None:
        self.admin.set_limit(base.ADMIN, "gpu", 30)
        self.admin.unset_limit(base.ADMIN, "gpu", self.sme)
        self.admin.add_project(self.manager, self.customer, self.sme)
        self.assertRaises(exceptions.LimitRefused, self.admin.set_limit, self.manager, "gpu", 31, self.customer)

    def test_no_project_of_others_is_taken(self) -> None:
        """Whether Keystone has it elsewhere or not at all, and whether the ledger knows it or not: one answer."""
        texts = set()
        for project_id in (self.other, self.of_other, self.physics, self.sme, self.dom, "0" * 32, "no-id!"):
            error = self.assertRaises(
                exceptions.ProjectRefused, self.admin.add_project, self.manager, project_id, self.sme
            )
            texts.add(str(error).replace(project_id, "X").replace(self.sme, "X"))
        self.assertEqual({"Project 'X' is not below X in Keystone; only an admin can add it."}, texts)
        for parent_id in (self.other, "nowhere", None):
            self.assertRaises(exceptions.NotAuthorized, self.admin.add_project, self.manager, self.customer, parent_id)
        member = test_policy.User(self.sme, roles=["member"])
        self.assertRaises(exceptions.NotAuthorized, self.admin.add_project, member, self.customer, self.sme)
        self.assertRaises(exceptions.NotAuthorized, self.admin.move_project, self.manager, self.customer, self.sme)

    def test_only_an_admin_places_what_the_ledger_knows(self) -> None:
        """The usage and the limits of such a project would come under the manager's."""
        self.admin.set_limit(base.ADMIN, "gpu", 1, self.customer)
        error = self.assertRaises(
            exceptions.ProjectRefused, self.admin.add_project, self.manager, self.customer, self.sme
        )
        self.assertIn("is not new", str(error))
        self.admin.add_project(base.ADMIN, self.customer, self.sme)

    def test_rest(self) -> None:
        token, admin = f"sue@{self.sme}:manager,member,reader", "alice@cloud:admin"
        children = f"/v2/quotas/{self.sme}/children"
        status, text = self.ask(token, "POST", children, {"project_id": self.of_other})
        self.assertEqual((409, True), (status, "only an admin can add it" in text), text)
        status, text = self.ask(token, "POST", children, {"project_id": self.of_other, "force": True})
        self.assertEqual((409, True), (status, "only an admin can add it" in text), text)
        self.assertEqual((201, ""), self.ask(token, "POST", children, {"project_id": self.customer}))
        self.assertEqual((400, True), self.unknown(admin, "POST", children, {"project_id": "typo"}))
        self.assertEqual((201, ""), self.ask(admin, "POST", children, {"project_id": "typo", "force": True}))

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

    def unknown(self, token: str, method: str, path: str, body: Any) -> tuple[int, bool]:
        status, text = self.ask(token, method, path, body)
        return (
            status,
            text == "Keystone has no project with the name or id 'typo'. Use force to use this id nevertheless.",
        )

    def test_an_id_that_keystone_does_not_know(self) -> None:
        """As in Nova and Cinder; what the ledger knows needs no request."""
        admin, quota = "alice@cloud:admin", {"quota": {"gpu": 4}}
        until = {"override": {**quota, "until": "2099-01-01T00:00:00Z"}}
        calls: list[tuple[str, str, dict[str, Any], int]] = [
            ("PUT", "", quota, 200),
            ("POST", "/overrides", until, 201),
            ("PUT", "/tree", {"parent_id": None}, 200),
            ("PUT", "/minimums", {"minimums": {"gpu": 1}}, 200),
        ]
        for method, path, body, good in calls:
            self.assertEqual((400, True), self.unknown(admin, method, f"/v2/quotas/typo{path}", body))
            self.assertEqual((good, ""), self.ask(admin, method, f"/v2/quotas/{self.physics}{path}", body))
        # (To remove one needs no request.)
        self.assertEqual((200, ""), self.ask(admin, "PUT", "/v2/quotas/typo/minimums", {"minimums": {"gpu": 0}}))
        self.assertFalse(self.admin.is_known_project(base.ADMIN, "typo"))
        self.assertEqual((200, ""), self.ask(admin, "PUT", "/v2/quotas/typo", {**quota, "force": True}))
        self.assertEqual((200, ""), self.ask(admin, "PUT", "/v2/quotas/typo", quota))


class TestHierarchicalUsage(test_limits.LimitsTestCase):
    """ "Hierarchical Usage is the usage of all of the child projects below the project in the tree"."""

    scenarios = fixtures.ON_SQLITE

    def test_what_a_project_itself_holds_is_not_in_it(self) -> None:
        self.import_tree(
            {"atlas": None, "physics": "atlas", "higgs": "physics"}, {"atlas": 9, "physics": 8, "higgs": 7}
        )
        for project_id, amount in (("atlas", 1), ("physics", 2), ("higgs", 4)):
            self.hold(project_id, amount)
        self.quotas.reserve(base.ADMIN, {"gpu": 1}, project_id="atlas")
        self.quotas.reserve(base.ADMIN, {"gpu": 1}, project_id="higgs")
        rows = {row.project_id: row for row in self.admin.tree(base.ADMIN) if row.resource == "gpu"}
        self.assertEqual({"atlas": 7, "physics": 5, "higgs": 0}, {n: row.hierarchical_usage for n, row in rows.items()})
        self.assertEqual({"atlas": 9, "physics": 7, "higgs": 5}, {n: row.subtree for n, row in rows.items()})


class TestPages(test_limits.LimitsTestCase):
    """What the manager of a parent sees: all descendants, page by page."""

    def test_pages_of_a_deep_tree(self) -> None:
        tree: dict[str, str | None] = {"top": None, "z": None}
        for name in ("b", "a", "ab", "aa", "ac", "aba", "abb", "ba", "baa", "bb", "c", "ca", "caa", "caaa"):
            tree[name] = name[:-1] or "top"
        self.import_tree(tree, {}, gpu=0)
        whole = [(row.project_id, row.depth, row.parent_id) for row in self.admin.tree(base.ADMIN, "top")]
        self.assertEqual(sorted(set(tree) - {"top", "z"}), [name for name, *_ in whole[1:]])
        for size in range(1, len(whole) + 2):
            found: list[Any] = []
            after, has_more = None, True
            while has_more:
                rows, has_more = self.admin.tree_page(base.ADMIN, "top", size, after)
                self.assertLessEqual(len(rows), size)
                found += [(row.project_id, row.depth, row.parent_id) for row in rows]
                after = rows[-1].project_id
            self.assertEqual(whole, found, size)
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
        whole = list(dict.fromkeys(row.project_id for row in self.admin.tree(base.ADMIN, "top")))
        for size in (1_000, 399):
            found: list[str] = []
            has_more = True
            while has_more:
                page, has_more = self.admin.tree_page(base.ADMIN, "top", size, found[-1] if found else None)
                found += list(dict.fromkeys(row.project_id for row in page))
            self.assertEqual(whole, found)


class TestLimitsFromKeystone(test_keystone.HierarchyTestCase):
    """Limits are stored in Keystone, which has the project tree too (requirement "Limits would be stored in Keystone").

    The limit of Physics is what its children use; ATLAS uses nothing itself. The usage before the example follows from
    the document's figures after it: Web 30, Operations 60, ATLAS 80.
    """

    scenarios = fixtures.ON_SQLITE
    PARENTS: ClassVar[dict[str, str | None]] = trees.CERN
    LIMITS: ClassVar[dict[str, int]] = {
        **{"atlas": 100, "physics": 20, "operations": 80},
        **{"higgs": 15, "simulation": 10, "workflow": 50, "web": 30},
    }
    USED: ClassVar[dict[str, int]] = {"higgs": 10, "simulation": 10, "workflow": 30, "web": 5}

    def setUp(self) -> None:
        super().setUp()
        self.keystone.register(self.service, "gpu", 0)  # child projects are initially created with a limit of 0
        self.set_limits(**self.LIMITS)
        for name, gpus in self.USED.items():
            context = base.Context(self.tree[name])
            self.quotas.commit(context, self.quotas.reserve(context, {"gpu": gpus}))

    def test_creating_a_resource_requires_room_at_all_levels(self) -> None:
        # "No additional resources could be created in Simulation since Used(Simulation)>=Limit(Simulation)", also if
        # its limit is lowered to 5, below the 10 used.
        self.assertIn(("simulation", 10), self.refused("simulation"))
        self.set_limits(simulation=5)
        self.assertEqual([("physics", 20), ("simulation", 5)], self.refused("simulation"))
        # "No additional resources could be created in Higgs as HierarchicalUsage(Physics)>=Limit(Physics). The error
        # message for this case would need to indicate the quota limit is in Physics."
        self.assertEqual((0, "physics"), self.fits("higgs"))
        self.assertEqual([("physics", 20)], self.refused("higgs"))
        with self.assertRaisesRegex(exceptions.OverQuota, f"project {self.tree['physics']}, resource gpu: limit 20 "):
            self.reserve(self.tree["higgs"])
        # "Up to 25 new resources could be created in Web".
        self.assertEqual((25, "web"), self.fits("web"))
        self.assertEqual([("web", 30)], self.refused("web", 26))
        self.reserve(self.tree["web"], 25)
        held = self.held()
        self.assertEqual((30, 60, 80), (held["web"], held["operations"], held["atlas"]))

    def test_resources_at_any_level_of_the_tree(self) -> None:
        self.reserve(self.tree["operations"], 40)
        self.assertEqual((5, "operations"), self.fits("web"))
        self.reserve(self.tree["atlas"], 5)
        self.assertEqual((100, "atlas"), (self.held()["atlas"], self.refused("atlas")[0][0]))

    def test_a_new_child_has_the_limit_0(self) -> None:
        self.create("susy", "physics")
        self.assertEqual((0, "susy"), self.fits("susy"))
        self.assertEqual([("physics", 20), ("susy", 0)], self.refused("susy"))


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
        with contextlib.closing(sqlite3.connect(self.keystone.workdir / "keystone.sqlite", timeout=60)) as database:
            columns = "id, name, extra, enabled, is_domain, domain_id, parent_id"
            rows = [(name, name, "{}", True, False, self.dom, above) for name, above in parents.items()]
            database.executemany(f"INSERT INTO project ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            database.commit()
        self.addCleanup(self.remove_projects)
        return parents

    def remove_projects(self) -> None:
        with contextlib.closing(sqlite3.connect(self.keystone.workdir / "keystone.sqlite", timeout=60)) as database:
            database.execute("DELETE FROM project WHERE domain_id = ?", [self.dom])
            database.commit()

    def changes(self, *argv: str) -> dict[str, tuple[str, str | None, str | None]]:
        """Return the changes of these projects that the command prints."""
        rows = {row["project_id"]: row for row in self.good(*self.COMMAND, *argv)}
        return {name: (row["action"], row["before"], row["after"]) for name, row in rows.items() if name in self.wanted}

    def edges(self) -> dict[str, str | None]:
        rows = {row["project_id"]: row["parent_id"] for row in self.good("project", "list")}
        return {name: rows[name] for name in self.wanted if name in rows}

    def test_3400_projects(self) -> None:
        parents = self.make_projects()
        self.wanted = {**parents, self.physics: self.dom, self.atlas: self.dom}
        holder, elsewhere = list(parents)[-2:]
        self.silent("set", "--default", "gpu=5")
        self.good("reserve", "--project", holder, "gpu=2")
        self.silent("project", "set", "team", "--force", "--no-parent")
        self.silent("project", "set", elsewhere, "--parent", "team")
        expected = {name: ("add project", None, above) for name, above in self.wanted.items()}
        expected[holder] = ("move project", None, parents[holder])
        expected[elsewhere] = ("move project", "team", parents[elsewhere])

        self.assertEqual(expected, self.changes("--dry-run"))
        self.assertEqual({holder: None, elsewhere: "team"}, self.edges())
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

    def test_refused_if_the_tree_is_that_of_keystone(self) -> None:
        """By one line, before Keystone is read."""
        self.driver = "keystone"
        self.write_config(self.keystone.people.reader, "endpoint_id = cyborgs\n")
        self.addCleanup(self.keystone.start, "flat")
        self.keystone.stop()
        for options in ((), ("--dry-run",)):
            line = self.refused(1, *self.COMMAND, *options)
            reason = "The project tree is kept in Keystone, because [limits] driver is keystone: change it there."
            self.assertEqual(f"cyborg-quota: {reason}\n", line)
