# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that cuts the connection at a COMMIT, or stops forwarding. It parses the protocols of both databases."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import fixtures
import sqlalchemy as sa

from tests.servers import machine


class Cut(enum.Enum):
    """What happens to a COMMIT."""

    NOT = "it passes"
    BEFORE = "it never reaches the server, and the connection is cut"
    BEHIND = "it reaches the server, and the connection is cut at once"
    ANSWERED = "the server has answered it, the answer is lost, and the connection is cut"


Choose = Callable[[int], Cut]
"""Returns what happens to the n-th COMMIT (counted from 1)."""


def never(_count: int) -> Cut:
    return Cut.NOT


def keep(_count: int) -> bool:
    return False


class Proxy(fixtures.Fixture):
    """Listens on 127.0.0.1, and forwards to the server of ``url``; clients connect to ``self.url``.

    ``choose`` can be changed at any time, and so can ``is_cut``, which decides whether the n-th statement of any kind
    is lost before it reaches the server. ``statements``, ``commits`` and ``cuts`` are counters. While ``is_dead`` is
    set, nothing is forwarded and no connection is closed, as after a power failure of the server's machine. While
    ``is_refusing`` is set, connections are refused and open ones are closed, as after the end of the server process.
    The proxy runs in a thread of its own.
    """

    def __init__(self, url: str, choose: Choose = never) -> None:
        super().__init__()
        self._target = sa.make_url(url)
        self.choose = choose
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
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
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
                        self._forward(key.data, key.fileobj)
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
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frames = _mysql_frames if self._target.get_backend_name() in ("mysql", "mariadb") else _postgresql_frames
        pair = _Pair(client, server, frames)
        self._pairs.add(pair)
        self._selector.register(client, selectors.EVENT_READ, pair)
        self._selector.register(server, selectors.EVENT_READ, pair)

    def _forward(self, pair: _Pair, source: object) -> None:
        if source is pair.server:
            data = pair.server.recv(65536)
            if not data or pair.is_doomed:
                self._close(pair)
            else:
                pair.client.sendall(data)
            return
        data = pair.client.recv(65536)
        if not data:
            self._close(pair)
            return
        for statement in pair.statements(data):
            self.statements += 1
            if self.is_cut(self.statements):
                self.cuts += 1
                self._close(pair)
                return
            if not statement.strip(b" ;\0\n").upper().endswith(b"COMMIT"):
                continue
            self.commits += 1
            cut = self.choose(self.commits)
            if cut is Cut.NOT:
                continue
            self.cuts += 1
            if cut is not Cut.BEFORE:
                pair.server.sendall(data)
            if cut is Cut.ANSWERED:
                pair.is_doomed = True  # decided when the server answers
            else:
                self._close(pair)
            return
        pair.server.sendall(data)

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
    """The two ends of one connection, and the bytes of the client's incomplete frame."""

    client: socket.socket
    server: socket.socket
    frames: Callable[[bytearray], Iterator[bytes]]
    is_doomed: bool = False
    pending: bytearray = dataclasses.field(default_factory=bytearray)

    def statements(self, data: bytes) -> Iterator[bytes]:
        self.pending += data
        return self.frames(self.pending)


def _mysql_frames(pending: bytearray) -> Iterator[bytes]:
    """Frame: length (3 bytes, little-endian), sequence number (1 byte), payload.

    A payload of 0x03 and a text is a query.
    """
    while len(pending) >= 4:
        size = int.from_bytes(pending[:3], "little")
        if len(pending) < 4 + size:
            return
        payload = bytes(pending[4 : 4 + size])
        del pending[: 4 + size]
        if payload[:1] == b"\x03":
            yield payload[1:]


def _postgresql_frames(pending: bytearray) -> Iterator[bytes]:
    """Frame: type (1 byte), length (4 bytes, includes itself), payload.

    "Q" is a query. A startup message has no type.
    """
    while len(pending) >= 5:
        is_opening = pending[0] == 0  # a length below 16 MiB begins with 0, which is no type
        start = 0 if is_opening else 1
        size = struct.unpack("!I", pending[start : start + 4])[0]
        if len(pending) < start + size:
            return
        kind, payload = pending[:1], bytes(pending[start + 4 : start + size])
        del pending[: start + size]
        if not is_opening and kind == b"Q":
            yield payload
