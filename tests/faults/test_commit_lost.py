# SPDX-License-Identifier: Apache-2.0
"""The answer to COMMIT is lost: the client cannot know whether the transaction took effect, and the ledger is still
right.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import testscenarios

from cyborg_quota import Claim
from tests import base, fixtures
from tests.faults.load import Ledger
from tests.faults.naive import NaiveLedger
from tests.faults.proxy import Cut, Proxy

load_tests = testscenarios.load_tests_apply_scenarios

CUTS = (Cut.BEFORE, Cut.BEHIND, Cut.ANSWERED)


def cut_under_load(ledger: Ledger, proxies: list[Proxy], seconds: float, seed: int) -> int:
    """Run workers behind proxies that cut every fifth COMMIT, in any way. Returns the number of cuts."""
    rng = random.Random(seed)

    def choose(_count: int) -> Cut:
        return rng.choice(CUTS) if rng.random() < 0.2 else Cut.NOT

    for proxy in proxies:
        proxy.choose = choose
    # Every connection is cut repeatedly: the retry deadline is long enough that no caller notices.
    with ledger.crew(4, seed, ("hot", "cold"), [proxy.url for proxy in proxies], retry_seconds=20.0):
        time.sleep(seconds)
    return sum(proxy.cuts for proxy in proxies)


class TestCommitLost(base.BackendTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "wire")))
        self.proxy = self.useFixture(Proxy(self.ledger.url))
        self.engine = self.ledger.make_engine(self.proxy.url)
        self.addCleanup(self.engine.close)
        self.context = base.Context("p")

    def cut_next(self, how: Cut) -> None:
        """Cut the next COMMIT, and no other."""
        following = self.proxy.commits + 1
        self.proxy.choose = lambda count: how if count == following else Cut.NOT

    def figures(self) -> tuple[int, int]:
        usage = self.ledger.engine.get_usages(self.context)["gpu"]
        return usage.used, usage.reserved

    def test_each_call(self) -> None:
        """Each public call, with each kind of cut at its COMMIT: it succeeds, and takes effect once."""
        engine, context = self.engine, self.context
        engine.rollback(context, engine.reserve(context, {"gpu": 1}))  # the rows of a first use exist
        other = self.ledger.make_engine(self.proxy.url)  # an engine that has not made the reservation that it settles
        self.addCleanup(other.close)
        other.get_usages(context)
        claims = [Claim("a", {"gpu": 1, "fpga": 1}), Claim("b", {"gpu": 1})]
        alone: list[str] = []

        def expire() -> None:
            """(A batch whose answer was lost is not repeated.)"""
            self.ledger.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE state = 'reserved'")
            engine.expire(base.ADMIN)

        calls: list[tuple[Callable[[], object], tuple[int, int]]] = [
            (lambda: alone.extend(engine.reserve(context, {"gpu": 2})), (0, 2)),
            (lambda: engine.commit(context, alone[-1:]), (2, 0)),
            (lambda: engine.release(context, alone[-1:]), (0, 0)),
            (lambda: engine.reserve(context, {"gpu": 3}, consumer="c", group="g"), (0, 3)),
            (lambda: engine.extend(context, expire=900, consumer="c"), (0, 3)),
            (lambda: engine.rollback(context, consumer="c"), (0, 0)),
            (lambda: engine.reserve_many(context, claims, group="g"), (0, 2)),
            (lambda: other.commit(context, group="g"), (2, 0)),
            (lambda: other.release(context, group="g"), (0, 0)),
            (lambda: engine.adopt(base.ADMIN, [Claim("x", {"gpu": 1})], "p"), (1, 0)),
            (lambda: engine.release(context, consumer="x"), (0, 0)),
            (lambda: engine.reserve(context, {"gpu": 1}), (0, 1)),
            (expire, (0, 0)),
        ]
        for how in CUTS:
            for number, (call, figures) in enumerate(calls):
                cuts = self.proxy.cuts
                self.cut_next(how)
                call()
                self.assertEqual(cuts + 1, self.proxy.cuts, "there was no COMMIT to cut")
                self.assertEqual(figures, self.figures(), (how, number))
        self.assertEqual([], engine.audit(base.ADMIN))

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
        cuts = cut_under_load(self.ledger, [self.proxy], 1.0, random.randrange(2**32))
        report = self.ledger.assert_right()
        self.assertGreater(cuts, 0)
        self.assertEqual([], [kind for kind in report.errors if kind != "OverQuota"])

    def test_naive_is_detected(self) -> None:
        """Repeated with another UUID, it is charged twice."""
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))
        naive = NaiveLedger(self.proxy.url, "p", self.ledger.journal)
        self.cut_next(Cut.ANSWERED)
        naive.reserve_again_with_new_uuid()
        self.assertIn("charged twice", " ".join(self.ledger.check().problems))
