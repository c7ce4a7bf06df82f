# SPDX-License-Identifier: Apache-2.0
"""Measurements in parallel, with a time limit for each. Threads are held by events, not by sleeping."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures as fx
from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.pods.measuring import measure
from cyborg_quota.types.capacity import ResourceUse

USE = {"gpu": ResourceUse(8, 3)}
LONG_SECONDS = 60.0


class MeasureTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.release = threading.Event()
        self.addCleanup(self.release.set)

    def measured(self, read: Callable[..., Any], count: int = 1, timeout_seconds: float = LONG_SECONDS) -> Any:
        endpoints = {f"pod{number}": f"cloud{number}" for number in range(count)}
        return dict(measure(endpoints, read, timeout_seconds=timeout_seconds))

    def test_pods_are_measured_in_parallel(self) -> None:
        """They wait for each other."""
        barrier = threading.Barrier(20, timeout=LONG_SECONDS)

        def read(_endpoint: str) -> Any:
            barrier.wait()
            return USE

        self.assertEqual([USE] * 20, list(self.measured(read, 20).values()))

    def test_errors(self) -> None:
        """One that does not answer is abandoned, and keeps no other pod waiting."""
        log = self.useFixture(fx.FakeLogger())

        def read(endpoint: str) -> Any:
            if endpoint == "cloud0":
                self.release.wait(LONG_SECONDS)
            if endpoint == "cloud1":
                raise exceptions.QuotaError("Placement is away.")
            return {}["hidden"] if endpoint == "cloud2" else USE

        self.assertEqual(
            {
                "pod0": "It did not answer within 0.2 seconds.",
                "pod1": "Placement is away.",
                "pod2": "Unexpected error; see the log.",
                "pod3": USE,
            },
            self.measured(read, 4, timeout_seconds=0.2),
        )
        self.assertFalse(self.release.is_set())
        self.assertIn("hidden", log.output)

    def test_a_tick_ends_it(self) -> None:
        """As the end of the service does; the threads that run are abandoned."""

        def read(_endpoint: str) -> Any:
            self.release.wait(LONG_SECONDS)
            return USE

        how = {"timeout_seconds": LONG_SECONDS, "tick": mock.Mock(side_effect=InterruptedError)}
        self.assertRaises(InterruptedError, next, measure({"p": "c"}, read, **how))
        self.assertEqual([], list(measure({}, read, **how)))
