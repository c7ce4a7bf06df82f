# SPDX-License-Identifier: Apache-2.0
"""Exports the values of the ledger, in the text format of Prometheus, as a WSGI application.

The text is written here, and not by prometheus_client, which takes four times as long for 100,000 series.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions, forks, validation
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.limits.sources import keystone_projects
from cyborg_quota.types.metrics import LedgerMetrics, ProjectMetrics

LOG = logging.getLogger(__name__)

EVERY_PROJECT: Final = "*"
MAX_AGE_SECONDS: Final = 5.0
"""A scrape within this time gets the values of the last one: the port has no authentication, and a read takes long."""
PING_SECONDS: Final = 1.5
"""How long a scrape waits for the ledger to answer a ping. (A read of all counters has no timeout.)"""
NAMES_SECONDS: Final = 3600.0
"""Between two reads of the names, successful or not."""
NAMES_TIMEOUT_SECONDS: Final = 2.0

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_OF_PROJECT: Final = {
    "limit": "The limit of a project. No series: unlimited.",
    "used": "What a project has in use (committed).",
    "reserved": "What a project has reserved (in flight).",
    "subtree": "What a project and all its descendants have in use and reserved.",
    "fits": "The largest amount that a reserve of the project would be granted. No series: no limit bounds it.",
    "minimum": "What a project, with all its descendants, can always reach. No series: no minimum is set.",
    "promised": "What the minimums of descendants keep beyond what is in use and reserved there. No series: 0.",
    "device_seconds_total": "The device-seconds that a project and all its descendants have used.",
    "budget_hours": "The device-hours that a budget permits in its present period. No series: no budget.",
    "budget_spent_hours": "The device-hours that are spent of it.",
    "budget_seconds_left": "When it will be spent, if all is held on. No series: not before the period ends.",
}
"""{metric: its help text}; each is a field of ProjectMetrics. One whose name ends with _total is a counter."""

Names = Callable[[list[str]], dict[str, str]]


class LedgerApplication:
    """Answers each request with the values of the ledger. Threads that ask at the same time share one read."""

    def __init__(
        self, engine: QuotaEngine, projects: list[str], names: Names | None = None, max_age_seconds: float = 0.0
    ) -> None:
        """``projects``: the ids of those to export; * means all. ``names``: finds names by ids. No I/O."""
        self._engine = engine
        self._projects = None if EVERY_PROJECT in projects else projects
        self._names = names
        self._max_age_seconds = max_age_seconds
        self._text = self._names_text = ""
        self._last_rows: dict[tuple[str, str], ProjectMetrics] = {}
        self._read_at = self._names_read_at = -float("inf")
        forks.register(self)

    def renew_after_fork(self) -> None:
        """The thread of the parent that reads the ledger does not exist in the child."""
        self._lock = threading.Lock()

    def text(self) -> str:
        """What a scrape gets. Raises QuotaError if the ledger, or the source of the limits, is unavailable."""
        if time.monotonic() - self._read_at >= self._max_age_seconds:
            self._check_answers()  # without the lock, which a read that gets no answer keeps
        with self._lock:
            began = time.monotonic()
            if began - self._read_at >= self._max_age_seconds:
                metrics = self._engine.monitoring.read(validation.admin_context(), self._projects)
                self._text = ledger_text(self._never_falling(metrics))
                self._read_at = time.monotonic()
                project_ids = sorted({row.project_id for row in metrics.projects})
                if self._names is not None and project_ids and began - self._names_read_at >= NAMES_SECONDS:
                    self._names_read_at = began
                    self._read_names(self._names, project_ids)
            return self._text + self._names_text

    def _never_falling(self, metrics: LedgerMetrics) -> LedgerMetrics:
        """With counters that are at least those of the last scrape.

        The clocks of database nodes differ, and heal corrects what is counted: to Prometheus, a counter that falls has
        begun again at 0.
        """
        last = self._last_rows
        names = [name for name in _OF_PROJECT if name.endswith("_total")]
        rows = [
            row._replace(**{name: max(getattr(row, name), getattr(last.get(row[:2], row), name)) for name in names})
            for row in metrics.projects
        ]
        self._last_rows = {row[:2]: row for row in rows}
        return dataclasses.replace(metrics, projects=rows)

    def _check_answers(self) -> None:
        """Raises DatabaseUnreachable if the ledger answers no ping within PING_SECONDS."""
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(self._engine.ping()), daemon=True)
        thread.start()
        thread.join(PING_SECONDS)
        if not any(answers):
            raise exceptions.DatabaseUnreachable("it did not answer SELECT 1", PING_SECONDS)

    def _read_names(self, names: Names, project_ids: list[str]) -> None:
        """The names of projects, as labels of a series with the value 1; those of the last read without Keystone."""
        try:
            series = [
                (_labels(project_id=key, project_name=name), 1) for key, name in sorted(names(project_ids).items())
            ]
            self._names_text = _family("project_info", "The name of a project in Keystone.", series)
        except exceptions.QuotaError as error:
            LOG.warning("The names of projects for cyborg_quota_project_info could not be read: %s", error)

    def __call__(self, _environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        try:
            status, text = "200 OK", self.text()
        except exceptions.QuotaError as error:
            LOG.warning("A scrape of the metrics failed: %s", error)
            source = "source of the limits" if isinstance(error, exceptions.LimitsUnavailable) else "ledger"
            status, text = "503 Service Unavailable", f"The {source} is unavailable.\n"
        body = text.encode()
        start_response(status, [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body)))])
        return [body]


def make_application(conf: cfg.ConfigOpts, engine: QuotaEngine) -> LedgerApplication:
    """The application that ``conf`` describes, without I/O.

    Raises ConfigurationError if [metrics] project_names is set and Keystone is not configured, or if one of [metrics]
    projects is not an id.
    """
    try:
        validation.check_names("project_id", conf.metrics.projects)
    except exceptions.InvalidName as error:
        raise exceptions.ConfigurationError(f"[metrics] projects: {error}") from None
    names = _names_reader(conf) if conf.metrics.project_names else None
    return LedgerApplication(engine, conf.metrics.projects, names, MAX_AGE_SECONDS)


def _names_reader(conf: cfg.ConfigOpts) -> Names:
    """A function that finds the names of projects by their ids. Raises ConfigurationError."""
    keystone_projects.make_directory(conf)  # reports a wrong configuration now
    # A directory keeps the list of all projects: a new one sees new projects and names.
    return lambda project_ids: keystone_projects.make_directory(conf, NAMES_TIMEOUT_SECONDS).names(project_ids)


def ledger_text(metrics: LedgerMetrics) -> str:
    """The gauges of projects, of totals, of capacity, of pods and of the state of the ledger."""
    projects = [(_labels(project_id=row.project_id, resource=row.resource), row) for row in metrics.projects]
    totals = [(_labels(resource=total.resource), total) for total in metrics.totals]
    capacity = [(_labels(resource=key[0], pod=key[1]), use) for key, use in sorted(metrics.capacity.items())]
    families = [
        _family(
            name,
            help_text,
            [(labels, getattr(row, name)) for labels, row in projects],
            kind="counter" if name.endswith("_total") else "gauge",
        )
        for name, help_text in _OF_PROJECT.items()
    ]
    families += [
        _family("total_limit", "The limit over all projects.", [(labels, total.limit) for labels, total in totals]),
        _family(
            "total_held",
            "What all projects have in use and reserved.",
            [(labels, total.held) for labels, total in totals],
        ),
        _family(
            "total_promised",
            "What minimums keep beyond that. No series: 0.",
            [(labels, total.promised or None) for labels, total in totals],
        ),
        # (A gauge must not be named _total, says promtool. The name is that of a quantity here, not of a counter.)
        _family(
            "capacity_total",
            "What providers can host, by the pod of the provider.",
            [(labels, use[0]) for labels, use in capacity],
            kind="untyped",
        ),
        _family("capacity_used", "How much of that is in use.", [(labels, use[1]) for labels, use in capacity]),
        _family(
            "pod_measurement_age_seconds",
            "The time since the last measurement of a pod, or since it was added.",
            [(_labels(pod=pod), age) for pod, age in sorted(metrics.measurement_ages.items())],
        ),
        _family(
            "oldest_overdue_seconds",
            "How long ago the reservation that is longest overdue became so; 0: none is.",
            [("", metrics.oldest_overdue_seconds)],
        ),
        _family("schema_info", "The revision of the schema of the ledger.", [(_labels(revision=metrics.revision), 1)]),
    ]
    return "".join(families)


_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
"""The escapes of special characters in a label value."""


def _labels(**values: str) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in values.items()) + "}"


def _family(name: str, help_text: str, series: Iterable[tuple[str, float | None]], kind: str = "gauge") -> str:
    """The series of a metric, given as (labels, value), with its head. A value None has no series."""
    lines = [f"cyborg_quota_{name}{labels} {value}\n" for labels, value in series if value is not None]
    head = f"# HELP cyborg_quota_{name} {help_text}\n# TYPE cyborg_quota_{name} {kind}\n"
    return "".join([head, *lines]) if lines else ""
