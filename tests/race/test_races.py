# SPDX-License-Identifier: Apache-2.0
"""Processes race against each other, on every database. The expected results are exact."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import random
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from cyborg_quota import ANY, Claim, QuotaEngine, exceptions
from tests import base, fixtures, hooks, on_sqlite, trees
from tests.race import naive
from tests.race.workers import PATIENT, PROCESSES, once, race, race_beside, race_in_turns

LIMIT = 100


class RaceTestCase(base.LedgerTestCase):
    settings = PATIENT

    def setUp(self) -> None:
        super().setUp()
        self.engine.get_usages(self.context)  # fills the caches of the children
        self.engine.close()

    def answer(self, call: Callable[[], Any]) -> str:
        """Return ``ok``, or the name of the call's error."""
        try:
            call()
        except exceptions.QuotaError as error:
            return type(error).__name__
        return "ok"


def reserve_until_refused(engine: QuotaEngine, context: base.Context, provider: str | None = None) -> int:
    """Reserve 1 again and again. Returns how many were admitted."""
    admitted = 0
    with contextlib.suppress(exceptions.OverQuota):
        while True:
            engine.reserve(context, {"gpu": 1}, consumer=str(uuid.uuid4()), provider=provider)
            admitted += 1
    return admitted


def reserve_and_settle(engine: QuotaEngine, project_id: str, chance: random.Random) -> bool:
    """Reserve 1 to 3, and end that mostly. Returns whether it was admitted."""
    context = base.Context(project_id)
    try:
        uuids = engine.reserve(context, {"gpu": chance.randint(1, 3)})
    except exceptions.OverQuota:
        return False
    if chance.random() < 0.5:
        engine.rollback(context, uuids)
    else:
        engine.commit(context, uuids)
        if chance.random() < 0.97:
            engine.release(context, uuids)
    return True


class TestLimitRace(RaceTestCase):
    def test_exactly_the_limit_is_admitted(self) -> None:
        self.limits.own[None, "gpu"] = LIMIT
        contexts = [base.Context(f"p{turn}") for turn in range(2)]
        turns = [[functools.partial(reserve_until_refused, self.engine, one)] * PROCESSES for one in contexts]
        for context, admitted in zip(contexts, race_in_turns(turns), strict=True):
            self.assertEqual(LIMIT, sum(admitted), admitted)
            self.assertEqual((0, LIMIT), self.figures(context.project_id))
        self.assert_invariants()

    @on_sqlite
    def test_naive_is_detected(self) -> None:
        """Read, compare, write admits too much if all processes read before any writes: this kind of test can fail."""
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))
        self.execute(f"UPDATE quota_usages SET reserved = {LIMIT - 1}, subtree = {LIMIT - 1}")
        between = once(PROCESSES)

        sql = sa.create_engine(self.url, connect_args={"timeout": 60})
        race(*[functools.partial(naive.change, sql, naive.RESERVE, between, limit=LIMIT)] * PROCESSES)
        self.assertEqual((0, LIMIT - 1 + PROCESSES), self.figures())


class TestDeliveryRace(RaceTestCase):
    def test_a_call_delivered_several_times_is_counted_once(self) -> None:
        """A reserve of several consumers, the first of its project, and then the commit of their group.

        What is claimed with ANY is taken from one provider, once.
        """
        for name in ("n1", "n2", "n3"):
            self.add_provider(name, gpu=9)
        self.engine.close()
        self.limits.own[None, "gpu"] = 4
        contexts = [base.Context(f"p{turn}") for turn in range(3)]
        claims = [Claim("a", {"gpu": 1}, provider=ANY), Claim("b", {"gpu": 2, "fpga": 1})]
        calls: list[Any] = [functools.partial(self.engine.reserve_many, one, claims, group="g") for one in contexts]
        calls += [functools.partial(self.engine.commit, context, group="g") for context in contexts]
        reserve = functools.partial(functools.partial, self.engine.reserve, consumer="c", provider=ANY)
        calls += [reserve(context, {"gpu": 1}) for context in contexts]
        for answers in race_in_turns([call] * PROCESSES for call in calls):
            self.assertEqual([answers[0]] * PROCESSES, answers)
        for context in contexts:
            self.assertEqual([(3, 1), (1, 0)], [self.figures(context.project_id, one) for one in ("gpu", "fpga")])
        self.assertEqual(2 * len(contexts), sum(record.used for record in self.capacity.list_inventories(base.ADMIN)))
        self.assert_invariants()

    def test_one_consumer_makes_different_requests(self) -> None:
        """Of different amounts or resources: then no unique key makes one claim conflict with the other.

        One of them is granted; the others get an error that names what the consumer holds.
        """
        wishes: list[dict[str, int]] = [{"fpga": 1}, {"gpu": 1}, {"gpu": 2, "fpga": 2}, {"gpu.A100": 1}]
        for requests, turns in ((wishes, 5), ([{"gpu": number} for number in (1, 2, 3, 4)], 3)):
            projects = [f"p{turn} of {turns}" for turn in range(turns)]
            reserve = functools.partial(functools.partial, self.engine.reserve, consumer="c")
            calls = (
                [functools.partial(self.answer, reserve(base.Context(project), one)) for one in requests]
                for project in projects
            )
            for project, answers in zip(projects, race_in_turns(calls), strict=True):
                self.assertEqual(["ReservationConflict"] * 3 + ["ok"], sorted(answers))
                held = {row.resource: row.delta for row in self.engine.list_reservations(base.ADMIN, project)}
                self.assertEqual(requests[answers.index("ok")], held)
        self.assert_invariants()


