# SPDX-License-Identifier: Apache-2.0
"""A process is killed in and after each transaction of a call: the call is done wholly or not at all.

So are its entries in the history, the meters, the capacity and the bindings. The repeated call completes.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa
import testscenarios
from fixtures import MonkeyPatch

from cyborg_quota import ANY, SELECT, Inventory, QuotaEngine, exceptions
from cyborg_quota.db import calendar, models
from cyborg_quota.types.capacity import ResourceUse
from tests import base, held_clock, history_replay, hooks, on_sqlite
from tests.base import ADMIN
from tests.faults import kill_points
from tests.functional import test_limits

load_tests = testscenarios.load_tests_apply_scenarios

Call = Callable[[QuotaEngine], object]
SEVERAL: Final = {"expire", "purge", "reserve for a new project", "reserve and commit"}
"""The calls that take several transactions, each of which completes a part."""
SPAN: Final = (datetime.datetime(2036, 1, 1), datetime.datetime(2037, 1, 1))
IMPORTED: Final = {
    "defaults": {"gpu": 50},
    "projects": [
        {
            "id": "a",
            "limits": {"gpu": 21},
            "children": [{"id": "c"}, {"id": "new", "limits": {"gpu": 2}}],
            "overrides": [{"resource": "gpu", "limit": 33, "from": "2036-01-01T00:00Z", "until": "2037-01-01T00:00Z"}],
        }
    ],
}
ENDED: Final = (
    exceptions.OverrideNotFound,
    exceptions.ProviderExists,
    exceptions.ProviderNotFound,
    exceptions.TotalLimitNotFound,
)
"""The errors of a call that repeats one that was done."""
CHOSEN: Final = {
    "id", "uuid", "usage_id", "generation", "ordinal", "override_id", "provider_uuid", "reservation_id", "ended_after",
}  # fmt: skip
"""The columns whose values differ between attempts, as the times do."""


class TestKilledCalls(test_limits.LimitsTestCase, kill_points.KillTestCase):
    """``c``, a project below ``a``, has claims in each state, and so has ``b``; the pod ``full`` has no unit left."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = self.useFixture(held_clock.HeldClock(self.url, calendar.date_of(73)))
        self.clock.second -= 500
        limits = {name: {"gpu": limit, "fpga": limit} for name, limit in (("a", 20), ("b", 20), ("c", 12))}
        self.import_tree({"a": None, "b": None, "c": "a"}, limits, gpu=40, fpga=40)
        for name, pod in (("n1", "full"), ("n2", "free"), ("n3", None)):
            if pod is not None:
                self.pods.add(ADMIN, pod)
            self.add_provider(name, pod=pod, gpu=20, fpga=9)
        self.capacity.add_provider(ADMIN, "n4", parent="n3")
        self.pods.set_usage(ADMIN, "full", {"gpu": ResourceUse(1, 1)})
        self.pods.move_binding(ADMIN, "c", "full")
        self.admin.set_overrides(ADMIN, {"gpu": 15}, "a", SPAN[1], start=SPAN[0])
        self.admin.set_total_limits(ADMIN, {"fpga": 30})
        self.uuids: dict[str | None, list[str]] = {}
        claims: list[tuple[str, str | None, dict[str, Any]]] = [
            ("c", "held", {"provider": "n1"}),
            ("c", "in flight", {"provider": "n1"}),
            ("c", "outside pods", {"provider": "n3"}),
            ("c", None, {"provider": "n2"}),
            ("b", "overdue", {"provider": "n1", "expire": 60}),
            ("b", "ended", {}),
        ]
        for project_id, consumer, named in claims:
            how: Any = {"expire": 10**7, "project_id": project_id, "consumer": consumer, **named}
            self.uuids[consumer] = self.engine.reserve(ADMIN, {"gpu": 2, "fpga": 1}, **how)
        self.engine.commit(ADMIN, self.uuids["held"])
        self.clock.second += 100
        self.engine.rollback(ADMIN, self.uuids["ended"])
        self.saved = hooks.SavedRows(self.sql, list(models.metadata.tables))

    def engine_of_process(self) -> QuotaEngine:
        return self.make_limited(batch_rows=1)

    def claims(self) -> dict[str, Call]:
        c, amounts = base.Context("c"), {"gpu": 3, "fpga": 1}

        def reserve_and_commit(engine: QuotaEngine) -> None:
            """The commit knows the reservation, and does not read it first."""
            engine.commit(c, engine.reserve(c, amounts, consumer="new", provider="n1"))

        return {
            "reserve": lambda engine: engine.reserve(c, amounts, consumer="new"),
            "reserve for a new project": lambda engine: engine.reserve(base.Context("d"), amounts, consumer="new"),
            "reserve at a provider": lambda engine: engine.reserve(c, amounts, consumer="new", provider="n1"),
            "reserve anywhere": lambda engine: engine.reserve(c, amounts, consumer="new", provider=ANY),
            "reserve and commit": reserve_and_commit,
            "claim and move the binding": lambda engine: engine.reserve(
                c, amounts, consumer="new", provider=ANY, pod=SELECT
            ),
            "commit": lambda engine: engine.commit(c, consumer="in flight"),
            "commit with a name": lambda engine: engine.commit(ADMIN, self.uuids[None], known_as="named"),
            "rollback": lambda engine: engine.rollback(c, consumer="in flight"),
            "release": lambda engine: engine.release(c, consumer="held"),
            "release outside pods": lambda engine: engine.release(c, consumer="outside pods"),
            "resize": lambda engine: engine.resize(ADMIN, {"gpu": 4, "fpga": 2}, "c", consumer="held"),
            "transfer": lambda engine: engine.transfer(ADMIN, "b", "c", consumer="held"),
            "expire": lambda engine: engine.expire(ADMIN),
            "purge": lambda engine: engine.purge(ADMIN, 0),
        }

    def content(self) -> set[tuple[str, int]]:
        """The rows of all tables, and how often each is there; without the usage rows that count nothing yet."""
        rows: collections.Counter[str] = collections.Counter()
        with self.sql.connect() as connection:
            for table in models.metadata.sorted_tables:
                columns = [one for one in table.c if one.name not in CHOSEN and not one.name.endswith("_at")]
                for row in connection.execute(sa.select(*columns)).mappings():
                    rows[f"{table.name} {dict(row)}"] += row.get("subtree") != 0 or row["metered"] != 0
        return set((+rows).items())

    def crash_everywhere(self, calls: Mapping[str, Call], *, is_naive: bool = False) -> None:
        for name, call in calls.items():
            self.saved.put_back()
            before = self.content()
            self.repeat(call)
            made = self.content() ^ before
            self.assertNotEqual(set(), made, name)
            self.assertEqual(([], []), (self.engine.audit(ADMIN), history_replay.differences(self.engine)), name)
            effects = set()
            for kill in self.kills(self.saved.put_back, call, is_naive=is_naive):
                effects.add(kill.has_effect)
                self.assert_invariants()
                if name not in SEVERAL:
                    self.assertIn(self.content() ^ before, (set(), made), (name, kill))
                if kill.has_effect:
                    self.repeat(call)
                    self.assert_invariants()
                    self.assertEqual(made, self.content() ^ before, (name, kill))
            self.assertIn(True, effects, name)

    def repeat(self, call: Call) -> None:
        """Call again; ignore the errors of a call that was completed."""
        engine = self.engine_of_process()
        with contextlib.suppress(*ENDED):
            call(engine)
        engine.close()

    def test_claims(self) -> None:
        """In single-statement transactions, except on SQLite."""
        self.crash_everywhere(self.claims())

    def test_claims_that_close_months(self) -> None:
        """On each database, several statements close the months."""
        self.clock.second = calendar.second_of(75) + 7
        calls = self.claims() | self.changes()
        names = ("reserve", "release", "resize", "transfer", "expire", "purge", "move")
        self.crash_everywhere({name: calls[name] for name in names})

    def test_several_statements(self) -> None:
        """As on a server without single-statement transactions. (SQLite has none.)"""
        self.useFixture(MonkeyPatch("cyborg_quota.db.database.Database._run_single_statement", lambda *_: None))
        self.crash_everywhere({name: self.claims()[name] for name in ("reserve at a provider", "release")})

    def changes(self) -> dict[str, Call]:
        changed = {"gpu": Inventory(25), "fpga": Inventory(10)}
        (override,) = self.admin.list_overrides(ADMIN)[0]
        return {
            "set a limit": lambda engine: engine.limits.set_limit(ADMIN, "gpu", 5, "b", reason="more"),
            "unset a limit": lambda engine: engine.limits.unset_limit(ADMIN, "gpu", "b"),
            "override": lambda engine: engine.limits.set_overrides(ADMIN, {"gpu": 15}, "b", SPAN[1], start=SPAN[0]),
            "cancel": lambda engine: engine.limits.cancel_overrides(ADMIN, [override.id]),
            "move": lambda engine: engine.limits.move_project(ADMIN, "c", "b"),
            "import": lambda engine: engine.limits.import_limits(ADMIN, IMPORTED),
            "set a total": lambda engine: engine.limits.set_total_limits(ADMIN, {"gpu": 30}),
            "unset a total": lambda engine: engine.limits.unset_total_limits(ADMIN, ["fpga"]),
            "add a provider": lambda engine: engine.capacity.add_provider(ADMIN, "n5", parent="n3"),
            "set inventories": lambda engine: engine.capacity.set_inventories(ADMIN, "n1", changed, reason="new"),
            "remove a provider": lambda engine: engine.capacity.remove_provider(ADMIN, "n4"),
            "select a first pod": lambda engine: engine.pods.select(ADMIN, project_id="b"),
            "select another pod": lambda engine: engine.pods.select(ADMIN, project_id="c"),
        }

    def test_changes_of_limits_capacity_and_bindings(self) -> None:
        self.crash_everywhere(self.changes())

    @on_sqlite
    def test_naive_is_detected(self) -> None:
        """If each statement is committed at once, a kill between two of them is found."""
        calls = self.claims() | self.changes()
        for name in ("reserve at a provider", "purge", "set a limit", "set a total", "select another pod"):
            self.assertRaises(AssertionError, self.crash_everywhere, {name: calls[name]}, is_naive=True)
