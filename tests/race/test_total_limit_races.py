# SPDX-License-Identifier: Apache-2.0
"""A total limit is switched on, off and on again while processes reserve and settle; on every database."""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from cyborg_quota import QuotaEngine
from tests import base, fixtures
from tests.race.test_limit_races import LimitRaceTestCase
from tests.race.test_races import reserve_and_settle
from tests.race.workers import FORK, PROCESSES, TIMEOUT_SECONDS, race

LIMIT = 20
PAUSE_SECONDS = 0.01
TURNS = 10 * fixtures.MORE
"""The attempts of each process after the total limit is enforced."""
ROOTS = [f"root{number}" for number in range(8)]


def switch_while_processes_reserve(test: Any, switched: QuotaEngine, engines: Sequence[QuotaEngine]) -> None:
    """One process for each of ``engines`` reserves, while ``switched`` sets, removes and sets the total limit.

    Asserts that the total does not grow above the limit once it is enforced.
    """
    is_enforced, has_seen, running = FORK.Event(), FORK.Barrier(len(engines) + 1), FORK.Value("i", len(engines))
    jobs = [
        functools.partial(_reserve, engine, seed, is_enforced, has_seen, running) for seed, engine in enumerate(engines)
    ]
    samples, *granted = race(functools.partial(_switch, switched, is_enforced, has_seen, running), *jobs)
    for before, held in itertools.pairwise(samples):
        test.assertLessEqual(held, max(LIMIT, before), samples)
    test.assertGreater(sum(granted), 0)


def _switch(engine: QuotaEngine, is_enforced: Any, has_seen: Any, running: Any) -> list[int]:
    """Returns what the total was at successive moments after it was enforced."""
    totals = engine.limits
    totals.set_total_limits(base.ADMIN, {"gpu": LIMIT})
    totals.unset_total_limits(base.ADMIN, ["gpu"])
    totals.set_total_limits(base.ADMIN, {"gpu": LIMIT})
    is_enforced.set()
    has_seen.wait(TIMEOUT_SECONDS)
    samples = []
    while running.value > 0:
        samples.append(totals.list_total_limits(base.ADMIN)[0].held)
        time.sleep(PAUSE_SECONDS)
    return samples


def _reserve(engine: QuotaEngine, seed: int, is_enforced: Any, has_seen: Any, running: Any) -> int:
    """Reserve and settle in all roots and in new ones until the total is enforced, and then TURNS times."""
    chance, granted = random.Random(seed), 0

    def attach() -> bool:
        time.sleep(chance.uniform(0, PAUSE_SECONDS))  # otherwise the switch waits for thousands of calls
        return reserve_and_settle(engine, chance.choice([*ROOTS, "child", f"new{chance.randrange(9)}"]), chance)

    try:
        while not is_enforced.is_set():
            granted += attach()
        engine.limits.list_total_limits(base.ADMIN)  # a synced read: on Galera, this node has applied the switch
        has_seen.wait(TIMEOUT_SECONDS)
        return granted + sum(attach() for _ in range(TURNS))
    finally:
        with running.get_lock():
            running.value -= 1


class TestTotalLimitRaces(LimitRaceTestCase):
    def test_switched_while_processes_reserve(self) -> None:
        """The total is the sum of all usage in the end. Once it is enforced, it does not grow above the limit."""
        self.import_tree({**dict.fromkeys(ROOTS), "child": "root0"}, {"root0": -1, "child": -1}, gpu=-1)
        for project_id in ROOTS:
            self.hold(project_id, 1)
        self.start()
        switch_while_processes_reserve(self, self.engine, [self.engine] * PROCESSES)
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))
