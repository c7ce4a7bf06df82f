# SPDX-License-Identifier: Apache-2.0
"""A watchdog that closes PostgreSQL connections whose server no longer answers: a frozen machine or process.

PyMySQL has a read timeout. libpq has none: its timeout covers connecting only, ``statement_timeout`` is enforced by the
server, and the kernel's timeouts (``tcp_user_timeout``, keepalives) do not detect a stopped process whose kernel still
acknowledges data. Therefore a thread checks all connections twice a second. It shuts down each connection that waits
for an answer, and on which no data was sent or received for too long. Its caller then gets a lost connection error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import weakref
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota import forks

IS_PATIENT: Final = "cyborg_quota_is_patient"
"""Key in the pool's ``info`` of a connection: whether its statement may take any time."""

_ACTIVE: Final = 1
"""libpq's transaction status of a connection that waits for the answer to a statement."""
_LAST_DATA_SENT: Final = 44
_LAST_DATA_RECEIVED: Final = 52
"""Offsets in Linux's struct tcp_info: tcpi_last_data_sent and tcpi_last_data_recv, 32 bits, in milliseconds ago."""


def watch(engine: sa.Engine, limit_seconds: float) -> None:
    """Close each connection of ``engine`` that waits longer than ``limit_seconds`` for a server that sends nothing.

    This works for TCP connections on Linux, and adds no cost to a statement.
    """
    if not hasattr(socket, "TCP_INFO"):
        return
    watcher = _Watcher(limit_seconds)
    # Register first: SQLAlchemy and other listeners run statements on a new connection.
    sa.event.listen(engine, "connect", watcher.begin, insert=True)
    sa.event.listen(engine, "close", watcher.end)


class _Watcher:
    """The connections of an engine, and the thread that checks them, which starts with the first connection."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Reset in a child process, which has neither the parent's connections nor its thread."""
        self._has_thread = False
        # (Weak references: SQLAlchemy sends no close event for a connection that failed during its setup.)
        self._connections: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def begin(self, connection: Any, record: Any) -> None:
        """Watch a new connection. Start the thread if it does not run."""
        with self._lock:
            self._connections[connection] = record.info
            if self._has_thread:
                return
            self._has_thread = True
        period = min(0.5, self._limit_seconds / 10)
        threading.Thread(
            target=_check_periodically,
            args=(weakref.ref(self), period),
            name="cyborg-quota-socket-watchdog",
            daemon=True,
        ).start()

    def end(self, connection: Any, _record: Any = None) -> None:
        """Forget a closed connection: its file descriptor may be reused immediately."""
        with self._lock:
            self._connections.pop(connection, None)

    def check(self) -> None:
        """Shut down the connections that have been silent for too long."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with self._lock, contextlib.suppress(Exception):  # (closed by another thread, or not a TCP connection)
                if connection in self._connections and self._is_silent(connection):
                    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
                        duplicate.shutdown(socket.SHUT_RDWR)

    def _is_silent(self, connection: Any) -> bool:
        """Whether the connection waits for its server for too long. An idle connection or transaction is not silent."""
        is_waiting = connection.info.transaction_status == _ACTIVE and not self._connections[connection].get(IS_PATIENT)
        return is_waiting and _silent_seconds(connection) > self._limit_seconds


def _check_periodically(watcher_ref: weakref.ref[_Watcher], period_seconds: float) -> None:
    while (watcher := watcher_ref()) is not None:
        watcher.check()
        del watcher
        time.sleep(period_seconds)


def _silent_seconds(connection: Any) -> float:
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        tcp_info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
    (sent,) = struct.unpack_from("=I", tcp_info, _LAST_DATA_SENT)
    (received,) = struct.unpack_from("=I", tcp_info, _LAST_DATA_RECEIVED)
    return float(min(sent, received)) / 1000
