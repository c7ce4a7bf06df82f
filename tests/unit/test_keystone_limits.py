# SPDX-License-Identifier: Apache-2.0
"""The constraints that the limit driver keystone derives from the answers of Keystone."""

from __future__ import annotations

from typing import Any

import fixtures as fx
from keystoneauth1 import exceptions as ksa
from oslotest import base

from cyborg_quota import UNLIMITED, Constraint, exceptions
from cyborg_quota.db.path_state import PathState
from cyborg_quota.limits.sources.cache import PAUSE_SECONDS, Cache
from cyborg_quota.limits.sources.keystone import KeystoneLimitDriver
from cyborg_quota.limits.sources.keystone_client import KeystoneClient
from tests import keystones
from tests.keystones import PASSWORD, Response

TTL, STALE = 60.0, 600.0


class DriverTestCase(base.BaseTestCase):
    """``keystone`` with a registered gpu (10) and fpga (4), and ``driver`` with a stopped clock."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fx.FakeLogger())
        self.keystone = keystones.FakeKeystone()
        self.keystone.register("gpu", 10)
        self.keystone.register("fpga", 4)
        self.keystone.projects = {"dom": None, "p1": "dom", "p2": "dom", "other": None, "q1": "other"}
        self.now = 0.0
        self.driver = self.make_driver()

    def make_driver(self, **changes: Any) -> KeystoneLimitDriver:
        options = {name: changes.pop(name) for name in list(changes) if "__" in name}
        settings = keystones.settings(**options)
        cache = Cache(ttl_seconds=TTL, stale_seconds=STALE, timeout_seconds=5.0, clock=lambda: self.now)
        client = KeystoneClient(settings, self.keystone.connect)  # type: ignore[arg-type]
        return KeystoneLimitDriver(client, cache, **changes)

    def set_limits(self, **limits: int) -> None:
        """The limits of these projects in gpu."""
        for holder, limit in limits.items():
            self.keystone.set_limit(holder, "gpu", limit)

    def constraints(self, *path: str, resources: tuple[str, ...] = ("gpu",)) -> list[Constraint]:
        (limits,) = self.driver.bounds([PathState(path or ("p1",), {}, {}, {})], resources)
        if limits.error is not None:
            raise limits.error
        return list(limits.constraints)

    def shown(self, *projects: str, resources: tuple[str, ...] = ("gpu",)) -> dict[tuple[str, ...], int]:
        states = (PathState([name], {}, {}, {}) for name in projects)
        return {key[:2]: limit for key, limit in self.driver.limits([*states], resources).items()}

    def unavailable(self) -> str:
        """Return the reason of the error; neither it nor the log contains the password."""
        error = self.assertRaises(exceptions.LimitsUnavailable, self.constraints)
        self.assertNotIn(PASSWORD, str(error))
        self.assertNotIn(PASSWORD, self.log.output)
        return error.reason


class TestConstraints(DriverTestCase):
    """The constraints of a path, under both models, with the limits that are set in Keystone."""

    def test_flat(self) -> None:
        """The limit of a project, or the default, also if Keystone does not know it; the domain's does not count."""
        self.keystone.register("nic", 0)
        self.set_limits(p1=3, p2=-1, q1=0, dom=1)
        for path, limit in ((("p1", "dom"), 3), (("p2",), -1), (("q1",), 0), (("gone",), 10)):
            expected = [Constraint(path[0], "gpu", limit), Constraint(path[0], "nic", 0)]
            self.assertEqual(expected, self.constraints(*path, resources=("gpu", "nic")))
        self.assertIsNone(self.driver.path_of("p1"))

    def test_two_levels(self) -> None:
        """The domain bounds its subtree, if it is the last project of the path."""
        self.keystone.model = "strict_two_level"
        self.set_limits(p1=3, other=-1, q1=0)
        dom, other = Constraint("dom", "gpu", 10, "subtree"), Constraint("other", "gpu", -1, "subtree")
        for path, expected in (
            (("p1", "dom"), [Constraint("p1", "gpu", 3), dom]),
            (("p2", "dom"), [Constraint("p2", "gpu", 10), dom]),
            (("q1", "other"), [Constraint("q1", "gpu", 0), other]),
            (("dom",), [dom]),
            (("p1",), [Constraint("p1", "gpu", 3)]),
            (("p1", "other"), [Constraint("p1", "gpu", 3)]),
            (("p1", "elsewhere", "root"), [Constraint("p1", "gpu", 3)]),
        ):
            self.assertEqual(expected, self.constraints(*path), path)


