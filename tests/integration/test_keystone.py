# SPDX-License-Identifier: Apache-2.0
"""The engine with the limit driver keystone, against a real Keystone."""

from __future__ import annotations

import datetime
import json
import pathlib
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, ClassVar
from unittest import mock

import fixtures as fx
from falcon import testing

import cyborg_quota
from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.cli import main
from cyborg_quota.limits.sources.cache import PAUSE_SECONDS, Cache
from cyborg_quota.osc import quota
from cyborg_quota.types import Over
from tests import base, fixtures, keystones, trees
from tests.api import client, server
from tests.cli import base as cli
from tests.integration import server as servers
from tests.servers import machine, sharing

TTL, STALE = 60.0, 600.0
OUTAGE_SECONDS = 60.0


class Clock:
    """A stopped clock, with the functions of the module ``time`` that the limit driver uses."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def described(overs: Iterable[Over]) -> list[tuple[str, str, int | None]]:
    return [(over.project_id, over.scope, over.limit) for over in overs]


class KeystoneTestCase(base.LedgerTestCase):
    """A service of its own (gpu: 10 by default), a domain ``dom`` with projects ``p1`` to ``p3``, and ``quotas``.

    Cached limits become older only by ``later``: however slow the machine is, they are as old as the test says.
    """

    model = "flat"
    """That of Keystone."""
    enforcement_model: str | None = None
    """[limits] enforcement_model"""
    timeout_seconds = 30.0
    """Long, so that a busy machine is not taken for an outage, after which old limits would be used."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fx.FakeLogger())
        self.clock = Clock()
        self.useFixture(fx.MonkeyPatch("cyborg_quota.limits.sources.keystone.time", self.clock))
        self.keystone = sharing.need(self, "Keystone", servers.running, self.model)
        self.service, self.endpoint = self.keystone.create_service()
        people = self.keystone.people
        self.dom, (self.p1, self.p2, self.p3), self.user = people.domain_id, people.project_ids, people.reader
        self.keystone.register(self.service, "gpu", 10)
        self.quotas: QuotaEngine = fixtures.Checked(self.make_quotas(), self.url)  # type: ignore[assignment]

    def make_quotas(self, **changes: Any) -> QuotaEngine:
        username, password = self.user
        options = {
            "database__connection": self.url,
            "quota__resources": ["gpu", "fpga"],
            "oslo_limit__timeout": self.timeout_seconds,
            "limits__enforcement_model": self.enforcement_model,
            "limits__keystone_cache_ttl": TTL,
            "limits__keystone_stale_seconds": STALE,
            "oslo_limit__auth_type": "password",
            "oslo_limit__auth_url": self.keystone.url,
            "oslo_limit__username": username,
            "oslo_limit__password": password,
            "oslo_limit__endpoint_id": self.endpoint,
        }
        self.conf = keystones.settings(**{**options, **changes})
        engine = cyborg_quota.make_engine(self.conf)
        self.addCleanup(engine.close)
        return engine

    def reserve(self, project_id: str, gpus: int = 1) -> None:
        self.quotas.reserve(base.Context(project_id), {"gpu": gpus})

    def blocking(self, project_id: str, gpus: int = 1) -> list[tuple[str, str, int | None]]:
        """Return (project, scope, limit) of everything that refuses a reserve."""
        error = self.assertRaises(exceptions.OverQuota, self.reserve, project_id, gpus)
        return described(error.overs)

    def list_quotas(self) -> Any:
        """GET /v2/quotas as an admin."""
        application = server.make_application(self.conf, self.quotas)
        return testing.TestClient(application).simulate_get("/v2/quotas", headers={"X-Auth-Token": server.ADMIN})

    def later(self, seconds: float) -> None:
        """Let this much time pass for the cached limits."""
        self.clock.now += seconds

    def eventually(self, act: Callable[[], object]) -> object:
        """Repeat ``act``, with the pause after a failed request, until the limits are available."""

        deadline = time.monotonic() + OUTAGE_SECONDS
        while True:
            self.later(PAUSE_SECONDS)
            try:
                return act()
            except exceptions.LimitsUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(machine.POLL_SECONDS)


