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

from cyborg_quota import Claim, QuotaEngine, exceptions
from cyborg_quota.db.database import Database
from tests import base, fixtures, on_sqlite, trees
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
        [(usage_id,)] = self.fetch("SELECT id FROM quota_usages")
        self.execute(f"UPDATE quota_usages SET reserved = {LIMIT - 1}, subtree = {LIMIT - 1}")
        between = once(PROCESSES)

        def job() -> int:
            sql = sa.create_engine(self.url, connect_args={"timeout": 60})
            admitted = 0
            while naive.reserve_one(sql, usage_id, LIMIT, between):
                admitted += 1
            return admitted

        self.assertEqual(PROCESSES, sum(race(*[job] * PROCESSES)))
        self.assertEqual((0, LIMIT - 1 + PROCESSES), self.figures())

    def test_ten_children_of_one_parent(self) -> None:
        """They compete for the limit of the subtree, which is lower than the sum of their own."""
        self.limits.subtree_limits["parent", "gpu"] = LIMIT
        database = Database(fixtures.settings(self.url))
        children = [f"child{number}" for number in range(10)]
        trees.plant(database, {"parent": None, **dict.fromkeys(children, "parent")})
        database.close()
        admitted = race(
            *(functools.partial(reserve_until_refused, self.engine, base.Context(child)) for child in children)
        )
        self.assertEqual(LIMIT, sum(admitted), admitted)
        self.assert_invariants()


class TestFirstUseRace(RaceTestCase):
    def test_one_row_for_a_new_project(self) -> None:
        projects = [f"new{turn}" for turn in range(3)]
        race_in_turns(
            [functools.partial(self.engine.reserve, base.Context(project), {"gpu": 1, "fpga": 2})] * PROCESSES
            for project in projects
        )
        for project in projects:
            self.assertEqual((0, PROCESSES), self.figures(project))
            self.assertEqual((0, 2 * PROCESSES), self.figures(project, "fpga"))
            self.assertEqual(2, len(self.engine.list_usages(base.ADMIN, project)))
        self.assert_invariants()


class TestDeliveryRace(RaceTestCase):
    def test_one_call_delivered_several_times_is_charged_once(self) -> None:
        self.limits.own[None, "gpu"] = 3
        contexts = [base.Context(f"p{turn}") for turn in range(3)]
        claims = [Claim("a", {"gpu": 1}), Claim("b", {"gpu": 2, "fpga": 1})]
        calls = [functools.partial(self.engine.reserve_many, context, claims, group="g") for context in contexts]
        for context, answers in zip(contexts, race_in_turns([call] * PROCESSES for call in calls), strict=True):
            self.assertEqual([answers[0]] * PROCESSES, answers)
            self.assertEqual((0, 3), self.figures(context.project_id))
        self.assert_invariants()

    def test_concurrent_commits_of_a_group_are_counted_once(self) -> None:
        contexts = [base.Context(f"p{turn}") for turn in range(3)]
        for context in contexts:
            self.engine.reserve_many(context, [Claim("a", {"gpu": 1}), Claim("b", {"gpu": 2})], group="g")
        self.engine.close()
        race_in_turns([functools.partial(self.engine.commit, one, group="g")] * PROCESSES for one in contexts)
        for context in contexts:
            self.assertEqual((3, 0), self.figures(context.project_id))
        self.assert_invariants()

    def test_one_consumer_makes_different_requests(self) -> None:
        """Of different amounts or resources: then no unique key makes one claim conflict with the other.

        One of them is granted; the others get an error that names what the consumer holds.
        """
        wishes: list[dict[str, int]] = [{"fpga": 1}, {"gpu": 1}, {"gpu": 2, "fpga": 2}, {"gpu.A100": 1}]
        for requests, turns in ((wishes, 5), ([{"gpu": number} for number in (1, 2, 3, 4)], 3)):
            projects = [f"p{turn} of {turns}" for turn in range(turns)]
            calls = ([functools.partial(self.request, project, one) for one in requests] for project in projects)
            for project, answers in zip(projects, race_in_turns(calls), strict=True):
                self.assertEqual(["ReservationConflict"] * 3 + ["ok"], sorted(answers))
                held = {row.resource: row.delta for row in self.engine.list_reservations(base.ADMIN, project)}
                self.assertEqual(requests[answers.index("ok")], held)
        self.assert_invariants()

    def request(self, project: str, deltas: dict[str, int]) -> str:
        return self.answer(lambda: self.engine.reserve(base.Context(project), deltas, consumer="c"))


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
        self.assertLessEqual(self.settle_in_turns(6 * fixtures.MORE), {"committed", "rolled_back"})
        self.engine.release(base.ADMIN, [row.uuid for row in self.engine.list_reservations(base.ADMIN)])
        self.assertEqual({"expired"}, self.settle_in_turns(4 * fixtures.MORE, self.make_overdue))

    def test_becoming_overdue(self) -> None:
        """The reservation becomes overdue during the race."""

        def make_due_soon(uuid: str) -> None:
            # (The servers and this process have the same clock.)
            moment = datetime.datetime.now(datetime.timezone.utc) + base.milliseconds(random.randint(1, 12))
            text = moment.replace(tzinfo=None).isoformat(" ", "microseconds")
            self.execute("UPDATE reservations SET expire = :moment WHERE uuid = :uuid", moment=text, uuid=uuid)

        self.settle_in_turns(6 * fixtures.MORE, make_due_soon)


