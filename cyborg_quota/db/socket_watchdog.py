# SPDX-License-Identifier: Apache-2.0
"""Connections whose server has fallen silent: a machine that froze, a process that was stopped, a wire that was cut.

PyMySQL gives a read up by itself. libpq does not: its time-outs end with the connecting, ``statement_timeout`` is the
server's own, and the kernel's (``tcp_user_timeout``, keepalives) do not see a process that stands still behind a
kernel that goes on acknowledging. So a thread looks, twice a second, at all connections. One that waits for an answer,
and on which the kernel has seen nothing go either way for too long, is shut down: its caller gets a lost connection.
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

_ACTIVE: Final = 1
"""libpq's status of a connection that has been sent a statement and not been answered."""
_LAST_DATA_SENT: Final = 44
_LAST_DATA_RECEIVED: Final = 52
"""Where Linux has these in its struct tcp_info: milliseconds ago, 32 bits."""


def watch(engine: sa.Engine, limit_seconds: float) -> None:
    """From now on no statement of ``engine`` waits longer than that for a server that says nothing.

    Of connections through TCP, on Linux. It costs a statement nothing.
    """
    if not hasattr(socket, "TCP_INFO"):
        return
    watcher = _Watcher(limit_seconds)
    # First: SQLAlchemy and others have questions to a new connection.
    sa.event.listen(engine, "connect", watcher.begin, insert=True)
    sa.event.listen(engine, "close", watcher.end)


class _Watcher:
    """The connections of an engine, and the thread that looks at them: one a process, from the first of them on."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """A child has neither the parent's connections nor its thread."""
        self._has_thread = False
        # (Weakly: SQLAlchemy does not say of what failed while it was new that it is closed.)
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def begin(self, connection: Any, _record: Any = None) -> None:
        """It is new."""
        with self._lock:
            self._connections.add(connection)
            if self._has_thread:
                return
            self._has_thread = True
        period = min(0.5, self._limit_seconds / 10)
        threading.Thread(
            target=_look_again_and_again, args=(weakref.ref(self), period), name="cyborg-quota-silence", daemon=True
        ).start()

    def end(self, connection: Any, _record: Any = None) -> None:
        """It is closed: its number may be somebody else's file a moment later."""
        with self._lock:
            self._connections.discard(connection)

    def look(self) -> None:
        """Shut down what has been silent for too long."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with self._lock, contextlib.suppress(Exception):  # (closed by somebody else, or no TCP)
                if connection in self._connections and self._is_silent(connection):
                    with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                        wire.shutdown(socket.SHUT_RDWR)

    def _is_silent(self, connection: Any) -> bool:
        """Its server is: not where nobody has asked anything, or the client thinks inside a transaction."""
        is_waiting = connection.info.transaction_status == _ACTIVE
        return is_waiting and _silent_seconds(connection) > self._limit_seconds


def _look_again_and_again(watcher_of: weakref.ref[_Watcher], period_seconds: float) -> None:
    while (watcher := watcher_of()) is not None:
        watcher.look()
        del watcher
        time.sleep(period_seconds)


def _silent_seconds(connection: Any) -> float:
    with socket.socket(fileno=os.dup(connection.fileno())) as wire:
        facts = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
    (sent,) = struct.unpack_from("=I", facts, _LAST_DATA_SENT)
    (received,) = struct.unpack_from("=I", facts, _LAST_DATA_RECEIVED)
    return float(min(sent, received)) / 1000