class TestFlat(KeystoneTestCase):
    def test_limits_change_while_it_runs(self) -> None:
        """First the registered one, then that of the project."""
        self.reserve(self.p1, 4)
        self.keystone.register(self.service, "gpu", 3)
        self.later(TTL)
        self.assertEqual([(self.p1, "project", 3)], self.blocking(self.p1))
        for limit in (1, -1, 0):
            self.keystone.set_limit(self.service, "gpu", limit, project_id=self.p1)
            self.later(TTL)
            if limit == -1:
                self.reserve(self.p1, 1000)
            else:
                self.assertEqual([(self.p1, "project", limit)], self.blocking(self.p1))

    def test_an_admin_sees_the_consumption_of_all_projects(self) -> None:
        """Cyborg's specification: Alice."""
        self.reserve(self.p1, 4)
        self.reserve(self.p2, 1)
        self.keystone.set_limit(self.service, "gpu", 7, project_id=self.p2)
        self.later(TTL)
        found = self.list_quotas().json["quotas"]
        usage = {one["project_id"]: one["usage"]["gpu"] for one in found}
        self.assertEqual({self.p1: {"in_use": 0, "reserved": 4}, self.p2: {"in_use": 0, "reserved": 1}}, usage)
        limits = {one["project_id"]: (one["quota"]["gpu"], one["overrides"], one["in_force"]) for one in found}
        self.assertEqual({self.p1: (10, 0, {}), self.p2: (7, 0, {})}, limits)

    def test_the_client_lists_the_limits_of_keystone(self) -> None:
        """Those of the projects that hold something; not what the ledger may have stored before."""
        engine = self.make_quotas(limits__driver="database")
        engine.limits.set_limits(base.ADMIN, {"gpu": 99}, self.p1)
        engine.limits.set_limits(base.ADMIN, {"gpu": 98}, "nobody")
        engine.limits.set_overrides(base.ADMIN, {"gpu": 97}, self.p1, datetime.datetime(2999, 1, 1))
        self.make_quotas()
        self.reserve(self.p1, 4)
        application = server.make_application(self.conf, self.quotas)
        for words, figures in (((), {}), (("--usage",), {"In Use": 0, "Reserved": 4})):
            out, _ = client.run(application, server.ADMIN, quota.ListQuota, *words, "-f", "json")
            expected = {"Project ID": self.p1, "Resource": "gpu", "Limit": 10, **figures, "In Force": None}
            self.assertEqual([expected], [row for row in json.loads(out) if row["Resource"] == "gpu"])

    def test_the_limit_commands_read_and_name_where_limits_are_set(self) -> None:
        self.keystone.set_limit(self.service, "gpu", 7, project_id=self.p2)
        username, password = self.user
        conf = pathlib.Path(self.useFixture(fx.TempDir()).path) / "cyborg_quota.conf"
        connection = self.url.replace("$", "$$")
        conf.write_text(
            f"[database]\nconnection = {connection}\n[quota]\nresources = gpu\n[limits]\ndriver = keystone\n"
            f"[oslo_limit]\ntimeout = 30\nauth_type = password\nauth_url = {self.keystone.url}\n"
            f"username = {username}\npassword = {password}\nuser_domain_id = default\nsystem_scope = all\n"
            f"endpoint_id = {self.endpoint}\n"
        )

        named = ("--config-file", str(conf))
        ended = cli.run_program(main.main, *named, "show", self.p2, "-f", "json")
        self.assertEqual((0, ""), (ended.status, ended.err))
        self.assertEqual([(self.p2, "gpu", 7)], [(x["project_id"], x["resource"], x["limit"]) for x in ended.json])

        ended = cli.run_program(main.main, *named, "set", "gpu=9", self.p2)
        self.assertEqual((1, "", 1), (ended.status, ended.out, ended.err.count("\n")), ended.err)
        self.assertIn("in Keystone (openstack registered limit set, openstack limit set)", ended.err)

    def test_the_service_by_its_name(self) -> None:
        name = self.keystone.admin.get(f"/services/{self.service}").json()["service"]["name"]
        quotas = self.make_quotas(
            oslo_limit__endpoint_id=None,
            oslo_limit__endpoint_service_name=name,
            oslo_limit__endpoint_service_type="accelerator",
            oslo_limit__endpoint_region_name="RegionOne",
            limits__keystone_names={"fpga": "gpu"},
        )
        error = self.assertRaises(exceptions.OverQuota, quotas.reserve, base.Context(self.p1), {"fpga": 11})
        self.assertEqual(10, error.overs[0].limit)

    def refused_user(self, **changes: Any) -> str:
        quotas = self.make_quotas(**changes)
        error = self.assertRaises(exceptions.LimitsUnavailable, quotas.reserve, base.Context(self.p1), {"gpu": 1})
        return str(error)

    def test_a_user_without_the_role(self) -> None:
        hint = "openstack role add --user USER --user-domain DOMAIN --system all reader"
        output = self.refused_user(oslo_limit__password="wrong-password")
        self.assertIn("does not authenticate the user of [oslo_limit]", output)
        self.assertIn(hint, output)
        self.assertNotIn("wrong-password", output + self.log.output)

        name, password = self.keystone.people.member_of_the_first
        output = self.refused_user(
            oslo_limit__username=name,
            oslo_limit__password=password,
            oslo_limit__system_scope=None,
            oslo_limit__project_id=self.p1,
        )
        self.assertIn("may not read /endpoints/", output)
        self.assertIn(hint, output)