class TestWhileOthersWrite(RaceTestCase):
    CYCLES = 12 * fixtures.MORE

    def setUp(self) -> None:
        super().setUp()
        self.database = Database(fixtures.settings(self.url))
        trees.plant(self.database, {"root": None, "left": "root", "right": "root", "leaf": "left"})
        self.database.close()
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

    def churners(self, count: int) -> list[Callable[[], Any]]:
        return [functools.partial(self.churn, f"w{number}") for number in range(count)]

    def test_audit_and_heal_find_nothing(self) -> None:
        _, (audits, heals) = race_beside(
            self.churners(3),
            functools.partial(self.engine.audit, base.ADMIN),
            functools.partial(self.engine.heal, base.ADMIN),
        )
        self.assertEqual([], [drift for drifts in audits + heals for drift in drifts])
        self.assert_invariants()

    def test_heal_repairs_drift_under_load(self) -> None:
        self.engine.reserve(base.Context("leaf"), {"gpu": 1})
        self.engine.close()

        def falsify_and_heal() -> int:
            with sql.begin() as connection:
                connection.exec_driver_sql(
                    "UPDATE quota_usages SET reserved = reserved + 3, subtree = subtree + 5"
                    " WHERE project_id = 'leaf' AND pod = '' AND resource = 'gpu'"  # (one row: it locks no other)
                )
            with sql.begin() as connection:
                connection.exec_driver_sql("UPDATE inventories SET used = used + 3, free = free - 3")
            return len(self.engine.heal(base.ADMIN))

        isolation = {} if self.url.startswith("sqlite") else {"isolation_level": "READ COMMITTED"}
        sql = sa.create_engine(self.url, poolclass=sa.NullPool, **isolation)
        _, (healed,) = race_beside(self.churners(3), falsify_and_heal)
        self.assertGreater(sum(healed), 0)
        self.engine.heal(base.ADMIN)
        self.assert_invariants()

    def test_projects_move_under_charges(self) -> None:
        """New projects join the tree while they are charged for the first time; others move with all they hold."""

        rounds = itertools.count()

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
                self.database.write(lambda connection: base.projects.ensure(connection, project_id))  # noqa: B023
                trees.move(self.database, project_id, parent_id)

        race_beside(self.churners(3), move_projects)
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(base.ADMIN))
