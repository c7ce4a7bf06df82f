# SPDX-License-Identifier: Apache-2.0
"""The limit driver ``keystone``: reads Keystone's unified limits. They are set in Keystone."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.ledger import limit_source as base
from cyborg_quota.limits.sources.cache import Cache
from cyborg_quota.types import UNLIMITED, Constraint, Scope

if TYPE_CHECKING:
    from cyborg_quota.db.path_state import PathState
    from cyborg_quota.limits.sources.keystone_client import KeystoneClient, Limits, RegisteredLimit, Service

T = TypeVar("T")

FLAT: Final = "flat"
STRICT_TWO_LEVEL: Final = "strict_two_level"

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
    keystone_client.check_credentials(conf)
    connect = functools.partial(keystone_client.make_adapter, within_seconds=within_seconds)
    return keystone_client.KeystoneClient(conf, connect)


_Level = tuple[str, Scope, "Limits"]
"""A project or a domain, the scope of its limits, and those that are set for it."""


class KeystoneLimitDriver(base.LimitDriver):
    """Enforces Keystone's registered limits, project limits and domain limits; model flat or strict_two_level.

    A change of a limit in Keystone takes effect after at most ``[limits] keystone_cache_ttl`` seconds. While Keystone
    is unavailable, cached limits are used for up to ``[limits] keystone_stale_seconds`` longer; after that, each
    look-up raises LimitsUnavailable. A look-up of a resource that is not registered raises LimitNotSet if
    ``[limits] missing`` is refuse.
    """

    set_where: ClassVar[str] = "in Keystone (openstack registered limit set, openstack limit set)"
    bounds_subtree = True
    tree_source: ClassVar[str | None] = "keystone"

    def __init__(
        self,
        client: KeystoneClient,
        cache: Cache,
        *,
        names: Mapping[str, str] | None = None,
        refuses_missing: bool = True,
        service_name: str | None = None,
    ) -> None:
        self._client = client
        self._cache = cache
        self._names = dict(names or {})
        self.limit_if_missing = None if refuses_missing else UNLIMITED
        self._service_name = service_name

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> KeystoneLimitDriver:
        client = make_client(conf, "[limits] driver = keystone needs")
        from cyborg_quota.limits.sources import keystone_client

        keystone_client.check_endpoint(conf)
        options = conf.limits
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
            refuses_missing=options.missing == "refuse",
            service_name=next(filter(None, named), None),
        )

    def _read(self, request: Callable[..., T], *words: Hashable) -> T:
        """The response to a request of the client, cached."""
        return self._cache.get((request.__name__, *words), lambda: request(*words))

    def _service(self) -> Service:
        return self._read(self._client.service)

    def _registered(self, resources: Collection[str]) -> dict[str, tuple[str, RegisteredLimit]]:
        """{resource: (its name in Keystone, its registered limit)}, without resources that have none."""
        registered = self._read(self._client.registered, self._service()) if resources else {}
        names = {resource: self._names.get(resource, resource) for resource in resources}
        return {resource: (name, registered[name]) for resource, name in names.items() if name in registered}

    def _is_two_level(self) -> bool:
        """Whether the enforcement model is strict_two_level, not flat. Raises ConfigurationError for other models."""
        model = self._read(self._client.model)
        if model not in (FLAT, STRICT_TWO_LEVEL):
            raise exceptions.ConfigurationError(
                f"Keystone's enforcement model is {model!r}; the limit driver keystone supports only {FLAT} and "
                f"{STRICT_TWO_LEVEL}."
            )
        return model == STRICT_TWO_LEVEL

    def parent_of(self, project_id: str) -> str | None:
        """With strict_two_level, the domain of the project. None with flat, and for projects unknown to Keystone."""
        project = self._read(self._client.project, project_id) if self._is_two_level() else None
        return None if project is None else project.domain_id

    def bounds(self, states: Sequence[PathState], resources: Collection[str]) -> list[base.PathLimits]:
        """See LimitDriver. For many projects, in a few requests, and with the domains that the ledger has stored.

        A project that Keystone has moved to another domain since its last charge is then limited by its previous
        domain, and one that Keystone has deleted has the default limits. Otherwise, a deleted one lacks all limits.
        """
        defaults = self._registered(resources)
        missing = [resource for resource in resources if resource not in defaults and self.limit_if_missing is None]
        error = next((exceptions.LimitNotSet(name, self._how_to_register(name)) for name in missing), None)
        is_listed = len(states) > _MAX_SINGLE_REQUESTS
        found = []
        for state in states:
            project_id = state.project_ids[0]
            levels = self._levels(state.project_ids, is_listed=is_listed) if defaults else []
            if levels is None:
                unknown = exceptions.InvalidName("project", project_id, "Keystone does not know it")
                found.append(base.PathLimits([], dict.fromkeys(resources, project_id), error or unknown))
                continue
            constraints = [
                Constraint(owner, resource, limits.get((name, default.region_id), default.default), scope)
                for owner, scope, limits in levels
                for resource, (name, default) in defaults.items()
            ]
            found.append(base.PathLimits(constraints, dict.fromkeys(missing, project_id), error))
        return found

    def _levels(self, path: Sequence[str], *, is_listed: bool) -> list[_Level] | None:
        """The project of the path, and its domain under strict_two_level. None: Keystone does not know the project.

        ``is_listed``: from the limits of all projects. The domain is then the stored parent; a root is a domain.
        """

        def level(owner: str, scope: Scope) -> _Level:
            holder = () if is_listed else ("project_id" if scope == "project" else "domain_id", owner)
            return owner, scope, self._read(self._client.limits, self._service(), *holder).get(owner, {})

        domain_id: str | None
        if not self._is_two_level():
            return [level(path[0], "project")]
        if is_listed:
            domain_id = path[1] if path[1:] else None
        else:
            project = self._read(self._client.project, path[0])
            if project is None:
                return None
            domain_id = project.domain_id
        if domain_id is None:
            return [level(path[0], "subtree")]
        above = [level(domain_id, "subtree")] if domain_id in path else []
        return [level(path[0], "project"), *above]

    def _how_to_register(self, resource: str) -> str:
        service, name = self._service(), self._names.get(resource, resource)
        region = f" --region {service.region_id}" if service.region_id is not None else ""
        return (
            f"Register one in Keystone: openstack registered limit create --service "
            f"{self._service_name or service.service_id}{region} --default-limit N {name}"
        )
