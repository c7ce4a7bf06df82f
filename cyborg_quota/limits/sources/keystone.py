# SPDX-License-Identifier: Apache-2.0
"""The limit driver ``keystone``: reads Keystone's unified limits. They are set in Keystone."""

from __future__ import annotations

import dataclasses
import functools
import time
import urllib.parse
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeVar

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.conf import plugins
from cyborg_quota.ledger import limit_source as base
from cyborg_quota.limits.limit_tree import MAX_DEPTH
from cyborg_quota.limits.sources.cache import Cache
from cyborg_quota.types import UNLIMITED, Constraint, Scope

if TYPE_CHECKING:
    from cyborg_quota.db.path_state import PathState
    from cyborg_quota.limits.sources.keystone_client import KeystoneClient, Limits

T = TypeVar("T")

FLAT: Final = "flat"
STRICT_TWO_LEVEL: Final = "strict_two_level"
STRICT_HIERARCHY: Final = "strict_hierarchy"

_IN_KEYSTONE: Final = {FLAT: FLAT, STRICT_TWO_LEVEL: STRICT_TWO_LEVEL, STRICT_HIERARCHY: FLAT}
"""The model that Keystone must have for each model of the driver. (Its strict_two_level forbids deeper trees.)"""

_MAX_SINGLE_REQUESTS: Final = 2
"""For more projects than this, one request for all limits is cheaper than a request for each project."""


def make_client(conf: cfg.ConfigOpts, needs: str, within_seconds: float | None = None) -> KeystoneClient:
    """A client with the credentials of [oslo_limit]. No I/O. Raises ConfigurationError, which begins with ``needs``.

    ``within_seconds``: all its requests together end within this time from now.
    """
    try:
        from cyborg_quota.limits.sources import keystone_client
    except ImportError as error:
        raise exceptions.ConfigurationError(f"{needs} {error.name}: install cyborg_quota[keystone].") from None
    keystone_client.register_opts(conf)
    plugins.load_auth(conf, keystone_client.GROUP)
    try:
        url = urllib.parse.urlsplit(getattr(conf[keystone_client.GROUP], "auth_url", None) or "")
    except ValueError:  # (the text of the error may contain the password)
        raise exceptions.ConfigurationError(f"[{keystone_client.GROUP}] auth_url is not a valid URL.") from None
    if "@" in url.netloc or url.query:  # (keystoneauth1 logs the URL.)
        raise exceptions.ConfigurationError(
            f"[{keystone_client.GROUP}] auth_url must not contain credentials or a query: set username and password "
            "instead."
        )
    connect = functools.partial(keystone_client.make_adapter, within_seconds=within_seconds)
    return keystone_client.KeystoneClient(conf, connect)


class _Level(NamedTuple):
    """A project or a domain, the scope of its limits, those that are set for it, and whether it has the defaults."""

    owner: str
    scope: Scope
    limits: Limits
    has_defaults: bool = True


