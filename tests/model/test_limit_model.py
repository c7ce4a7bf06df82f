# SPDX-License-Identifier: Apache-2.0
"""Limits in trees compared with a model that traverses the whole tree for each question; on every database.

Random trees, limits, moves and charges. After every step: no limit violates the enforcement model, every refusal names
the projects that the model names, and the invariants of the ledger hold.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any
from unittest import mock

import fixtures as fx
import testscenarios
from hypothesis import stateful
from hypothesis import strategies as st

from cyborg_quota import exceptions
from cyborg_quota.ledger.history import History
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat, StrictHierarchy, StrictTwoLevel
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.types import TOTAL
from tests import base, fixtures, history_replay, invariants
from tests.model import histories

UNLIMITED = -1
PROJECTS = st.sampled_from(["a", "b", "c", "d", "e"])
PARENTS = st.sampled_from([None, "a", "b", "c", "d", "e"])
LIMITS = st.sampled_from([UNLIMITED, 0, 1, 2, 3, 4, 6, 8, 12])
POLICIES = {"strict_hierarchy": StrictHierarchy, "strict_two_level": StrictTwoLevel, "flat": Flat}
EXAMPLES = {"sqlite": 6, "mariadb": 2, "postgresql": 2}
SEED = 2
MAX_DEPTH = 4
"""The maximum number of levels in this test. Five projects cannot exceed the engine's own maximum, which is 8."""
VERIFIED = 6
"""In how many steps the audit and the history of the limits are read once. The history is verified at the end, too: a
wrong entry stays."""


class Killed(Exception):
    """Ends a call as a crash would."""


