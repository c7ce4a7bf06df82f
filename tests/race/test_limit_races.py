# SPDX-License-Identifier: Apache-2.0
"""Administrators race against each other, and against processes that reserve; on every database."""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any

import sqlalchemy as sa

from cyborg_quota import Inventory, QuotaEngine, exceptions
from cyborg_quota.db import change_log
from cyborg_quota.ledger.history import History
from cyborg_quota.limits.models import Flat, StrictTwoLevel
from cyborg_quota.types import RecordedChanges
from tests import base, fixtures, history_replay, on_sqlite
from tests.functional import test_limits
from tests.race import test_races
from tests.race.workers import PATIENT, PROCESSES, Signal, race, race_beside, race_in_turns

ROOM = 3


class LimitRaceTestCase(test_limits.LimitsTestCase):
    def start(self) -> None:
        """Called before the race: the children open connections of their own."""
        self.engine.close()
        self.database.close()


def is_allowed(engine: QuotaEngine, project_id: str, limit: int) -> bool:
    """Set the limit of a project, unless the enforcement model refuses it."""
    try:
        engine.limits.set_limit(base.ADMIN, "gpu", limit, project_id)
    except exceptions.LimitRefused:
        return False
    return True


class TestSiblings(LimitRaceTestCase):
    def test_concurrent_limits_of_siblings_stay_within_the_parent(self) -> None:
        """Each administrator raises another child by 10, and the parent allows three of these changes."""
        families = self.make_families(3, 10 * PROCESSES + 10 * ROOM, dict.fromkeys(range(PROCESSES), 10))
        turns = [[functools.partial(is_allowed, self.engine, child, 20) for child in one] for one in families.values()]
        for children, admitted in zip(families.values(), race_in_turns(turns), strict=True):
            self.assertEqual(ROOM, sum(admitted), admitted)
            limits = [row.limit for row in self.admin.list_limits(base.ADMIN) if row.project_id in children]
            self.assertEqual(10 * PROCESSES + 10 * ROOM, sum(limits))

    def make_families(self, count: int, limit: int, children: dict[int, int]) -> dict[str, list[str]]:
        """Make parents with this limit, each with children that have these limits. Returns the children by parent."""
        projects = [
            {
                "id": f"parent{number}",
                "limits": {"gpu": limit},
                "children": [{"id": f"child{number}-{one}", "limits": {"gpu": own}} for one, own in children.items()],
            }
            for number in range(count)
        ]
        self.admin.import_limits(base.ADMIN, {"defaults": {"gpu": 0}, "projects": projects})
        self.start()
        return {str(one["id"]): [child["id"] for child in one["children"]] for one in projects}  # type: ignore[union-attr]

    def test_the_parent_lowered_and_a_child_raised_concurrently(self) -> None:
        """Each change is valid alone, but not both."""
        turns = [
            [functools.partial(is_allowed, self.engine, *change) for change in ((child, 20), (parent, 10))]
            for parent, [child] in self.make_families(3, 20, {0: 10}).items()
        ]
        for answers in race_in_turns(turns):
            self.assertEqual([False, True], sorted(answers))

    def test_two_imports_of_the_same_tree(self) -> None:
        """The second import finds everything done."""
        children = [{"id": f"c{number}", "limits": {"gpu": 1}} for number in range(20)]
        document = {"defaults": {"gpu": 0}, "projects": [{"id": "top", "limits": {"gpu": 20}, "children": children}]}
        self.start()
        counts = race(*[lambda: len(self.admin.import_limits(base.ADMIN, document))] * 4)
        self.assertEqual([0, 0, 0, 43], sorted(counts))
        self.assert_invariants()


LEAVES = [f"leaf{number}" for number in range(4)]
TOPS = ["left", "right"]
LIMIT = 12
"""The limit of each top; that of a leaf is 5, so that sometimes one refuses and sometimes the other."""
ATTEMPTS = 12 * fixtures.MORE
FULL = "leaf3"
"""A leaf in which 4 are held before the race: a reserve of 2 or 3 is refused there."""


def reserve_and_settle(engine: QuotaEngine, seed: int) -> tuple[int, int]:
    """Reserve and settle. Returns how many were admitted, and how many refused."""
    rng = random.Random(seed)
    admitted = refused = 0
    for _ in range(ATTEMPTS):
        context = base.Context(rng.choice(LEAVES))
        try:
            uuids = engine.reserve(context, {"gpu": rng.randint(1, 3)})
        except exceptions.OverQuota:
            refused += 1
            continue
        admitted += 1
        if rng.random() < 0.4:
            engine.commit(context, uuids)
            engine.release(context, uuids)
        elif rng.random() < 0.9:
            engine.rollback(context, uuids)
        else:
            engine.commit(context, uuids)
            if rng.random() < 0.8:
                engine.release(context, uuids)
    return admitted, refused


