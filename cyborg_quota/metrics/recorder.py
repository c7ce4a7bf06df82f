# SPDX-License-Identifier: Apache-2.0
"""The counters, the histogram and the gauges of a process, which prometheus_client keeps.

If the environment variable PROMETHEUS_MULTIPROC_DIR names a directory, all processes of a host that have the same
directory are counted together: each writes files there, and the one that serves the metrics reads them all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any, Final

import prometheus_client
from oslo_log import log as logging
from prometheus_client import multiprocess

from cyborg_quota import exceptions

LOG = logging.getLogger(__name__)

VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds: a call usually takes 1 to 10 ms; [quota] retry_seconds bounds it at 6 s."""


class Recorder:
    """Counts calls. The methods raise nothing: a full disk must not fail a reserve."""

    def __init__(self) -> None:
        directory = os.environ.get(VARIABLE)
        if directory is not None and not os.access(directory, os.W_OK | os.X_OK):
            raise exceptions.ConfigurationError(f"{VARIABLE} = {directory}: not a directory that can be written to.")
        self._registry = prometheus_client.CollectorRegistry()
        self._reserves = prometheus_client.Counter(
            "cyborg_quota_reserves",
            "Reserves, by resource and result. A reserve of two resources counts once for each.",
            ["resource", "result"],
            registry=self._registry,
        )
        self._retries = prometheus_client.Counter(
            "cyborg_quota_retries",
            "Retries of transactions, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self._durations = prometheus_client.Histogram(
            "cyborg_quota_call_duration_seconds",
            "Duration of the calls of the engine.",
            ["call"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._last_success = prometheus_client.Gauge(
            "cyborg_quota_expirer_last_success_timestamp_seconds",
            "When overdue reservations were last expired without an error, in Unix time.",
            multiprocess_mode="max",
            registry=self._registry,
        )
        self._children: dict[tuple[str, ...], Any] = {}
        self._has_failed = False

    def count_reserve(self, resources: Iterable[str], result: str) -> None:
        """Count a reserve of these resources."""
        for resource in resources:
            self._apply("inc", 1.0, self._reserves, resource, result)

    def count_retry(self, reason: str) -> None:
        """Count a retry of a transaction."""
        self._apply("inc", 1.0, self._retries, reason)

    def observe_call(self, call: str, seconds: float) -> None:
        """Record the duration of a call."""
        self._apply("observe", seconds, self._durations, call)

    def expirer_succeeded(self) -> None:
        """Record that overdue reservations were expired now."""
        try:
            self._last_success.set_to_current_time()
        except OSError as error:
            self._report(error)

    def text(self) -> bytes:
        """The metrics of all processes that share the directory, or of this process, in the text format."""
        registry = self._registry
        if VARIABLE in os.environ:
            registry = prometheus_client.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus_client.generate_latest(registry)

    def _apply(self, method: str, value: float, metric: Any, *labels: str) -> None:
        # (prometheus_client finds the child of a metric by its labels under a lock, which takes as long as to count.)
        key = (metric._name, *labels)
        try:
            child = self._children.get(key)
            if child is None:
                child = self._children[key] = getattr(metric.labels(*labels), method)
            child(value)
        except OSError as error:
            self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._has_failed:
            LOG.warning("Metrics are incomplete, because %s cannot be written: %s", VARIABLE, error.strerror)
            self._has_failed = True


@functools.cache
def recorder() -> Recorder:
    """The recorder of this process and of its children: a metric exists once in a process.

    Raises ConfigurationError if the directory cannot be used.
    """
    return Recorder()