class TestTwoLevels(DriverTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.keystone.model = "strict_two_level"

    def test_the_parent_is_the_domain(self) -> None:
        self.keystone.parents = {"p2": "p1"}
        for project_id, above in (("p1", ["dom"]), ("p2", ["dom"]), ("q1", ["other"]), ("dom", [])):
            self.assertEqual([project_id, *above], self.driver.path_of(project_id))
        self.assertIsNone(self.driver.path_of("gone"))

    def test_an_unknown_project_is_an_error(self) -> None:
        for _ in range(2):
            error = self.assertRaises(exceptions.InvalidName, self.constraints, "gone")
            self.assertIn("'gone': Keystone does not know it", str(error))
        self.assertEqual(1, "".join(self.keystone.paths).count("/projects/gone"), "that, too, is an answer")

    def test_the_model_may_change(self) -> None:
        self.assertEqual(["p1", "dom"], self.driver.path_of("p1"))
        self.keystone.model = "flat"
        self.now += TTL
        self.assertIsNone(self.driver.path_of("p1"))
        self.assertEqual([Constraint("p1", "gpu", 10)], self.constraints("p1", "dom"))


class TestHierarchy(DriverTestCase):
    """atlas > physics > higgs in the domain dom, in a Keystone whose own model is flat."""

    def setUp(self) -> None:
        super().setUp()
        self.keystone.projects |= dict.fromkeys(("atlas", "physics", "higgs"), "dom")
        self.keystone.parents = {"physics": "atlas", "higgs": "physics"}
        self.driver = self.make_driver(model="strict_hierarchy")

    def test_the_path(self) -> None:
        for path in (["higgs", "physics", "atlas", "dom"], ["atlas", "dom"], ["dom"]):
            self.assertEqual(path, self.driver.path_of(path[0]))

    def test_every_ancestor_bounds_its_subtree(self) -> None:
        """A domain only if a limit is set for it. The limits of ancestors that the ledger does not have yet wait."""
        self.set_limits(atlas=20, physics=2, q1=-1)
        for path, limits in (
            (("higgs", "physics", "atlas", "dom"), (10, 2, 20, UNLIMITED)),
            (("higgs", "physics"), (10, 2)),
            (("higgs",), (10,)),
            (("q1", "other"), (-1, UNLIMITED)),
            (("dom",), (UNLIMITED,)),
        ):
            expected = [Constraint(*one, "subtree") for one in zip(path, ("gpu",) * 4, limits, strict=False)]
            self.assertEqual(expected, self.constraints(*path), path)
        self.set_limits(dom=1)
        self.now += TTL
        self.assertEqual(1, self.constraints("atlas", "dom")[-1].limit)

    def test_the_greatest_depth(self) -> None:
        self.keystone.projects |= {f"level{number}": "dom" for number in range(1, 10)}
        self.keystone.parents = {f"level{number}": f"level{number - 1}" for number in range(2, 10)}
        self.assertEqual(9, len(self.driver.path_of("level8") or ()))
        error = self.assertRaises(exceptions.ProjectRefused, self.driver.path_of, "level9")
        self.assertEqual("Project 'level9' lies at level 9 of 8 in Keystone.", str(error))

    def test_the_models(self) -> None:
        """That of the driver must go with that of Keystone."""
        for model, of_keystone, is_allowed in (
            ("strict_hierarchy", "flat", True),
            ("strict_hierarchy", "strict_two_level", False),
            ("strict_two_level", "strict_two_level", True),
            ("strict_two_level", "flat", False),
            ("flat", "flat", True),
            ("flat", "strict_two_level", False),
            (None, "three_level", False),
        ):
            self.keystone.model, self.driver = of_keystone, self.make_driver(model=model)
            if is_allowed:
                self.assertEqual(10, self.constraints("higgs")[0].limit)
            else:
                error = self.assertRaises(exceptions.ConfigurationError, self.constraints, "higgs")
                self.assertIn(f"'{of_keystone}'", str(error))

    def test_the_configuration(self) -> None:
        for model in (None, "flat", "strict_two_level", "strict_hierarchy"):
            KeystoneLimitDriver.from_conf(keystones.settings(limits__enforcement_model=model))
        settings = keystones.settings(limits__enforcement_model="file")
        error = self.assertRaises(exceptions.ConfigurationError, KeystoneLimitDriver.from_conf, settings)
        self.assertIn("[limits] enforcement_model = file: the limit driver keystone supports flat, ", str(error))

    def test_few_requests(self) -> None:
        """One for the path, and one for the limits of each project in it; those of the ancestors serve all children."""
        self.driver.path_of("higgs")
        self.constraints("higgs", "physics", "atlas", "dom")
        self.assertEqual(4 + 4, len(self.keystone.paths))
        self.keystone.projects["simulation"], self.keystone.parents["simulation"] = "dom", "physics"
        self.driver.path_of("simulation")
        self.constraints("simulation", "physics", "atlas", "dom")
        self.assertEqual(8 + 2, len(self.keystone.paths))

    def test_an_outage(self) -> None:
        """The path and all its limits are as old as any other answer may be."""
        path = "higgs", "physics", "atlas", "dom"
        self.set_limits(physics=2)
        expected = self.constraints(*path)
        self.keystone.instead[""] = ksa.ConnectFailure("x")
        self.now += TTL + STALE - 1
        self.assertEqual((list(path), expected), (self.driver.path_of("higgs"), self.constraints(*path)))
        self.now += 1 + PAUSE_SECONDS
        self.assertRaises(exceptions.LimitsUnavailable, self.driver.path_of, "higgs")
        self.assertRaises(exceptions.LimitsUnavailable, self.constraints, *path)


class TestMissing(DriverTestCase):
    def test_refused_with_the_command_that_registers_it(self) -> None:
        named = self.make_driver(service_name="cyborg", names={"gpu.A100": "accelerator_gpu"})
        for driver, arguments in (
            (self.driver, "--service service-1 --region RegionOne --default-limit N gpu.A100"),
            (named, "--service cyborg --region RegionOne --default-limit N accelerator_gpu"),
        ):
            self.driver = driver
            error = self.assertRaises(exceptions.LimitNotSet, self.constraints, "p1", resources=("gpu.A100",))
            self.assertEqual("gpu.A100", error.resource)
            self.assertIn(f"openstack registered limit create {arguments}", str(error))
        shown = {("p1", "gpu"): 10, ("p1", "gpu.A100"): 0}
        self.assertEqual((shown, None), (self.shown("p1", resources=("gpu", "gpu.A100")), named.limit_if_missing))

    def test_unlimited(self) -> None:
        self.driver = self.make_driver(limit_if_missing=UNLIMITED)
        self.assertEqual([], self.constraints("p1", resources=("gpu.A100",)))
        self.assertEqual([Constraint("p1", "gpu", 10)], self.constraints("p1", resources=("gpu.A100", "gpu")))
        shown = {("p1", "gpu"): 10, ("p1", "gpu.A100"): UNLIMITED}
        found = self.shown("p1", resources=("gpu", "gpu.A100")), self.driver.limit_if_missing
        self.assertEqual((shown, UNLIMITED), found)


class TestNamesAndRegions(DriverTestCase):
    def test_other_names(self) -> None:
        self.keystone.register("accelerator_gpu", 6)
        self.keystone.set_limit("p1", "accelerator_gpu", 5)
        self.driver = self.make_driver(names={"gpu": "accelerator_gpu"})
        self.assertEqual(
            [Constraint("p1", "gpu", 5), Constraint("p1", "fpga", 4)], self.constraints(resources=("gpu", "fpga"))
        )
        self.assertEqual({("p2", "gpu"): 6}, self.shown("p2"))

    def test_limits_of_another_region_or_of_none(self) -> None:
        """Those of no region count where the region has none."""
        for region in ("RegionTwo", None):
            self.keystone.register("gpu", 99, region)
            self.keystone.set_limit("p1", "gpu", 98, region)
        self.assertEqual([Constraint("p1", "gpu", 10)], self.constraints())

        del self.keystone.registered["gpu", keystones.REGION]
        self.now += TTL
        self.assertEqual([Constraint("p1", "gpu", 98)], self.constraints())
        self.assertEqual([Constraint("p2", "gpu", 99)], self.constraints("p2"))


class TestService(DriverTestCase):
    """Which service's limits: [oslo_limit] endpoint_id, or the service's type or name, region and interface."""

    by_type = {
        "oslo_limit__endpoint_id": None,
        "oslo_limit__endpoint_service_type": "accelerator",
        "oslo_limit__endpoint_region_name": keystones.REGION,
        "oslo_limit__endpoint_interface": "publicURL",
    }

    def test_by_endpoint(self) -> None:
        self.constraints()
        self.assertEqual("/endpoints/endpoint-1", self.keystone.paths[0])
        self.assertIn("/limits?service_id=service-1&project_id=p1", self.keystone.paths)

    def test_by_type(self) -> None:
        self.driver = self.make_driver(**self.by_type)
        self.assertEqual([Constraint("p1", "gpu", 10)], self.constraints())
        self.assertEqual(
            [
                "/services?type=accelerator",
                "/endpoints?service_id=service-1&interface=public&region_id=RegionOne",
            ],
            self.keystone.paths[:2],
        )

    def test_not_one_service_or_endpoint(self) -> None:
        self.driver = self.make_driver(**self.by_type)
        self.keystone.services *= 2
        self.assertIn("2 services with type accelerator, not exactly one", self.unavailable())

        self.keystone.services.pop()
        self.keystone.endpoints.clear()
        self.now += 10
        self.assertIn("0 endpoints with type accelerator, interface public, region RegionOne", self.unavailable())

        self.driver = self.make_driver()
        self.assertIn("no endpoint endpoint-1 ([oslo_limit] endpoint_id)", self.unavailable())


class TestCosts(DriverTestCase):
    """The number of requests to Keystone."""

    def test_once_per_ttl(self) -> None:
        # At first: the endpoint, the defaults, the model, the project's limits.
        for now, project_id, requests in ((0.0, "p1", 4), (0.0, "p1", 4), (0.0, "p2", 5), (TTL, "p1", 9)):
            self.now = now
            self.constraints(project_id)
            self.assertEqual(requests, len(self.keystone.paths), (now, project_id))
        self.assertEqual(([], {}), (self.constraints(resources=()), self.shown()), "nothing to look up")
        self.assertEqual((9, 1), (len(self.keystone.paths), self.keystone.made))

    def test_a_list_of_all_projects_is_one_call(self) -> None:
        self.set_limits(p7=3, dom=8)
        projects = [f"p{number}" for number in range(1000)]
        limits = self.shown(*projects, "dom", resources=("gpu", "fpga"))
        self.assertEqual(2002, len(limits))
        self.assertEqual((3, 10, 8), (limits["p7", "gpu"], limits["p8", "gpu"], limits["dom", "gpu"]))
        self.assertEqual(4, len(self.keystone.paths))


class TestFaults(DriverTestCase):
    def test_errors_of_keystoneauth_and_responses_of_keystone(self) -> None:
        for instead, words in (
            (ksa.ConnectTimeout("x"), "does not respond in time"),
            (ksa.ConnectFailure("x"), "cannot be reached"),
            (ksa.connection.SSLError("x"), "the TLS connection to Keystone"),
            (ksa.Unauthorized("x"), "--system all reader"),
            (ksa.EndpointNotFound("x"), "no identity endpoint"),
            (ksa.EmptyCatalog("x"), "no identity endpoint"),
            (ksa.DiscoveryFailure("x"), "the API versions of Keystone"),
            (ksa.ServiceUnavailable("x"), "returned status 503"),
            (ksa.UnknownConnectionError("x", None), "UnknownConnectionError"),
            (Response(401, {}), "does not authenticate the user of [oslo_limit]"),
            (Response(403, {}), "may not read /endpoints/endpoint-1 in Keystone. It needs the role reader"),
            (Response(500, {}), "returned status 500"),
            (Response(200, ValueError("no JSON")), "is not JSON"),
            (Response(200, ["a list"]), "is not JSON"),
            (Response(200, {"hello": "world"}), "not from Keystone's API"),
            (Response(200, {"endpoint": []}), "not from Keystone's API"),
        ):
            self.keystone.instead[""] = instead
            self.now += 10
            self.assertIn(words, self.unavailable())
        self.keystone.instead.clear()
        self.now += 10
        # A limit that is missing in a list would be replaced by the default.
        self.keystone.instead["registered_limits"] = Response(200, {"registered_limits": [], "truncated": True})
        self.assertIn("list_limit", self.unavailable())
        self.keystone.instead = {"projects": Response(403, {})}  # flat needs no project
        self.now += 10
        self.assertEqual([Constraint("p1", "gpu", 10)], self.constraints())

    def test_a_user_who_sees_a_part_only(self) -> None:
        """Keystone returns a shorter list of limits, and no error."""
        for access, is_enough in (
            (keystones.Access(system_scoped=False, role_names=("reader", "member")), False),
            (keystones.Access(system_scoped=False, role_names=("admin",)), True),
            (keystones.Access(system_scoped=False, role_names=("service",)), True),
            (keystones.Access(), True),
        ):
            self.keystone.auth.access = access
            self.now += TTL
            if is_enough:
                self.assertEqual([Constraint("p1", "gpu", 10)], self.constraints())
            else:
                self.assertIn("the limits of its own project only. It needs the role reader", self.unavailable())


class TestManyPaths(DriverTestCase):
    """The limits of many projects, for a list: as those of each of them, in a few requests."""

    def setUp(self) -> None:
        super().setUp()
        self.set_limits(p1=3, dom=8)

    def test_each_model(self) -> None:
        """Also of what is a root in the ledger: a domain, or a project that has not been charged by this model yet."""
        self.keystone.projects |= dict.fromkeys(("atlas", "physics", "higgs"), "dom")
        self.keystone.parents = {"physics": "atlas", "higgs": "physics"}
        self.set_limits(physics=2)
        resources = ["fpga", "gpu", "tpu"]
        of_tree = (("higgs", "physics", "atlas", "dom"), ("physics", "atlas", "dom"), ("q1",), ("dom",), ("other",))
        for model, of_keystone, paths in (
            ("flat", "flat", (("p1", "dom"), ("p2", "dom"), ("q1",))),
            ("strict_two_level", "strict_two_level", (("p1", "dom"), ("p2", "dom"), ("q1", "other"), ("dom",))),
            ("strict_hierarchy", "flat", of_tree),
        ):
            self.keystone.model = of_keystone
            states = [PathState(path, {}, {}, {}) for path in paths]
            driver = self.make_driver(model=model)
            single = [limits for state in states for limits in driver.bounds([state], resources)]
            self.keystone.paths.clear()
            many = self.make_driver(model=model).bounds(states, resources)
            asked = [path.partition("?")[0] for path in self.keystone.paths]
            self.assertEqual([each.missing for each in single], [each.missing for each in many])
            self.assertEqual([set(each.constraints) for each in single], [set(each.constraints) for each in many])
            self.assertEqual((1, model == "strict_hierarchy"), (asked.count("/limits"), "/projects" in asked), asked)

    def test_a_deleted_project_does_not_prevent_a_short_list(self) -> None:
        """What it held is still in the ledger; a reserve is refused."""
        self.keystone.model = "strict_two_level"
        del self.keystone.projects["p1"]
        states = [PathState(path, {}, {}, {}) for path in (["p1", "dom"], ["p2", "dom"])]
        found = [(limits.constraints, limits.missing) for limits in self.driver.bounds(states, ["gpu"])]
        other = [Constraint("p2", "gpu", 10), Constraint("dom", "gpu", 8, "subtree")]
        self.assertEqual([([], {"gpu": "p1"}), (other, {})], found)