class TestTwoLevels(KeystoneTestCase):
    model = "strict_two_level"

    def test_the_domain_blocks_and_is_named(self) -> None:
        """5 + 5 under 8: Keystone compares each with the domain, and never the sum."""
        self.keystone.set_limit(self.service, "gpu", 8, domain_id=self.dom)
        for project_id in (self.p1, self.p2):
            self.keystone.set_limit(self.service, "gpu", 5, project_id=project_id)
        self.reserve(self.p1, 5)
        self.reserve(self.p2, 3)

        self.assertEqual([(self.dom, "subtree", 8)], self.blocking(self.p2))
        self.assertEqual([(self.p1, "project", 5)], self.blocking(self.p1))  # (of equal ones, the nearest)
        found = self.quotas.check(base.ADMIN, {"gpu": 1}, self.p1)
        self.assertEqual({(self.p1, "project", 5), (self.dom, "subtree", 8)}, set(described(found)))
        seen: list[Over] = self.quotas.check(base.Context(self.p2), {"gpu": 1})
        self.assertEqual([(self.dom, 8, None)], [(over.project_id, over.limit, over.used) for over in seen])

        self.keystone.set_limit(self.service, "gpu", 9, domain_id=self.dom)
        self.later(TTL)
        self.reserve(self.p2)
        self.assertEqual([(self.dom, "subtree", 9)], self.blocking(self.p2))


