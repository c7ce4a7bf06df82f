# SPDX-License-Identifier: Apache-2.0
"""The proposal "DELIMITER, the Quota Management Library", with its example of Trove, call for call, and its figures.

Its words, and ours: ``define_resource`` sets the total limit and the default limit of a resource;
``update_resource_limits`` the limit of a user, who is a project here; ``reserve_resource(name, user, size, parent)`` is
``reserve``, with a group below that of the parent; ``provision_resource(id, uuid)`` is ``commit(known_as=)``;
``update_resource`` is ``resize``, and ``release_resource`` is ``release``.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

from cyborg_quota import ANY, Claim, QuotaEngine, exceptions, validation
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.types import Resource
from tests import base, fixtures, hooks, on_sqlite
from tests.api import server
from tests.api.test_application import MANAGER, READER, ApplicationTestCase
from tests.base import ADMIN
from tests.faults import kill_points
from tests.functional.test_limits import LimitsTestCase
from tests.race.test_races import RaceTestCase
from tests.race.workers import race, race_in_turns

INSTANCE, CLUSTER, STORAGE, MEMORY = "databaseInstance", "databaseCluster", "storage", "memory"
GB_PER_TB = 1024
NODES = range(1, 5)
ACROSS = ("cluster", "cluster/vm-1", "cluster/vm-2", "cluster/vm-10", "cluster/vm-1/disk", "cluster/vm-1/disk/snapshot")
BESIDE = (
    "cluster-1",
    "cluster.x",
    "cluster 1",
    "cluster!",
    "cluster0",
    "cluster:",
    "Cluster/vm-1",
    "clusterß",
    "cluste",
)
"""Groups that are not below ``cluster``. In ASCII, some of them come before ``cluster/``, and some after it."""


class TestTrove(LimitsTestCase):
    """Memory and storage are counted in GB."""

    def make_limited(self, **changes: Any) -> QuotaEngine:
        return super().make_limited(**{**changes, "resources": (INSTANCE, CLUSTER, STORAGE, MEMORY)})

    def setUp(self) -> None:
        super().setUp()
        self.admin.set_total_limits(ADMIN, {INSTANCE: 2000, CLUSTER: 300})
        self.admin.set_limits(ADMIN, {INSTANCE: 25, CLUSTER: 4, STORAGE: 20 * GB_PER_TB, MEMORY: 10})
        self.admin.set_limits(ADMIN, {INSTANCE: 2, CLUSTER: 1}, "amrith")

    def reserve_resource(self, name: str, user: str, size: int, group: str) -> str:
        (uuid,) = self.quotas.reserve(base.Context(user), {name: size}, group=group)
        return uuid

    def held(self, user: str = "john") -> list[int]:
        """What the user holds: instances, clusters, storage and memory."""
        usages = self.engine.get_usages(ADMIN, user)
        return [usages[name].used + usages[name].reserved for name in (INSTANCE, CLUSTER, STORAGE, MEMORY)]

    def walk(self) -> dict[str, str]:
        """Reserve a cluster of 4 nodes with 1 TB and 1 GB each. Returns the UUIDs of reservations by name."""
        uuids = {"cluster": self.reserve_resource(CLUSTER, "john", 1, "cluster")}
        for name, resource, size, below in (
            ("instance", INSTANCE, 1, ""),
            ("cinder", STORAGE, 1024, "/cinder"),
            ("memory", MEMORY, 1, ""),
        ):
            for node in NODES:
                group = f"cluster/instance-{node}{below}"
                uuids[f"{name}-{node}"] = self.reserve_resource(resource, "john", size, group)
        return uuids

    def test_call_for_call(self) -> None:
        john, uuids = base.Context("john"), self.walk()
        self.assertEqual([4, 1, 4096, 4], self.held())
        for node in NODES:
            self.quotas.commit(john, [uuids[f"cinder-{node}"]], known_as=f"cinder-{node}-uuid")
            self.quotas.commit(john, [uuids[f"instance-{node}"]], known_as=f"instance-{node}-uuid")
        self.quotas.commit(john, [uuids["cluster"]], known_as="cluster-uuid")
        self.quotas.commit(john, group="cluster")  # the memory
        self.assertEqual({"committed"}, {row.state for row in self.engine.list_reservations(ADMIN, "john")})
        # "the third 1TB volume is being resized to 2TB", by its name or by its id
        self.quotas.resize(john, {STORAGE: 2048}, consumer="cinder-3-uuid")
        self.assertEqual([4, 1, 5120, 4], self.held())
        resize = functools.partial(self.quotas.resize, john, reservation=uuids["cinder-3"])
        resize({STORAGE: 3072})
        self.assertEqual([4, 1, 6144, 4], self.held())
        # "... and verify that this is within the quotas allowed for the user"
        error = self.assertRaises(exceptions.OverQuota, resize, {STORAGE: 18 * GB_PER_TB})
        self.assertEqual([15 * GB_PER_TB], [one.requested for one in error.overs])
        # "release_resource(cinder-4-id), and release_resource(cinder-4-uuid) are therefore identical"
        self.quotas.release(john, [uuids["cinder-4"]])
        self.quotas.release(john, consumer="cinder-4-uuid")
        self.assertEqual([4, 1, 5120, 4], self.held())
        self.quotas.release(john, group="cluster/instance-1")
        self.assertEqual([3, 1, 4096, 3], self.held(), "an instance is released with its volume and its memory")
        # "Finally ... This would release the cluster and all dependent resources in a single operation."
        self.quotas.release(john, group="cluster")
        self.assertEqual([0, 0, 0, 0], self.held())
        self.assertFalse([row for row in self.engine.list_reservations(ADMIN, "john") if row.ended_at is None])

    def test_an_error_at_any_point(self) -> None:
        """ "in the event of an error, the service need merely call release_resource() on the highest level"."""
        john, uuids = base.Context("john"), self.walk()
        self.quotas.commit(john, [uuids["instance-1"]], known_as="instance-1-uuid")
        self.quotas.commit(john, [uuids["cinder-1"]], known_as="cinder-1-uuid")
        self.quotas.release(john, group="cluster")
        self.assertEqual([0, 0, 0, 0], self.held())
        states = {row.state for row in self.engine.list_reservations(ADMIN, "john", group="cluster/instance-1")}
        self.assertEqual({"released", "rolled_back"}, states)
        self.walk()
        self.quotas.rollback(john, group="cluster")
        self.assertEqual([0, 0, 0, 0], self.held())

    def refused(self, name: str, user: str, size: int) -> list[tuple[str, str, int | None]]:
        """The scopes, resources and limits that refuse a reserve."""
        error = self.assertRaises(exceptions.OverQuota, self.reserve_resource, name, user, size, "all")
        return [(one.scope, one.resource, one.limit) for one in error.overs]

    @on_sqlite
    def test_the_limits(self) -> None:
        self.walk()
        self.assertEqual([("subtree", STORAGE, 20480)], self.refused(STORAGE, "john", 16 * GB_PER_TB + 1))
        self.reserve_resource(INSTANCE, "amrith", 2, "his")
        self.assertEqual([("subtree", INSTANCE, 2)], self.refused(INSTANCE, "amrith", 1))
        # "No more than 2000 database instances in total": the 6 of john and amrith, and those of 79 users with 25
        for user in range(79):
            self.reserve_resource(INSTANCE, f"user{user}", 25, "all")
        self.assertEqual([("total", INSTANCE, 2000)], self.refused(INSTANCE, "last", 20))
        self.reserve_resource(INSTANCE, "last", 19, "all")
        self.assertEqual([("total", INSTANCE, 2000)], self.refused(INSTANCE, "last", 1))


class GroupTestCase(base.LedgerTestCase):
    def hold(self, *groups: str, **named: Any) -> None:
        """Commit 1 gpu for the consumer of each group, which has the name of the group."""
        for group in groups:
            self.quotas.reserve(self.context, {"gpu": 1}, consumer=f"of {group}", group=group, **named)
            self.quotas.commit(self.context, consumer=f"of {group}")

    def live(self) -> set[str]:
        """The groups that hold something."""
        return {str(row.group) for row in self.engine.get_reservations(self.context) if row.ended_at is None}


class TestNestedGroups(GroupTestCase):
    def test_what_is_below_a_group(self) -> None:
        below = {
            "cluster": set(ACROSS),
            "cluster/vm-1": {"cluster/vm-1", "cluster/vm-1/disk", "cluster/vm-1/disk/snapshot"},
            "cluster/vm-1/disk": {"cluster/vm-1/disk", "cluster/vm-1/disk/snapshot"},
            "cluster/vm-10": {"cluster/vm-10"},
            "cluster-1": {"cluster-1"},
            "cluster/vm": set(),
        }
        for group, expected in below.items():
            self.hold(*ACROSS, *BESIDE)
            own = self.engine.get_reservations(self.context, group=group)
            of_admin = self.engine.list_reservations(ADMIN, "p1", group=group, state="committed")
            for listed in (own, of_admin):
                self.assertEqual(expected, {row.group for row in listed if row.ended_at is None}, group)
            self.quotas.release(self.context, group=group)
            self.assertEqual({*ACROSS, *BESIDE} - expected, self.live(), group)
            self.quotas.release(base.Context("p2"), group=group)
        if self.backend == "postgresql":
            query = "SELECT collation_name FROM information_schema.columns WHERE column_name = 'group_id'"
            self.assertEqual(["C"], [name for (name,) in self.fetch(query)], "others do not sort by bytes")

    def test_what_is_below_a_group_is_extended(self) -> None:
        """(tests/model/test_model.py commits, rolls back and releases groups in groups.)"""
        for group in ("a/b", "a/d"):
            self.quotas.reserve(self.context, {"gpu": 1}, group=group)
        before = {row.group: row.expire for row in self.engine.get_reservations(self.context)}
        self.quotas.extend(self.context, expire=10**6, group="a")
        after = {row.group: row.expire for row in self.engine.get_reservations(self.context)}
        self.assertTrue(all(before[group] < after[group] for group in before), (before, after))  # type: ignore[operator]

    def test_a_repeated_reserve_with_another_group(self) -> None:
        """A consumer is charged once; its first group stays."""
        first = self.quotas.reserve(self.context, {"gpu": 1}, consumer="c", group="cluster/vm-1")
        for group in ("cluster/vm-2", "cluster", None):
            self.assertEqual(first, self.quotas.reserve(self.context, {"gpu": 1}, consumer="c", group=group))
            error = self.assertRaises(
                exceptions.ReservationConflict, self.quotas.reserve, self.context, {"gpu": 2}, consumer="c", group=group
            )
            self.assertEqual({"gpu": 1}, error.held)
        self.quotas.release(self.context, group="cluster/vm-2")
        self.assertEqual({"cluster/vm-1"}, self.live())

    @on_sqlite
    def test_a_path_that_is_none(self) -> None:
        self.hold("a")
        longest = "/".join("x" * 51 for _ in range(5))[:255]
        self.engine.reserve(self.context, {"gpu": 1}, group=longest)
        for group in ("/", "/a", "a/", "a//b", "a/ b", "a /b", "a/b/", longest + "x", "", "a/\n"):
            for call in (
                functools.partial(self.engine.reserve, self.context, {"gpu": 1}),
                functools.partial(self.engine.adopt, ADMIN, [Claim(None, {"gpu": 1})], "p1"),
                functools.partial(self.engine.commit, self.context),
                functools.partial(self.engine.rollback, self.context),
                functools.partial(self.engine.release, self.context),
                functools.partial(self.engine.extend, self.context),
                functools.partial(self.engine.get_reservations, self.context),
                functools.partial(self.engine.list_reservations, ADMIN),
            ):
                error = self.assertRaises(exceptions.InvalidName, call, group=group)
                self.assertEqual(("group", group), (error.field, error.value))
            claim = Claim("c", {"gpu": 1}, group)
            self.assertRaises(exceptions.InvalidName, self.engine.reserve_many, self.context, [claim])
        self.assertEqual({"a", longest}, self.live())

    def test_claims_below_a_group_go_to_its_pod(self) -> None:
        for pod in ("pod1", "pod2"):
            self.engine.pods.add(ADMIN, pod)
            self.add_provider(f"node of {pod}", pod=pod, gpu=9)
        self.hold("cluster/vm-1", provider="node of pod2")
        self.hold("cluster", provider=ANY, pod="select")
        self.assertEqual({("pod2", 2)}, set(self.fetch("SELECT pod, COUNT(*) FROM reservations GROUP BY pod")))


class TestResizeByUuid(GroupTestCase):
    def test_one_reservation(self) -> None:
        """Also one without a consumer, and by an admin who names no project."""
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 1})
        fpga, gpu = self.quotas.reserve(self.context, {"fpga": 1, "gpu": 1}, consumer="c")
        self.quotas.commit(self.context, [uuid])
        self.quotas.resize(self.context, {"gpu": 3}, reservation=uuid)
        self.quotas.resize(ADMIN, {"gpu": 4}, reservation=gpu, expected={"gpu": 1})
        self.assertEqual((3, 4), self.figures())
        self.quotas.resize(ADMIN, {"gpu": 4}, reservation=gpu, expected={"gpu": 1})  # a repeat
        self.quotas.commit(self.context, [fpga, gpu])
        self.quotas.release(self.context, [uuid, fpga, gpu])
        self.assertEqual((0, 0), self.figures())
        error = self.assertRaises(
            exceptions.ReservationReleased, self.quotas.resize, ADMIN, {"gpu": 5}, reservation=uuid
        )
        self.assertEqual(uuid, error.uuid)

    def test_what_is_refused(self) -> None:
        (uuid,) = self.quotas.reserve(self.context, {"gpu": 1}, consumer="c")
        by_uuid, unknown = {"reservation": uuid}, "Reservation, consumer or group '{}' was not found."
        for kind, text, context, amounts, how in (
            (
                exceptions.ResourceNotHeld,
                f"'{uuid}' of project 'p1' holds no 'fpga'",
                self.context,
                {"fpga": 1},
                by_uuid,
            ),
            (exceptions.ReservationNotFound, unknown.format(uuid), base.Context("p2"), {"gpu": 2}, by_uuid),
            (exceptions.ReservationNotFound, unknown.format("x"), self.context, {"gpu": 2}, {"reservation": "x"}),
            (exceptions.ReservationNotFound, unknown.format("x"), ADMIN, {"gpu": 2}, {"reservation": "x"}),
            (
                exceptions.AmountChanged,
                f"'{uuid}' holds gpu=1",
                ADMIN,
                {"gpu": 3},
                {**by_uuid, "expected": {"gpu": 2}},
            ),
            (exceptions.InvalidSelection, "", ADMIN, {"gpu": 2}, {}),
            (exceptions.InvalidSelection, "", ADMIN, {"gpu": 2}, {**by_uuid, "consumer": "c"}),
        ):
            self.assertIn(text, str(self.assertRaises(kind, self.quotas.resize, context, amounts, **how)))
        self.limits.own["p1", "gpu"] = 2
        error = self.assertRaises(exceptions.OverQuota, self.quotas.resize, ADMIN, {"gpu": 3}, reservation=uuid)
        self.assertEqual([("p1", 2)], [(one.project_id, one.requested) for one in error.overs])
        self.make_overdue(uuid)
        self.assertRaises(exceptions.ReservationExpired, self.quotas.resize, ADMIN, {"gpu": 2}, reservation=uuid)
        self.assertEqual((0, 0), self.figures())


class TestResources(base.LedgerTestCase):
    """Resources that a process adds: "define_resource(storage, -1, 0, 20TB, 0, ...)"."""

    @contextlib.contextmanager
    def assert_resources_are_read(self, engine: QuotaEngine, times: int) -> Iterator[None]:
        """Assert that the block makes the engine read the table of resources so many times."""
        with hooks.recorded_statements(engine) as sent:
            yield
        self.assertEqual(times, len([text for text in sent if "FROM resources" in text]), sent)

    def test_another_process_counts_it(self) -> None:
        other = self.make_engine()
        self.engine.register_resource(Resource("storage", "Block storage", "GB"))
        self.engine.register_resources(["memory"])
        with self.assert_resources_are_read(other, 1):
            uuids = other.reserve(self.context, {"storage": 1024, "memory": 1})
        self.assertEqual((0, 1024), self.figures(resource="storage"))
        other.rollback(self.context, uuids)
        self.assertIn(Resource("storage", "Block storage", "GB"), other.list_resources())
        for read in ("get_usages", "headroom", "get_detail"):
            self.assertIn("'storage'", repr(getattr(self.make_engine(), read)(self.context)))
        self.assertEqual(["fpga", "gpu", "gpu.A100", "memory", "storage"], other.resources)

    def test_a_warm_reserve_reads_nothing_more(self) -> None:
        self.engine.register_resource("storage")
        for resource in ("storage", "gpu"):
            self.engine.rollback(self.context, self.engine.reserve(self.context, {resource: 1}))
            with self.assert_resources_are_read(self.engine, 0):
                self.engine.reserve(self.context, {resource: 1})

    def test_unknown_names_are_bounded(self) -> None:
        """A user who guesses names causes one statement a second, and learns nothing."""
        self.patch(validation, "_MAX_AGE_SECONDS", 1000.0)  # (a slow machine)
        with self.assert_resources_are_read(self.engine, 1):
            for name in (*(f"tpu{number}" for number in range(9)), 7, None):
                self.assertRaises(exceptions.UnknownResource, self.engine.reserve, self.context, {name: 1})
        self.make_engine().register_resource("tpu1")
        self.patch(validation, "_MAX_AGE_SECONDS", 0.0)
        self.engine.reserve(self.context, {"tpu1": 1})

    def test_what_is_given_changes_and_the_rest_stays(self) -> None:
        other = self.make_engine()
        for engine, resource, expected in (
            (self.engine, Resource("gpu", unit="device"), (None, "device")),
            (other, Resource("gpu", "Graphics accelerator"), ("Graphics accelerator", "device")),
            (self.engine, "gpu", ("Graphics accelerator", "device")),
            (self.engine, Resource("gpu", unit="card"), ("Graphics accelerator", "card")),
            (other, types.SimpleNamespace(name="gpu", unit="device"), ("Graphics accelerator", "device")),
        ):
            engine.register_resource(resource)
            for reader in (self.engine, other):
                (found,) = [one for one in reader.list_resources() if one.name == "gpu"]
                self.assertEqual(expected, (found.description, found.unit))
        self.assertEqual([("gpu",)], self.fetch("SELECT name FROM resources"))
        for wrong in (Resource("a\0"), Resource("x", " y"), Resource("x", unit=""), Resource("x", 7)):  # type: ignore[arg-type]
            self.assertRaises(exceptions.InvalidName, self.engine.register_resource, wrong)
        self.assertEqual([("gpu",)], self.fetch("SELECT name FROM resources"))

    def test_limits_of_it(self) -> None:
        limited = fixtures.open_engine(self, self.url, DatabaseLimitDriver(Flat(), InitialLimits()))
        limits = limited.limits
        self.assertRaises(exceptions.UnknownResource, limits.set_limit, ADMIN, "storage", 5)
        self.patch(validation, "_MAX_AGE_SECONDS", 0.0)
        self.engine.register_resource("storage")
        limits.set_limit(ADMIN, "storage", 5)
        limits.import_limits(ADMIN, {"defaults": {"storage": 4}})
        self.assertEqual(4, limits.list_defaults(ADMIN)["storage"])

    def test_processes_add_the_same_one(self) -> None:
        self.engine.close()
        jobs = [
            functools.partial(self.engine.register_resource, Resource("storage", unit=unit))
            for unit in ("GB", "TB") * 3
        ]
        race(*jobs)
        ((name, unit),) = self.fetch("SELECT name, unit FROM resources")
        self.assertEqual("storage", name)
        self.assertIn(unit, ("GB", "TB"))


class TestAmounts(base.LedgerTestCase):
    """ "since the storage of 1TB is a unit, it is treated as such": amounts have 32 bits, and resources have a unit."""

    scenarios = fixtures.ON_SQLITE

    def test_the_error_names_the_unit(self) -> None:
        self.engine.register_resource(Resource("storage", unit="B"))
        self.engine.register_resource(Resource("memory", unit="MiB"))
        self.engine.register_resource(Resource("time", unit="minute"))
        tb = 1024**4
        for resource, amount, expected in (
            ("storage", 20 * tb, "at most 2147483647 fit; count storage in MB (1 MB = 1048576 B)"),
            ("storage", 2**31, "in KB (1 KB = 1024 B)"),
            ("storage", 2**31 * 1024, "in MB (1 MB"),
            ("memory", 2**31, "in GiB (1 GiB = 1024 MiB)"),
            ("memory", 2**99, "in a larger unit than 'MiB' (1 TB = 1024 GB)"),
            ("time", 2**31, "count time in a larger unit than 'minute'."),
            ("gpu", 2**31, "count gpu in a larger unit (1 TB = 1024 GB)"),
        ):
            for call in (self.engine.reserve, self.engine.check):
                error = self.assertRaises(exceptions.InvalidDelta, call, self.context, {resource: amount})
                self.assertIn(expected, str(error))
                self.assertEqual((resource, amount), (error.resource, error.delta))
        claims = [Claim(None, {"storage": 2**30}), Claim(None, {"storage": 2**30})]
        error = self.assertRaises(exceptions.InvalidDelta, self.engine.reserve_many, self.context, claims)
        self.assertIn("in KB", str(error))
        self.engine.reserve(self.context, {"storage": 2**31 - 1})


class TestRest(ApplicationTestCase):
    """GET /v2/quota_resources, for which the answer to Delimiter has GET /quotas/resource-classes."""

    def create(self, body: dict[str, Any], token: str = server.ADMIN, status: int = 200) -> Any:
        return self.call("/v2/quota_resources", token, "POST", body, status)

    def test_resources(self) -> None:
        created = {"name": "volume.disk_gb", "description": "Amount of disk space in gigabytes", "unit": "GB"}
        bare = {"name": "gpu", "description": None, "unit": None}
        for body, expected in ((created, created), ({"name": "volume.disk_gb"}, created), ({"name": "gpu"}, bare)):
            self.assertEqual({"resource": expected}, self.create(body))
        listed = self.call("/v2/quota_resources", READER)["resources"]
        self.assertEqual(["fpga", "gpu", "volume.disk_gb"], [one["name"] for one in listed])
        self.assertEqual(created, listed[-1])
        for query in ("marker=tpu", "limit=0"):
            self.call(f"/v2/quota_resources?{query}", READER, status=400)
        for token in (READER, MANAGER):
            self.create({"name": "tpu"}, token, 403)
        for wrong in (
            {"unit": 7},
            {"units": "GB"},
            {"unit": ""},
            {"name": "a\0"},
            {"unit": "x" * 256},
            {"unit": " GB"},
        ):
            self.create({"name": "tpu", **wrong}, status=400)

    def test_a_project_of_this_name(self) -> None:
        for name in ("quota_resources", "resources", "defaults", "detail"):
            self.engine.limits.set_limit(base.ADMIN, "gpu", 3, name)
            answer = self.call(f"/v2/quotas/{name}", f"rita@{name}:reader")
            self.assertEqual({"fpga": 0, "gpu": 3}, answer["quota"], name)


class TestRaces(RaceTestCase):
    """Calls on a group, on what is below it, and on single reservations."""

    TURNS = 12

    def begin(self, turn: int) -> None:
        for group in ACROSS:
            name = f"{turn}{group}"
            self.engine.reserve(self.context, {"gpu": 1, "fpga": 1}, consumer=f"of {name}", group=name, provider="node")

    def race(self, *jobs: tuple[str, str]) -> list[list[str]]:
        """The answers of these calls on these groups, in each turn."""
        self.add_provider("node", gpu=99, fpga=99)
        self.engine.close()
        turns = [[functools.partial(self.group, *job, turn) for job in jobs] for turn in range(self.TURNS)]
        answers = race_in_turns(turns, self.begin)
        self.assert_invariants()
        return answers

    def group(self, call: str, group: str, turn: int) -> str:
        return self.answer(functools.partial(getattr(self.engine, call), self.context, group=f"{turn}{group}"))

    def test_releases_of_overlapping_groups(self) -> None:
        answers = self.race(
            ("release", "cluster"),
            ("rollback", "cluster/vm-1"),
            ("release", "cluster/vm-1/disk"),
            ("release", "cluster"),
        )
        self.assertEqual([["ok"] * 4] * self.TURNS, answers)
        self.assertEqual((0, 0), self.figures())

    def test_a_commit_of_all_beside_a_rollback_of_some(self) -> None:
        """All is committed or nothing is: the rollback is before the commit, or is refused."""
        answers = self.race(("commit", "cluster"), ("rollback", "cluster/vm-1"), ("commit", "cluster"))
        for turn, (first, rolled_back, second) in enumerate(answers):
            rows = self.engine.get_reservations(self.context, group=f"{turn}cluster")
            states = {row.state for row in rows}
            if rolled_back == "ok":
                self.assertEqual({"ReservationRolledBack"}, {first, second})
                self.assertEqual({"reserved", "rolled_back"}, states)
            else:
                self.assertEqual(("ok", "ReservationCommitted", "ok"), (first, rolled_back, second))
                self.assertEqual({"committed"}, states)


class TestCrash(kill_points.KillTestCase):
    """A process is killed in and after each write of a release of a group: all below it is released, or nothing."""

    def begin(self) -> None:
        self.engine.release(self.context, group="cluster")
        for group in ACROSS:
            self.engine.reserve(self.context, {"gpu": 1}, consumer=f"of {group}", group=group, provider="node")
        self.engine.commit(self.context, group="cluster/vm-1")

    def release(self, engine: QuotaEngine) -> None:
        engine.release(self.context, group="cluster")

    def test_a_release(self) -> None:
        self.add_provider("node", gpu=9)
        held = set()
        for kill in self.kills(self.begin, self.release, first=[0]):
            held.add(self.figures())
            if kill.has_effect:
                self.assert_invariants()
        self.assertEqual({(3, 3), (0, 0)}, held)
