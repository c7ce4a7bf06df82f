# SPDX-License-Identifier: Apache-2.0
"""The one error format of the API, and the status of each exception.

The format is that of the API-SIG's guideline: ``{"errors": [{"status", "code", "title", "detail", "request_id"}]}``.
"""

from __future__ import annotations

import http
import json
from collections.abc import Mapping
from typing import Any, Final

import falcon
from oslo_log import log as logging

from cyborg_quota import exceptions

LOG = logging.getLogger(__name__)

RETRY_AFTER_SECONDS: Final = 5
UNAVAILABLE: Final = "Quota is not available at the moment. Try again later."
"""The reason is only logged: it may name hosts, users and statements."""

TOOK_TOO_LONG: Final = "The answer took too long. Ask for less: for one project, or for a page with fewer entries."

NO_TOKEN: Final = "A valid token of Keystone is required, in the header X-Auth-Token."  # noqa: S105
INTERNAL: Final = "An internal error has occurred."

START: Final = b'{"errors": ['
"""The first bytes of every error document of this API."""

_CODES: Final = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    412: "precondition_failed",
    413: "too_large",
    415: "unsupported_media_type",
    500: "internal_error",
    503: "unavailable",
}
_UNAVAILABLE: Final = (exceptions.DatabaseError, exceptions.LimitsUnavailable, exceptions.ProjectLookupFailed)


class Refused(falcon.HTTPError):
    """An error for the caller. ``code`` names it for programs; ``more``: further members of the error.

    ``retry_after_seconds`` is sent with a 503.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        code: str | None = None,
        *,
        retry_after_seconds: int = RETRY_AFTER_SECONDS,
        **more: str,
    ) -> None:
        headers = {"Retry-After": str(retry_after_seconds)} if status == 503 else None
        super().__init__(status, title=http.HTTPStatus(status).phrase, description=detail, headers=headers)
        self.code = f"cyborg_quota.{code or _CODES[status]}"  # type: ignore[assignment]
        self.more = more


def project_not_found(project_id: str) -> Refused:
    """The error for a project that the caller may not see, whether it exists or not (I8)."""
    return Refused(404, f"Project {project_id} was not found.")


def translate(error: Exception) -> Refused:
    """The error for the caller of an error of the engine, or of any other error, whose text is only logged."""
    if isinstance(error, exceptions.InvalidRequest):
        return Refused(400, str(error))
    if isinstance(error, exceptions.NotAuthorized):
        return Refused(403, f"The policy does not allow you to make this call: it needs {error.needs}.")
    if isinstance(error, (exceptions.NotFound, exceptions.LimitsChanged)):
        return Refused(412 if isinstance(error, exceptions.LimitsChanged) else 404, str(error))
    if isinstance(error, exceptions.QuotaError) and error.conflict:
        return Refused(409, str(error), error.conflict)
    if isinstance(error, _UNAVAILABLE):
        LOG.warning("The API answers 503: %s", error)
        seconds = getattr(error, "retry_after_seconds", RETRY_AFTER_SECONDS)
        reason = (TOOK_TOO_LONG, "timeout") if isinstance(error, exceptions.StatementTimeout) else (UNAVAILABLE,)
        return Refused(503, *reason, retry_after_seconds=seconds)
    LOG.error("The API answers 500: %s", error, exc_info=error)
    return Refused(500, INTERNAL)


def serialize(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError) -> None:
    """Write an error in the format of this API. It is called by falcon for each HTTPError."""
    resp.content_type = falcon.MEDIA_JSON
    resp.data = document(error.status_code, req.env, error.description, error.code, getattr(error, "more", {}))


def document(
    status: int, environ: Mapping[str, Any], detail: str | None, code: Any = None, more: Mapping[str, str] | None = None
) -> bytes:
    """The body of an error."""
    phrase = http.HTTPStatus(status)
    error: dict[str, Any] = {
        "status": status,
        "code": code or f"cyborg_quota.{_CODES.get(status, 'error')}",
        "title": phrase.phrase,
        "detail": detail or phrase.description or phrase.phrase,
    }
    request_id = environ.get("openstack.request_id")
    if request_id is not None:
        error["request_id"] = request_id
    return json.dumps({"errors": [{**error, **(more or {})}]}).encode()


def on_error(_req: falcon.Request, _resp: falcon.Response, error: Exception, _params: dict[str, Any]) -> None:
    """Falcon's handler for all errors but its own."""
    raise translate(error)
