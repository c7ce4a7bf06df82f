# SPDX-License-Identifier: Apache-2.0
"""Resizes and transfers against every call that ends, commits or takes the same amounts.

One call is interrupted before each of its statements, and another process's call runs there. So each interleaving of
two calls is tried; none depends on luck.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import sqlalchemy as sa

from cyborg_quota import Inventory, QuotaEngine, exceptions
from cyborg_quota.db import clock, reservations, usages
from cyborg_quota.db.dialects.base import Dialect
from cyborg_quota.db.prepared import ListStatement
from tests import base, fixtures, hooks, invariants
from tests.base import ADMIN
from tests.race.interleaving import interleave

LIMIT = 5
Call = Callable[[QuotaEngine, str], object]


def resize(engine: QuotaEngine, consumer: str) -> None:
    engine.resize(ADMIN, {"gpu": 4}, "p1", consumer=consumer)


def transfer(engine: QuotaEngine, consumer: str) -> None:
    engine.transfer(ADMIN, "p2", "p1", consumer=consumer)


def settle(call: str) -> Call:
    return lambda engine, consumer: getattr(engine, call)(ADMIN, project_id="p1", consumer=consumer)


def reserve_for_the_receiver(engine: QuotaEngine, consumer: str) -> None:
    engine.reserve(ADMIN, {"gpu": 3}, project_id="p2", consumer=f"{consumer} more")


def claim(engine: QuotaEngine, consumer: str) -> None:
    engine.reserve(ADMIN, {"gpu": 3}, project_id="p2", consumer=consumer, provider="n1")


def give_back(engine: QuotaEngine, consumer: str) -> None:
    """Transfer it in the opposite direction."""
    with contextlib.suppress(exceptions.ReservationNotFound):
        engine.transfer(ADMIN, "p1", "p2", consumer=consumer)


CALLS: dict[str, Call] = {
    "commit": settle("commit"),
    "rollback": settle("rollback"),
    "release": settle("release"),
    "resize": lambda engine, consumer: engine.resize(ADMIN, {"gpu": 3}, "p1", consumer=consumer),
    "reserve": lambda engine, consumer: engine.reserve(ADMIN, {"gpu": 3}, project_id="p1", consumer=f"{consumer} more"),
    "expire": lambda engine, _consumer: engine.expire(ADMIN),
}
ENDS = {"rollback", "release", "expire"}
CHANGES: dict[str, Call] = {"resize": resize, "transfer": transfer}


class ResizeRaceTestCase(base.LedgerTestCase):
    scenarios = fixtures.SCENARIOS[1:]  # SQLite has one writer

    def setUp(self) -> None:
        super().setUp()
        self.plant({"root": None, "p1": "root", "p2": "root"})
        self.other = self.make_engine()
        for project in ("p1", "p2"):
            for engine in (self.engine, self.other):
                engine.rollback(ADMIN, engine.reserve(ADMIN, {"gpu": 1}, project_id=project))
        self.add_provider("n1", gpu=1000)

    def answer(self, call: Call, engine: QuotaEngine, consumer: str) -> str:
        try:
            call(engine, consumer)
        except (exceptions.ReservationError, exceptions.OverQuota, exceptions.OverCapacity) as error:
            return type(error).__name__
        return "ok"

    def interleaved(
        self, interrupted: Call, act: Call, *, provider: str | None = None, is_overdue: bool = False
    ) -> Iterator[tuple[str, str, str]]:
        """Yields the name of the consumer, the answer of the interrupted call and that of the other one."""
        answers: dict[str, str] = {}

        def prepare(name: str) -> None:
            for project in ("p1", "p2"):
                held = self.engine.get_reservations(ADMIN, project)
                if live := [row.uuid for row in held if row.ended_at is None]:
                    self.engine.release(ADMIN, live)
            # The interrupted engine has the row in its cache.
            self.other.reserve(ADMIN, {"gpu": 2}, project_id="p1", consumer=name, provider=provider)
            if is_overdue:
                self.make_overdue(*(row.uuid for row in self.engine.get_reservations(ADMIN, "p1", consumer=name)))

        def run(name: str) -> None:
            answers[name] = self.answer(act, self.engine, name)

        sql = hooks.database_of(self.other).engine
        for name, answer in interleave(sql, prepare, lambda name: self.answer(interrupted, self.other, name), run):
            self.assert_invariants()
            yield name, answer, answers[name]

    def held(self, project: str) -> int:
        return sum(self.figures(project))


class TestInterleavings(ResizeRaceTestCase):
    def test_a_change_and_a_call(self) -> None:
        """Each interrupts the other."""
        for (kind, change), call in itertools.product(CHANGES.items(), ("commit", "rollback", "release", "expire")):
            how: Any = {"provider": "n1" if call == "release" else None, "is_overdue": call == "expire"}
            if call != "rollback":
                for _, answer, other in self.interleaved(change, CALLS[call], **how):
                    self.check(kind, call, answer, other)
            if call != "expire":
                for _, other, answer in self.interleaved(CALLS[call], change, **how):
                    self.check(kind, call, answer, other)

    def check(self, kind: str, call: str, answer: str, other: str) -> None:
        """The result is that of one call after the other, in some order."""
        held = (self.held("p1"), self.held("p2"))
        if call in ENDS:
            # (A release by the name of a consumer that the project no longer has changes nothing.)
            is_kept = kind == "transfer" and held == (0, 2) and other in ("ok", "ReservationNotFound")
            self.assertTrue(is_kept or held == (0, 0), (held, answer, other))
            self.assertTrue(is_kept or answer != "ok" or kind == "resize", (held, answer, other))
        elif kind == "resize":
            self.assertEqual(((4, 0), "ok", "ok"), (held, answer, other))
        else:
            self.assertEqual(((0, 2), "ok"), (held, answer))
            used, reserved = self.figures("p2")
            self.assertEqual((2, 0) if other == "ok" else (0, 2), (used, reserved), other)

    def test_two_changes_of_amounts(self) -> None:
        """At a limit or a capacity, either the reserve or the concurrent resize or transfer is refused."""
        both, one, full = ["ok", "ok"], ["OverQuota", "ok"], ["OverCapacity", "ok"]
        more = CALLS["reserve"]
        self.limits.own.update({("p1", "gpu"): LIMIT, ("p2", "gpu"): LIMIT - 1})
        self.engine.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(LIMIT)})
        for interrupted, act, expected, held, provider in (
            (resize, CALLS["resize"], both, {3, 4}, None),
            (resize, more, one, {4, LIMIT}, None),
            (more, resize, one, {4, LIMIT}, None),
            (transfer, reserve_for_the_receiver, one, {0, 2}, None),
            (transfer, give_back, both, {0, 2}, None),
            (resize, claim, full, {2, 4}, "n1"),
            (claim, resize, full, {2, 4}, "n1"),
        ):
            for _, *answers in self.interleaved(interrupted, act, provider=provider):
                self.assertIn(self.held("p1"), held)
                if act is give_back:  # (it may find nothing to give back)
                    self.assertEqual(("ok", 2), (answers[0], self.held("p1") + self.held("p2")))
                else:
                    self.assertEqual(expected, sorted(answers))

    def test_a_fold_does_not_take_a_row_that_gets_a_name(self) -> None:
        """Folding reads rows without a consumer, and deletes them; a commit with a name may run in between."""
        uuids: dict[str, str] = {}

        def prepare(name: str) -> None:
            made = [self.other.reserve(self.context, {"gpu": 1})[0] for _ in range(2)]
            self.other.commit(self.context, made)
            uuids[name] = made[0]

        def name_it(name: str) -> None:
            with contextlib.suppress(exceptions.ReservationNotFound):  # it was folded before
                self.engine.commit(self.context, [uuids[name]], known_as=name)
                self.assertEqual(1, len(self.engine.get_reservations(self.context, consumer=name)), name)

        sql = hooks.database_of(self.other).engine
        for name, _ in interleave(sql, prepare, lambda _name: self.other.purge(ADMIN, 0), name_it):
            named = self.engine.get_reservations(self.context, consumer=name)
            if uuids[name] in [row.uuid for row in self.engine.get_reservations(self.context)]:
                self.assertEqual([uuids[name]], [row.uuid for row in named])
            self.assert_invariants()


class TestNaive(ResizeRaceTestCase):
    """Without what prevents these races, the tests above fail."""

    @contextlib.contextmanager
    def without_generations(self) -> Iterator[None]:
        """Statements that settle and expire, and do not compare the generation; as before resizes existed."""
        always = sa.literal_column("1") == sa.literal_column("1")
        dialect = type(hooks.database_of(self.other).dialect)
        with (
            mock.patch.object(reservations, "IS_SAME_GENERATION", always),
            mock.patch.object(reservations, "_COMMIT", ListStatement(reservations._COMMIT._build)),
            mock.patch.object(reservations, "_END", ListStatement(reservations._END._build)),
            mock.patch.object(reservations, "_EXPIRE", ListStatement(reservations._EXPIRE._build)),
            mock.patch.object(dialect, "settle_in_single_statement", self.settle_naively),
        ):
            yield

    @staticmethod
    def settle_naively(_dialect: Dialect, connection: sa.Connection, uuids: list[str], *arguments: Any) -> bool:
        """The cached rows (this commits them), whatever has become of them."""
        for uuid in uuids:
            connection.execute(sa.text("UPDATE reservations SET state = 'committed' WHERE uuid = :u"), {"u": uuid})
        for posting in arguments[-1]:
            usages.charge(connection, posting, clock.read_second(connection))
        connection.exec_driver_sql("COMMIT")
        return True

    def faults(self) -> list[str]:
        with self.sql.connect() as connection:
            return invariants.find_violations(connection)

    def test_a_stale_cache_and_a_stale_row(self) -> None:
        """A commit by the cache, and a release that has read the row."""
        for kind, change in CHANGES.items():
            self.engine.reserve(ADMIN, {"gpu": 5}, project_id="p1")
            uuids = self.other.reserve(ADMIN, {"gpu": 2}, project_id="p1", consumer=kind)
            change(self.engine, kind)
            self.assertEqual([], self.faults())
            with self.without_generations():
                self.other.commit(ADMIN, uuids)
            self.assertNotEqual([], self.faults(), kind)
            self.engine.heal(ADMIN)
            (uuid,) = self.engine.reserve(ADMIN, {"gpu": 2}, project_id="p1", consumer=f"new {kind}")
            meanwhile = functools.partial(change, self.engine, f"new {kind}")
            with self.without_generations(), hooks.Interleaved(self.other, "UPDATE reservations", meanwhile):
                self.other.release(ADMIN, [uuid])
            self.assertNotEqual([], self.faults(), kind)
            self.engine.heal(ADMIN)

    def test_a_stale_row_of_an_expiry(self) -> None:
        """Two hosts with different grace times: one resizes what the other expires, on a server without SKIP LOCKED."""
        late = self.make_engine(grace=10**9)
        self.patch(type(hooks.database_of(self.other).dialect), "skip_locked", Dialect.skip_locked)
        for is_naive in (False, True):
            (uuid,) = late.reserve(ADMIN, {"gpu": 2}, project_id="p1", consumer="c")
            self.make_overdue(uuid)
            act = hooks.Interleaved(self.other, "UPDATE reservations", lambda: resize(late, "c"))
            with self.without_generations() if is_naive else contextlib.nullcontext(), act:
                self.assertEqual(1, self.other.expire(ADMIN))
            self.assertEqual(is_naive, bool(self.faults()), self.faults())
