# SPDX-License-Identifier: Apache-2.0
"""Calls of Placement's and Cyborg's APIs with openstacksdk, configured by [placement] and [accelerator]."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from openstack import config, connection
from openstack import exceptions as sdk
from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.conf import plugins
from cyborg_quota.safe_repr import safe_repr

PLACEMENT: Final = "placement"
ACCELERATOR: Final = "accelerator"
"""The service types, which are also the names of the option groups."""

_API_VERSIONS: Final = {PLACEMENT: "1", ACCELERATOR: "2"}
_TIMEOUT_SECONDS: Final = 60
_NOT_FOUND: Final = 404


_REASONS: Final[tuple[tuple[tuple[type[Exception], ...], tuple[int, ...], str], ...]] = (
    ((sdk.ConfigException,), (), "there is no {settings}, or it is not complete"),
    ((ksa.ConnectTimeout, ksa.RequestTimeout), (), "it does not respond in time"),
    (
        # (openstacksdk raises NotSupported if an endpoint of the catalog does not return its versions.)
        (ksa.ConnectFailure, ksa.DiscoveryFailure, sdk.NotSupported),
        (),
        "it, or Keystone, cannot be reached; check auth_url and endpoint_override of {settings}",
    ),
    ((ksa.Unauthorized, ksa.AuthorizationFailure), (401,), "the user of {settings} cannot be authenticated"),
    ((), (403,), "the user of {settings} is not permitted to read it; it needs the role admin or service"),
    (
        (ksa.EndpointNotFound, ksa.CatalogException, sdk.ServiceDisabledException),
        (),
        "the catalog has no endpoint for it; check region_name and valid_interfaces of {settings}",
    ),
)
"""Classes of errors, HTTP statuses, and what to say about them. The first match applies."""

_ERRORS: Final = (ksa.ClientException, sdk.SDKException, ValueError, OSError)


def _hide_content(record: logging.LogRecord) -> bool:
    """A logging filter. openstacksdk logs that clouds.yaml is invalid with an error that quotes it, also passwords."""
    if isinstance(record.args, tuple):
        record.args = tuple(type(one).__name__ if isinstance(one, Exception) else one for one in record.args)
    return True


class SourceUnavailable(exceptions.QuotaError):
    """Placement or Cyborg could not be read."""


class SourceNotFound(SourceUnavailable):
    """What was asked for does not exist there (status 404)."""


class ServiceApi:
    """Reads from one service. Creating one does no I/O.

    :param connect: makes the proxy of openstacksdk for the service, which may read its versions.
    :param name: the service, for messages.
    :param base: the URL before each path; "": that of the catalog.
    :param settings: where the connection is configured, for messages; "": in the option group ``name``.
    """

    def __init__(self, connect: Callable[[], Any], name: str, base: str = "", settings: str = "") -> None:
        self._connect = connect
        self._client: Any = None
        self._name = name
        self._base = base.rstrip("/")
        self._settings = settings or f"[{name}]"

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, group: str) -> ServiceApi:
        """Connect with the options of ``group``. Raises ConfigurationError."""
        loading.register_session_conf_options(conf, group)
        loading.register_adapter_conf_options(conf, group, include_deprecated=False)
        loading.register_auth_conf_options(conf, group)
        auth = plugins.load_auth(conf, group)
        for option in ("auth_url", "endpoint_override"):
            url = urllib.parse.urlsplit(getattr(conf[group], option, None) or "")
            if "@" in url.netloc or url.query:
                raise exceptions.ConfigurationError(f"[{group}] {option} must not contain credentials or a query.")
        timeout = conf[group].timeout or _TIMEOUT_SECONDS
        session = loading.load_session_from_conf_options(conf, group, auth=auth, timeout=timeout)
        adapter = loading.load_adapter_from_conf_options(conf, group, session=session, auth=auth)
        return cls.from_session(
            session,
            group,
            region_name=adapter.region_name,
            interface=adapter.interface,
            endpoint_override=adapter.endpoint_override,
        )

    @classmethod
    def from_session(
        cls,
        session: Any,
        service: str,
        *,
        region_name: str | None = None,
        interface: Any = None,
        endpoint_override: str | None = None,
        settings: str = "",
    ) -> ServiceApi:
        """Connect with a session of keystoneauth1. ``settings``: as for the constructor."""
        options = {
            "api_version": _API_VERSIONS[service],
            "interface": interface,
            "endpoint_override": endpoint_override,
        }
        named = {f"{service}_{option}": value for option, value in options.items() if value is not None}

        def connect() -> Any:
            return getattr(connection.Connection(session=session, region_name=region_name, **named), service)

        # openstacksdk would replace the path of the URL by the one that the service reports in its versions.
        return cls(connect, service, endpoint_override or "", settings)

    @classmethod
    def from_cloud(cls, cloud: str, region: str | None, service: str, *, timeout_seconds: float) -> ServiceApi:
        """Connect with a cloud of clouds.yaml, which openstacksdk finds. Raises SourceUnavailable.

        ``region`` None: that of the file. ``timeout_seconds``: of each request, also of those to Keystone.
        """
        where = f"cloud {safe_repr(cloud)}" + ("" if region is None else f", region {safe_repr(region)},")
        settings = f"{where} in clouds.yaml"
        options: dict[str, Any] = {"api_timeout": timeout_seconds}
        if region is not None:
            options["region_name"] = region
        logging.getLogger("openstack.config").addFilter(_hide_content)
        try:
            found = config.OpenStackConfig().get_one(cloud, **options)
            session = found.get_session()
        except _ERRORS as error:
            raise SourceUnavailable(_message(service, settings, error)) from None
        return cls.from_session(
            session,
            service,
            region_name=found.get_region_name(service),
            interface=found.get_interface(service),
            endpoint_override=found.get_endpoint(service),
            settings=settings,
        )

    def get(self, path: str, microversion: str | None = None) -> Any:
        """The parsed body of a GET. Raises SourceUnavailable, whose text has no credentials."""
        try:
            self._client = self._client or self._connect()
            response = self._client.get(self._base + path, microversion=microversion)
            sdk.raise_from_response(response)
            return response.json()
        except _ERRORS as error:
            kind = SourceNotFound if _status(error) == _NOT_FOUND else SourceUnavailable
            raise kind(_message(self._name, self._settings, error)) from None


def _status(error: Exception) -> int | None:
    """The HTTP status of an error; None if there was no response."""
    return getattr(error, "http_status", None) or getattr(error, "status_code", None)


def _message(name: str, settings: str, error: Exception) -> str:
    """What failed, without the text of the error, which may quote the response or the configuration."""
    status = _status(error)
    reason = f"it returned status {status}" if status else f"the request failed ({type(error).__name__})"
    for kinds, statuses, text in _REASONS:
        if isinstance(error, kinds) or status in statuses:
            reason = text.format(settings=settings)
            break
    return f"{name.capitalize()} could not be read: {reason}."
