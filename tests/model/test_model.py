# SPDX-License-Identifier: Apache-2.0
"""The engine compared with a plain model in random histories, on every database.

After every step, the invariants hold in the bare tables, and every counter and every state equals that of the model.
CYBORG_QUOTA_TEST_EXAMPLES_TIMES multiplies the number of histories.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import stateful
from hypothesis import strategies as st

from cyborg_quota import Claim, Usage, exceptions
from cyborg_quota.db.database import Database
from tests import base, fixtures, trees
from tests.model import histories
from tests.model.model import Model, Row

TREE = {"root": None, "leaf": "root", "flat": None}
PROJECTS = st.sampled_from(sorted(TREE))
RESOURCES = st.sampled_from(["fpga", "gpu"])
NAMES = st.sampled_from([None, "c1", "c2"])
GROUPS = st.sampled_from([None, "g", "g/x"])
AMOUNTS = st.sampled_from([1, 2, 3, 1, 2])
DELTAS = st.one_of(st.fixed_dictionaries({"gpu": AMOUNTS}), st.fixed_dictionaries({"gpu": AMOUNTS, "fpga": AMOUNTS}))
LIMITS = st.integers(-1, 6)
CALLS = st.sampled_from(["commit", "commit", "rollback", "release", "extend"])
# The rules are the same on every database, and the search is fastest on SQLite.
EXAMPLES = {"sqlite": 16, "mariadb": 4, "postgresql": 4}
SEED = 3


class Histories(histories.LedgerMachine):
    """Random calls."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = fixtures.DictLimits()
        self.begin_with(self.limits, batch_rows=3)
        self.database = Database(fixtures.settings(self.url))
        trees.plant(self.database, TREE)
        self.model = Model(TREE)
        self.model.limits = self.limits.own  # type: ignore[assignment]
        self.model.subtree_limits = self.limits.subtree_limits

    def teardown(self) -> None:
        try:
            self.release_all()
        finally:
            super().teardown()
            self.database.close()

    def release_all(self) -> None:
        """At the end of every history, all is released: then nothing is in use, and no release was refused."""
        while live := [row for row in self.engine.list_reservations(base.ADMIN) if row.ended_at is None]:
            self.quotas.release(base.ADMIN, [live[0].uuid])
        counters = [(usage.usage.used, usage.usage.reserved) for usage in self.engine.list_usages(base.ADMIN)]
        assert set(counters) <= {(0, 0)}, counters

    def both(self, mine: Any, theirs: Any) -> tuple[Any, Any]:
        """Make the call on both sides: both succeed, or both raise the same error."""
        try:
            expected, refusal = mine(), None
        except exceptions.QuotaError as error:
            expected, refusal = None, error
        try:
            answer = theirs()
        except exceptions.QuotaError as error:
            assert refusal is not None, f"the engine raised {error!r}, the model answered"
            assert type(error) is type(refusal), f"the engine raised {error!r}, the model {refusal!r}"
            if isinstance(refusal, exceptions.ReservationError):
                assert error.uuid == refusal.uuid, f"the engine named {error.uuid}, the model {refusal.uuid}"
            return None, None
        assert refusal is None, f"the engine answered, the model raised {refusal!r}"
        return expected, answer

    @stateful.initialize(limits=st.tuples(st.integers(2, 5), st.integers(3, 7)))
    def begin_limited(self, limits: tuple[int, int]) -> None:
        for project in TREE:
            self.limits.own[project, "gpu"] = limits[0]
        self.limits.subtree_limits["root", "gpu"] = limits[1]

    @stateful.rule(project=PROJECTS, resource=RESOURCES, limit=LIMITS, is_subtree=st.booleans())
    def set_limit(self, project: str, resource: str, limit: int, is_subtree: bool = False) -> None:
        (self.limits.subtree_limits if is_subtree else self.limits.own)[project, resource] = limit

    @stateful.rule(
        project=PROJECTS,
        claims=st.lists(st.tuples(NAMES, DELTAS), min_size=1, max_size=3, unique_by=lambda claim: claim[0] or object()),
        group=GROUPS,
    )
    def reserve(self, project: str, claims: list[tuple[str | None, dict[str, int]]], group: str | None) -> None:
        wanted = [Claim(*claim) for claim in claims]
        rows, uuids = self.both(
            lambda: self.model.reserve(project, claims, group, "reserved"),
            lambda: self.quotas.reserve_many(base.ADMIN, wanted, None, project, group=group),
        )
        self.name(rows, uuids)

    @stateful.rule(project=PROJECTS, consumer=NAMES, resource=RESOURCES, amount=st.integers(1, 4), group=GROUPS)
    def adopt(self, project: str, consumer: str | None, resource: str, amount: int, group: str | None) -> None:
        rows, uuids = self.both(
            lambda: self.model.adopt(project, consumer, {resource: amount}, group),
            lambda: self.quotas.adopt(base.ADMIN, [Claim(consumer, {resource: amount})], project, group=group),
        )
        self.name(rows, uuids)

    def name(self, rows: list[Row] | None, uuids: list[str] | None) -> None:
        """New rows of the model get their UUIDs; for existing rows the engine must have returned the same UUIDs."""
        for row, uuid in zip(rows or [], uuids or [], strict=True):
            assert row.uuid in (None, uuid)
            row.uuid = uuid

    @stateful.precondition(lambda self: any(row.uuid for row in self.model.rows))
    @stateful.rule(call=CALLS, data=st.data())
    def settle_by_uuid(self, call: str, data: st.DataObject) -> None:
        known = [row for row in self.model.rows if row.uuid is not None]
        rows = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique_by=id))
        self.both(
            lambda: self.model.settle(call, rows),
            lambda: getattr(self.quotas, call)(base.ADMIN, [row.uuid for row in rows]),
        )

    @stateful.rule(call=CALLS, project=PROJECTS)
    def settle_unknown(self, call: str, project: str) -> None:
        self.settle_by_name(call, project, {"consumer": "nobody"})

    @stateful.precondition(lambda self: any(row.consumer or row.group for row in self.model.rows))
    @stateful.rule(call=CALLS, data=st.data())
    def settle_by_known_name(self, call: str, data: st.DataObject) -> None:
        names = {(row.project, "consumer", row.consumer) for row in self.model.rows if row.consumer}
        names |= {(row.project, "group", row.group) for row in self.model.rows if row.group}
        project, kind, name = data.draw(st.sampled_from(sorted(names)))
        self.settle_by_name(call, project, {kind: name})

    def settle_by_name(self, call: str, project: str, name: dict[str, str]) -> None:
        def mine() -> None:
            rows = self.model.select(project, **name)
            if not rows and call != "release":
                raise exceptions.ReservationNotFound(next(iter(name.values())))
            self.model.settle(call, rows)

        self.both(mine, lambda: getattr(self.quotas, call)(base.ADMIN, project_id=project, **name))

    @stateful.precondition(lambda self: any(row.state == "reserved" for row in self.model.rows))
    @stateful.rule(data=st.data(), call=st.one_of(st.none(), CALLS))
    def time_passes(self, data: st.DataObject, call: str | None) -> None:
        """A reservation becomes overdue; the next call may select it, by UUID, by consumer or by group."""
        row = data.draw(st.sampled_from([row for row in self.model.rows if row.state == "reserved"]))
        row.overdue = True
        with self.database.engine.begin() as connection:
            connection.exec_driver_sql(
                f"UPDATE reservations SET expire = '2001-01-01 00:00:00.000000' WHERE uuid = '{row.uuid}'"
            )
        if call is None:
            return
        names = {kind: name for kind, name in (("consumer", row.consumer), ("group", row.group)) if name}
        kind = data.draw(st.sampled_from(["uuid", *names]))
        if kind != "uuid":
            self.settle_by_name(call, row.project, {kind: names[kind]})
        else:
            self.both(
                lambda: self.model.settle(call, [row]), lambda: getattr(self.quotas, call)(base.ADMIN, [row.uuid])
            )

    @stateful.rule(seed=st.integers(0, 99))
    def clocks_jump(self, seed: int) -> None:
        """Change every stored time except ``expire`` at random, as if clocks had jumped: no answer may change."""
        rng = random.Random(seed)
        with self.database.engine.begin() as connection:
            for (number,) in connection.exec_driver_sql("SELECT id FROM reservations").all():
                made, changed, ended = (f"'2001-01-01 00:00:{rng.randrange(60):02}.000000'" for _ in range(3))
                connection.exec_driver_sql(
                    f"UPDATE reservations SET created_at = {made}, updated_at = {changed} WHERE id = {number}"
                )
                connection.exec_driver_sql(
                    f"UPDATE reservations SET deleted_at = {ended} WHERE id = {number} AND live IS NULL"
                )

    @stateful.precondition(lambda self: self.named())
    @stateful.rule(
        data=st.data(),
        amounts=st.fixed_dictionaries({"gpu": st.integers(1, 6), "fpga": st.integers(1, 6)}),
        takes_all=st.sampled_from([False, False, True]),
        expected=st.sampled_from([None, None, 1, 2]),
    )
    def resize(self, data: st.DataObject, amounts: dict[str, int], takes_all: bool, expected: int | None) -> None:
        project, consumer, resource = data.draw(st.sampled_from(self.named()))
        if not takes_all:
            amounts = {resource: amounts[resource]}
        before = {} if expected is None else {resource: expected}
        self.both(
            lambda: self.model.resize(
                project, consumer, amounts, before, lambda rows: self.check_growth(rows, amounts)
            ),
            lambda: self.quotas.resize(base.ADMIN, amounts, project, consumer=consumer, expected=before or None),
        )

    def named(self) -> list[tuple[str, str, str]]:
        """The projects, consumers and resources of rows with a consumer: of the live ones, if there are any."""
        rows = [row for row in self.model.rows if row.consumer]
        live = [row for row in rows if row.state in ("reserved", "committed")]
        return sorted({(row.project, str(row.consumer), row.resource) for row in live or rows})

    def check_growth(self, rows: Any, amounts: Any) -> None:
        """Refuse a resize because of capacity; see test_capacity_model.py."""

    @stateful.precondition(lambda self: self.named())
    @stateful.rule(
        data=st.data(), receiver=PROJECTS, limit=st.sampled_from([None, None, 1, 3]), is_repeated=st.booleans()
    )
    def transfer(self, data: st.DataObject, receiver: str, limit: int | None, is_repeated: bool) -> None:
        project, consumer, resource = data.draw(st.sampled_from(self.named()))
        if project == receiver:
            receiver = next(one for one in sorted(TREE) if one != project)
        if limit is not None:
            self.set_limit(receiver, resource, limit)
        for _ in range(1 + is_repeated):
            self.both(
                lambda: self.model.transfer(project, receiver, consumer),
                lambda: self.quotas.transfer(base.ADMIN, receiver, project, consumer=consumer),
            )

    @stateful.precondition(lambda self: any(row.uuid for row in self.model.rows))
    @stateful.rule(data=st.data(), name=NAMES)
    def commit_as(self, data: st.DataObject, name: str | None) -> None:
        known = [row for row in self.model.rows if row.uuid is not None]
        unnamed = [row for row in known if row.consumer is None and row.state == "reserved"]
        chosen = st.sampled_from(unnamed) if unnamed and data.draw(st.booleans()) else st.sampled_from(known)
        rows = data.draw(st.lists(chosen, min_size=1, max_size=2, unique_by=id))
        self.both(
            lambda: self.model.commit_as(rows, name or "c3"),
            lambda: self.quotas.commit(base.ADMIN, [row.uuid for row in rows], known_as=name or "c3"),
        )

    @stateful.rule()
    def expire(self) -> None:
        expected, answer = self.both(self.model.expire, lambda: self.quotas.expire(base.ADMIN))
        assert expected == answer

    @stateful.rule()
    def purge(self) -> None:
        self.both(self.model.purge, lambda: self.quotas.purge(base.ADMIN, 0))

    @stateful.rule(project=PROJECTS, parent=st.one_of(st.none(), PROJECTS))
    def move(self, project: str, parent: str | None) -> None:
        if parent is not None and project in self.model.path(parent):
            return
        self.model.parents[project] = parent
        trees.move(self.database, project, parent)

    @stateful.rule(project=PROJECTS, deltas=DELTAS)
    def check(self, project: str, deltas: dict[str, int]) -> None:
        overs = self.quotas.check(base.ADMIN, deltas, project)
        found = [(over.project_id, over.resource, over.scope) for over in overs]
        assert sorted(found) == self.model.blockers(project, deltas)

    @stateful.rule()
    def heal(self) -> None:
        assert self.quotas.heal(base.ADMIN) == []

    @stateful.invariant()
    def counters_agree(self) -> None:
        figures = {(row.project_id, row.resource): row.usage for row in self.engine.list_usages(base.ADMIN)}
        for project in TREE:
            for resource in ("fpga", "gpu"):
                usage = figures.get((project, resource), Usage(0, 0, 0))
                answer = (usage.used, usage.reserved)
                expected = tuple(self.model.held(project, resource, state) for state in ("committed", "reserved"))
                assert answer == expected, (project, resource, answer, expected)
        listed = self.engine.list_reservations(base.ADMIN)
        stored = sorted((row.project_id, row.resource, row.delta, row.state) for row in listed)
        assert stored == sorted((row.project, row.resource, row.delta, row.state) for row in self.model.rows)
        states = {row.uuid: row.state for row in listed}
        assert all(states[row.uuid] == row.state for row in self.model.rows if row.uuid is not None)
        assert self.engine.audit(base.ADMIN) == []


class TestModel(base.BackendTestCase):
    def test_histories(self) -> None:
        histories.run(Histories, EXAMPLES[self.backend] * fixtures.MORE, seed=SEED, backend=self.backend)
