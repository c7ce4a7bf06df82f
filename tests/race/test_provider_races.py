# SPDX-License-Identifier: Apache-2.0
"""Processes claim 1 to 5 of a provider with 100: unchanged, while its inventory is changed, while it is removed.

What is claimed never exceeds the capacity, and in the end it is the capacity. tests/faults/test_galera.py runs the same
races, and the same wrong implementations, on several nodes of a cluster.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from cyborg_quota import ANY, Inventory, QuotaEngine, exceptions
from cyborg_quota.db import inventories
from tests import base, fixtures, hooks, on_sqlite
from tests.base import ADMIN
from tests.race import naive
from tests.race.workers import FORK, PATIENT, PROCESSES, race, race_in_turns

CAPACITY = 100
CHANGES = 4 * fixtures.MORE
"""The number of changes of the inventory."""
PAUSE_SECONDS = 0.02

Engines = Sequence[QuotaEngine]
"""Process number n uses the n-th of them, modulo their number: on a cluster, each writes to another node."""


def claim_all(engine: QuotaEngine, number: int, provider: str) -> int:
    """Claim 1 to 5 until not even 1 fits. Returns the sum."""

    def claim(amount: int) -> None:
        engine.reserve(context_of(number), {"gpu": amount}, consumer=str(uuid.uuid4()), provider=provider)

    return claim_until_full(number, claim)


def claim_until_full(seed: int, claim: Callable[[int], object]) -> int:
    """Claim random amounts of 1 to 5 until not even 1 fits. Returns the sum."""
    chance = random.Random(seed)
    claimed = 0
    while True:
        amount = chance.randint(1, 5)
        try:
            claim(amount)
        except exceptions.OverCapacity:
            if amount == 1:
                return claimed
        else:
            claimed += amount


def context_of(number: int) -> base.Context:
    return base.Context(f"p{number}")


def all_claim(engines: Engines, provider: str) -> list[int]:
    """Returns what each process has claimed."""
    return race(*[functools.partial(claim_all, of(engines, number), number, provider) for number in range(PROCESSES)])


def of(engines: Engines, number: int) -> QuotaEngine:
    return engines[number % len(engines)]


# --- While the inventory is changed ---


def claim_while_changed(engines: Engines, provider: str) -> list[int]:
    """Another process sets a new total again and again, in the end the first one. Returns as ``all_claim``."""
    is_done = FORK.Event()
    jobs = [
        functools.partial(_claim_and_release, of(engines, number), number, provider, is_done)
        for number in range(PROCESSES)
    ]
    *held, _ = race(*jobs, functools.partial(_change, engines[-1], provider, is_done))
    return held


def _change(engine: QuotaEngine, provider: str, is_done: Any) -> None:
    """C2 and C4: what is used at a change is at most the capacity, or what was above it before."""
    chance, most = random.Random(1), CAPACITY
    try:
        for total in (*(chance.randint(1, CAPACITY) for _ in range(CHANGES)), CAPACITY):
            (record,) = engine.capacity.set_inventories(ADMIN, provider, {"gpu": Inventory(total)})
            assert record.used <= most, f"{record.used} were used where at most {most} were permitted"
            most = max(total, record.used)
    finally:
        is_done.set()


def _claim_and_release(engine: QuotaEngine, number: int, provider: str, is_done: Any) -> int:
    """Claim and release until the changes are done, then claim all that is left. Returns what is held."""
    chance = random.Random(number)
    held: list[tuple[int, list[str]]] = []
    while not is_done.is_set():
        time.sleep(chance.uniform(0, 2 * PAUSE_SECONDS))  # otherwise the changes wait for hundreds of claims
        amount = chance.randint(1, 5)
        with contextlib.suppress(exceptions.OverCapacity):
            held.append((amount, engine.reserve(context_of(number), {"gpu": amount}, provider=provider)))
        if held and chance.random() < 0.4:
            engine.release(context_of(number), held.pop(chance.randrange(len(held)))[1])
    return sum(amount for amount, _ in held) + claim_all(engine, number, provider)


# --- While the provider is removed ---


def claim_while_removed(engines: Engines, provider: str) -> list[int]:
    """In each turn, a provider without claims is removed while all processes claim: only one side succeeds.

    In the first turn, a claim is committed between the statements of the removal. In the second one, the removal is
    committed when all claims have chosen the provider. Then the provider is there, and is claimed. Returns as
    ``all_claim``.
    """
    turns = [_claim_first(engines, provider), _remove_first(engines, provider)]
    answers = race_in_turns(turns, functools.partial(_renew, engines[0], provider))
    for turn, (*granted, is_removed) in enumerate(answers):
        assert (is_removed, any(granted)) == (turn == 1, turn == 0), f"turn {turn}: {is_removed}, {granted}"
    _renew(engines[0], provider, len(turns))
    engines[0].close()
    return all_claim(engines, provider)


def _claim_first(engines: Engines, provider: str) -> list[Callable[[], Any]]:
    """The removal waits for a claim when it has read the inventories, before it deletes those without claims."""
    is_claimed = FORK.Event()
    first, *others = _claims(engines, provider, 0)

    def claim() -> int:
        amount = first()
        is_claimed.set()
        return amount

    def remove() -> bool:
        if not hooks.database_of(engines[-1]).dialect.has_server:
            is_claimed.wait()  # SQLite has one writer: no claim is committed inside a transaction
        with hooks.Meanwhile(inventories, "delete_unused", is_claimed.wait):
            return _remove(engines[-1], provider)

    return [claim, *others, remove]


def _remove_first(engines: Engines, provider: str) -> list[Callable[[], Any]]:
    """Each claim waits for the removal when the provider is chosen."""
    are_placed, is_removed = [FORK.Event() for _ in range(PROCESSES)], FORK.Event()

    def claim(number: int, call: Callable[[], int]) -> int:
        wait = lambda: (are_placed[number].set(), is_removed.wait())  # noqa: E731
        with hooks.Meanwhile(of(engines, number)._driver.subjects["capacity"], "prepare", wait, after=True):
            return call()

    def remove() -> bool:
        for placed in are_placed:
            placed.wait()
        answer = _remove(engines[-1], provider)
        is_removed.set()
        return answer

    claims = _claims(engines, provider, 1)
    return [*(functools.partial(claim, number, call) for number, call in enumerate(claims)), remove]


def _claims(engines: Engines, provider: str, turn: int) -> list[Callable[[], int]]:
    """A claim for each process; every second one is with ANY."""
    return [
        functools.partial(_claim_once, of(engines, number), number, (provider, ANY)[number % 2], turn)
        for number in range(PROCESSES)
    ]


def _claim_once(engine: QuotaEngine, number: int, provider: str, turn: int) -> int:
    amount = random.Random(f"{number} {turn}").randint(1, 5)
    try:
        engine.reserve(context_of(number), {"gpu": amount}, group=f"turn {turn}", provider=provider)
    except (exceptions.OverCapacity, exceptions.ProviderNotFound):
        return 0
    return amount


def _remove(engine: QuotaEngine, provider: str) -> bool:
    try:
        engine.capacity.remove_provider(ADMIN, provider)
    except exceptions.ProviderInUse:
        return False
    return True


def _renew(engine: QuotaEngine, provider: str, turn: int) -> None:
    """Release the claims of the turn before this one, and add the provider if it was removed."""
    for project in range(PROCESSES):
        engine.release(context_of(project), group=f"turn {turn - 1}")
    try:
        engine.capacity.show_provider(ADMIN, provider)
    except exceptions.ProviderNotFound:
        add(engine, provider)


RACES: dict[str, Callable[[Engines, str], list[int]]] = {
    "unchanged": all_claim,
    "changed": claim_while_changed,
    "removed": claim_while_removed,
}


def add(engine: QuotaEngine, provider: str) -> None:
    engine.capacity.add_provider(ADMIN, provider)
    engine.capacity.set_inventories(ADMIN, provider, {"gpu": Inventory(CAPACITY)})


def run(test: Any, name: str, engines: Engines, settle: Callable[[], object] = lambda: None) -> None:
    """Run one of RACES, with a provider of its own: in the end, all of the capacity is claimed, and not more.

    ``settle``: waits until all nodes of a cluster have applied what any of them has committed.
    """
    add(engines[0], name)
    for engine in engines:
        engine.close()  # the processes open connections of their own
    settle()
    claimed = RACES[name](engines, name)
    settle()
    capacity = engines[0].capacity
    found = [(one.capacity, one.used) for one in capacity.list_inventories(ADMIN, name)]
    test.assertEqual(([(CAPACITY, CAPACITY)], CAPACITY), (found, sum(claimed)), claimed)
    test.assertEqual([], engines[0].audit(ADMIN))


# --- The controls: wrong implementations ---


def detect_naive_code(test: Any, engines: Engines, url: str, settle: Callable[[], object]) -> None:
    """What reads, compares and then writes is found by the checks of each race, if a claim comes between.

    ``url``: of the first engine. The claims between are made by the last one, which may be another node; ``settle``
    then waits until all nodes have applied them. On a node with the old row, the naive change of the inventory would
    write the same values: that is not replicated, and conflicts with no claim.
    """
    options: dict[str, Any] = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    sql = sa.create_engine(url, poolclass=sa.NullPool, **options)
    capacity = engines[0].capacity

    def claim(amount: int, provider: str) -> None:
        settle()
        engines[-1].reserve(context_of(1), {"gpu": amount}, provider=provider)
        settle()

    # A claim: both read that 1 is free.
    add(engines[0], "naive")
    claim(CAPACITY - 1, "naive")
    naive.change(sql, naive.CLAIM, lambda: claim(1, "naive"), provider="naive", amount=1)
    test.assertEqual([CAPACITY + 1], [one.used for one in capacity.list_inventories(ADMIN, "naive")])

    # A change of the inventory: what was claimed since the read is free again.
    add(engines[0], "naively changed")
    naive.change(sql, naive.SET_TOTAL, lambda: claim(5, "naively changed"), provider="naively changed", total=CAPACITY)
    claim(CAPACITY, "naively changed")
    (record,) = capacity.list_inventories(ADMIN, "naively changed")
    test.assertEqual(CAPACITY + 5, record.used)

    # A removal: the claim is left without a provider.
    add(engines[0], "naively removed")
    before = len(engines[0].audit(ADMIN))
    naive.change(sql, naive.REMOVE, lambda: claim(5, "naively removed"), provider="naively removed")
    settle()
    test.assertEqual(before + 1, len(engines[0].audit(ADMIN)))
    test.assertRaises(exceptions.ProviderNotFound, capacity.show_provider, ADMIN, "naively removed")


class TestOneProvider(base.LedgerTestCase):
    settings = PATIENT

    def setUp(self) -> None:
        super().setUp()
        # Forked processes find the statements compiled and the modules imported.
        add(self.engine, "warm")
        self.engine.release(self.context, self.engine.reserve(self.context, {"gpu": 1}, provider=ANY))
        self.engine.capacity.remove_provider(ADMIN, "warm")

    def test_exactly_the_capacity_is_claimed(self) -> None:
        for name in RACES:
            run(self, name, [self.engine])
            self.assert_invariants()
            self.engine.close()

    def test_expiry_against_claims(self) -> None:
        """With ANY, all of several providers is claimed; when that is overdue, again, while it is expired.

        Batches of expiry share the inventories, although they share no usage row.
        """
        for name, total in (("n1", CAPACITY), *((f"n{number}", 20) for number in range(2, 6))):
            self.add_provider(name, gpu=total)
        fill = functools.partial(claim_all, self.engine)
        self.engine.close()
        self.assertEqual(CAPACITY + 80, sum(all_claim([self.engine], ANY)))
        self.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")
        expirer = self.make_engine(batch_rows=10)
        for engine in (self.engine, expirer):
            engine.close()
        *claimed, _, _ = race(
            *(functools.partial(fill, number, ("n1", ANY)[number % 2]) for number in range(1, 7)),
            *[functools.partial(expirer.expire, ADMIN)] * 2,
        )
        claimed.append(fill(7, ANY))
        used = sum(record.used for record in self.capacity.list_inventories(ADMIN))
        self.assertEqual((CAPACITY + 80,) * 2, (sum(claimed), used), claimed)
        self.assert_invariants()

    @on_sqlite
    def test_naive_code_is_detected(self) -> None:
        detect_naive_code(self, [self.engine], self.url, lambda: None)
