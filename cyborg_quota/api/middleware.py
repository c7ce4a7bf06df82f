# SPDX-License-Identifier: Apache-2.0
"""Middleware of our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

import webob
from oslo_log import log as logging

from cyborg_quota.api import errors

LOG = logging.getLogger(__name__)

_DETAILS: Final = {401: errors.NO_TOKEN, 500: errors.INTERNAL, 503: errors.UNAVAILABLE}


@dataclasses.dataclass(frozen=True)
class JsonErrors:
    """Gives the errors of keystonemiddleware the format of this API: no valid token, or Keystone is unavailable.

    An exception becomes a 500 without its text.
    """

    application: Callable[..., Iterable[bytes]]

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            response = webob.Request(environ).get_response(self.application)
        except Exception as error:
            LOG.error("The API answers 500: %s", error, exc_info=error)
            response = webob.Response(status=500)
        code = response.status_code
        if code >= 400:
            if not response.body.startswith(errors.START):
                response.body = errors.document(code, environ, _DETAILS.get(code))
                response.content_type = "application/json"
            if code == 503:
                response.headers.setdefault("Retry-After", str(errors.RETRY_AFTER_SECONDS))
        return response(environ, start_response)  # type: ignore[no-any-return]
