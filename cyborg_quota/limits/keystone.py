# SPDX-License-Identifier: Apache-2.0
"""The limit driver ``keystone``: reads Keystone's unified limits. They are set in Keystone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.limits import base
from cyborg_quota.limits.cache import Cache
from cyborg_quota.types import UNLIMITED, Constraint, Scope

if TYPE_CHECKING:
    from cyborg_quota.db.path_state import PathState
    from cyborg_quota.limits.keystone_client import KeystoneClient, Limits, Project, RegisteredLimit, Service

FLAT: Final = "flat"
STRICT_TWO_LEVEL: Final = "strict_two_level"

_MAX_SINGLE_REQUESTS: Final = 2
"""For more projects than this, one request for all limits is cheaper than a request for each project."""


class CachedKeystone:
    """Keystone's responses, cached. Each process needs its own object: a forked child must not use the same session."""

    def __init__(self, client: KeystoneClient, cache: Cache) -> None:
        self._client = client
        self._cache = cache

    def service(self) -> Service:
        """The service to which the limits belong."""
        return self._cache.get("service", self._client.service)

    def is_two_level(self) -> bool:
        """Whether the enforcement model is strict_two_level, not flat. Raises ConfigurationError for other models."""
        model = self._cache.get("model", self._client.model)
        if model not in (FLAT, STRICT_TWO_LEVEL):
            raise exceptions.ConfigurationError(
                f"Keystone's enforcement model is {model!r}; the limit driver keystone supports only {FLAT} and "
                f"{STRICT_TWO_LEVEL}."
            )
        return model == STRICT_TWO_LEVEL

    def registered(self) -> Mapping[str, RegisteredLimit]:
        """The registered limits of the service, by Keystone's resource name."""
        service = self.service()
        return self._cache.get("registered", lambda: self._client.registered(service))

    def project(self, project_id: str) -> Project | None:
        """The project; None if Keystone does not know it."""
        return self._cache.get(("project", project_id), lambda: self._client.project(project_id))

    def limits_of_project(self, project_id: str) -> Limits:
        """The limits that are set for a project."""
        service = self.service()
        return self._cache.get(
            ("limits of project", project_id), lambda: self._client.limits_of_project(service, project_id)
        )

    def limits_of_domain(self, domain_id: str) -> Limits:
        """The limits that are set for a domain."""
        service = self.service()
        return self._cache.get(
            ("limits of domain", domain_id), lambda: self._client.limits_of_domain(service, domain_id)
        )

    def all_limits(self) -> Mapping[str, Limits]:
        """The limits that are set for each project and domain, by its ID."""
        service = self.service()
        return self._cache.get("all limits", lambda: self._client.all_limits(service))


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
        make_keystone: Callable[[], CachedKeystone],
        *,
        names: Mapping[str, str] | None = None,
        refuses_missing: bool = True,
        service_name: str | None = None,
    ) -> None:
        self._make_keystone = make_keystone
        self._names = dict(names or {})
        self._refuses_missing = refuses_missing
        self.missing_limit = 0 if refuses_missing else UNLIMITED
        self._service_name = service_name
        self._keystone_by_pid: dict[int, CachedKeystone] = {}

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> KeystoneLimitDriver:
        try:
            from cyborg_quota.limits import keystone_client, keystone_session
        except ImportError as error:
            raise exceptions.ConfigurationError(
                f"[limits] driver = keystone needs {error.name}: install cyborg_quota[keystone]."
            ) from None
        keystone_session.register_opts(conf)
        keystone_session.check(conf)
        options = conf.limits

        def make_keystone() -> CachedKeystone:
            cache = Cache(
                ttl_seconds=options.keystone_cache_ttl,
                stale_seconds=options.keystone_stale_seconds,
                timeout_seconds=conf.oslo_limit.timeout,
                clock=time.monotonic,
            )
            return CachedKeystone(keystone_client.KeystoneClient(conf), cache)

        named = (keystone_session.endpoint_option(conf, f"service_{field}") for field in ("name", "type"))
        return cls(
            make_keystone,
            names=options.keystone_names,
            refuses_missing=options.missing == "refuse",
            service_name=next(filter(None, named), None),
        )

    def parent_of(self, project_id: str) -> str | None:
        """With strict_two_level, the domain of the project. None with flat, and for projects unknown to Keystone."""
        keystone = self._keystone()
        if not keystone.is_two_level():
            return None
        project = keystone.project(project_id)
        return None if project is None else project.domain_id

    def get_constraints(self, path: Sequence[str], resources: Collection[str]) -> list[Constraint]:
        keystone = self._keystone()
        defaults = self._defaults(keystone, resources)
        if not defaults:
            return []
        project_id = path[0]
        if not keystone.is_two_level():
            return _constraints(project_id, keystone.limits_of_project(project_id), defaults)
        project = keystone.project(project_id)
        if project is None:
            raise exceptions.InvalidName("project", project_id, "Keystone does not know it")
        if project.domain_id is None:
            return _constraints(project_id, keystone.limits_of_domain(project_id), defaults, "subtree")
        constraints = _constraints(project_id, keystone.limits_of_project(project_id), defaults)
        if project.domain_id in path:
            domain_limits = keystone.limits_of_domain(project.domain_id)
            constraints += _constraints(project.domain_id, domain_limits, defaults, "subtree")
        return constraints

    def get_limits(self, project_ids: Collection[str], resources: Collection[str]) -> Mapping[tuple[str, str], int]:
        """See LimitDriver. ``project_ids`` may contain domains. 0: no limit is registered, and reserves fail."""
        keystone = self._keystone()
        registered = keystone.registered()
        limits: Mapping[str, Limits]
        if len(project_ids) <= _MAX_SINGLE_REQUESTS:
            limits = {project_id: self._limits_of(keystone, project_id) for project_id in project_ids}
        else:
            limits = keystone.all_limits()
        limits_by_key = {}
        for resource in resources:
            name = self._names.get(resource, resource)
            default = registered.get(name)
            for project_id in project_ids:
                if default is not None:
                    limit = limits.get(project_id, {}).get((name, default.region_id), default.default)
                    limits_by_key[project_id, resource] = limit
                elif self._refuses_missing:
                    limits_by_key[project_id, resource] = 0
        return limits_by_key

    def get_limits_of_paths(self, states: Sequence[PathState], resources: Collection[str]) -> list[base.PathLimits]:
        """As LimitDriver says, but in a few requests, and with the domains that the ledger has stored.

        A project that Keystone has moved to another domain since its last charge is limited by its previous domain. A
        project that Keystone has deleted does not make the call fail: it lacks all limits or, among many projects, has
        the default ones.
        """
        if len(states) <= _MAX_SINGLE_REQUESTS:
            return [self._path_limits(state, resources) for state in states]
        keystone = self._keystone()
        registered = keystone.registered()
        names = {resource: self._names.get(resource, resource) for resource in resources}
        defaults = {resource: (name, registered[name]) for resource, name in names.items() if name in registered}
        unregistered = set(resources) - set(defaults) if self._refuses_missing else set()
        limits, is_two_level = keystone.all_limits(), keystone.is_two_level()
        return [
            base.PathLimits(
                _constraints_of_path(state.project_ids, limits, defaults, is_two_level=is_two_level),
                dict.fromkeys(unregistered, state.project_ids[0]),
            )
            for state in states
        ]

    def _path_limits(self, state: PathState, resources: Collection[str]) -> base.PathLimits:
        try:
            return self.get_path_limits(state, resources)
        except exceptions.InvalidName:
            return base.PathLimits([], dict.fromkeys(resources, state.project_ids[0]))

    def _limits_of(self, keystone: CachedKeystone, project_id: str) -> Limits:
        if keystone.is_two_level():
            project = keystone.project(project_id)
            if project is not None and project.domain_id is None:
                return keystone.limits_of_domain(project_id)
        return keystone.limits_of_project(project_id)

    def _keystone(self) -> CachedKeystone:
        """The object of this process. It uses no lock, because a fork may happen while another thread holds it.

        The objects of parent processes are kept: if they were deleted, their connections, which the parents still use,
        would be closed.
        """
        pid = os.getpid()
        keystone = self._keystone_by_pid.get(pid)
        return keystone if keystone is not None else self._keystone_by_pid.setdefault(pid, self._make_keystone())

    def _defaults(self, keystone: CachedKeystone, resources: Collection[str]) -> dict[str, tuple[str, RegisteredLimit]]:
        """{resource: (its name in Keystone, its registered limit)}, without resources that are unlimited."""
        registered = keystone.registered()
        defaults = {}
        for resource in resources:
            name = self._names.get(resource, resource)
            if name in registered:
                defaults[resource] = (name, registered[name])
            elif self._refuses_missing:
                raise exceptions.LimitNotSet(resource, self._how_to_register(keystone, name))
        return defaults

    def _how_to_register(self, keystone: CachedKeystone, name: str) -> str:
        service = keystone.service()
        region = f" --region {service.region_id}" if service.region_id is not None else ""
        return (
            f"Register one in Keystone: openstack registered limit create --service "
            f"{self._service_name or service.service_id}{region} --default-limit N {name}"
        )


def _constraints(
    project_id: str, limits: Limits, defaults: Mapping[str, tuple[str, RegisteredLimit]], scope: Scope = "project"
) -> list[Constraint]:
    return [
        Constraint(project_id, resource, limits.get((name, default.region_id), default.default), scope)
        for resource, (name, default) in defaults.items()
    ]


def _constraints_of_path(
    path: Sequence[str],
    limits: Mapping[str, Limits],
    defaults: Mapping[str, tuple[str, RegisteredLimit]],
    *,
    is_two_level: bool,
) -> list[Constraint]:
    """The constraints of ``path[0]``, whose domain is its stored parent. A root is a domain, or has no children."""
    own = limits.get(path[0], {})
    if not is_two_level:
        return _constraints(path[0], own, defaults)
    if len(path) == 1:
        return _constraints(path[0], own, defaults, "subtree")
    above = limits.get(path[1], {})
    return _constraints(path[0], own, defaults) + _constraints(path[1], above, defaults, "subtree")
