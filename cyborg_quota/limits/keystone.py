# SPDX-License-Identifier: Apache-2.0
"""The limit driver ``keystone``: reads Keystone's unified limits. They are set in Keystone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.limits import base
from cyborg_quota.limits.cache import Cache
from cyborg_quota.types import UNLIMITED, Constraint, Scope, UsageKey

if TYPE_CHECKING:
    from cyborg_quota.db.project_path import PathState
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


class _Level(NamedTuple):
    """A project or a domain, the scope of its limits, and those that are set for it."""

    owner: str
    scope: Scope
    limits: Limits


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
        self.limit_if_missing = None if refuses_missing else UNLIMITED
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

    def bounds(self, states: Sequence[PathState], resources: Collection[str]) -> list[base.PathLimits]:
        """See LimitDriver. For many projects, in a few requests, and with the domains that the ledger has stored.

        A project that Keystone has moved to another domain since its last charge is then limited by its previous
        domain, and one that Keystone has deleted has the default limits. Otherwise, a deleted one lacks all limits.
        """
        keystone = self._keystone()
        registered = keystone.registered() if resources else {}
        names = {resource: self._names.get(resource, resource) for resource in resources}
        defaults = {resource: (name, registered[name]) for resource, name in names.items() if name in registered}
        missing = [resource for resource in resources if resource not in defaults and self._refuses_missing]
        hints = ((name, self._how_to_register(keystone, names[name])) for name in missing)
        error = next((exceptions.LimitNotSet(*hint) for hint in hints), None)
        is_listed = len(states) > _MAX_SINGLE_REQUESTS
        found = []
        for state in states:
            project_id = state.project_ids[0]
            levels = self._levels(keystone, state.project_ids, is_listed=is_listed) if defaults else []
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

    def limits(self, states: Sequence[PathState], resources: Collection[str]) -> Mapping[UsageKey, int]:
        keystone = self._keystone()
        registered = keystone.registered() if resources else {}
        found = {}
        for state in states:
            path = state.project_ids
            levels = self._levels(keystone, path, is_listed=len(states) > _MAX_SINGLE_REQUESTS)
            own = levels[0].limits if levels else {}
            for resource in resources:
                name = self._names.get(resource, resource)
                default = registered.get(name)
                found[UsageKey(path[0], resource)] = (
                    self.limit_if_missing or 0
                    if default is None
                    else own.get((name, default.region_id), default.default)
                )
        return found

    def _levels(self, keystone: CachedKeystone, path: Sequence[str], *, is_listed: bool) -> list[_Level] | None:
        """The project of the path, and its domain under strict_two_level. None: Keystone does not know the project.

        ``is_listed``: from the limits of all projects. The domain is then the stored parent; a root is a domain.
        """
        project_id = path[0]
        if not keystone.is_two_level():
            own = keystone.all_limits().get(project_id, {}) if is_listed else keystone.limits_of_project(project_id)
            return [_Level(project_id, "project", own)]
        if is_listed:
            limits = keystone.all_limits()
            own = limits.get(project_id, {})
            above = [_Level(path[1], "subtree", limits.get(path[1], {}))] if path[1:] else []
            return [_Level(project_id, "project" if above else "subtree", own), *above]
        project = keystone.project(project_id)
        if project is None:
            return None
        domain_id = project.domain_id
        if domain_id is None:
            return [_Level(project_id, "subtree", keystone.limits_of_domain(project_id))]
        above = [_Level(domain_id, "subtree", keystone.limits_of_domain(domain_id))] if domain_id in path else []
        return [_Level(project_id, "project", keystone.limits_of_project(project_id)), *above]

    def _keystone(self) -> CachedKeystone:
        """The object of this process. It uses no lock, because a fork may happen while another thread holds it.

        The objects of parent processes are kept: if they were deleted, their connections, which the parents still use,
        would be closed.
        """
        pid = os.getpid()
        keystone = self._keystone_by_pid.get(pid)
        return keystone if keystone is not None else self._keystone_by_pid.setdefault(pid, self._make_keystone())

    def _how_to_register(self, keystone: CachedKeystone, name: str) -> str:
        service = keystone.service()
        region = f" --region {service.region_id}" if service.region_id is not None else ""
        return (
            f"Register one in Keystone: openstack registered limit create --service "
            f"{self._service_name or service.service_id}{region} --default-limit N {name}"
        )
