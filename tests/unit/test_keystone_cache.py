# SPDX-License-Identifier: Apache-2.0
"""The cache of limits: how long an answer is used, which thread reads again, and what happens during an outage."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any

import fixtures as fx
from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.limits.sources import cache as caches
from cyborg_quota.limits.sources.cache import LimitSourceError

TTL, STALE, PATIENCE = 60.0, 600.0, 5.0
AWAY = "it is away"


class CacheTestCase(base.BaseTestCase):
    """``cache`` with a stopped clock, and ``source``, which counts its calls."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fx.FakeLogger())
        self.now = 1000.0
        self.cache = self.make_cache()
        self.asked = 0
        self.value: Any = "first"
        self.error: Exception | None = None

    def make_cache(self, **changes: Any) -> caches.Cache:
        settings = {"ttl_seconds": TTL, "stale_seconds": STALE, "timeout_seconds": PATIENCE, **changes}
        return caches.Cache(clock=lambda: self.now, **settings)

    def source(self) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.value

    def get(self, key: str = "k") -> Any:
        return self.cache.get(key, self.source)

    def after(self, seconds: float, *keys: str) -> list[Any]:
        """The answers to requests for these keys, some seconds later; AWAY in place of LimitsUnavailable."""
        self.now += seconds
        answers = []
        for key in keys or ("k",):
            try:
                answers.append(self.get(key))
            except exceptions.LimitsUnavailable:
                answers.append(AWAY)
        return answers

    def let_it_age(self) -> None:
        """Cache a response that is too old now, while the source is away."""
        self.get()
        self.make_unavailable()
        self.now += TTL

    def make_unavailable(self, *, whole: bool = True) -> None:
        self.error = LimitSourceError(AWAY, is_total=whole)


class TestAge(CacheTestCase):
    def test_an_answer_is_used_until_the_ttl_and_not_longer(self) -> None:
        self.assertEqual("first", self.get())
        self.value = "second"

        self.assertEqual((["first"], 1), (self.after(TTL - 0.001), self.asked))
        self.assertEqual((["second"], 2), (self.after(0.001), self.asked))
        self.cache = self.make_cache(ttl_seconds=0.0)
        self.assertEqual(("second", "second", 4), (self.get(), self.get(), self.asked))

    def test_the_age_counts_from_the_request(self) -> None:
        """The source may have read the limit at once, and answered late."""

        def slowly() -> str:
            self.now += 4.0
            return "looked at the start"

        self.cache.get("k", slowly)
        self.now += TTL - 4.0
        self.assertEqual("first", self.get())

    def test_an_empty_answer_is_cached(self) -> None:
        self.value = None
        self.assertEqual((None, None, 1), (self.get(), self.get(), self.asked))
        self.value, self.now = "there now", self.now + TTL
        self.assertEqual("there now", self.get())

    def test_memory_is_bounded_and_the_oldest_goes_first(self) -> None:
        self.cache = self.make_cache(max_responses=3)
        for key in "abca":
            self.get(key)
        self.now += TTL
        # a is refreshed, and no longer the oldest.
        for key, asked in (("a", 4), ("d", 5), ("a", 5), ("b", 6)):
            self.get(key)
            self.assertEqual((3, asked), (len(self.cache._responses), self.asked), key)
        self.make_unavailable(whole=False)
        self.assertEqual([AWAY] * 10, self.after(0, *"0123456789"))
        self.assertEqual(3, len(self.cache._outages), "refusals are bounded too")


