# SPDX-License-Identifier: Apache-2.0
"""A substitute for Nova's event API: it records events, and answers 500 if a test requests it."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

PATH = "/v2.1/os-server-external-events"
VERSION = {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1"}


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """The caller was killed: ignore the closed connection."""


class Nova:
    """Serves in a thread of this process."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        """Every event that was accepted: name, server_uuid (the instance), tag (the ARQ), status."""
        self.status = 200
        nova = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                links = [{"rel": "self", "href": nova.url + "/"}]
                self.answer(200, {"version": {**VERSION, "links": links}})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != PATH:
                    self.answer(404, {})
                elif nova.status != 200:
                    self.answer(nova.status, {})
                else:
                    nova.events += body["events"]
                    self.answer(200, {"events": [{**event, "code": 200} for event in body["events"]]})

            def answer(self, status: int, body: Any) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v2.1"

    @contextlib.contextmanager
    def failing(self, status: int = 500) -> Iterator[None]:
        """Record the events; returns the answer."""
        self.status = status
        try:
            yield
        finally:
            self.status = 200

    def told_of(self, instance: str) -> dict[str, str]:
        """{ARQ: status} of the accepted events of this instance."""
        return {event["tag"]: event["status"] for event in list(self.events) if event["server_uuid"] == instance}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
