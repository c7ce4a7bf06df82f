# SPDX-License-Identifier: Apache-2.0
"""Serves metrics at the address in [metrics] listen: those of the processes of this host, and those of the ledger.

Several processes of a host may have the same address: the one that binds it serves, and the others try again every
second. Of the processes that serve, on all hosts, one is elected; it alone exports the values of the ledger.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref import simple_server

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions, forks, validation
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.ledger.election import Election
from cyborg_quota.metrics import gauges
from cyborg_quota.metrics.ledger_calls import DirectCalls, LedgerCalls
from cyborg_quota.metrics.recorder import Recorder, recorder

LOG = logging.getLogger(__name__)

ELECTION: Final = "metrics"
PATH: Final = "/metrics"
EVERY_PROJECT: Final = "*"
_BIND_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.1
_WATCH_SECONDS: Final = 1.0
_NAMES_SECONDS: Final = 3600.0
_NAMES_RETRY_SECONDS: Final = 60.0
_RENEWALS_PER_LEASE: Final = 3
_SOCKET_SECONDS: Final = 30.0

_DIRECT: Final = DirectCalls()

Names = Callable[[list[str]], dict[str, str]]


class LedgerText:
    """The values of the ledger as text, kept for ``max_age_seconds``. Threads that ask meanwhile share one read."""

    def __init__(
        self,
        engine: QuotaEngine,
        projects: list[str],
        max_age_seconds: float,
        ledger_calls: LedgerCalls = _DIRECT,
    ) -> None:
        self._engine = engine
        self._ledger_calls = ledger_calls
        self._projects = None if EVERY_PROJECT in projects else projects
        self._max_age_seconds = max_age_seconds
        self._text = ""
        self._read_at = -float("inf")
        self.project_ids: list[str] = []
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """The thread of the parent that reads the ledger does not exist in the child."""
        self._lock = threading.Lock()

    def get(self) -> str:
        """The text. Raises QuotaError if the ledger, or the source of the limits, is unavailable.

        Sets ``project_ids`` to the projects in the text.
        """
        with self._lock:
            began = time.monotonic()
            if began - self._read_at >= self._max_age_seconds:
                read = self._engine.monitoring.read
                metrics = self._ledger_calls.call_untimed(read, validation.admin_context(), self._projects)
                self._text = gauges.projects_text(metrics.projects) + gauges.ledger_text(metrics)
                self._read_at = time.monotonic()
                self.project_ids = sorted({row.project_id for row in metrics.projects})
            return self._text


class NamesText:
    """The names of projects as text. One thread reads them from Keystone, and no scrape waits for it."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._read_at = -float("inf")
        self._project_ids: set[str] | None = None
        """The projects whose names were read; None after an error."""
        self.text = ""

    def refresh(self, project_ids: list[str]) -> None:
        """Read the names of these projects once an hour; after an error, or for a new project, after a minute."""
        is_complete = self._project_ids is not None and self._project_ids.issuperset(project_ids)
        due = self._read_at + (_NAMES_SECONDS if is_complete else _NAMES_RETRY_SECONDS)
        if not project_ids or time.monotonic() < due:
            return
        try:
            self.text = gauges.names_text(self._names(project_ids))
            self._project_ids = set(project_ids)
        except exceptions.QuotaError as error:
            self._project_ids = None
            LOG.warning("The names of projects for cyborg_quota_project_info could not be read: %s", error)
        self._read_at = time.monotonic()