class TestSwitchOfDriver(KeystoneTestCase):
    """From strict_two_level to the driver database, and back, on one ledger."""

    model = "strict_two_level"

    def test_switch_and_switch_back(self) -> None:
        """The edges stay; those that the operator makes meanwhile are replaced where Keystone contradicts them."""
        self.keystone.set_limit(self.service, "gpu", 8, domain_id=self.dom)
        for project_id in (self.p1, self.p2):
            self.reserve(project_id, 3)

        model = {"limits__enforcement_model": self.model, "limits__child_initial_limit": "default"}
        engine = self.make_quotas(limits__driver="database", **model)
        by_database: QuotaEngine = fixtures.Checked(engine, self.url)  # type: ignore[assignment]
        administration = by_database.limits
        administration.set_limit(base.ADMIN, "gpu", 7)
        error = self.assertRaises(exceptions.OverQuota, by_database.reserve, base.Context(self.p1), {"gpu": 2})
        self.assertEqual([(self.dom, 7)], [(over.project_id, over.limit) for over in error.overs])

        administration.add_project(base.ADMIN, "team")
        administration.move_project(base.ADMIN, self.p1, "team")
        by_database.reserve(base.Context(self.p1), {"gpu": 2})
        error = self.assertRaises(exceptions.TreeReadOnly, self.move_to_root, self.p1)
        self.assertIn("kept in Keystone", str(error))
        self.assertEqual([(self.dom, "subtree", 8)], self.blocking(self.p1))
        self.assertIn(f"project_id={self.p1} before=team after={self.dom}", self.log.output)
        self.assertEqual({self.p1: self.dom, self.p2: self.dom}, self.edges())

    def move_to_root(self, project_id: str) -> None:
        self.quotas.limits.move_project(base.ADMIN, project_id, None)

    def edges(self) -> dict[str, str]:
        found = self.quotas.limits.list_projects(base.ADMIN)
        return {project_id: parent_id for project_id, parent_id in found if parent_id is not None}

    def test_a_new_project_gets_its_parent_at_its_first_reserve(self) -> None:
        """Without a command: as a root, it would escape the limit of its domain."""
        self.keystone.set_limit(self.service, "gpu", 4, domain_id=self.dom)
        self.reserve(self.p1, 3)
        new = self.keystone.create("project", name=f"new-{uuid.uuid4().hex}", domain_id=self.dom)
        self.assertEqual([(self.dom, "subtree", 4)], self.blocking(new, 2))
        self.reserve(new, 1)
        self.assertEqual({self.p1: self.dom, new: self.dom}, self.edges())
        self.assertEqual([(self.dom, "subtree", 4)], self.blocking(new, 1))


class HierarchyTestCase(KeystoneTestCase):
    """The tree of projects that CERN's document has, in the domain ``dom``; ``tree`` has their IDs by name."""

    enforcement_model = "strict_hierarchy"
    PARENTS: ClassVar[dict[str, str | None]] = {
        name: parent_id for name, parent_id in trees.CERN.items() if parent_id != "operations"
    }

    def setUp(self) -> None:
        super().setUp()
        self.tree: dict[str, str] = {}
        for name, parent in self.PARENTS.items():
            self.create(name, parent)

    def create(self, name: str, parent: str | None) -> str:
        above = {} if parent is None else {"parent_id": self.tree[parent]}
        named = f"{name}-{uuid.uuid4().hex}"
        self.tree[name] = project_id = self.keystone.create("project", name=named, domain_id=self.dom, **above)
        # Its descendants are deleted before it. (With trees, Keystone does not start with the model strict_two_level.)
        self.addCleanup(self.keystone.admin.delete, f"/projects/{project_id}", raise_exc=False)
        return project_id

    @property
    def names(self) -> dict[str, str]:
        """By ID."""
        return {project_id: name for name, project_id in self.tree.items()} | {self.dom: "dom"}

    def set_limits(self, **limits: int) -> None:
        for name, limit in limits.items():
            self.keystone.set_limit(self.service, "gpu", limit, project_id=self.tree[name])
        self.later(TTL)

    def refused(self, name: str, gpus: int = 1) -> list[tuple[str, int | None]]:
        """Return (project, limit) of all that refuses a reserve, by names; the check before it says the same."""
        names = self.names
        checked = self.quotas.check(base.ADMIN, {"gpu": gpus}, self.tree[name])
        error = self.assertRaises(
            exceptions.OverQuota, self.quotas.reserve, base.ADMIN, {"gpu": gpus}, project_id=self.tree[name]
        )
        self.assertEqual(described(checked), described(error.overs))
        return sorted((names[project_id], limit) for project_id, _, limit in described(error.overs))

    def fits(self, name: str) -> tuple[int, str | None]:
        """Return the headroom, and the name of the project whose limit binds; all calls say the same (H1)."""
        names = self.names
        found = self.quotas.headroom(base.ADMIN, self.tree[name])["gpu"]
        (detail,) = (one for one in self.quotas.get_detail(base.ADMIN, self.tree[name]) if one.resource == "gpu")
        self.assertEqual(found, detail.headroom)
        self.assertEqual([], self.quotas.check(base.ADMIN, {"gpu": found.fits}, self.tree[name]) if found.fits else [])
        self.assertNotEqual([], self.quotas.check(base.ADMIN, {"gpu": found.fits + 1}, self.tree[name]))
        return found.fits, names[str(found.bound_by)]

    def edges(self) -> dict[str, str | None]:
        """Return the parent of each project of the ledger that has one, by names."""
        names = self.names
        listed = self.quotas.limits.list_projects(base.ADMIN)
        return {names.get(one, one): names.get(above, above) for one, above in listed if above is not None}

    def held(self) -> dict[str, int]:
        """Return what each project and its descendants hold, by names, without zeros."""
        names = self.names
        return {names.get(project_id, project_id): held for project_id, held in self.subtrees().items() if held}