class TestSettleRace(RaceTestCase):
    CONSISTENT = {
        "committed": {"commit": "ok", "rollback": "ReservationCommitted", "extend": "ok"},
        "rolled_back": {"commit": "ReservationRolledBack", "rollback": "ok", "extend": "ReservationRolledBack"},
        "expired": {"commit": "ReservationExpired", "rollback": "ok", "extend": "ReservationExpired"},
    }
    """Of the final state: the answer of each call. (An extend may come before a rollback.)"""

    def settlers(self, context: base.Context, uuid: str) -> list[Callable[[], Any]]:
        """Commit, rollback, extend, and expire twice."""
        calls = (functools.partial(getattr(self.engine, name), context, [uuid]) for name in self.CONSISTENT["expired"])
        return [
            *(functools.partial(self.answer, call) for call in calls),
            *[functools.partial(self.engine.expire, base.ADMIN)] * 2,
        ]

    def settle_in_turns(self, turns: int, prepare: Callable[[str], object] | None = None) -> set[str]:
        """Commit, rollback and expire a reservation of two concurrently, several times.

        ``prepare`` is called with the UUID of the reservation before each race. Returns the final states, after
        checking the other answers.
        """
        contexts = [base.Context(f"p{turn}") for turn in range(turns)]
        reserved = [(context, *self.engine.reserve(context, {"gpu": 2})) for context in contexts]
        self.engine.close()
        answers = race_in_turns(
            (self.settlers(context, uuid) for context, uuid in reserved),
            None if prepare is None else lambda number: prepare(reserved[number][1]),
        )
        found = {self.check(*one, own_answers) for one, own_answers in zip(reserved, answers, strict=True)}
        self.assert_invariants()
        return found

    def check(self, context: base.Context, uuid: str, answers: list[Any]) -> str:
        commit, rollback, extend, expired, _ = answers
        (state,) = self.states(uuid)
        if (state, extend) == ("rolled_back", "ok"):
            extend = "ReservationRolledBack"
        self.assertEqual(self.CONSISTENT[state], {"commit": commit, "rollback": rollback, "extend": extend})
        self.assertLessEqual(expired, int(state == "expired"))
        self.assertEqual((2, 0) if state == "committed" else (0, 0), self.figures(context.project_id))
        return state

    def test_in_time_and_overdue(self) -> None:
        """Also a reservation that becomes overdue during the race."""

        def make_due_soon(uuid: str) -> None:
            # (The servers and this process have the same clock.)
            moment = datetime.datetime.now(datetime.timezone.utc) + base.milliseconds(random.randint(1, 12))
            text = moment.replace(tzinfo=None).isoformat(" ", "microseconds")
            self.execute("UPDATE reservations SET expire = :moment WHERE uuid = :uuid", moment=text, uuid=uuid)

        for turns, prepare, states in (
            (6, None, {"committed", "rolled_back"}),
            (4, self.make_overdue, {"expired"}),
            (6, make_due_soon, {"committed", "rolled_back", "expired"}),
        ):
            self.assertLessEqual(self.settle_in_turns(turns * fixtures.MORE, prepare), states)
            self.engine.release(base.ADMIN, [row.uuid for row in self.engine.list_reservations(base.ADMIN)])


class TestWhileOthersWrite(RaceTestCase):
    CYCLES = 12 * fixtures.MORE

    def setUp(self) -> None:
        super().setUp()
        self.plant({"root": None, "left": "root", "right": "root", "leaf": "left"})
        self.add_provider("n1", gpu=1000, fpga=1000)
        self.engine.close()

    def churn(self, name: str) -> None:
        """Reserve, and settle in every way, in a leaf."""
        for cycle in range(self.CYCLES):
            context = base.Context(("leaf", "left", "right", f"{name}-{cycle}")[cycle % 4])
            how = {"consumer": f"{name}{cycle}", "provider": (None, "n1")[cycle % 2]}
            uuids = self.engine.reserve(context, {"gpu": 2, "fpga": 1}, **how)
            if cycle % 3 == 0:
                self.engine.rollback(context, uuids)
            else:
                self.engine.commit(context, uuids)
                if cycle % 3 == 1:
                    self.engine.release(context, uuids)

    def test_projects_move_under_charges(self) -> None:
        """New projects join the tree while they are charged for the first time; others move with all they hold.

        An audit and a heal at the same time find nothing.
        """
        rounds, database = itertools.count(), hooks.database_of(self.engine)

        def move_projects() -> None:
            for project_id, parent_id in (
                ("left", "right"),
                ("leaf", "root"),
                ("left", "root"),
                ("leaf", "left"),
                (f"w0-{4 * next(rounds) + 3}", "leaf"),
                ("right", None),
                ("right", "root"),
            ):
                database.write(lambda connection: base.projects.ensure(connection, project_id))  # noqa: B023
                trees.move(database, project_id, parent_id)

        churners = [functools.partial(self.churn, f"w{number}") for number in range(3)]
        audit, heal = (functools.partial(call, base.ADMIN) for call in (self.engine.audit, self.engine.heal))
        _, (_, audits, heals) = race_beside(churners, move_projects, audit, heal)
        self.assertEqual([], [drift for drifts in audits + heals for drift in drifts])
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))