class Exporter:
    """The HTTP server of one process, and its threads. ``start`` returns at once; ``stop`` may be called twice."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        engine: QuotaEngine,
        names: Names | None = None,
        ledger_calls: LedgerCalls = _DIRECT,
    ) -> None:
        """Without I/O. Raises ConfigurationError if the directory of the counters cannot be used."""
        options = conf.metrics
        host, _, port = options.listen.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._engine = engine
        self._recorder: Recorder = recorder()
        self._ledger_calls = ledger_calls
        self._ledger = LedgerText(engine, options.projects, options.max_age, ledger_calls)
        self._names = None if names is None else NamesText(names)
        self._lease_seconds: float = options.lease
        self._watch_seconds = min(options.lease, _WATCH_SECONDS)
        self._audit_seconds: int = options.audit_interval
        self._election: Election = engine.monitoring.make_election(validation.admin_context(), ELECTION, options.lease)
        self._drift_rows: int | None = None
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """A child serves nothing until ``start`` is called there; the parent keeps its server and its lease."""
        self._stopped = threading.Event()
        self._server: _Server | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Bind the address as soon as it is free, then serve, and take part in the election."""
        self._run(self._serve)

    def stop(self) -> None:
        """Stop serving. Another process can be elected at once. In a forked child that did not start: nothing."""
        self._stopped.set()
        if not self._threads:
            return
        for thread in self._threads:  # the first starts the others: they are in the list when it has ended
            thread.join(_SOCKET_SECONDS)
        try:
            self._election.resign()
        except exceptions.QuotaError as error:
            LOG.debug("The lease ends at its time: %s", error)

    def _run(self, target: Callable[[], None]) -> None:
        self._threads.append(self._start(target))

    @staticmethod
    def _start(target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"metrics-{target.__name__}", daemon=True)
        thread.start()
        return thread

    def _serve(self) -> None:
        server = self._bind()
        if server is None:
            return
        self._server = server
        LOG.info("Metrics are served at %s:%d%s.", *self._address, PATH)
        self._run(self._campaign)
        if self._audit_seconds:
            self._run(self._audit)
        if self._names is not None:
            self._start(self._read_names)  # stop does not wait for Keystone
        # (serve_forever would need shutdown, which waits for ever unless serve_forever is called.)
        while not self._stopped.is_set():
            server.handle_request()
        server.server_close()

    def _bind(self) -> _Server | None:
        has_failed = False
        while not self._stopped.is_set():
            try:
                return _Server(self._address, self.respond)
            except OSError as error:
                LOG.log(
                    logging.DEBUG if has_failed else logging.INFO,
                    "Metrics are not served by this process while %s:%d is in use: %s",
                    *self._address,
                    error.strerror,
                )
                has_failed = True
            self._stopped.wait(_BIND_SECONDS)
        return None

    def _campaign(self) -> None:
        while not self._stopped.is_set():
            was_elected = self._election.is_elected
            try:
                is_elected = self._ledger_calls.call(self._election.campaign)
            except exceptions.QuotaError as error:
                is_elected = self._election.is_elected
                LOG.debug("The lease could not be renewed: %s", error)
            if is_elected != was_elected:
                LOG.info("This process %s the values of the ledger.", "exports" if is_elected else "does not export")
            self._stopped.wait(self._lease_seconds / _RENEWALS_PER_LEASE)

    def _audit(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(self._watch_seconds):
            due = self._audit_if_due(due)

    def _audit_if_due(self, due: float) -> float:
        """Audit if this process is elected and the time ``due`` has come; returns when the next audit is due."""
        now = time.monotonic()
        if not self._election.is_elected:
            # Another process may audit and repair meanwhile: the number is not exported in a later term.
            self._drift_rows = None
            return now
        if now < due:
            return due
        try:
            self._drift_rows = len(self._ledger_calls.call_untimed(self._engine.audit, validation.admin_context()))
        except exceptions.QuotaError as error:
            LOG.warning("The audit for cyborg_quota_drift_rows failed, and is repeated: %s", error)
        return time.monotonic() + self._audit_seconds

    def _read_names(self) -> None:
        while not self._stopped.wait(self._watch_seconds):
            if self._names is not None and self._election.is_elected:
                self._names.refresh(self._ledger.project_ids)

    def text(self) -> bytes:
        """What a scrape gets. Raises QuotaError if the ledger is unavailable and this process is elected."""
        is_elected = self._election.is_elected
        elected = "1: this process exports the values of the ledger."
        parts = [
            self._recorder.text(),
            _text(gauges.gauge("cyborg_quota_exporter_elected", elected, int(is_elected))),
        ]
        if is_elected:
            parts.append(self._ledger.get().encode())
            if self._names is not None:
                parts.append(self._names.text.encode())
            if self._drift_rows is not None:
                name, help_text = "cyborg_quota_drift_rows", "Counters that differ from the reservations."
                parts.append(_text(gauges.gauge(name, help_text, self._drift_rows)))
        return b"".join(parts)

    def respond(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI application."""
        if environ.get("PATH_INFO") != PATH:
            return _answer(start_response, "404 Not Found", b"The metrics are at /metrics.\n")
        if environ.get("REQUEST_METHOD") != "GET":
            return _answer(start_response, "405 Method Not Allowed", b"", [("Allow", "GET")])
        try:
            body = self.text()
        except exceptions.QuotaError as error:
            LOG.warning("A scrape of the metrics failed: %s", error)
            return _answer(start_response, "503 Service Unavailable", b"The ledger is unavailable.\n")
        return _answer(start_response, "200 OK", body)


def _text(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _answer(
    start_response: Callable[..., Any], status: str, body: bytes, more: Iterable[tuple[str, str]] = ()
) -> list[bytes]:
    start_response(status, [("Content-Type", gauges.CONTENT_TYPE), ("Content-Length", str(len(body))), *more])
    return [body]


class _Handler(simple_server.WSGIRequestHandler):
    timeout = _SOCKET_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)

    def address_string(self) -> str:
        return str(self.client_address[0])


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    timeout = _POLL_SECONDS

    def __init__(self, address: tuple[str, int], application: Callable[..., Any]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        # (The inherited method asks the name service for the name of the address.)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()