class TestHierarchy(HierarchyTestCase):
    def test_the_limit_of_an_ancestor_refuses_and_is_named(self) -> None:
        """The first calls of all know the limits of the ancestors, before the ledger has the tree."""
        self.set_limits(physics=2, higgs=5)
        self.assertEqual((2, "physics"), self.fits("higgs"))
        self.assertEqual({}, self.edges())
        self.assertEqual([("physics", 2)], self.refused("higgs", 3))
        self.assertEqual({"higgs": "physics", "physics": "atlas", "atlas": "dom"}, self.edges())
        self.reserve(self.tree["higgs"], 2)
        self.assertEqual({"higgs": 2, "physics": 2, "atlas": 2, "dom": 2}, self.held())
        self.assertEqual((0, "physics"), self.fits("simulation"))
        self.assertEqual([("physics", 2)], self.refused("simulation"))
        self.assertEqual((8, "atlas"), self.fits("operations"), "the registered limit, 10")
        (seen,) = self.quotas.check(base.Context(self.tree["simulation"]), {"gpu": 1})
        self.assertEqual((self.tree["physics"], 2, None), (seen.project_id, seen.limit, seen.used))
        self.assertEqual(5, self.quotas.get_usages(base.ADMIN, self.tree["higgs"])["gpu"].limit)

    def test_a_minimum_is_kept_in_the_ledger(self) -> None:
        self.set_limits(physics=4, higgs=4, simulation=4)
        self.quotas.limits.set_minimums(base.ADMIN, {"gpu": 3}, self.tree["higgs"])
        self.assertEqual([("physics", 4)], self.refused("simulation", 2))
        self.assertEqual((1, "physics"), self.fits("simulation"))
        self.reserve(self.tree["simulation"], 1)
        self.reserve(self.tree["higgs"], 3)
        error = self.assertRaises(
            exceptions.LimitRefused, self.quotas.limits.set_minimums, base.ADMIN, {"gpu": 4}, self.tree["simulation"]
        )
        self.assertIn("can keep 0 more gpu: limit 4, used 4, promised 0, needed 3", error.problems[0])

    def test_a_new_child_counts_at_its_first_reserve(self) -> None:
        self.set_limits(physics=4)
        self.reserve(self.tree["higgs"], 3)
        self.create("susy", "higgs")
        self.assertEqual((1, "physics"), self.fits("susy"))
        self.reserve(self.tree["susy"])
        self.assertEqual({"susy": 1, "higgs": 4, "physics": 4, "atlas": 4, "dom": 4}, self.held())
        self.assertEqual([("physics", 4)], self.refused("susy"))
        (added,) = self.quotas.limits.history(base.ADMIN, self.tree["susy"])
        self.assertEqual(("add project", self.tree["higgs"], "keystone"), (added.action, added.after, added.user_id))

    def test_a_project_is_created_again_elsewhere(self) -> None:
        """Keystone permits no change of the parent. What the deleted project held counts until it is released."""
        self.set_limits(physics=4, operations=2)
        self.reserve(self.tree["higgs"], 3)
        moved = {"project": {"parent_id": self.tree["operations"]}}
        answer = self.keystone.admin.patch(f"/projects/{self.tree['higgs']}", json=moved, raise_exc=False)
        self.assertEqual(403, answer.status_code)
        deleted = self.tree["higgs"]
        self.keystone.admin.delete(f"/projects/{deleted}")
        self.create("higgs", "operations")
        self.later(TTL)
        self.assertEqual((2, "operations"), self.fits("higgs"))
        self.reserve(self.tree["higgs"], 2)
        self.assertEqual([("operations", 2)], self.refused("higgs"))
        self.assertEqual((1, "physics"), self.fits("simulation"))
        error = self.assertRaises(exceptions.InvalidName, self.reserve, deleted)
        self.assertIn("Keystone does not know it", str(error))
        self.quotas.release(
            base.Context(deleted), [row.uuid for row in self.quotas.list_reservations(base.ADMIN, deleted)]
        )
        self.assertEqual((4, "physics"), self.fits("simulation"))
        self.assertEqual({"higgs": 2, "operations": 2, "atlas": 2, "dom": 2}, self.held())

    def test_the_tree_of_the_commands_gives_way(self) -> None:
        """What the projects hold moves with them."""
        engine = self.make_quotas(
            limits__driver="database", limits__enforcement_model="flat", limits__missing="unlimited"
        )
        self.addCleanup(engine.close)
        physics, higgs, atlas = (self.tree[name] for name in ("physics", "higgs", "atlas"))
        # Upside down: physics is below higgs, and atlas below physics.
        for name, parent in ((higgs, None), (physics, higgs), (atlas, physics)):
            engine.limits.set_limit(base.ADMIN, "gpu", 100, name)
            engine.limits.add_project(base.ADMIN, name, parent)
        for name, gpus in ((higgs, 1), (physics, 2), (atlas, 4)):
            engine.reserve(base.ADMIN, {"gpu": gpus}, project_id=name)
        self.assertEqual({"higgs": 7, "physics": 6, "atlas": 4}, self.held())
        self.set_limits(physics=4)
        self.assertEqual((1, "physics"), self.fits("higgs"))
        self.assertEqual({"higgs": 7, "physics": 6, "atlas": 4}, self.held(), "a read changes nothing")
        self.reserve(higgs)
        self.assertEqual({"higgs": 2, "physics": 4, "atlas": 8, "dom": 8}, self.held())
        self.assertEqual({"higgs": "physics", "physics": "atlas", "atlas": "dom"}, self.edges())
        self.assertIn(f"project_id={physics} before={higgs} after={atlas}", self.log.output)

    def test_a_minimum_moves_below_a_parent_that_cannot_keep_it(self) -> None:
        """Keystone decides on moves. The parent is then over its limit, and the reports say so."""
        engine = self.make_quotas(
            limits__driver="database", limits__enforcement_model="flat", limits__missing="unlimited"
        )
        self.addCleanup(engine.close)
        physics, higgs = self.tree["physics"], self.tree["higgs"]
        engine.limits.set_minimums(base.ADMIN, {"gpu": 3}, higgs)
        self.set_limits(physics=2, higgs=5)
        self.assertEqual([], self.quotas.limits.list_over(base.ADMIN))
        self.reserve(higgs)  # (within its minimum)
        self.assertEqual({"higgs": "physics", "physics": "atlas", "atlas": "dom"}, self.edges())
        [over] = self.quotas.limits.list_over(base.ADMIN)
        self.assertEqual(
            (physics, 2, 1, 2, -1), (over.project_id, over.limit, over.subtree, over.promised, over.available)
        )
        [row] = [one for one in self.quotas.monitoring.read(base.ADMIN).projects if one.project_id == physics]
        self.assertEqual((2, 1, 2, 0), (row.limit, row.subtree, row.promised, row.fits))
        self.assertEqual([], self.quotas.audit(base.ADMIN))
        self.assertEqual((0, "physics"), self.fits("simulation"))
        self.assertEqual([("physics", 2)], self.refused("simulation"))
        self.reserve(higgs, 2)
        self.assertEqual([("physics", 2)], self.refused("higgs"))
        self.set_limits(physics=4)
        self.assertEqual([], self.quotas.limits.list_over(base.ADMIN))
        self.reserve(self.tree["simulation"])

    def test_a_list_of_all_projects(self) -> None:
        """The limits that each project has alone, also of a root of the ledger that is no domain."""
        self.set_limits(physics=2, atlas=20)
        self.reserve(self.tree["higgs"])
        self.quotas.adopt(base.ADMIN, [base.claim("c", gpu=1)], self.tree["operations"])
        names = self.names
        shown = {names[one.project_id]: one.usage.limit for one in self.quotas.list_usages(base.ADMIN)}
        self.assertEqual({"higgs": 10, "physics": 2, "atlas": 20, "dom": -1, "operations": 10}, shown)