class TestOutage(CacheTestCase):
    def test_stale_answers_for_a_bounded_time_then_an_error(self) -> None:
        self.let_it_age()
        began = self.now
        for age in (0.0, STALE - 0.001):
            self.now = began + age
            self.assertEqual("first", self.get())
        self.now = began + STALE
        error = self.assertRaises(exceptions.LimitsUnavailable, self.get)

        self.assertEqual(("it is away", STALE), (error.reason, error.seconds))
        self.assertIn("for 600 s (it is away)", str(error))

    def test_after_a_failure_there_is_a_pause(self) -> None:
        """A source that hangs would delay each caller for a timeout, one after the other."""
        self.let_it_age()
        self.assertEqual((["first"] * 3 + [AWAY], 2), (self.after(0, "k", "k", "k", "other"), self.asked))
        self.assertEqual(([AWAY], 3), (self.after(caches.PAUSE_SECONDS, "other"), self.asked))

    def test_available_again(self) -> None:
        self.let_it_age()
        self.get()
        self.error, self.value = None, "second"
        self.assertEqual(["second"], self.after(caches.PAUSE_SECONDS))
        self.assertIn("Limit source available again after 2 s (it is away)", self.log.output)

        self.now += TTL + STALE
        self.make_unavailable()
        error = self.assertRaises(exceptions.LimitsUnavailable, self.get)
        self.assertEqual(0.0, error.seconds, "a new outage is counted afresh")

    def test_a_refusal_shows_that_the_source_is_available(self) -> None:
        """One refused request does not stop the others, also after an outage."""
        for is_after_outage in (False, True):
            if is_after_outage:
                self.make_unavailable()
                self.assertEqual([AWAY], self.after(0, "a"))
            self.make_unavailable(whole=False)
            self.assertEqual([AWAY], self.after(caches.PAUSE_SECONDS, "a"))
            self.error = None
            self.assertEqual(["first", AWAY], self.after(0, f"allowed {is_after_outage}", "a"))
            self.now += caches.PAUSE_SECONDS

    def test_the_warning_comes_once_a_minute(self) -> None:
        self.let_it_age()
        for _ in range(100):
            self.get()
            self.now += 1.0
        self.assertEqual(2, self.log.output.count("it is away"))
        self.assertIn("using cached limits up to 660 s old", self.log.output)

    def test_an_unexpected_error_in_an_outage_lets_the_next_caller_try(self) -> None:
        self.make_unavailable()
        self.assertEqual([AWAY], self.after(0))
        self.now += caches.PAUSE_SECONDS
        self.error = KeyError("bug")
        self.assertRaises(KeyError, self.get)
        self.error = None
        self.assertEqual("first", self.get())


class TestThreads(CacheTestCase):
    """One thread at a time reads a key."""

    def setUp(self) -> None:
        super().setUp()
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.pool = futures.ThreadPoolExecutor(8)
        self.addCleanup(self.pool.shutdown)
        self.addCleanup(self.go_on.set)

    def ask(self, count: int = 1) -> list[futures.Future[Any]]:
        """Threads that ask for one key; the source answers the first of them when ``go_on`` is set."""

        def held() -> Any:
            self.entered.set()
            assert self.go_on.wait(30)
            return self.source()

        asked = [self.pool.submit(self.cache.get, "k", held) for _ in range(count)]
        self.assertTrue(self.entered.wait(30))
        return asked

    def test_without_an_answer_the_others_wait(self) -> None:
        """Also for an answer instead of one that is minutes old: the limit may have been changed since."""
        for value in ("first", "second"):
            self.value = value
            asked = self.ask(8)
            self.go_on.set()
            self.assertEqual([value] * 8, [one.result(30) for one in asked])
            self.entered.clear()
            self.go_on.clear()
            self.now += TTL + PATIENCE
        self.assertEqual(2, self.asked)

    def test_with_an_answer_the_others_use_it(self) -> None:
        self.get()
        self.now += TTL
        self.value = "second"
        [asked] = self.ask()
        self.assertEqual(("first", 1), (self.get(), self.asked))
        self.assertEqual("second", self.get("another key"))
        self.go_on.set()
        self.assertEqual(("second", "second", 3), (asked.result(30), self.get(), self.asked))

    def test_a_failure_is_raised_in_all_waiting_threads(self) -> None:
        self.make_unavailable()
        asked = self.ask(8)
        self.go_on.set()
        self.assertEqual(["it is away"] * 8, [getattr(one.exception(30), "reason", None) for one in asked])
        self.assertEqual(1, self.asked)

    def test_in_an_outage_one_thread_tries_and_none_waits(self) -> None:
        self.let_it_age()
        self.get()
        self.now += caches.PAUSE_SECONDS
        [asked] = self.ask()
        self.assertEqual((["first", AWAY], 2), (self.after(0, "k", "other"), self.asked))

        self.error = None
        self.go_on.set()
        self.assertEqual(("first", "first"), (asked.result(30), self.get("other")))

    def test_waiting_ends(self) -> None:
        self.cache = self.make_cache(timeout_seconds=0.01)
        self.ask()
        error = self.assertRaises(exceptions.LimitsUnavailable, self.get)
        self.assertIn("another thread", error.reason)
