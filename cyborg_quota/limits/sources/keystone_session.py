# SPDX-License-Identifier: Apache-2.0
"""The Keystone session configured by [oslo_limit], and the texts of its errors.

oslo.limit creates its session from the global configuration only; here, the caller passes the configuration.
"""

from __future__ import annotations

import threading
import time
import urllib.parse
from typing import Any, Final

import requests
from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from keystoneauth1.adapter import Adapter
from keystoneauth1.exceptions.connection import SSLError
from oslo_config import cfg
from oslo_limit import opts as oslo_limit_opts

from cyborg_quota import exceptions
from cyborg_quota.conf import keystone_auth
from cyborg_quota.limits.sources.cache import LimitSourceError

GROUP: Final = "oslo_limit"
TIMEOUT_SECONDS: Final = 5.0
"""The default of [oslo_limit] timeout: keystoneauth1 would wait for ever for a Keystone that does not answer."""

ROLE_HINT: Final = (
    "It needs the role reader on the system: openstack role add --user USER --user-domain DOMAIN --system all reader; "
    f"and [{GROUP}] system_scope = all"
)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register [oslo_limit] on ``conf``: the options of the session, the adapter, the auth plugin and the endpoint."""
    loading.register_session_conf_options(conf, GROUP)
    conf.set_default("timeout", TIMEOUT_SECONDS, group=GROUP)
    loading.register_adapter_conf_options(conf, GROUP, include_deprecated=False)
    loading.register_auth_conf_options(conf, GROUP)
    for _, options in oslo_limit_opts.list_opts():
        conf.register_opts([option for option in options if option.dest.startswith("endpoint_")], group=GROUP)


def check_endpoint(conf: cfg.ConfigOpts) -> None:
    """Raise ConfigurationError if the options of [oslo_limit] do not identify the endpoint. No I/O."""
    if not any(endpoint_option(conf, name) for name in ("id", "service_type", "service_name")):
        raise exceptions.ConfigurationError(
            f"[{GROUP}] does not identify the endpoint: set endpoint_id (see openstack endpoint list --service "
            "accelerator), or endpoint_service_type and endpoint_region_name."
        )


def check_credentials(conf: cfg.ConfigOpts) -> None:
    """Raise ConfigurationError if the options of [oslo_limit] do not suffice to authenticate. No I/O."""
    keystone_auth.load_auth(conf, GROUP)
    url = urllib.parse.urlsplit(auth_url(conf) or "")
    if "@" in url.netloc or url.query:
        # keystoneauth1 logs the URL.
        raise exceptions.ConfigurationError(
            f"[{GROUP}] auth_url must not contain credentials or a query: set username and password instead."
        )


def endpoint_option(conf: cfg.ConfigOpts, name: str) -> str | None:
    """[oslo_limit] endpoint_NAME. Releases of oslo.limit before 2.6 have endpoint_id only."""
    return getattr(conf[GROUP], f"endpoint_{name}", None)


def auth_url(conf: cfg.ConfigOpts) -> str | None:
    """The URL of Keystone; None if the auth plugin has no such option."""
    return getattr(conf[GROUP], "auth_url", None)


class _BoundedRequests(requests.Session):
    """Ends all its requests together at one time: a timeout bounds each of them alone."""

    def __init__(self, within_seconds: float) -> None:
        super().__init__()
        self._until = time.monotonic() + within_seconds

    def request(self, method: str, url: str, *, timeout: float, **options: Any) -> requests.Response:  # type: ignore[override]
        remaining = self._until - time.monotonic()
        if remaining <= 0:
            raise requests.Timeout
        return super().request(method, url, timeout=min(timeout, remaining), **options)


def make_adapter(conf: cfg.ConfigOpts, within_seconds: float | None = None) -> Adapter:
    """An adapter for the Keystone API, version 3, with a new session. No I/O.

    ``within_seconds``: all its requests together end within this time from now.
    """
    auth = keystone_auth.load_auth(conf, GROUP)
    _prevent_recursive_authentication(auth)
    session = loading.load_session_from_conf_options(
        conf,
        GROUP,
        auth=auth,
        timeout=conf[GROUP].timeout,
        session=None if within_seconds is None else _BoundedRequests(within_seconds),
    )
    adapter = loading.load_adapter_from_conf_options(conf, GROUP, session=session, auth=auth)
    adapter.service_type = adapter.service_type or "identity"
    if not (adapter.version or adapter.min_version or adapter.max_version):
        adapter.version = "3"
    return adapter


def _prevent_recursive_authentication(auth: Any) -> None:
    """Refuse to authenticate during an authentication, which would be a deadlock.

    keystoneauth1 does version discovery while it holds the lock of its token. If the response is 401 (from a proxy, for
    example), it repeats the request with a token, and waits for its own lock forever.
    """
    get_access = getattr(auth, "get_access", None)
    if get_access is None:
        return
    active = threading.local()

    def get_access_once(session: Any, **named: Any) -> Any:
        if getattr(active, "is_on", False):
            raise ksa.Unauthorized
        active.is_on = True
        try:
            return get_access(session, **named)
        finally:
            active.is_on = False

    auth.get_access = get_access_once


_REASONS: Final = {
    (ksa.ConnectTimeout, ksa.RequestTimeout): "{keystone} does not respond in time",
    (SSLError,): f"the TLS connection to {{keystone}} fails; check [{GROUP}] cafile",
    (ksa.ConnectFailure,): f"{{keystone}} cannot be reached; check that it is running, and [{GROUP}] auth_url",
    (ksa.Unauthorized, ksa.AuthorizationFailure): (
        f"{{keystone}} does not authenticate the user of [{GROUP}]: it is unknown, its password is wrong, or it "
        f"has no role. {ROLE_HINT}"
    ),
    (ksa.EndpointNotFound, ksa.CatalogException): (
        f"the catalog of {{keystone}} has no identity endpoint for [{GROUP}] valid_interfaces and region_name"
    ),
    (ksa.DiscoveryFailure,): f"the API versions of {{keystone}} cannot be read; check [{GROUP}] auth_url",
    (ksa.HttpError,): "{keystone} returned status {error.http_status}",
    (Exception,): "a request to {keystone} failed ({error.__class__.__name__})",
}
"""Why a request failed. The first entry that has the class of the error applies."""


def failure(error: Exception, conf: cfg.ConfigOpts) -> LimitSourceError:
    """Convert an error of keystoneauth1. Its text is omitted, because it may quote the response."""
    types = next(types for types in _REASONS if isinstance(error, types))
    url = auth_url(conf)
    reason = _REASONS[types].format(error=error, keystone=f"Keystone at {url}" if url else "Keystone")
    is_total = types != (ksa.HttpError,) or getattr(error, "http_status", None) in (502, 503, 504)
    return LimitSourceError(reason, is_total=is_total)