class TestOutage(KeystoneTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.keystone.start, self.model)

    def test_stopped_and_started_again(self) -> None:
        self.reserve(self.p1)
        self.keystone.stop()
        self.later(TTL)

        self.reserve(self.p1, 8)
        self.assertEqual([(self.p1, "project", 10)], self.blocking(self.p1, 2), "the limit holds all the time")
        self.assertEqual(1, self.log.output.count("Limit source unavailable"))
        self.later(STALE)
        error = self.assertRaises(exceptions.LimitsUnavailable, self.reserve, self.p1)
        self.assertIn(f"Keystone at {self.keystone.url} cannot be reached", str(error))
        self.assertEqual(STALE, error.seconds)
        answer = self.list_quotas()
        self.assertEqual(503, answer.status_code)
        self.assertEqual("Quota is not available at the moment. Try again later.", answer.json["errors"][0]["detail"])
        self.quotas.release(base.Context(self.p1), [row.uuid for row in self.quotas.list_reservations(base.ADMIN)])

        self.keystone.start(self.model)
        self.eventually(lambda: self.reserve(self.p1, 10))
        self.assertIn("Limit source available again", self.log.output)

    def test_usage_without_limits(self) -> None:
        """By an engine that was started while Keystone was stopped."""
        self.reserve(self.p1, 4)
        self.keystone.stop()
        quotas = self.make_quotas()
        context = base.Context(self.p1)
        self.assertRaises(exceptions.LimitsUnavailable, quotas.get_usages, context)
        self.assertRaises(exceptions.LimitsUnavailable, quotas.list_usages, base.ADMIN)

        self.keystone.start(self.model)
        self.eventually(lambda: quotas.get_usages(context))
        self.assertEqual(10, quotas.get_usages(context)["gpu"].limit)


class TestHungKeystone(KeystoneTestCase):
    timeout_seconds = 3.0

    def test_hung(self) -> None:
        """One request waits for the timeout. During the pause after it, no call waits."""
        self.eventually(lambda: self.reserve(self.p1))
        self.addCleanup(self.keystone.service.resume)
        self.keystone.service.pause()
        self.later(TTL)
        with mock.patch.object(Cache, "_note_outage", autospec=True, side_effect=Cache._note_outage) as failed:
            for _ in range(6):
                self.reserve(self.p1)
            self.assertEqual(1, failed.call_count)
        self.assertIn("does not respond in time", self.log.output)

        self.keystone.service.resume()
        self.keystone.set_limit(self.service, "gpu", 7, project_id=self.p1)

        def is_new() -> bool:
            self.later(PAUSE_SECONDS)
            return bool(self.quotas.check(base.Context(self.p1), {"gpu": 1}))

        machine.wait_until(is_new, OUTAGE_SECONDS)
        self.assertEqual([(self.p1, "project", 7)], self.blocking(self.p1))
