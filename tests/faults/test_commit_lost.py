# SPDX-License-Identifier: Apache-2.0
"""The answer to COMMIT is lost: the client cannot know whether the transaction took effect, and the ledger is still
right.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent import futures

import sqlalchemy as sa
import testscenarios

from cyborg_quota import Claim, QuotaEngine
from tests import base, fixtures
from tests.faults import ledger_check
from tests.faults.load import Crew, Ledger
from tests.faults.naive import NaiveLedger
from tests.faults.proxy import Cut, Proxy

load_tests = testscenarios.load_tests_apply_scenarios

CUTS = (Cut.BEFORE, Cut.BEHIND, Cut.ANSWERED)


class Once:
    """Cut the next COMMIT, and no other."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self.is_done = False

    def __call__(self, _count: int) -> Cut:
        if self.is_done:
            return Cut.NOT
        self.is_done = True
        return self._cut


class CommitLostTestCase(base.BackendTestCase):
    scenarios = fixtures.SCENARIOS[1:]

    def setUp(self) -> None:
        super().setUp()
        self.ledger = self.useFixture(Ledger(fixtures.fresh_url(self.backend, "wire")))
        self.proxy = self.useFixture(Proxy(self.ledger.url))
        self.engine = self.ledger.make_engine(self.proxy.url)
        self.addCleanup(self.engine.close)
        self.context = base.Context("p")

    def figures(self) -> tuple[int, int]:
        usage = self.ledger.engine.get_usages(self.context)["gpu"]
        return usage.used, usage.reserved


class TestWire(CommitLostTestCase):
    def test_a_cut_reaches_the_server_despite_forked_workers(self) -> None:
        """Otherwise the workers of a test wait for locks that are never released."""

        def wait(_number: int, is_over: Callable[[], bool]) -> None:
            while not is_over():
                time.sleep(0.01)

        server, wire = (sa.create_engine(url, poolclass=sa.NullPool) for url in (self.ledger.url, self.proxy.url))
        change = "UPDATE quota_usages SET used = used"
        first = wire.connect()
        first.begin()
        first.exec_driver_sql(change)
        with Crew(wait, 1), server.begin() as other, futures.ThreadPoolExecutor() as pool:
            self.proxy.choose = Once(Cut.BEFORE)
            error = pool.submit(first.exec_driver_sql, "COMMIT").exception(30.0)
            self.assertIsInstance(error, sa.exc.DBAPIError, "the client does not hear of it")
            wait_seconds = {"postgresql": "SET lock_timeout = 5000", "mysql": "SET innodb_lock_wait_timeout = 5"}
            other.exec_driver_sql(wait_seconds[other.dialect.name])
            other.exec_driver_sql(change)


class TestEachCall(CommitLostTestCase):
    """Each public call, with each kind of cut at its COMMIT: it succeeds, and takes effect once."""

    def cut(self, how: Cut, call: Callable[[], object]) -> object:
        self.proxy.choose = once = Once(how)
        answer = call()
        self.assertTrue(once.is_done, "there was no COMMIT to cut")
        return answer

    def test_each_call(self) -> None:
        engine: QuotaEngine = self.engine
        engine.rollback(self.context, engine.reserve(self.context, {"gpu": 1}))  # the rows of a first use exist
        other = self.ledger.make_engine(self.proxy.url)  # an engine that has not made the reservation that it settles
        self.addCleanup(other.close)
        other.get_usages(self.context)
        for how in CUTS:
            alone = self.cut(how, lambda: engine.reserve(self.context, {"gpu": 2}))
            self.assertEqual((0, 2), self.figures())
            self.cut(how, lambda: engine.commit(self.context, alone))  # noqa: B023
            self.assertEqual((2, 0), self.figures())
            self.cut(how, lambda: engine.release(self.context, alone))  # noqa: B023
            self.assertEqual((0, 0), self.figures())

            named = self.cut(how, lambda: engine.reserve(self.context, {"gpu": 3}, consumer="c", group="g"))
            self.assertEqual(named, engine.reserve(self.context, {"gpu": 3}, consumer="c", group="g"))
            self.cut(how, lambda: engine.extend(self.context, expire=900, consumer="c"))
            self.assertEqual((0, 3), self.figures())
            self.cut(how, lambda: engine.rollback(self.context, consumer="c"))
            self.assertEqual((0, 0), self.figures())

            claims = [Claim("a", {"gpu": 1, "fpga": 1}), Claim("b", {"gpu": 1})]
            self.cut(how, lambda: engine.reserve_many(self.context, claims, group="g"))  # noqa: B023
            self.assertEqual((0, 2), self.figures())
            self.cut(how, lambda: other.commit(self.context, group="g"))
            self.cut(how, lambda: other.release(self.context, group="g"))
            self.assertEqual((0, 0), self.figures())

            self.cut(how, lambda: engine.adopt(base.ADMIN, [Claim("x", {"gpu": 1})], "p"))
            self.assertEqual((1, 0), self.figures())
            self.cut(how, lambda: engine.release(self.context, consumer="x"))

            engine.reserve(self.context, {"gpu": 1})
            self.ledger.execute("UPDATE reservations SET expire = '2001-01-01 00:00:00' WHERE state = 'reserved'")
            self.assertEqual(1, self.expire(how))
            self.assertEqual((0, 0), self.figures())
        self.assertEqual([], engine.audit(base.ADMIN))

    def expire(self, how: Cut) -> object:
        """A batch whose answer was lost is not repeated; then it counts 0."""
        count = self.cut(how, lambda: self.engine.expire(base.ADMIN))
        return 1 if how is not Cut.BEFORE and count == 0 else count


class TestEachStatement(CommitLostTestCase):
    """The connection is lost at the n-th statement of a process, from the first one on."""

    def test_a_first_call(self) -> None:
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


class TestLoad(CommitLostTestCase):
    def test_workers(self) -> None:
        cuts = cut_under_load(self.ledger, [self.proxy], 1.0, random.randrange(2**32))
        report = self.ledger.assert_right()
        self.assertGreater(cuts, 0)
        self.assertEqual([], [kind for kind in report.errors if kind != "OverQuota"])

    def test_naive_is_detected(self) -> None:
        """Repeated with another UUID, it is charged twice."""
        self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}))
        naive = NaiveLedger(self.proxy.url, "p", self.ledger.journal)
        self.proxy.choose = Once(Cut.ANSWERED)
        naive.reserve_again_with_new_uuid()
        problems = ledger_check.check(self.ledger.url, self.ledger.engine, self.ledger.journal).problems
        self.assertIn("charged twice", " ".join(problems))
