# SPDX-License-Identifier: Apache-2.0
"""A substitute for Nova's event API: it records events, and answers with another status if a test requests it."""

from __future__ import annotations

import socketserver
import threading
from typing import Any
from wsgiref import simple_server

import webob
import webob.dec

PATH = "/v2.1/os-server-external-events"
VERSION = {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1"}


class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """The caller was killed: ignore the closed connection."""


class Handler(simple_server.WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Nova:
    """Serves in a thread of this process. ``status``: of its answers to events; only 200 accepts them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        """Every event that was accepted: name, server_uuid (the instance), tag (the ARQ), status."""
        self.status = 200
        self._server = simple_server.make_server("127.0.0.1", 0, self.answer, Server, Handler)
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v2.1"

    @webob.dec.wsgify
    def answer(self, request: webob.Request) -> webob.Response:
        if request.method == "GET":
            links = [{"rel": "self", "href": f"{self.url}/"}]
            return webob.Response(json={"version": {**VERSION, "links": links}})
        assert request.path == PATH, request.path
        if self.status != 200:
            return webob.Response(json={}, status=self.status)
        self.events += request.json["events"]
        return webob.Response(json={"events": [{**event, "code": 200} for event in request.json["events"]]})

    def told_of(self, instance: str) -> dict[str, str]:
        """{ARQ: status} of the accepted events of this instance."""
        return {event["tag"]: event["status"] for event in list(self.events) if event["server_uuid"] == instance}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
