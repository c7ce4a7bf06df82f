# SPDX-License-Identifier: Apache-2.0
"""Reads Placement's and Cyborg's APIs with openstacksdk, configured by [placement], [accelerator] or clouds.yaml.

In Placement, one request lists the providers. Each provider then costs one request, and each that has accelerators two
more. Of Cyborg, devices and deployables are read; what is in use is not: Placement has it. A deployable refers to its
device by a number that the API shows nowhere else, so its host cannot be looked up by the device. But devices name
their hosts, and the name of a deployable begins with that of its host: drivers make it unique in the cloud, because it
becomes the name of a resource provider.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import json
import logging
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from openstack import config, connection
from openstack import exceptions as sdk
from oslo_config import cfg

from cyborg_quota import exceptions, units
from cyborg_quota.conf import plugins
from cyborg_quota.conf.resource_rules import ResourceMap
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.types.capacity import Inventory

_QUANTUM: Final = decimal.Decimal(1).scaleb(-units.MAX_RATIO_PLACES)
_WIDE: Final = decimal.Context(prec=60)
"""For the ratios that Placement permits, up to 3.4e38."""
PLACEMENT: Final = "placement"
ACCELERATOR: Final = "accelerator"
"""The service types, which are also the names of the option groups."""

_API_VERSIONS: Final = {PLACEMENT: "1", ACCELERATOR: "2"}
_TIMEOUT_SECONDS: Final = 60


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
    ((), (404,), "status 404: a provider was just removed (run this again), or a URL of {settings} is wrong"),
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
        record.args = tuple(
            type(argument).__name__ if isinstance(argument, Exception) else argument for argument in record.args
        )
    return True


class SourceUnavailable(exceptions.QuotaError):
    """Placement or Cyborg could not be read."""


class ServiceApi:
    """Reads from one service. Creating one does no I/O.

    :param connect: makes the proxy of openstacksdk for the service, which may read its versions.
    :param name: the service, for messages.
    :param base: the URL before each path; "": that of the catalog.
    :param settings: where the connection is configured, for messages; "": in the option group ``name``.
    """

    def __init__(self, connect: Callable[[], Any], name: str, base: str = "", settings: str = "") -> None:
        self._client = functools.cache(connect)
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
        options = {"api_timeout": timeout_seconds, **({} if region is None else {"region_name": region})}
        logging.getLogger("openstack.config").addFilter(_hide_content)
        try:
            cloud_region = config.OpenStackConfig().get_one(cloud, **options)
            session = cloud_region.get_session()
        except _ERRORS as error:
            raise SourceUnavailable(_message(service, settings, error)) from None
        return cls.from_session(
            session,
            service,
            region_name=cloud_region.get_region_name(service),
            interface=cloud_region.get_interface(service),
            endpoint_override=cloud_region.get_endpoint(service),
            settings=settings,
        )

    def get(self, path: str, microversion: str | None = None) -> Any:
        """The parsed body of a GET. Raises SourceUnavailable, whose text has no credentials."""
        try:
            response = self._client().get(self._base + path, microversion=microversion)
            sdk.raise_from_response(response)
            return response.json()
        except _ERRORS as error:
            raise SourceUnavailable(_message(self._name, self._settings, error)) from None


def _message(name: str, settings: str, error: Exception) -> str:
    """What failed, without the text of the error, which may quote the response or the configuration."""
    status = getattr(error, "http_status", None) or getattr(error, "status_code", None)  # None: no response
    other = f"it returned status {status}" if status else f"the request failed ({type(error).__name__})"
    reasons = (text for kinds, statuses, text in _REASONS if isinstance(error, kinds) or status in statuses)
    return f"{name.capitalize()} could not be read: {next(reasons, other).format(settings=settings)}."


@dataclasses.dataclass(frozen=True, slots=True)
class SourceProvider:
    """A provider of the source. ``inventories``: by resource class. ``used``: by consumer and resource class.

    ``uuid`` and ``parent`` (the key of the containing provider) identify providers within the source. ``is_uuid_known``
    False: ``uuid`` is not that of Placement. ``used``, ``is_shared`` None: the source does not say.
    """

    uuid: str
    name: str
    parent: str | None = None
    traits: frozenset[str] = frozenset()
    inventories: Mapping[str, Inventory] = dataclasses.field(default_factory=dict)
    used: Mapping[str, Mapping[str, int]] | None = None
    is_shared: bool | None = None
    is_uuid_known: bool = True


def ratio_of(value: float | str) -> decimal.Decimal:
    """An allocation ratio of an API (a binary fraction) as it is written, rounded down to what is stored."""
    ratio = decimal.Decimal(str(value)).quantize(_QUANTUM, rounding=decimal.ROUND_DOWN, context=_WIDE).normalize(_WIDE)
    return ratio + 0


# --- Placement ---

_PLACEMENT_VERSION: Final = "1.14"
"""The microversion that added parents; Placement has had it since 2017."""
_SHARES: Final = "MISC_SHARES_VIA_AGGREGATE"


def read_placement(
    api: ServiceApi, resource_map: ResourceMap, progress: Callable[[int], object] = lambda _count: None
) -> Iterator[SourceProvider]:
    """All providers, each after the one that contains it. ``progress``: called for each. Raises SourceUnavailable.

    A provider that is removed after it was listed is such an error: read again. Read one by one: the memory has what
    consumers use at one provider, unless the caller keeps it.
    """
    listed = api.get("/resource_providers", _PLACEMENT_VERSION)["resource_providers"]
    parents = {row["uuid"]: row["parent_provider_uuid"] for row in listed}
    for row in sorted(listed, key=lambda row: len(path(row["uuid"], parents))):
        url = f"/resource_providers/{row['uuid']}"
        inventories = api.get(f"{url}/inventories", _PLACEMENT_VERSION)["inventories"]
        may_count = any(resource_map.may_count(resource_class) for resource_class in inventories)
        traits = api.get(f"{url}/traits", _PLACEMENT_VERSION)["traits"] if may_count else []
        allocations = api.get(f"{url}/allocations", _PLACEMENT_VERSION)["allocations"] if may_count else {}
        yield SourceProvider(
            uuid=row["uuid"],
            name=row["name"],
            parent=row["parent_provider_uuid"],
            traits=frozenset(traits),
            inventories={
                resource_class: Inventory(
                    total=values["total"],
                    reserved=values["reserved"],
                    min_unit=values["min_unit"],
                    max_unit=max(values["max_unit"], values["min_unit"]),
                    step_size=values["step_size"],
                    allocation_ratio=ratio_of(values["allocation_ratio"]),
                )
                for resource_class, values in inventories.items()
            },
            used={consumer: values["resources"] for consumer, values in allocations.items()},
            is_shared=_SHARES in traits if may_count else None,
        )
        progress(1)


def path(uuid: str, parents: Mapping[str, str | None]) -> list[str]:
    """The provider and those that contain it, the outermost last. ``parents``: by uuid."""
    uuids = [uuid]
    while (parent := parents.get(uuids[-1])) is not None and parent not in uuids:
        uuids.append(parent)
    return uuids


# --- Cyborg ---

_CYBORG_VERSION: Final = "2.3"
"""The microversion of these answers; Cyborg has had it since its release 9."""
_CLASS: Final = "rc"
_TRAIT_PREFIX: Final = "trait"
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")


def read_cyborg(api: ServiceApi) -> list[SourceProvider]:
    """The hosts and the deployables; a deployable with an unknown host has no parent. Raises SourceUnavailable."""
    devices = api.get("/devices", _CYBORG_VERSION)["devices"]
    deployables = api.get("/deployables", _CYBORG_VERSION)["deployables"]
    hosts = {device["hostname"] for device in devices if device["hostname"]}
    providers = [SourceProvider(uuid=f"host {host}", name=host, is_uuid_known=False) for host in sorted(hosts)]
    for row in deployables:
        host, total = host_of(row["name"], hosts), int(row["num_accelerators"])
        attributes = [pair for attribute in json.loads(row["attributes_list"] or "[]") for pair in attribute.items()]
        resource_class = next((value for key, value in attributes if key == _CLASS), None)
        provider = SourceProvider(
            uuid=row["rp_uuid"] or row["uuid"],
            name=row["name"],
            parent=None if host is None else f"host {host}",
            traits=frozenset(value for key, value in attributes if key.startswith(_TRAIT_PREFIX)),
            inventories={} if resource_class is None else {resource_class: Inventory(total)},
            is_uuid_known=row["rp_uuid"] is not None,
        )
        providers.append(provider)
    return providers


def host_of(name: str, hosts: Iterable[str]) -> str | None:
    """The host whose name is the longest one with which the name of the deployable begins; None if there is none.

    Drivers replace characters that a provider's name may not have by an underscore.
    """

    prefixes = {host: (host, _OTHER.sub("_", host)) for host in hosts}
    begins = [host for host, parts in prefixes.items() if any(f"{name}_".startswith(f"{part}_") for part in parts)]
    return max(begins, key=len, default=None)
