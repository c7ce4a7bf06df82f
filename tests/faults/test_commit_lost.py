# SPDX-License-Identifier: Apache-2.0
"""The answer to COMMIT is lost: the client cannot know whether the transaction took effect, and the ledger is still
right.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import testscenarios

from cyborg_quota import ANY, Claim, exceptions
from tests import base, fixtures
from tests.faults.load import CAPACITY, Ledger
from tests.faults.naive import NaiveLedger
from tests.faults.proxy import Cut, Proxy

load_tests = testscenarios.load_tests_apply_scenarios

CUTS = (Cut.BEFORE, Cut.BEHIND, Cut.ANSWERED)


def cut_under_load(ledger: Ledger, proxy: Proxy, seconds: float, seed: int) -> int:
    """Run workers behind a proxy that cuts every fifth COMMIT, in any way. Returns the number of cuts."""
    rng = random.Random(seed)

    def choose(_count: int) -> Cut:
        return rng.choice(CUTS) if rng.random() < 0.2 else Cut.NOT

    proxy.choose = choose
    # Every connection is cut repeatedly: the retry deadline is long enough that no caller notices.
    with ledger.crew(4, seed, ("hot", "cold"), [proxy.url], retry_seconds=20.0):
        time.sleep(seconds)
    return proxy.cuts


class TestCommitLost(base.BackendTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "wire"), with_capacity=True))
        self.proxy = self.useFixture(Proxy(self.ledger.url))
        self.engine = self.ledger.make_engine(self.proxy.url)
        self.context = base.Context("p")

    def cut_next(self, how: Cut) -> None:
        """Cut the next COMMIT, and no other."""
        following = self.proxy.commits + 1
        self.proxy.choose = lambda count: how if count == following else Cut.NOT

    def figures(self) -> tuple[int, int]:
        usage = self.ledger.engine.get_usages(self.context)["gpu"]
        return usage.used, usage.reserved

    def test_each_call(self) -> None:
        """Each public call, with each kind of cut at its COMMIT: it succeeds, and takes effect once.

        At the limit: the retry finds the limit, or the capacity, reached by its own first attempt.
        """
        engine, context, most = self.engine, self.context, self.ledger.limits["gpu"]
        engine.rollback(context, engine.reserve(context, {"gpu": 1}))  # the rows of a first use exist
        other = self.ledger.make_engine(self.proxy.url)  # an engine that has not made the reservation that it settles
        other.get_usages(context)
        claims = [Claim("a", {"gpu": 5, "fpga": 1}), Claim("b", {"gpu": 5}), Claim(None, {"gpu": most - 10})]
        alone: list[str] = []

        def expire() -> None:
            """(A batch whose answer was lost is not repeated.)"""
            self.make_overdue()
            engine.expire(base.ADMIN)

        def commit_what_is_overdue() -> None:
            self.make_overdue()
            self.assertRaises(exceptions.ReservationExpired, engine.commit, context, consumer="c")

        def release_all() -> None:
            engine.release(base.ADMIN, [row.uuid for row in engine.list_reservations(base.ADMIN, state="committed")])

        calls: list[tuple[Callable[[], object], tuple[int, int]]] = [
            (lambda: alone.extend(engine.reserve(context, {"gpu": most})), (0, most)),
            (lambda: engine.commit(context, alone[-1:]), (most, 0)),
            (lambda: engine.release(context, alone[-1:]), (0, 0)),
            (lambda: engine.reserve(context, {"gpu": most}, consumer="c", group="g"), (0, most)),
            (lambda: engine.extend(context, expire=900, consumer="c"), (0, most)),
            (lambda: engine.rollback(context, consumer="c"), (0, 0)),
            (lambda: engine.reserve_many(context, claims[:1], group="g"), (0, 5)),
            (lambda: engine.reserve_many(context, claims, group="g"), (0, most)),
            (lambda: other.commit(context, group="g"), (most, 0)),
            (lambda: other.release(context, group="g"), (0, 0)),
            (lambda: alone.extend(engine.reserve(context, {"gpu": 1}, group="g")), (0, 1)),
            (lambda: engine.commit(context, alone[-1:], known_as="x"), (1, 0)),
            (lambda: engine.resize(context, {"gpu": most}, consumer="x", expected={"gpu": 1}), (most, 0)),
            (lambda: engine.transfer(base.ADMIN, "q", "p", consumer="x"), (0, 0)),
            (lambda: engine.transfer(base.ADMIN, "p", "q", consumer="x"), (most, 0)),
            (lambda: engine.release(context, consumer="x"), (0, 0)),
            (lambda: engine.reserve(context, {"gpu": CAPACITY["gpu"]}, consumer="c", provider="n1"), (0, 8)),
            (commit_what_is_overdue, (0, 0)),
            (lambda: engine.reserve(context, {"gpu": CAPACITY["gpu"]}, consumer="y", provider=ANY), (0, 8)),
            (expire, (0, 0)),
            (lambda: engine.adopt(base.ADMIN, [Claim(None, {"gpu": 1})] * 2, "p"), (2, 0)),
            (lambda: engine.purge(base.ADMIN, 0), (2, 0)),  # it folds them into one
            (release_all, (0, 0)),
        ]
        for how in CUTS:
            for number, (call, figures) in enumerate(calls):
                cuts = self.proxy.cuts
                self.cut_next(how)
                call()
                self.assertEqual(cuts + 1, self.proxy.cuts, f"{number} sent no COMMIT to cut")
                self.assertEqual(figures, self.figures(), (how, number))
        self.assertEqual([], engine.audit(base.ADMIN))

    def make_overdue(self) -> None:
        self.ledger.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE state = 'reserved'")

    def test_each_statement_of_a_first_call(self) -> None:
        """The connection is lost at the n-th statement of a process, from the first one on."""
        for number in range(1, 100):
            proxy = self.useFixture(Proxy(self.ledger.url))
            proxy.is_cut = number.__eq__
            engine = self.ledger.make_engine(proxy.url)
            context = base.Context(f"p{number}")
            engine.commit(context, engine.reserve(context, {"gpu": 2, "fpga": 1}, consumer="c"))
            engine.close()
            usage = self.ledger.engine.get_usages(context)
            self.assertEqual((2, 0, 1), (usage["gpu"].used, usage["gpu"].reserved, usage["fpga"].used))
            if not proxy.cuts:
                break
        self.assertGreater(number, 10)
        self.assertEqual([], self.ledger.engine.audit(base.ADMIN))

    def test_workers(self) -> None:
        cuts = cut_under_load(self.ledger, self.proxy, 1.0, random.randrange(2**32))
        report = self.ledger.assert_right()
        self.assertGreater(cuts, 0)
        self.assertLessEqual(set(report.errors), {"OverQuota", "OverCapacity"})

    def test_naive_is_detected(self) -> None:
        """Repeated with another UUID, it is charged twice."""
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))
        naive = NaiveLedger(self.proxy.url, "p", self.ledger.journal)
        self.cut_next(Cut.ANSWERED)
        naive.reserve_again_with_new_uuid()
        self.assertIn("charged twice", " ".join(self.ledger.check().problems))
