# SPDX-License-Identifier: Apache-2.0
"""Middleware of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import webob
from oslo_log import log as logging

from cyborg_quota.api import errors

LOG = logging.getLogger(__name__)


class JsonErrors:
    """Gives the errors of keystonemiddleware the format of this API: no valid token, or Keystone is unavailable.

    An exception becomes a 500 without its text.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            response = webob.Request(environ).get_response(self._application)
        except Exception as error:
            LOG.error("The API answers 500: %s", error, exc_info=error)
            response = webob.Response(status=500, content_type="text/plain")
        if response.status_int >= 400 and not response.body.startswith(errors.START):
            response.body = errors.document(response.status_int, environ, _detail(response.status_int))
            response.content_type = "application/json"
        if response.status_int == 503 and "Retry-After" not in response.headers:
            response.headers["Retry-After"] = str(errors.RETRY_AFTER_SECONDS)
        found: Iterable[bytes] = response(environ, start_response)
        return found


def _detail(status: int) -> str | None:
    return {401: errors.NO_TOKEN, 500: errors.INTERNAL, 503: errors.UNAVAILABLE}.get(status)
