# SPDX-License-Identifier: Apache-2.0
"""Puts the API together with the middleware around it, or with Cyborg's API beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota.api.app import CallLedger, QuotaAPI, call_directly, make_app
from cyborg_quota.api.microversions import HEADER, VersionRange, make_discovery
from cyborg_quota.api.operations import OPERATIONS
from cyborg_quota.conf import opts
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.policy import Policy

LOG = logging.getLogger(__name__)

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

PATHS: Final = re.compile(rf"/v2/({'|'.join(sorted({operation.path.split('/')[2] for operation in OPERATIONS}))})(/|$)")
"""The paths of this API. All other paths are Cyborg's."""

_HEALTHCHECK: Final = re.compile(r"/healthcheck$")
_VERSIONS: Final = re.compile(r"/?(v2/?)?$")
_CORS_HEADERS: Final = ["X-Auth-Token", "X-OpenStack-Request-ID", "ETag", "If-Match", "Location", HEADER]
_CORS_METHODS: Final = ["GET", "HEAD", "PUT", "POST", "DELETE"]


def make_bare_application(
    conf: cfg.ConfigOpts,
    engine: QuotaEngine,
    versions: VersionRange | None = None,
    call_ledger: CallLedger = call_directly,
) -> Application:
    """The API without middleware. Without keystonemiddleware in front of it, it answers 401 to each request.

    That is different with ``[api] auth = noauth``. ``call_ledger``: see QuotaAPI.
    """
    if conf.api.auth == opts.NO_AUTH:
        LOG.warning(
            "[api] auth = noauth: THE REST API OF QUOTA VALIDATES NO TOKEN. Each client may claim to be an admin."
        )
    return make_app(
        QuotaAPI(
            engine,
            Policy(conf),
            versions=versions,
            call_ledger=call_ledger,
            max_limit=conf.api.max_limit,
            statement_timeout_seconds=conf.quota.statement_timeout,
            believes_headers=conf.api.auth == opts.NO_AUTH,
        )
    )


def make_application(conf: cfg.ConfigOpts, engine: QuotaEngine) -> Application:
    """The API with keystonemiddleware, unless ``[api] auth`` is noauth, and ``wrap``."""
    application = make_bare_application(conf, engine)
    if conf.api.auth != opts.NO_AUTH:
        from keystonemiddleware import auth_token

        application = auth_token.AuthProtocol(application, {"oslo_config_config": conf})
    return wrap(_at(_VERSIONS, make_discovery(), application), conf)


def wrap(application: Application, conf: cfg.ConfigOpts) -> Application:
    """Put oslo.middleware around an application that validates tokens. What is added last gets a request first.

    Middleware that the configuration does not use is left out: each one takes 0.1 ms of processor time of a request.
    """
    import oslo_middleware
    from oslo_middleware import cors

    from cyborg_quota.api.middleware import JsonErrors

    cors.set_defaults(allow_headers=_CORS_HEADERS, expose_headers=_CORS_HEADERS, allow_methods=_CORS_METHODS)
    application = oslo_middleware.RequestId(JsonErrors(application), conf)
    # oslo.middleware's Healthcheck answers every request that it gets: it gets those for one path only.
    application = _at(_HEALTHCHECK, oslo_middleware.Healthcheck(None, conf), application)
    with_cors = oslo_middleware.CORS(application, conf)
    if with_cors.allowed_origins:
        application = with_cors
    with_proxy = oslo_middleware.HTTPProxyToWSGI(application, conf)
    return with_proxy if conf.oslo_middleware.enable_proxy_headers_parsing else application


def mount(quota_api: Application, other: Application) -> Application:
    """An application that answers the paths of this API, and leaves all others to ``other``."""
    return _at(PATHS, quota_api, other)


def _at(paths: re.Pattern[str], application: Application, other: Application) -> Application:
    """An application that passes requests for these ``paths`` to ``application``, and all others to ``other``."""

    def chosen(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return (application if paths.match(environ.get("PATH_INFO", "")) else other)(environ, start_response)

    return chosen