@dataclasses.dataclass(eq=False)
class KeystoneLimitDriver(base.LimitDriver):
    """Enforces Keystone's registered limits, project limits and domain limits.

    The enforcement model is that of Keystone (flat or strict_two_level), or strict_hierarchy: each project is limited
    with its descendants, in the tree of Keystone's projects. A domain is the root of its projects; it is limited only
    if a limit is set for it.

    A change of a limit in Keystone takes effect after at most ``[limits] keystone_cache_ttl`` seconds. While Keystone
    is unavailable, cached limits are used for up to ``[limits] keystone_stale_seconds`` longer; after that, each
    look-up raises LimitsUnavailable. A look-up of a resource that is not registered raises LimitNotSet if
    ``limit_if_missing`` is None. ``names``: those of resources in Keystone, if they are others. ``model``: None is that
    of Keystone.
    """

    set_where: ClassVar[str] = "in Keystone (openstack registered limit set, openstack limit set)"
    bounds_subtree = True
    tree_source: ClassVar[str | None] = "keystone"

    _client: KeystoneClient
    _cache: Cache
    _: dataclasses.KW_ONLY
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    limit_if_missing: int | None = None
    service_name: str | None = None
    model: str | None = None

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> KeystoneLimitDriver:
        client = make_client(conf, "[limits] driver = keystone needs")
        from cyborg_quota.limits.sources import keystone_client

        if not any(keystone_client.endpoint_option(conf, name) for name in ("id", "service_type", "service_name")):
            raise exceptions.ConfigurationError(
                f"[{keystone_client.GROUP}] does not identify the endpoint: set endpoint_id (see openstack endpoint "
                "list --service accelerator), or endpoint_service_type and endpoint_region_name."
            )
        options = conf.limits
        if options.enforcement_model not in (None, *_IN_KEYSTONE):
            raise exceptions.ConfigurationError(
                f"[limits] enforcement_model = {options.enforcement_model}: the limit driver keystone supports "
                f"{', '.join(_IN_KEYSTONE)}."
            )
        cache = Cache(
            ttl_seconds=options.keystone_cache_ttl,
            stale_seconds=options.keystone_stale_seconds,
            timeout_seconds=conf.oslo_limit.timeout,
            clock=time.monotonic,
        )
        named = (keystone_client.endpoint_option(conf, f"service_{field}") for field in ("name", "type"))
        return cls(
            client,
            cache,
            names=options.keystone_names,
            limit_if_missing=None if options.missing == "refuse" else UNLIMITED,
            service_name=next(filter(None, named), None),
            model=options.enforcement_model,
        )

    def _read(self, request: Callable[..., T], *words: Hashable) -> T:
        """The response to a request of the client, cached."""
        return self._cache.get((request.__name__, *words), lambda: request(*words))

    def _model(self) -> str:
        """The enforcement model. Raises ConfigurationError if it is not that of Keystone, and does not go with it."""
        of_keystone = self._read(self._client.model)
        model = self.model or of_keystone
        if _IN_KEYSTONE.get(model) != of_keystone:
            raise exceptions.ConfigurationError(
                f"Keystone's enforcement model is {of_keystone!r}; the limit driver keystone supports only {FLAT} "
                f"(also with [limits] enforcement_model = {STRICT_HIERARCHY}) and {STRICT_TWO_LEVEL}."
            )
        return model

    def path_of(self, project_id: str) -> Sequence[str] | None:
        """The project, its ancestors in the model, and its domain. None with flat, and for unknown projects.

        Raises ProjectRefused for a project at a level of more than MAX_DEPTH below its domain.
        """
        model = self._model()
        path = None if model == FLAT else self._read(self._client.path, project_id)
        if path is None:
            return None
        if model == STRICT_TWO_LEVEL:
            return [project_id, *path[1:][-1:]]
        if len(path) > MAX_DEPTH + 1:
            raise exceptions.ProjectRefused(project_id, f"lies at level {len(path) - 1} of {MAX_DEPTH} in Keystone")
        return path

    def bounds(self, states: Sequence[PathState], resources: Collection[str]) -> list[base.PathLimits]:
        """See LimitDriver. For many projects, in a few requests, and with the tree that the ledger has stored.

        A project whose next charge changes the tree is then limited by its stored ancestors, and one that Keystone has
        deleted has the default limits. Otherwise, a deleted one lacks all limits.
        """
        if not states or not resources:
            return [base.PathLimits([]) for _ in states]
        service = self._read(self._client.service)
        registered = self._read(self._client.registered, service)
        names = {resource: self.names.get(resource, resource) for resource in resources}
        defaults = {resource: (name, registered[name]) for resource, name in names.items() if name in registered}
        missing = [resource for resource in resources if resource not in defaults and self.limit_if_missing is None]
        error = next((exceptions.LimitNotSet(name, self._how_to_register(name)) for name in missing), None)
        is_listed = len(states) > _MAX_SINGLE_REQUESTS
        path_limits = []
        for state in states:
            project_id = state.project_ids[0]
            levels = self._levels(state.project_ids, is_listed=is_listed) if defaults else []
            if levels is None:
                unknown = exceptions.InvalidName("project", project_id, "Keystone does not know it")
                path_limits.append(base.PathLimits([], dict.fromkeys(resources, project_id), error or unknown))
                continue
            constraints = [
                Constraint(
                    owner, resource, limits.get((name, region_id), default if has_defaults else UNLIMITED), scope
                )
                for owner, scope, limits, has_defaults in levels
                for resource, (name, (default, region_id)) in defaults.items()
            ]
            path_limits.append(base.PathLimits(constraints, dict.fromkeys(missing, project_id), error))
        return path_limits

    def _levels(self, path: Sequence[str], *, is_listed: bool) -> list[_Level] | None:
        """What limits the project of the path: with the model flat, itself. None: Keystone does not know it.

        ``is_listed``: from the limits of all projects, and with the tree that the ledger has stored. Under
        strict_two_level, a root is then a domain.
        """
        model = self._model()

        def level(owner: str, *, is_domain: bool = False) -> _Level:
            holder = () if is_listed else ("domain_id" if is_domain else "project_id", owner)
            limits = self._read(self._client.limits, self._read(self._client.service), *holder).get(owner, {})
            scope: Scope = "subtree" if is_domain or model == STRICT_HIERARCHY else "project"
            return _Level(owner, scope, limits, has_defaults=not is_domain or model == STRICT_TWO_LEVEL)

        if model == FLAT:
            return [level(path[0])]
        tree: Sequence[str] | None
        domains: Collection[str]
        if not is_listed:
            tree = self.path_of(path[0])
            if tree is None:
                return None
            domains = tree[-1:]
        elif model == STRICT_HIERARCHY:
            tree, domains = path, self._read(self._client.domains)
        else:
            tree, domains = path[:2], path[:2][-1:]
        return [level(owner, is_domain=owner in domains) for owner in tree if owner in path]

    def _how_to_register(self, resource: str) -> str:
        service, name = self._read(self._client.service), self.names.get(resource, resource)
        region = f" --region {service.region_id}" if service.region_id is not None else ""
        return (
            f"Register one in Keystone: openstack registered limit create --service "
            f"{self.service_name or service.service_id}{region} --default-limit N {name}"
        )
