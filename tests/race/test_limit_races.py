# SPDX-License-Identifier: Apache-2.0
"""Administrators race against each other, and against processes that reserve; on every database."""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any
from unittest import mock

from cyborg_quota import Inventory, QuotaEngine, exceptions
from cyborg_quota.db import change_log
from cyborg_quota.limits.models import Flat, StrictTwoLevel
from tests import base, fixtures, history_replay, on_sqlite
from tests.functional import test_limits
from tests.race import test_races
from tests.race.workers import PATIENT, PROCESSES, race, race_beside, race_in_turns

ROOM = 3


class LimitRaceTestCase(test_limits.LimitsTestCase):
    def make_limited(self, **changes: Any) -> QuotaEngine:
        return super().make_limited(**{**PATIENT, **changes})

    def start(self) -> None:
        """Called before the race: the children open connections of their own."""
        self.engine.close()
        self.database.close()


class TestSiblings(LimitRaceTestCase):
    def race_to_set(self, limit: int, children: list[int], *changes: list[tuple[str, int]]) -> list[list[bool]]:
        """Make a parent with this limit for each turn, each with children that have these limits.

        ``changes``: those of each turn, made at once. Returns for each whether the enforcement model has allowed it.
        """
        projects = [
            {
                "id": f"parent{turn}",
                "limits": {"gpu": limit},
                "children": [{"id": f"child{turn}-{one}", "limits": {"gpu": own}} for one, own in enumerate(children)],
            }
            for turn in range(len(changes))
        ]
        self.admin.import_limits(base.ADMIN, {"defaults": {"gpu": 0}, "projects": projects})
        self.start()

        def is_allowed(project_id: str, own: int) -> bool:
            try:
                self.admin.set_limit(base.ADMIN, "gpu", own, project_id)
            except exceptions.LimitRefused:
                return False
            return True

        return race_in_turns([functools.partial(is_allowed, *change) for change in turn] for turn in changes)

    def test_concurrent_limits_of_siblings_stay_within_the_parent(self) -> None:
        """Each administrator raises another child by 10, and the parent allows three of these changes."""
        most = 10 * PROCESSES + 10 * ROOM
        turns = [[(f"child{turn}-{number}", 20) for number in range(PROCESSES)] for turn in range(3)]
        for turn, allowed in enumerate(self.race_to_set(most, [10] * PROCESSES, *turns)):
            self.assertEqual(ROOM, sum(allowed), allowed)
            listed = {one.project_id: one.limit for one in self.admin.list_limits(base.ADMIN)}
            self.assertEqual(most, sum(listed[f"child{turn}-{number}"] for number in range(PROCESSES)))

    def test_the_parent_lowered_and_a_child_raised_concurrently(self) -> None:
        """Each change is valid alone, but not both."""
        turns = [[(f"child{turn}-0", 20), (f"parent{turn}", 10)] for turn in range(3)]
        for allowed in self.race_to_set(20, [10], *turns):
            self.assertEqual([False, True], sorted(allowed))

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


class Overcommitting(Flat):
    """Any limit can be set, as under flat, and the limit of every ancestor is enforced, as under strict_hierarchy."""

    bounds_subtree = True


class TestMovesAndLimits(LimitRaceTestCase):
    policy = Overcommitting
    chance = random.Random(11)

    def test_no_reserve_passes_a_limit_while_projects_move_and_limits_are_set(self) -> None:
        """Leaves move between two tops, singly and by imports, and limits change between 8 and 12."""
        tree = {**dict.fromkeys(TOPS), **dict.fromkeys(LEAVES, "left")}
        self.import_tree(tree, dict.fromkeys(LEAVES, 5), gpu=LIMIT)
        self.hold(FULL, 4)
        self.start()

        def reserve(seed: int) -> list[bool]:
            chance = random.Random(seed)
            return [test_races.reserve_and_settle(self.engine, chance.choice(LEAVES), chance) for _ in range(ATTEMPTS)]

        jobs = [functools.partial(reserve, seed) for seed in range(5)]
        answers, _ = race_beside(jobs, self.move, self.change, self.take, self.watch)
        self.assertEqual({True, False}, {is_admitted for admitted in answers for is_admitted in admitted})
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
        rows = self.fetch("SELECT project_id, used + reserved AS held FROM quota_usages WHERE resource = 'gpu'")
        over = [tuple(row) for row in rows if row.held > (5 if row.project_id in LEAVES else 0)]
        assert not over, over


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
        """The control: the first of two changes is recorded after its transaction, and after the second one."""
        late: list[Any] = []
        record = change_log.record
        self.make_tree({"a": None})
        with mock.patch.object(change_log, "record", lambda _connection, *what, **_rest: late.append(what)):
            self.admin.set_limit(base.ADMIN, "gpu", 1, "a")
        self.admin.set_limit(base.ADMIN, "gpu", 2, "a")

        def record_late(connection: Any) -> None:
            change_log.serialize(connection)
            record(connection, *late[0])

        self.database.write(record_late)
        # Each of the two entries begins with another value than it should, and the last one ends with another value
        # than the stored limit.
        self.assertEqual(3, len(history_replay.differences(self.engine)))
