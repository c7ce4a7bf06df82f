# SPDX-License-Identifier: Apache-2.0
"""The answer to Nova's refused binds, and what keystoneauth, which Nova uses, makes of it."""

from __future__ import annotations

import threading
import wsgiref.simple_server
from collections.abc import Callable, Iterable
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions
from keystoneauth1 import noauth, session
from oslotest import base

from cyborg_quota.integrations.cyborg import nova_faults

REASON = "Quota exceeded: project p\u00e9, resource fpga: limit 5, used 5, reserved 0, requested 1"
SHOWN = REASON.replace("\u00e9", "?")


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        pass


class TestNovaFaults(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.reason: str | None = REASON
        application = nova_faults.redirected(self.refuse)
        server = wsgiref.simple_server.make_server("127.0.0.1", 0, application, handler_class=Quiet)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}/v2/accelerator_requests"

    def refuse(self, environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self.reason is not None:
            environ[nova_faults.REFUSAL] = self.reason
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"no"]

    def patch_as(self, name: str) -> Any:
        return session.Session(noauth.NoAuth(), app_name=name).patch(self.url, json={}, raise_exc=False)

    def test_nova_gets_an_exception_with_the_reason(self) -> None:
        error = self.assertRaises(ksa_exceptions.UnknownConnectionError, self.patch_as, "nova-conductor")
        self.assertIn(SHOWN, str(error))

    def test_others_get_the_refusal(self) -> None:
        answer = self.patch_as("openstacksdk")
        self.assertEqual((403, None), (answer.status_code, answer.headers.get("Location")))

    def test_other_errors_are_not_redirected(self) -> None:
        self.reason = None
        self.assertEqual(403, self.patch_as("nova-conductor").status_code)

    def test_no_header_is_added(self) -> None:
        """A line break in the reason cannot end the header."""
        self.reason = "one\r\nSet-Cookie: two"
        error = self.assertRaises(ksa_exceptions.UnknownConnectionError, self.patch_as, "nova-conductor")
        self.assertIn("one??Set-Cookie: two", str(error))
