# SPDX-License-Identifier: Apache-2.0
"""The counters, the histogram and the gauges of a process, which prometheus_client keeps.

If the environment variable PROMETHEUS_MULTIPROC_DIR names a directory, all processes of a host that have the same
directory are counted together: each writes files there, and the one that serves the metrics reads them all.

A call only appends a record to a list; a thread applies the records to the counters once a second. Applying them one by
one, between two calls of the database, took ten times as long as applying many at once, because the code and the files
of prometheus_client were no longer in the caches of the processor.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import prometheus_client
from oslo_log import log as logging
from prometheus_client import multiprocess

from cyborg_quota import exceptions, forks

LOG = logging.getLogger(__name__)

VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds: a call usually takes 1 to 10 ms; [quota] retry_seconds bounds it at 6 s."""

_PERIOD_SECONDS: Final = 1.0
_MAX_RECORDS: Final = 50_000
"""The maximum number of records, about 10 MB. If the thread does not run, the oldest are dropped."""

_Record = tuple[str, float, Iterable[str], str]
"""A call: its name, its duration in seconds, the resources that it reserved, and the result of the reserve."""


class Recorder:
    """Counts calls. The methods raise nothing, and wait for nothing: a full disk must not fail or delay a reserve."""

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
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Reset in a child process, which has not made the parent's calls, and has no thread."""
        self._records: deque[_Record] = deque(maxlen=_MAX_RECORDS)
        self._has_thread = False
        self._flushing = threading.Lock()

    def record(self, call: str, seconds: float, resources: Iterable[str] = (), result: str = "") -> None:
        """Count a call, and its duration; a reserve once for each of its resources, with its result."""
        self._records.append((call, seconds, resources, result))
        if not self._has_thread:
            self._start_thread()

    def _start_thread(self) -> None:
        self._has_thread = True  # (Two threads may do this at the same time, which is harmless.)
        thread = threading.Thread(
            target=_flush_periodically, args=(weakref.ref(self),), name="cyborg-quota-metrics", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the process has too many threads, or is ending: the next call tries again
            self._has_thread = False

    def flush(self) -> None:
        """Apply all records to the counters. Waits for a thread that is applying some."""
        with self._flushing, contextlib.suppress(IndexError):
            while True:
                call, seconds, resources, result = self._records.popleft()
                self._apply("observe", seconds, self._durations, call)
                for resource in resources:
                    self._apply("inc", 1.0, self._reserves, resource, result)

    def count_retry(self, reason: str) -> None:
        """Count a retry of a transaction."""
        self._apply("inc", 1.0, self._retries, reason)

    def expirer_succeeded(self) -> None:
        """Record that overdue reservations were expired now."""
        try:
            self._last_success.set_to_current_time()
        except OSError as error:
            self._report(error)

    def text(self) -> bytes:
        """The metrics of all processes that share the directory, or of this process, in the text format.

        The last second of the other processes may be missing.
        """
        self.flush()
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


def _flush_periodically(recorder_ref: weakref.ref[Recorder]) -> None:
    while True:
        time.sleep(_PERIOD_SECONDS)
        of_process = recorder_ref()
        if of_process is None:
            return
        of_process.flush()
        del of_process


@functools.cache
def recorder() -> Recorder:
    """The recorder of this process and of its children: a metric exists once in a process.

    Raises ConfigurationError if the directory cannot be used.
    """
    of_process = Recorder()
    atexit.register(of_process.flush)
    return of_process
