# SPDX-License-Identifier: Apache-2.0
"""The counters, the histogram and the gauges of a process, which prometheus_client keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import prometheus_client

from cyborg_quota import forks

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds: a call usually takes 1 to 10 ms; [quota] retry_seconds bounds it at 6 s."""


class Recorder:
    """Counts calls. ``registry`` has the values."""

    def __init__(self) -> None:
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Start at 0 in a child, which has not made its parent's calls, nor can wait for the locks of its threads."""
        self.registry = prometheus_client.CollectorRegistry()
        self._reserves = prometheus_client.Counter(
            "cyborg_quota_reserves",
            "Reserves, by resource and result. A reserve of two resources counts once for each.",
            ["resource", "result"],
            registry=self.registry,
        )
        self._retries = prometheus_client.Counter(
            "cyborg_quota_retries",
            "Retries of transactions, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._durations = prometheus_client.Histogram(
            "cyborg_quota_call_duration_seconds",
            "Duration of the calls of the engine.",
            ["call"],
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def record(self, call: str, seconds: float, resources: Iterable[str] = (), result: str = "") -> None:
        """Count a call, and its duration; a reserve once for each of its resources, with its result."""
        self._durations.labels(call).observe(seconds)
        for resource in resources:
            self._reserves.labels(resource, result).inc()

    def count_retry(self, reason: str) -> None:
        """Count a retry of a transaction."""
        self._retries.labels(reason).inc()

    def gauge(self, name: str, help_text: str) -> prometheus_client.Gauge:
        """A gauge of this process, which has no series before its value is set."""
        return prometheus_client.Gauge(name, help_text, registry=self.registry)
