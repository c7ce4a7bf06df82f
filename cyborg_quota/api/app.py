# SPDX-License-Identifier: Apache-2.0
"""The WSGI application of the API, without the middleware around it.

It expects the headers that keystonemiddleware sets for a valid token. See deploy.py.
"""

from __future__ import annotations

import functools
import types
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Final

import falcon
from oslo_context import context as oslo_context

from cyborg_quota import exceptions, policy, validation
from cyborg_quota.api import errors, requests
from cyborg_quota.api.call import Call, Caller
from cyborg_quota.api.errors import Refused
from cyborg_quota.api.microversions import VersionRange
from cyborg_quota.api.operations import OPERATIONS, Operation
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.policy import Policy

CONFIRMED: Final = "HTTP_X_IDENTITY_STATUS"
"""The header by which keystonemiddleware says that the token is valid: ``Confirmed``."""
TOKEN_AUTH: Final = "keystone.token_auth"  # noqa: S105
"""What keystonemiddleware adds to the environment of each request. No header of a client can."""


CallLedger = Callable[..., None]
"""Calls ``function(*arguments)``, or raises QuotaError instead."""


def call_directly(function: Callable[..., None], *arguments: Any) -> None:
    """Call ``function``."""
    function(*arguments)


class QuotaAPI:
    """The API of one engine.

    ``call_ledger`` runs that part of each request that may wait for the ledger. It may raise a QuotaError instead. If
    that has an attribute ``retry_after_seconds``, this is sent in the header Retry-After.
    """

    def __init__(
        self,
        engine: QuotaEngine,
        rules: Policy,
        *,
        versions: VersionRange | None = None,
        call_ledger: CallLedger = call_directly,
        max_limit: int = 1000,
        statement_timeout_seconds: int = 8,
        believes_headers: bool = False,
    ) -> None:
        """``max_limit``: of the entries of a page. ``statement_timeout_seconds``: of each statement, also of lists.
        ``believes_headers``: the headers name the user, also without keystonemiddleware.
        """
        self._engine = engine
        self._believes_headers = believes_headers
        self._policy = rules
        self._versions = versions or VersionRange()
        self._call_ledger = call_ledger
        self._max_limit = max_limit
        engine.limit_scans(statement_timeout_seconds)

    def respond(self, operation: Operation, req: falcon.Request, resp: falcon.Response, **path: str) -> None:
        """Answer one request. Raises Refused or QuotaError."""
        self._versions.negotiate(req, resp)
        context = self._authenticate(req)
        try:
            for name, value in path.items():
                validation.check_name(name, value)
        except exceptions.InvalidName as error:  # a text that cannot be the id of anything
            raise Refused(404, str(error)) from None
        data = None if operation.body is None else requests.read_data(req)  # before the ledger: a client may be slow
        self._call_ledger(functools.partial(self._respond, data=data), operation, context, req, resp, path)

    def _respond(
        self,
        operation: Operation,
        context: Any,
        req: falcon.Request,
        resp: falcon.Response,
        path: Mapping[str, str],
        *,
        data: bytes | None,
    ) -> None:
        parent_id = self._authorize(operation, context, path)
        call = Call(
            engine=self._engine,
            policy=self._policy,
            context=context,
            path=path,
            query=requests.read_query(req, operation.query),
            body=None if operation.body is None or data is None else requests.parse_body(data, operation.body),
            url=f"{req.prefix}{urllib.parse.quote(req.path)}",  # (falcon has decoded the path)
            max_limit=self._max_limit,
            parent_id=parent_id,
            if_match=req.get_header("If-Match"),
        )
        answer = operation.handler(call)
        resp.set_headers(call.headers)
        resp.status = operation.status
        if operation.answer is not None:
            resp.media = answer

    def _authenticate(self, req: falcon.Request) -> Any:
        is_validated = TOKEN_AUTH in req.env or self._believes_headers
        if not is_validated or req.env.get(CONFIRMED) != "Confirmed":
            raise Refused(401, errors.NO_TOKEN)
        context: Any = oslo_context.RequestContext.from_environ(req.env)
        context.is_admin = False
        context.is_admin = self._policy.permits(policy.ADMIN, context)
        return context

    def _authorize(self, operation: Operation, context: Any, path: Mapping[str, str]) -> str | None:
        """Raise Refused unless the policy allows the call. Returns the parent of the project, if it was looked up.

        A user who may neither make the call nor see the project gets 404, whether the project exists or not (I8). The
        parent is looked up only for another project than that of the token, and for every such project.
        """
        rule, project_id, parent_id = operation.rule, path.get("project_id"), None
        if rule is None:
            assert project_id is None
            return None
        if project_id not in (None, context.project_id) and not context.is_admin:
            parent_id = self._engine.limits.get_parent(Caller(None, is_admin=True), project_id)
        if self._policy.permits(rule, context, project_id, parent_id):
            return parent_id
        if project_id is not None and not self._policy.permits(policy.GET, context, project_id, parent_id):
            raise errors.project_not_found(project_id)
        raise Refused(403, f"The policy does not allow you to make this call (rule {rule}).")


def make_app(api: QuotaAPI) -> Callable[..., Any]:
    """The WSGI application of an API."""
    app = falcon.App()
    app.set_error_serializer(errors.serialize)
    app.add_error_handler(Exception, errors.on_error)
    responders: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        calls = responders.setdefault(operation.path, {})
        # Falcon calls the attribute ``on_get`` for a GET, and sends no body for a HEAD.
        for method in {"GET": ("get", "head")}.get(operation.method, (operation.method.lower(),)):
            calls[f"on_{method}"] = functools.partial(api.respond, operation)
    for path, calls in responders.items():
        app.add_route(path, types.SimpleNamespace(**calls))
    return app
