# SPDX-License-Identifier: Apache-2.0
"""The base class of every test that needs a ledger."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from oslotest import base

from cyborg_quota import Claim, Constraint, Inventory, QuotaEngine
from cyborg_quota.capacity.api import Capacity
from cyborg_quota.db import projects
from cyborg_quota.ledger.transitions import decide
from cyborg_quota.pods.api import Pods
from cyborg_quota.types import Selection
from tests import fixtures, hooks, invariants, trees


@dataclasses.dataclass
class Context:
    """A request context, with the attributes that the engine reads."""

    project_id: str | None
    is_admin: bool = False


__all__ = [
    "ADMIN",
    "BackendTestCase",
    "Constraint",
    "Context",
    "LedgerTestCase",
    "Selection",
    "claim",
    "decide",
    "milliseconds",
    "projects",
]

ADMIN = Context(project_id="admin-project", is_admin=True)


class BackendTestCase(base.BaseTestCase):
    """A test that runs on each database; in other folders than those of tests/__init__.py, if its module has

    load_tests = testscenarios.load_tests_apply_scenarios
    """

    scenarios = fixtures.SCENARIOS
    backend = "sqlite"

    def setUp(self) -> None:
        super().setUp()
        fixtures.need_server(self, self.backend)


class LedgerTestCase(BackendTestCase):
    """A test with an empty ledger.

    ``url`` is its database, and ``limits`` can be set. ``quotas`` is an engine that checks I1, I2 and I9 after each
    call. ``settings``: of each engine; see fixtures.make_engine.
    """

    settings: Mapping[str, Any] = {}

    def setUp(self) -> None:
        super().setUp()
        self.url = self.useFixture(fixtures.EmptyLedger(self.backend)).url
        self.limits = fixtures.DictLimits()
        self.engine = self.make_engine()
        self.quotas: QuotaEngine = fixtures.Checked(self.engine, self.url)  # type: ignore[assignment]
        self.context = Context("p1")
        self.sql = fixtures.plain_engine(self.url)

    @functools.cached_property
    def capacity(self) -> Capacity:
        return self.engine.capacity

    @functools.cached_property
    def pods(self) -> Pods:
        return self.engine.pods

    def make_engine(self, **changes: object) -> QuotaEngine:
        return fixtures.open_engine(self, self.url, self.limits, **{**self.settings, **changes})

    def assert_invariants(self) -> None:
        with self.sql.connect() as connection:
            invariants.assert_hold(connection)

    def execute(self, statement: str, **parameters: object) -> None:
        """Run SQL on the database, without the ledger."""
        with self.sql.begin() as connection:
            connection.execute(sa.text(statement), parameters)

    def fetch(self, query: str, **parameters: object) -> Sequence[sa.Row[Any]]:
        """Return the rows of a query on the database, without the ledger."""
        with self.sql.connect() as connection:
            return connection.execute(sa.text(query), parameters).all()

    def plant(self, parents: Mapping[str, str | None]) -> None:
        """Add these projects, parents first, and move each below its parent."""
        trees.plant(hooks.database_of(self.engine), parents)

    def subtrees(self, resource: str = "gpu") -> dict[str, int]:
        """Return the subtree counter of every project that has one."""
        with self.sql.connect() as connection:
            return trees.subtrees(connection, resource)

    def add_provider(self, name: str, *, pod: str | None = None, can_host: bool = True, **totals: int) -> None:
        """Add a provider with inventories of these totals."""
        capacity = self.engine.capacity
        capacity.add_provider(ADMIN, name, pod=pod, can_host=can_host)
        if totals:
            capacity.set_inventories(ADMIN, name, {resource: Inventory(total) for resource, total in totals.items()})

    def make_overdue(self, *uuids: str) -> None:
        """Set the expiry of these reservations to the past."""
        for uuid in uuids:
            self.execute(
                "UPDATE reservations SET expire = '2001-01-01 00:00:00.000000' WHERE uuid = :u",
                u=uuid,
            )

    def figures(self, project_id: str = "p1", resource: str = "gpu") -> tuple[int, int]:
        """Return (used, reserved)."""
        usage = self.engine.get_usages(ADMIN, project_id)[resource]
        return usage.used, usage.reserved

    def states(self, *uuids: str) -> list[str]:
        """Return the stored state of each reservation, in the given order."""
        found = {row.uuid: row.state for row in self.engine.list_reservations(ADMIN, reservations=uuids)}
        return [found[uuid] for uuid in uuids]


def claim(consumer: str | None, **deltas: int) -> Claim:
    """Return Claim(consumer, deltas)."""
    return Claim(consumer, deltas)


def milliseconds(count: int) -> datetime.timedelta:
    """Return a timedelta of ``count`` milliseconds."""
    return datetime.timedelta(milliseconds=count)
