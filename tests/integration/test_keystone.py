# SPDX-License-Identifier: Apache-2.0
"""The engine with the limit driver keystone, against a real Keystone."""

from __future__ import annotations

import datetime
import types
import uuid
from collections.abc import Iterable
from typing import Any, ClassVar

import fixtures as fx
from falcon import testing

import cyborg_quota
from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.limits.sources.cache import PAUSE_SECONDS
from cyborg_quota.types import Over
from tests import base, fixtures, keystones, trees
from tests.api import server
from tests.integration import server as servers
from tests.servers import sharing

TTL, STALE = 60.0, 600.0


def described(overs: Iterable[Over]) -> list[tuple[str, str, int | None]]:
    return [(over.project_id, over.scope, over.limit) for over in overs]


class KeystoneTestCase(base.LedgerTestCase):
    """A service of its own (gpu: 10 by default), a domain ``dom`` with projects ``p1`` and ``p2``, and ``quotas``.

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
        self.now = 1000.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        self.useFixture(fx.MonkeyPatch("cyborg_quota.limits.sources.keystone.time", clock))
        self.keystone = sharing.need(self, "Keystone", servers.running, self.model)
        self.service, self.endpoint = self.keystone.create_service()
        people = self.keystone.people
        self.dom, (self.p1, self.p2, _), self.user = people.domain_id, people.project_ids, people.reader
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
        self.now += seconds


class TestFlat(KeystoneTestCase):
    def test_limits_change_while_it_runs(self) -> None:
        """First the registered one, then that of the project."""
        self.reserve(self.p1, 4)
        self.keystone.register(self.service, "gpu", 3)
        self.later(TTL)
        self.assertEqual([(self.p1, "project", 3)], self.blocking(self.p1))
        self.keystone.set_limit(self.service, "gpu", -1, project_id=self.p1)
        self.later(TTL)
        self.reserve(self.p1, 1000)
        self.keystone.set_limit(self.service, "gpu", 0, project_id=self.p1)
        self.later(TTL)
        self.assertEqual([(self.p1, "project", 0)], self.blocking(self.p1))

    def test_an_admin_sees_the_consumption_of_all_projects(self) -> None:
        """Cyborg's specification: Alice. With Keystone's limits, and not what the ledger may have stored before."""
        engine = self.make_quotas(limits__driver="database")
        engine.limits.set_limits(base.ADMIN, {"gpu": 99}, self.p1)
        engine.limits.set_limits(base.ADMIN, {"gpu": 98}, "nobody")
        engine.limits.set_overrides(base.ADMIN, {"gpu": 97}, self.p1, datetime.datetime(2999, 1, 1))
        self.make_quotas()
        self.keystone.set_limit(self.service, "gpu", 7, project_id=self.p2)
        self.reserve(self.p1, 4)
        self.reserve(self.p2, 1)
        found = {
            one["project_id"]: (one["quota"]["gpu"], one["usage"]["gpu"], one["overrides"], one["in_force"])
            for one in self.list_quotas().json["quotas"]
        }
        held = {"in_use": 0, "reserved": 4}
        self.assertEqual({self.p1: (10, held, 0, {}), self.p2: (7, {**held, "reserved": 1}, 0, {})}, found)

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

    def test_a_user_without_the_role(self) -> None:
        hint = "openstack role add --user USER --user-domain DOMAIN --system all reader"
        name, password = self.keystone.people.member_of_the_first
        scope = {"oslo_limit__system_scope": None, "oslo_limit__project_id": self.p1}
        for changes, words in (
            ({"oslo_limit__password": "wrong-password"}, "does not authenticate the user of [oslo_limit]"),
            ({"oslo_limit__username": name, "oslo_limit__password": password, **scope}, "may not read /endpoints/"),
        ):
            quotas = self.make_quotas(**changes)
            error = self.assertRaises(exceptions.LimitsUnavailable, quotas.reserve, base.Context(self.p1), {"gpu": 1})
            self.assertEqual([True, True], [text in str(error) for text in (words, hint)], str(error))
            self.assertNotIn("wrong-password", str(error) + self.log.output)


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

    def test_switch_and_switch_back(self) -> None:
        """To the driver database, and back, on one ledger.

        The edges stay; those that the operator makes meanwhile are replaced where Keystone contradicts them.
        """
        self.keystone.set_limit(self.service, "gpu", 8, domain_id=self.dom)
        for project_id in (self.p1, self.p2):
            self.reserve(project_id, 3)

        model = {"limits__enforcement_model": self.model, "limits__child_initial_limit": "default"}
        engine = self.make_quotas(limits__driver="database", **model)
        engine.limits.set_limit(base.ADMIN, "gpu", 7)
        error = self.assertRaises(exceptions.OverQuota, engine.reserve, base.Context(self.p1), {"gpu": 2})
        self.assertEqual([(self.dom, "subtree", 7)], described(error.overs))

        engine.limits.add_project(base.ADMIN, "team")
        engine.limits.move_project(base.ADMIN, self.p1, "team")
        engine.reserve(base.Context(self.p1), {"gpu": 2})
        self.assert_invariants()
        error = self.assertRaises(exceptions.TreeReadOnly, self.quotas.limits.move_project, base.ADMIN, self.p1, None)
        self.assertIn("kept in Keystone", str(error))
        self.assertEqual([(self.dom, "subtree", 8)], self.blocking(self.p1))
        self.assertIn(f"project_id={self.p1} before=team after={self.dom}", self.log.output)
        edges = dict(self.quotas.limits.list_projects(base.ADMIN))
        self.assertEqual([self.dom] * 2, [edges[project_id] for project_id in (self.p1, self.p2)])


class TestHierarchy(KeystoneTestCase):
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
        # A list of all has the limit of each project alone, also of a root of the ledger that is no domain.
        self.quotas.adopt(base.ADMIN, [base.claim("c", gpu=1)], self.tree["operations"])
        names = self.names
        shown = {names[one.project_id]: one.usage.limit for one in self.quotas.list_usages(base.ADMIN)}
        self.assertEqual({"higgs": 5, "physics": 2, "atlas": 10, "dom": -1, "operations": 10, "simulation": 10}, shown)
        (seen,) = self.quotas.check(base.Context(self.tree["simulation"]), {"gpu": 1})
        self.assertEqual((self.tree["physics"], 2, None), (seen.project_id, seen.limit, seen.used))

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

    def test_a_minimum_moves_below_a_parent_that_cannot_keep_it(self) -> None:
        """Keystone decides on moves. The parent is then over its limit, and the reports say so."""
        engine = self.make_quotas(
            limits__driver="database", limits__enforcement_model="flat", limits__missing="unlimited"
        )
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


class TestOutage(KeystoneTestCase):
    def test_stopped_and_started_again(self) -> None:
        self.addCleanup(self.keystone.start, self.model)
        self.reserve(self.p1)
        self.keystone.stop()
        self.later(TTL)

        self.reserve(self.p1, 8)
        self.assertEqual([(self.p1, "project", 10)], self.blocking(self.p1, 2), "the limit holds all the time")
        self.assertEqual(1, self.log.output.count("Limit source unavailable"))
        self.later(STALE)
        error = self.assertRaises(exceptions.LimitsUnavailable, self.reserve, self.p1)
        self.assertIn(f"Keystone at {self.keystone.url} cannot be reached", str(error))
        answer = self.list_quotas()
        words = "Quota is not available at the moment. Try again later."
        self.assertEqual((503, words), (answer.status_code, answer.json["errors"][0]["detail"]))
        self.quotas.release(base.Context(self.p1), [row.uuid for row in self.quotas.list_reservations(base.ADMIN)])

        self.keystone.start(self.model)
        self.later(PAUSE_SECONDS)
        self.reserve(self.p1, 10)
        self.assertIn("Limit source available again", self.log.output)