class PlainLimits:
    """The limits of one resource, in plain Python."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.default: int | None = None
        self.own: dict[str, int] = {}
        self.parents: dict[str, str | None] = {}
        self.held: dict[str, int] = {}
        self.total: int | None = None

    def limit(self, project: str) -> int | None:
        if project in self.own:
            return self.own[project]
        return 0 if self.parents.get(project) is not None else self.default

    def path(self, project: str) -> list[str]:
        path = [project]
        while (parent := self.parents.get(path[-1])) is not None and parent not in path:
            path.append(parent)
        return path

    def cannot_move(self, project: str, parent: str | None) -> bool:
        """The parent does not exist, or is the project itself or below it."""
        return parent is not None and (parent not in self.parents or project in self.path(parent))

    def below(self, project: str) -> list[str]:
        return [name for name in {*self.parents, *self.held, project} if project in self.path(name)]

    def children(self, project: str) -> list[str]:
        return [one for one, parent in self.parents.items() if parent == project]

    def is_valid(self) -> bool:
        """Return whether the enforcement model allows all of them."""
        if self.policy == "flat":
            return True
        for parent in self.parents:
            most, children = self.limit(parent), self.children(parent)
            if self.policy == "strict_two_level" and children and self.parents[parent] is not None:
                return False
            if most is None or most == UNLIMITED:
                continue
            limits = [limit for child in children if (limit := self.limit(child)) is not None]
            if UNLIMITED in limits:
                return False
            if self.policy == "strict_hierarchy" and sum(limits) > most:
                return False
            if self.policy == "strict_two_level" and any(limit > most for limit in limits):
                return False
        return True

    def is_too_deep(self) -> bool:
        return any(len(self.path(project)) > MAX_DEPTH for project in self.parents)

    def blockers(self, project: str, amount: int) -> list[str] | None:
        """Return the projects whose limits refuse; None if a limit on the path is missing."""
        found = []
        path = self.path(project)
        if any(self.limit(name) is None for name in path):
            return None
        for name in path[:1] if self.policy == "flat" else path:
            most = self.limit(name)
            counted = [name] if self.policy == "flat" else self.below(name)
            if most != UNLIMITED and most is not None and sum(self.held.get(x, 0) for x in counted) + amount > most:
                found.append(name)
        if self.total is not None and sum(self.held.values()) + amount > self.total:
            found.append(TOTAL)
        return sorted(found)


class Trees(histories.LedgerMachine):
    """Administrators and users. ``policy`` is set by the test."""

    policy = "strict_hierarchy"

    def __init__(self) -> None:
        super().__init__()
        self.begin_with(DatabaseLimitDriver(POLICIES[self.policy](), InitialLimits()), resources=["gpu"])
        self.plain = PlainLimits(self.policy)
        self.steps = 0

    def teardown(self) -> None:
        try:
            assert history_replay.differences(self.engine) == []
        finally:
            super().teardown()

    def change(self, plain: PlainLimits, refusal: type[Exception] | None, call: str, *args: Any) -> None:
        """Make the change in the engine; it must be refused exactly if the model says so.

        On success the model follows.
        """
        if refusal is None and plain.is_too_deep():
            refusal = exceptions.ProjectRefused
        if refusal is None and not plain.is_valid():
            refusal = exceptions.LimitRefused
        try:
            getattr(self.engine.limits, call)(base.ADMIN, *args)
        except exceptions.QuotaError as error:
            assert refusal is not None, f"{call}{args} was refused ({error}), the model allows it"
            assert isinstance(error, refusal), f"{call}{args}: {error!r}, the model has {refusal.__name__}"
            return
        assert refusal is None, f"{call}{args} was allowed, the model refuses it ({refusal.__name__})"
        self.plain = plain

    @stateful.initialize(
        default=LIMITS,
        edges=st.lists(st.tuples(PROJECTS, PARENTS), min_size=10, max_size=16),
        limits=st.lists(st.tuples(PROJECTS, LIMITS), min_size=6, max_size=12),
    )
    def begin(self, default: int, edges: list[tuple[str, str | None]], limits: list[tuple[str, int]]) -> None:
        """Make a tree with limits: what a model refuses is rare without one."""
        self.set_default(default)
        for project, parent in edges:
            self.place(project, parent)
        for project, limit in limits:
            self.set_limit(project, limit)

    @stateful.rule(limit=st.one_of(LIMITS, st.none()))
    def set_default(self, limit: int | None) -> None:
        plain = copy.deepcopy(self.plain)
        plain.default = limit
        self.change(plain, None, "set_limits", {"gpu": limit})

    @stateful.rule(project=PROJECTS, limit=LIMITS)
    def set_limit(self, project: str, limit: int) -> None:
        plain = copy.deepcopy(self.plain)
        plain.own[project] = limit
        plain.parents.setdefault(project, None)  # (a project with a limit is known)
        self.change(plain, None, "set_limit", "gpu", limit, project)

    @stateful.rule(project=PROJECTS)
    def unset_limit(self, project: str) -> None:
        plain = copy.deepcopy(self.plain)
        plain.own.pop(project, None)
        self.change(plain, None, "unset_limit", "gpu", project)

    @stateful.rule(project=PROJECTS, parent=PARENTS)
    def place(self, project: str, parent: str | None) -> None:
        """Add or move the project, depending on whether it exists."""
        is_known = project in self.plain.parents
        plain = copy.deepcopy(self.plain)
        refusal = exceptions.ProjectRefused if plain.cannot_move(project, parent) else None
        plain.parents[project] = parent
        self.change(plain, refusal, "move_project" if is_known else "add_project", project, parent)

    @stateful.rule(project=PROJECTS)
    def remove(self, project: str) -> None:
        plain = copy.deepcopy(self.plain)
        is_bound = project not in plain.parents or bool(plain.children(project)) or bool(plain.held.get(project))
        plain.parents.pop(project, None)
        plain.own.pop(project, None)
        plain.held.pop(project, None)
        self.change(plain, exceptions.ProjectRefused if is_bound else None, "remove_project", project)

    @stateful.rule(project=PROJECTS, amount=st.integers(1, 4))
    def hold(self, project: str, amount: int) -> None:
        expected = self.plain.blockers(project, amount)
        self.plain.parents.setdefault(project, None)  # a project that was reserved for is known from then on
        try:
            uuids = self.engine.reserve(base.ADMIN, {"gpu": amount}, project_id=project)
        except exceptions.OverQuota as error:
            assert sorted(over.project_id for over in error.overs) == expected
            return
        except exceptions.LimitNotSet:
            assert expected is None
            return
        assert expected == [], f"admitted, the model has {expected}"
        self.engine.commit(base.ADMIN, uuids)
        self.plain.held[project] = self.plain.held.get(project, 0) + amount

    @stateful.rule(limit=st.sampled_from([0, 2, 5, 9, 14]), is_killed=st.booleans())
    def set_total(self, limit: int, is_killed: bool) -> None:
        """``is_killed``: the call ends between its two transactions. Then the limit is what it was before."""
        if is_killed:
            with mock.patch.object(History, "change", side_effect=Killed), contextlib.suppress(Killed):
                self.engine.limits.set_total_limits(base.ADMIN, {"gpu": limit})
        else:
            self.engine.limits.set_total_limits(base.ADMIN, {"gpu": limit})
            self.plain.total = limit
        assert [one.limit for one in self.engine.limits.list_total_limits(base.ADMIN)] == (
            [] if self.plain.total is None else [self.plain.total]
        )

    @stateful.rule()
    def unset_total(self) -> None:
        try:
            self.engine.limits.unset_total_limits(base.ADMIN, ["gpu"])
        except exceptions.QuotaError as error:
            assert "no total limit" in str(error), error
            assert self.plain.total is None
        self.plain.total = None

    @stateful.rule(moves=st.lists(st.tuples(PROJECTS, PARENTS), min_size=1, max_size=3))
    def import_tree(self, moves: list[tuple[str, str | None]]) -> None:
        """Several moves in one transaction."""
        plain = copy.deepcopy(self.plain)
        for project, parent in moves:
            if project not in plain.parents or plain.cannot_move(project, parent):
                return
            plain.parents[project] = parent
        document: dict[str, Any] = {"projects": []}
        entries: dict[str, Any] = {name: {"id": name, "children": []} for name in plain.parents}
        for name, parent in plain.parents.items():
            (document["projects"] if parent is None else entries[parent]["children"]).append(entries[name])
        if plain.is_too_deep() or not plain.is_valid():
            return  # (the rule `place` tests refusals)
        self.engine.limits.import_limits(base.ADMIN, document)
        self.plain = plain

    @stateful.precondition(lambda self: any(self.plain.held.values()))
    @stateful.rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        project = data.draw(st.sampled_from(sorted(name for name, held in self.plain.held.items() if held)))
        (first, *_) = self.engine.list_reservations(base.ADMIN, project, state="committed")
        self.engine.release(base.ADMIN, [first.uuid])
        self.plain.held[project] -= first.delta

    @stateful.invariant()
    def ledger_is_consistent(self) -> None:
        with fixtures.plain_engine(self.url).connect() as connection:
            invariants.assert_hold(connection)
        self.steps += 1
        if self.steps % VERIFIED == 0:
            assert self.engine.audit(base.ADMIN) == []
            assert history_replay.differences(self.engine) == []

    @stateful.invariant()
    def limits_agree(self) -> None:
        assert self.plain.is_valid(), self.plain.__dict__
        rows = {row.project_id: row for row in self.engine.limits.tree(base.ADMIN)}
        for project, row in rows.items():
            assert row.limit == self.plain.limit(project), (project, row, self.plain.__dict__)
            assert row.subtree == sum(self.plain.held.get(name, 0) for name in self.plain.below(project)), row
            assert row.depth == len(self.plain.path(project)) - 1, row


class TestLimitModel(base.BackendTestCase):
    scenarios = testscenarios.multiply_scenarios(
        fixtures.SCENARIOS, [(policy, {"policy": policy}) for policy in POLICIES]
    )
    policy = ""

    def test_trees(self) -> None:
        self.useFixture(fx.MonkeyPatch("cyborg_quota.limits.changes.MAX_DEPTH", MAX_DEPTH))
        examples = EXAMPLES[self.backend] * fixtures.MORE // (1 if self.policy == "strict_hierarchy" else 2)
        histories.run(Trees, examples, seed=SEED, backend=self.backend, policy=self.policy)
