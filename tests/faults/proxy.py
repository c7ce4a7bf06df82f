# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that cuts the connection at a COMMIT, or stops forwarding. It parses the protocols of both databases."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import selectors
import socket
import threading
from collections.abc import Callable

import fixtures
import sqlalchemy as sa

from tests.servers import machine


class Cut(enum.Enum):
    """What happens to a COMMIT."""

    NOT = "it passes"
    BEFORE = "it never reaches the server, and the connection is cut"
    BEHIND = "it reaches the server, and the connection is cut at once"
    ANSWERED = "the server has answered it, the answer is lost, and the connection is cut"


_QUERY = {"mysql": (b"\x03", 4), "postgresql": (b"Q", 0)}
"""How the message of a query begins, and after how many bytes. (A client sends one, and waits for the answer.)"""
_WRITES = (b"INSERT", b"UPDATE", b"DELETE", b"EXECUTE", b"-- COMMIT")
"""A word of each statement that may write. (The last one: a transaction in a single statement.)"""


def keep(_count: int) -> bool:
    return False


class Proxy(fixtures.Fixture):
    """Listens on 127.0.0.1, and forwards to the server of ``url``; clients connect to ``self.url``.

    ``choose`` says what happens to the n-th COMMIT of a transaction that may have written, counted from 1. It can be
    changed at any time, and so can ``is_cut``, which decides whether the n-th statement of any kind is lost before it
    reaches the server. ``statements``, ``commits`` and ``cuts`` are counters. While ``is_dead`` is set, nothing is
    forwarded and no connection is closed, as after a power failure of the server's machine. While ``is_refusing`` is
    set, connections are refused and open ones are closed, as after the end of the server process.
    The proxy runs in a thread of its own.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._target = sa.make_url(url)
        self.choose: Callable[[int], Cut] = lambda _count: Cut.NOT
        self.is_cut: Callable[[int], bool] = keep
        self.statements = 0
        self.commits = 0
        self.cuts = 0
        self.is_dead = False
        self.is_refusing = False

    def _setUp(self) -> None:
        self._selector = selectors.DefaultSelector()
        port = machine.free_port()
        self._listener = self._listen(port)
        self.url = self._target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        self._is_over = False
        self._pairs: set[_Pair] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.addCleanup(self._end)

    def forward_to(self, url: str) -> None:
        """Forward new connections to this server from now on, as an operator's proxy does after a promotion."""
        self._target = sa.make_url(url)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self._selector.register(listener, selectors.EVENT_READ)
        return listener

    def _refuse(self) -> None:
        """Refuse connections until ``is_refusing`` is reset."""
        port = self._listener.getsockname()[1]
        self._selector.unregister(self._listener)
        self._listener.close()
        for pair in list(self._pairs):
            self._close(pair)
        while self.is_refusing and not self._is_over:
            threading.Event().wait(0.02)
        self._listener = self._listen(port)

    def _end(self) -> None:
        self._is_over = True
        self._thread.join()
        for pair in list(self._pairs):
            self._close(pair)
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._is_over:
            if self.is_refusing:
                self._refuse()
            if self.is_dead:
                # (The kernel still accepts connections, as it does for a suspended server.)
                threading.Event().wait(0.02)
                continue
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._open()
                elif key.data in self._pairs:
                    try:
                        self._forward(key.data, key.fileobj)  # type: ignore[arg-type]
                    except OSError:
                        self._close(key.data)

    def _open(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection((str(self._target.host), int(self._target.port or 0)), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        pair = _Pair(client, server)
        self._pairs.add(pair)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, pair)

    def _forward(self, pair: _Pair, source: socket.socket) -> None:
        data = source.recv(65536)
        if not data or (source is pair.server and pair.is_doomed):
            self._close(pair)
            return
        if source is pair.server:
            pair.client.sendall(data)
            return
        mark, offset = _QUERY[self._target.get_backend_name()]
        if data.startswith(mark, offset):
            self.statements += 1
            if self.is_cut(self.statements):
                self.cuts += 1
                self._close(pair)
                return
        cut = Cut.NOT
        pair.has_written |= any(word in data for word in _WRITES)
        if data.strip(b" ;\0\n").upper().endswith(b"COMMIT") and pair.has_written:
            pair.has_written = False
            self.commits += 1
            cut = self.choose(self.commits)
            self.cuts += cut is not Cut.NOT
        if cut is not Cut.BEFORE:
            pair.server.sendall(data)
        pair.is_doomed |= cut is Cut.ANSWERED  # decided when the server answers
        if cut in (Cut.BEFORE, Cut.BEHIND):
            self._close(pair)

    def _close(self, pair: _Pair) -> None:
        self._pairs.discard(pair)
        for end in (pair.client, pair.server):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            # A worker process that was forked since holds a copy of the socket. If it were closed here only, it would
            # stay open, and the server would keep the locks of a client that has gone.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@dataclasses.dataclass(eq=False)
class _Pair:
    """The two ends of one connection."""

    client: socket.socket
    server: socket.socket
    has_written: bool = False
    is_doomed: bool = False
