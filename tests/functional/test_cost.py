# SPDX-License-Identifier: Apache-2.0
"""What the calls of a project's user read does not grow with the cloud. Rows are counted; no time is measured."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
import webob

import cyborg_quota
from cyborg_quota import Claim, QuotaEngine, exceptions, policy
from cyborg_quota.api.deploy import Application
from cyborg_quota.api.operations import OPERATIONS
from cyborg_quota.db import models
from cyborg_quota.db.database import Database
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.sources.config import ConfigLimitDriver
from cyborg_quota.limits.sources.keystone_client import Project
from cyborg_quota.types import TOTAL
from tests import base, clouds, fixtures
from tests.api import server
from tests.functional import test_limits
from tests.security import test_every_call

SMALL, LARGE, SMALL_WIDE, WIDE = 200, 1_000, 10, 250
"""The numbers of projects, and of the children of the parent of the project whose calls are counted."""
PODS = 200
"""The number of pods in which the ancestors of the project have usage rows."""
MOST_MORE_ROWS = 200
"""The number of additional rows (on SQLite: steps) that a call may read, because its project has more reservations."""

FUNCTION = re.compile(r"cyborg_quota_\w+_v\d")
"""A function of PostgreSQL, which writes. test_plans.py shows what its statements read."""

Call = Callable[[QuotaEngine], object]
Count = Callable[[sa.Connection, str, Any], int]
P7 = base.Context("p7")
UNTIL = datetime.datetime(2999, 1, 1)


def in_flight(engine: QuotaEngine) -> list[str]:
    return engine.reserve_many(P7, [Claim("consumer", {"gpu": 1})], group="group")


def refused(engine: QuotaEngine) -> None:
    with contextlib.suppress(exceptions.OverQuota):
        engine.reserve(P7, {"gpu": 2})


def another_end() -> datetime.datetime:
    """(An override that is equal to another one is not added.)"""
    return UNTIL + datetime.timedelta(seconds=next(NUMBERS))


def cancel_override(engine: QuotaEngine) -> None:
    [*_, newest], _ = engine.limits.list_overrides(base.ADMIN, "p7")
    engine.limits.cancel_overrides(base.ADMIN, [newest.id])


OWN: dict[str, Call] = {
    "get_usages": lambda engine: engine.get_usages(P7),
    "headroom": lambda engine: engine.headroom(P7),
    "how_many": lambda engine: engine.how_many(P7, {"gpu": 1, "fpga": 1}),
    "check": lambda engine: engine.check(P7, {"gpu": 1, "fpga": 1}),
    "check, refused": lambda engine: engine.check(P7, {"gpu": 2}),
    "reserve, refused": refused,
    "reserve_many": in_flight,
    "reserve_many, again": in_flight,
    "resize": lambda engine: engine.resize(P7, {"gpu": 1}, consumer="consumer"),
    "extend": lambda engine: engine.extend(P7, expire=9, consumer="consumer"),
    "commit": lambda engine: engine.commit(P7, group="group"),
    "release": lambda engine: engine.release(P7, consumer="consumer"),
    "rollback": lambda engine: engine.rollback(P7, engine.reserve(P7, {"gpu": 1}, consumer="other")),
    "list_usages": lambda engine: engine.list_usages(base.ADMIN, "p7"),
    "list_reservations": lambda engine: engine.list_reservations(base.ADMIN, "p7"),
    "list_reservations, first": lambda engine: engine.list_reservations(base.ADMIN, "p7", limit=1),
    "list_reservations, state": lambda engine: engine.list_reservations(base.ADMIN, "p7", state="released", limit=5),
    "list_reservations, consumer": lambda engine: engine.list_reservations(base.ADMIN, "p7", consumer="consumer"),
    "list_reservations, group": lambda engine: engine.list_reservations(base.ADMIN, "p7", group="group", limit=5),
    "list_reservations, uuid": lambda engine: engine.list_reservations(base.ADMIN, reservations=["ended-7-0"]),
    "list_reservations, next": lambda engine: engine.list_reservations(base.ADMIN, "p7", limit=5, after="ended-7-0"),
    "get_reservations": lambda engine: engine.get_reservations(P7, consumer="consumer"),
    "list_limits": lambda engine: engine.limits.list_limits(base.ADMIN, "p7"),
    "path": lambda engine: engine.limits.path(base.ADMIN, "p7"),
    "tree_page": lambda engine: engine.limits.tree_page(base.ADMIN, "p7", 1),
    "get_detail": lambda engine: engine.get_detail(P7),
    "get_parent": lambda engine: engine.limits.get_parent(base.ADMIN, "p7"),
    "get_parent, unknown": lambda engine: engine.limits.get_parent(base.ADMIN, "nothing"),
    "tree_page, of the parent": lambda engine: engine.limits.tree_page(base.ADMIN, "mid0", 5),
    "tree_page, of the root": lambda engine: engine.limits.tree_page(base.ADMIN, "top", 1),
    "tree_page, next": lambda engine: engine.limits.tree_page(base.ADMIN, "top", 5, "mid0"),
    "list_holders": lambda engine: engine.limits.list_holders(base.ADMIN, "mid0", 1),
    "default_limits": lambda engine: engine.limits.default_limits(P7),
    "list_defaults": lambda engine: engine.limits.list_defaults(base.ADMIN),
    "list_overrides": lambda engine: engine.limits.list_overrides(base.ADMIN, "p7"),
    "history": lambda engine: engine.limits.history(P7, limit=5),
    "add_project": lambda engine: engine.limits.add_project(base.ADMIN, f"new{next(NUMBERS)}", "sme"),
    "set_limit": lambda engine: engine.limits.set_limit(base.ADMIN, "gpu", 1, "p7"),
    "unset_limit": lambda engine: engine.limits.unset_limit(base.ADMIN, "gpu", "p7"),
    "set_limits": lambda engine: engine.limits.set_limits(base.ADMIN, {"gpu": 1}, "p7"),
    "set_minimums": lambda engine: engine.limits.set_minimums(base.ADMIN, {"gpu": 0}, "p7"),
    "bounds_of_minimums": lambda engine: engine.limits.bounds_of_minimums(base.ADMIN, "p7", ["gpu"]),
    "set_overrides": lambda engine: engine.limits.set_overrides(base.ADMIN, {"gpu": 1}, "p7", another_end()),
    "cancel_overrides": cancel_override,
    "show_budget": lambda engine: engine.hours.show_budget(P7),
    "set_budget": lambda engine: engine.hours.set_budget(base.ADMIN, {"gpu": 1000 + next(NUMBERS)}, "p7"),
    "adjust": lambda engine: engine.hours.adjust(base.ADMIN, {"gpu": -1}, "p7"),
    "report": lambda engine: engine.hours.report(P7, datetime.date(2026, 1, 1), datetime.date(2099, 1, 1), "p7"),
}
"""The calls of a project's user, of the administrator of its parent, and those of an admin for one project or for the
defaults."""

IN_POD: dict[str, Call] = {
    "headroom": lambda engine: engine.headroom(base.ADMIN, "p7", pod="pod1"),
    "how_many": lambda engine: engine.how_many(base.ADMIN, {"gpu": 1, "fpga": 1}, "p7", pod="pod1"),
    "check": lambda engine: engine.check(base.ADMIN, {"gpu": 1}, "p7", pod="pod1"),
    "get_detail": lambda engine: engine.get_detail(base.ADMIN, "p7", pod="pod1"),
}

NUMBERS = itertools.count()
READER, MANAGER, PARENT = "rita@p7:reader,member", "max@p7:manager,member,reader", "pia@mid0:manager,member,reader"
QUOTA = "/v2/quotas/p7"
SETS = {"quota": {"gpu": 1}}

REST: dict[str, tuple[str, str, str, Any]] = {
    "get_quota": (READER, "GET", QUOTA, None),
    "get_quota_detail": (READER, "GET", f"{QUOTA}/detail", None),
    "get_quota_defaults": (READER, "GET", f"{QUOTA}/defaults", None),
    "resource_list": (READER, "GET", "/v2/quota_resources", None),
    "get_quota_tree": (READER, "GET", f"{QUOTA}/tree", None),
    "get_quota_tree, of the parent": (PARENT, "GET", "/v2/quotas/mid0/tree?limit=5", None),
    "get_quota_history": (READER, "GET", f"{QUOTA}/history?limit=5", None),
    "override_list": (READER, "GET", f"{QUOTA}/overrides", None),
    "check_quota": (READER, "POST", f"{QUOTA}/check", {"check": {"gpu": 2}}),
    "list_quota_reservations": (READER, "GET", "/v2/quota_reservations?limit=5", None),
    "list_quota_reservations, of a child": (PARENT, "GET", "/v2/quota_reservations?project_id=p7&limit=5", None),
    "get_quota, of a child": (PARENT, "GET", QUOTA, None),
    "set_quota": (PARENT, "PUT", QUOTA, SETS),
    "set_quota_minimums": (PARENT, "PUT", f"{QUOTA}/minimums", {"minimums": {"gpu": 0}}),
    "set_quota_override": (
        PARENT,
        "POST",
        f"{QUOTA}/overrides",
        lambda: {"override": {**SETS, "until": another_end().isoformat()}},
    ),
    "get_quota_override": (READER, "GET", f"{QUOTA}/overrides/OVERRIDE", None),
    "override_delete": (PARENT, "DELETE", f"{QUOTA}/overrides/OVERRIDE", None),
    "delete_quota": (PARENT, "DELETE", QUOTA, None),
    "budget_set": (server.ADMIN, "PUT", f"{QUOTA}/budgets", {"hours": {"gpu": 1000}}),
    "budget_show": (READER, "GET", f"{QUOTA}/budgets", None),
    "budget_adjust": (server.ADMIN, "POST", f"{QUOTA}/budgets/adjust", {"hours": {"gpu": 1}}),
    "budget_delete": (server.ADMIN, "DELETE", f"{QUOTA}/budgets", None),
    "usage_report": (READER, "GET", "/v2/quota_usage?from=2026-01&to=2099-01", None),
    "project_create": (
        "sue@sme:manager,member,reader",
        "POST",
        "/v2/quotas/sme/children",
        lambda: {"project_id": f"new{next(NUMBERS)}"},
    ),
}
"""The calls of the REST API that a user of a project or of its parent may make: token, method, path and body (or a
function that returns it)."""

OF_ADMINS: dict[str, tuple[str, str, str, Any]] = {
    "list_quotas": (server.ADMIN, "GET", "/v2/quotas?limit=1", None),
    "get_quota_tree, of the root": (server.ADMIN, "GET", "/v2/quotas/top/tree?limit=1", None),
}
"""The pages of an admin over all projects."""

OF_SIBLINGS = {
    *("set_limit", "unset_limit", "set_limits", "set_overrides", "cancel_overrides"),
    *("set_quota", "delete_quota", "set_quota_override", "override_delete"),
}
"""The calls of the administrator of a parent, which read the children of this own project: a change of a limit, because
the enforcement model compares the sum of their limits with that of the parent."""


class ChildrenOfSme:
    """What Keystone answers does not count here."""

    def get(self, project_id: str) -> Project:
        return Project(project_id, project_id, "default", "sme")


def rows_of(database: Database, engine: QuotaEngine, call: Call, count: Count = clouds.rows_read) -> list[int]:
    """The counts of each query of a call. They are made on a connection of the ledger, which has its functions."""
    with clouds.captured() as statements:
        call(engine)
    queries = [query for query in clouds.queries(statements) if not FUNCTION.search(query[0])]
    return [database.read(lambda connection: count(connection, *query)) for query in queries]  # noqa: B023


def name_of(row: str) -> str:
    return row.partition(",")[0]


class TestCost(test_limits.LimitsTestCase):
    initial = InitialLimits(child=None)

    def setUp(self) -> None:
        super().setUp()
        self.admin.set_limits(base.ADMIN, {"gpu": 1, "fpga": 5})
        self.admin.add_project(base.ADMIN, "sme")
        self.admin.set_limits(base.ADMIN, {"gpu": -1, "fpga": -1}, "sme")

    def read(self) -> dict[str, list[int]]:
        """Return the rows that each query of each call reads, in an engine with empty caches."""
        engine = self.make_limited()
        engine.list_usages(base.ADMIN, "nobody")  # (connects, and checks the schema)
        application = self.make_application()

        def ask(token: str, method: str, path: str, body: Any) -> None:
            if "OVERRIDE" in path:
                [*_, newest], _ = engine.limits.list_overrides(base.ADMIN, "p7")
                path = path.replace("OVERRIDE", newest.id)
            options = {} if body is None else {"json": body() if callable(body) else body}
            status = self.status(application, token, method, path, **options)
            self.assertLess(status, 300, f"{token} {method} {path}")

        rest = {row: lambda _engine, given=given: ask(*given) for row, given in {**REST, **OF_ADMINS}.items()}
        return self.measure({**OWN, **rest}, engine)

    def status(self, application: Application, token: str, method: str, path: str, **options: Any) -> int:
        request = webob.Request.blank(path, method=method, headers={"X-Auth-Token": token}, **options)
        return request.get_response(application).status_int

    def measure(
        self, calls: dict[str, Call], engine: QuotaEngine, count: Count = clouds.rows_read
    ) -> dict[str, list[int]]:
        """Return the counts of each query of each call."""
        return {name: rows_of(self.database, engine, call, count) for name, call in calls.items()}

    def make_application(self) -> Application:
        conf = server.settings(self.url)
        engine = cyborg_quota.make_engine(conf)
        engine._directory = ChildrenOfSme  # type: ignore[assignment]
        self.addCleanup(engine.close)
        engine.list_usages(base.ADMIN, "nobody")
        return server.make_application(conf, engine)

    def grown(self, before: dict[str, list[int]], after: dict[str, list[int]]) -> dict[str, Any]:
        """Return the calls that make more statements, or read more rows."""
        return {
            name: (before[name], rows)
            for name, rows in after.items()
            if len(rows) != len(before[name]) or sum(rows) > sum(before[name]) + MOST_MORE_ROWS
        }

    def test_every_call_reads_the_same_in_a_large_cloud(self) -> None:
        """Other projects, with their limits, overrides, history and reservations; other roots; and siblings."""
        self.add(0, SMALL, history=3)
        clouds.add_children(self.sql, "mid0", SMALL_WIDE)
        self.admin.unset_limit(base.ADMIN, "gpu", "p7")  # as after the last call
        self.engine.limits.set_total_limits(base.ADMIN, {"gpu": 10**6, "fpga": 10**6})
        small = self.read()
        self.add(SMALL, LARGE, history=1)
        large = self.read()
        self.assertEqual({}, self.grown(small, large))
        clouds.add_children(self.sql, "mid0", WIDE, first=SMALL_WIDE)
        grown = self.grown(large, self.read())
        self.assertEqual(set(), {name for name in grown if not {name, name_of(name)} & OF_SIBLINGS}, grown)
        self.assertIn("set_limit", grown, "the control: what reads more is detected")

    def test_a_list_of_reservations_reads_those_of_the_project(self) -> None:
        """Whatever the filter, and also if nothing matches: not the 20,000 of other projects, nor 2,000 others.

        Neither do an admin's lists over all projects of a consumer or a group.
        """
        clouds.add_projects(self.sql, 0, 500, history=40)
        with self.sql.begin() as connection:
            of_7 = sa.select(models.reservations).where(models.reservations.c.uuid == "ended-7-0")
            once = {**connection.execute(of_7).mappings().one(), "consumer_id": None}
            del once["id"]
            ended = [{**once, "uuid": f"more-{number}", "group_id": f"g{number}"} for number in range(2_000)]
            connection.execute(models.reservations.insert(), ended)

        def call(project_id: str | None, **given: Any) -> Call:
            return lambda engine: engine.list_reservations(base.ADMIN, project_id, limit=5, **given)

        calls = {
            "resource": call("p7", resource="fpga"),
            "state": call("p7", state="committed"),
            "both": call("p7", resource="gpu", state="reserved"),
            "consumer": call("p7", consumer="nobody"),
            "group": call("p7", group="nothing"),
            "group, state": call("p7", group="group-7-1", state="committed"),
            "next": call("p7", resource="fpga", after="ended-7-0"),
            "consumer, of all": call(None, consumer="nobody"),
            "group, of all": call(None, group="nothing"),
            "groups below, of all": call(None, group="group-7-1", state="released"),
        }
        found = self.measure(calls, self.make_limited())
        most = 2_000 if self.backend == "sqlite" else 200
        self.assertEqual({}, {name: rows for name, rows in found.items() if sum(rows) > most})

    def test_a_page_of_what_exceeds_a_limit_reads_few_projects(self) -> None:
        """Not the whole tree; also if nothing exceeds a limit. The pages lead to everything that does."""
        calls: dict[str, Call] = {"over_page": lambda engine: engine.limits.over_page(base.ADMIN, count=5)}
        found = []
        for first, last in ((0, 400), (400, 2_000)):
            clouds.add_projects(self.sql, first, last)
            found.append(self.measure(calls, self.make_limited()))
        self.assertEqual({}, self.grown(*found))
        self.engine.reserve(base.Context("p1999"), {"gpu": 1})
        self.admin.set_limits(base.ADMIN, {"gpu": 0}, "p1999")
        self.admin.set_total_limits(base.ADMIN, {"gpu": 0})
        over = [(row.project_id, row.resource) for row in self.admin.list_over(base.ADMIN)]
        self.assertEqual([(TOTAL, "gpu"), ("p1999", "gpu")], over)

    def test_usage_of_other_pods_is_not_read(self) -> None:
        """Neither by the calls that name no pod, nor by those that name another one."""
        self.add(0, SMALL, history=1)
        self.admin.unset_limit(base.ADMIN, "gpu", "p7")
        self.engine.limits.set_total_limits(base.ADMIN, {"gpu": 10**6, "fpga": 10**6})
        self.engine.pods.add(base.ADMIN, "pod1")
        before, before_in_pod = self.read(), self.returned_in_pod()
        keys = [(name, f"pod{pod}") for pod in range(PODS) for name in clouds.RESOURCES]
        clouds.add_usages(self.sql, [(owner, *key) for owner in ("top", "mid0") for key in keys])
        with self.sql.begin() as connection:
            values = {"resource_affinity": "{}", "state": "available", "weight": 0, "threshold": 100, "generation": 0}
            rows = [{**values, "availability_zone": "", "name": f"other{pod}"} for pod in range(PODS)]
            connection.execute(models.pods.insert(), rows)
        grown = self.grown(before, self.read())
        self.assertEqual({}, {name: rows for name, rows in grown.items() if name not in OF_ADMINS})
        self.assertEqual({}, self.grown(before_in_pod, self.returned_in_pod()))

    def returned_in_pod(self) -> dict[str, list[int]]:
        return self.measure(IN_POD, self.make_limited(), clouds.rows_returned)

    def add(self, first: int, last: int, *, history: int) -> None:
        clouds.add_projects(self.sql, first, last, history=history)
        clouds.add_roots(self.sql, first, last)
        clouds.add_limit_records(self.sql, [f"p{number}" for number in range(first, last)])

    def test_every_call_has_a_row(self) -> None:
        """The calls that need no admin's context, of the engine and of the REST API."""
        own = {call for call, given in test_every_call.OWN.items() if given is not None}
        others = test_every_call.OF_OWN_PROJECT | test_every_call.BY_RULE_AND_ID
        self.assertLessEqual(own | test_every_call.BY_RULE.keys() | others, set(map(name_of, OWN)))
        of_users = {None, policy.GET, policy.RULE, policy.ADD_CHILD, policy.RESOURCES}
        of_tenants = {one.name for one in OPERATIONS if one.rule in of_users}
        self.assertEqual(of_tenants, set(map(name_of, REST)))
        application = self.make_application()
        for one in OPERATIONS:
            if one.name not in of_tenants:
                path = one.path.replace("{project_id}", "p7")
                for token in (READER, MANAGER, PARENT):
                    self.assertIn(self.status(application, token, one.method, path), (403, 404), one.name)

    def test_get_usages_and_headroom_are_one_statement(self) -> None:
        clouds.add_projects(self.sql, 0, SMALL)
        self.plant({f"deep{level}": f"deep{level - 1}" if level > 1 else "p7" for level in range(1, 9)})
        engine = self.make_limited()
        engine.reserve(base.Context("deep8"), {"fpga": 2}, consumer="open")
        config = fixtures.open_engine(self, self.url, ConfigLimitDriver({"fpga": 6}))
        for quotas, limit in ((engine, 5), (config, 6)):
            quotas.get_usages(self.context)
            with clouds.captured() as of_usages:
                usages = quotas.get_usages(base.Context("p7"))
            quotas.headroom(base.ADMIN, "deep8")
            with clouds.captured() as of_headroom:
                headroom = quotas.headroom(base.Context("deep8"))
            self.assertEqual((limit, limit - 2), (usages["fpga"].limit, headroom["fpga"].fits))
            self.assertEqual((1, 1), (len(clouds.queries(of_usages)), len(of_headroom)), (of_usages, of_headroom))