class TestMovesAndLimits(LimitRaceTestCase):
    chance = random.Random(11)

    def test_no_reserve_passes_a_limit_while_projects_move_and_limits_are_set(self) -> None:
        """Leaves move between two tops, singly and by imports, and limits change between 8 and 12."""
        self.set(None, LIMIT)
        self.make_tree({**dict.fromkeys(TOPS), **dict.fromkeys(LEAVES, "left")})
        self.engine._driver.limit_driver.model = Overcommitting()  # type: ignore[attr-defined]
        for leaf in LEAVES:
            self.set(leaf, 5)
        self.hold(FULL, 4)
        self.start()
        jobs = [functools.partial(reserve_and_settle, self.engine, seed) for seed in range(5)]
        answers, _ = race_beside(jobs, self.move, self.change, self.take, self.watch)
        for outcomes in zip(*answers, strict=True):
            self.assertGreater(sum(outcomes), 0)
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))

    def move(self) -> None:
        """The usage of a leaf moves with it, even if it exceeds the limit of the new top: a move charges nothing."""
        self.admin.move_project(base.ADMIN, self.chance.choice(LEAVES[:2]), self.chance.choice([*TOPS, None]))

    def change(self) -> None:
        self.admin.set_limit(base.ADMIN, "gpu", self.chance.choice([3, 4, 5]), self.chance.choice(LEAVES))

    def take(self) -> None:
        top, other = self.chance.sample(TOPS, 2)
        entry = {"id": top, "limits": {"gpu": LIMIT}, "children": [{"id": self.chance.choice(LEAVES[2:])}]}
        self.admin.import_limits(base.ADMIN, {"projects": [entry, {"id": other}]})

    def watch(self) -> None:
        """Assert that no leaf ever holds more than the highest limit it ever had, in any committed state."""
        with sa.create_engine(self.url, poolclass=sa.NullPool).connect() as connection:
            query = sa.text("SELECT project_id, used + reserved AS held FROM quota_usages WHERE resource = 'gpu'")
            over = [
                tuple(row) for row in connection.execute(query) if row.held > (5 if row.project_id in LEAVES else 0)
            ]
        assert not over, over


class Overcommitting(Flat):
    """Any limit can be set, as under flat, and the limit of every ancestor is enforced, as under strict_hierarchy."""

    bounds_subtree = True


class TestOvercommitted(LimitRaceTestCase):
    """strict_two_level allows ten children with a hundred each, below a parent with a hundred."""

    policy = StrictTwoLevel

    def test_ten_children_compete_for_the_limit_of_their_parent(self) -> None:
        families = [[f"child{turn}-{number}" for number in range(10)] for turn in range(2)]
        projects = [
            {"id": f"parent{turn}", "children": [{"id": child, "limits": {"gpu": 100}} for child in children]}
            for turn, children in enumerate(families)
        ]
        self.admin.import_limits(base.ADMIN, {"defaults": {"gpu": 100}, "projects": projects})
        self.start()
        reserve = functools.partial(functools.partial, test_races.reserve_until_refused, self.engine)
        turns = [[reserve(base.Context(child)) for child in children] for children in families]
        self.assertEqual([100] * 2, [sum(admitted) for admitted in race_in_turns(turns)])
        self.assert_invariants()


class TestHistory(LimitRaceTestCase):
    """Each entry begins with the value with which the previous one ended, however many changes run at once."""

    policy = Flat
    CHANGES = 6 * fixtures.MORE

    def make_limited(self, **changes: Any) -> QuotaEngine:
        return super().make_limited(**{**PATIENT, **changes})

    def change(self, seed: int) -> None:
        chance = random.Random(seed)
        names = ["a", "b", None]
        for _ in range(self.CHANGES):
            number, project = chance.randrange(1, 1000), chance.choice(names[:2])
            if seed == 0:
                self.admin.import_limits(base.ADMIN, {"defaults": {"gpu": number}, "projects": [{"id": project}]})
            elif seed == 1:
                self.admin.move_project(base.ADMIN, "leaf", chance.choice(names))
            elif seed < 4:
                self.admin.set_limits(base.ADMIN, {"gpu": number, "fpga": None}, chance.choice(names))
            else:
                self.change_provider(seed, chance, number)

    def change_provider(self, seed: int, chance: random.Random, number: int) -> None:
        capacity, name = self.engine.capacity, chance.choice(("n1", "n2"))
        with contextlib.suppress(exceptions.ProviderNotFound, exceptions.ProviderExists):
            if seed > 4:
                inventories = {resource: Inventory(number) for resource in chance.sample(("gpu", "fpga"), 2)}
                capacity.set_inventories(base.ADMIN, name, inventories)
            elif chance.random() < 0.5:
                capacity.remove_provider(base.ADMIN, "n2")
            else:
                capacity.add_provider(base.ADMIN, "n2")

    def test_the_history_is_in_the_order_of_the_changes(self) -> None:
        self.make_tree({"a": None, "b": None, "leaf": "a"})
        self.add_provider("n1", gpu=1)
        self.start()
        race(*(functools.partial(self.change, seed) for seed in range(6)))
        self.assertEqual([], history_replay.differences(self.engine))

    @on_sqlite
    def test_a_history_that_is_written_after_the_change_is_found_wrong(self) -> None:
        """The control: record each change in a transaction of its own, after that of the change.

        The first change is recorded only after the second one, which was made after it.
        """
        made, recorded = Signal(), Signal()
        record = change_log.record

        def keep(_connection: Any, author: Any, changes: Any, **_rest: Any) -> Any:
            return RecordedChanges(0, author, None, changes) if changes else None

        def write(_history: Any, kept: Any) -> None:
            def work(connection: Any) -> None:
                change_log.serialize(connection)
                record(connection, kept.author, kept.changes)

            is_first = kept.changes[0].after == 1
            if is_first:
                made.set()
                recorded.wait()
            self.engine._driver._untimed.write(work)
            if not is_first:
                recorded.set()

        def second() -> None:
            made.wait()
            self.admin.set_limit(base.ADMIN, "gpu", 2, "a")

        self.make_tree({"a": None})
        self.patch(change_log, "record", keep)
        self.patch(History, "announce", write)
        self.start()
        race(lambda: self.admin.set_limit(base.ADMIN, "gpu", 1, "a"), second)
        # Each of the two entries begins with another value than it should, and the last one ends with another value
        # than the stored limit.
        self.assertEqual(3, len(history_replay.differences(self.engine)))
