# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker: when it opens, and when it closes. The clock is set by the test."""

from __future__ import annotations

from oslotest import base

from cyborg_quota.integrations.cyborg.circuit_breaker import CircuitBreaker


class TestCircuitBreaker(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.breaker = CircuitBreaker(2.0)

    def test_is_opened_once(self) -> None:
        self.assertTrue(self.breaker.record_unreachable(10.0, 18.0))
        self.assertFalse(self.breaker.record_unreachable(11.0, 19.0))
        self.assertEqual(2.0, self.breaker.open_seconds(20.0))

    def test_a_late_failure_of_an_earlier_outage(self) -> None:
        """It began before the probe that closed the breaker, and ends after it."""
        self.breaker.record_unreachable(10.0, 18.0)
        self.breaker.record_probe(20.0, reached=True)
        self.assertFalse(self.breaker.record_unreachable(19.0, 27.0))
        self.assertFalse(self.breaker.is_open)
        self.assertTrue(self.breaker.record_unreachable(20.0, 28.0))

    def test_retry_after(self) -> None:
        """After the next probe, in whole seconds; never immediately."""
        self.breaker.record_unreachable(10.0, 18.0)
        self.assertEqual([3, 2, 1, 1], [self.breaker.retry_after_seconds(now) for now in (18.0, 19.5, 20.0, 25.0)])
        self.breaker.record_probe(21.0, reached=False)
        self.assertEqual(3, self.breaker.retry_after_seconds(21.0))
