# SPDX-License-Identifier: Apache-2.0
"""Middleware of our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

from oslo_log import log as logging

from cyborg_quota.api import errors

LOG = logging.getLogger(__name__)

Headers = list[tuple[str, str]]
_DETAILS: Final = {401: errors.NO_TOKEN, 500: errors.INTERNAL, 503: errors.UNAVAILABLE}


@dataclasses.dataclass(frozen=True)
class JsonErrors:
    """Gives the errors of keystonemiddleware the format of this API: no valid token, or Keystone is unavailable.

    An exception becomes a 500 without its text.
    """

    application: Callable[..., Iterable[bytes]]

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        started: list[tuple[str, Headers]] = []

        def start(status: str, headers: Headers, _exc_info: Any = None) -> None:
            started[:] = [(status, headers)]

        try:
            body = _read(self.application(environ, start))
            [(status, headers)] = started
        except Exception as error:
            LOG.error("The API answers 500: %s", error, exc_info=error)
            status, headers, body = "500 Internal Server Error", [], b""
        code = int(status[:3])
        if code >= 400:
            if not body.startswith(errors.START):
                body = errors.document(code, environ, _DETAILS.get(code))
                headers = _with(headers, "Content-Type", "application/json")
            if code == 503 and not any(name.lower() == "retry-after" for name, _ in headers):
                headers = _with(headers, "Retry-After", str(errors.RETRY_AFTER_SECONDS))
            headers = _with(headers, "Content-Length", str(len(body)))
        start_response(status, headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def _read(answer: Iterable[bytes]) -> bytes:
    try:
        return b"".join(answer)
    finally:
        close = getattr(answer, "close", None)
        if close is not None:
            close()


def _with(headers: Headers, name: str, value: str) -> Headers:
    return [*(pair for pair in headers if pair[0].lower() != name.lower()), (name, value)]
