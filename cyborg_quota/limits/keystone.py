# SPDX-License-Identifier: Apache-2.0
"""Limits from Keystone's unified limits. Read only: they are set in Keystone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.limits import base
from cyborg_quota.limits.cache import Cache
from cyborg_quota.types import KEYSTONE, Constraint

if TYPE_CHECKING:
    from cyborg_quota.db.path_state import PathState
    from cyborg_quota.limits.keystone_client import KeystoneClient, Limits, Project, RegisteredLimit, Service

FLAT: Final = "flat"
STRICT_TWO_LEVEL: Final = "strict_two_level"

_MOST_SINGLE_QUESTIONS: Final = 2
"""For more projects than these, one list of all limits is cheaper than a call for each."""


class Answers:
    """What Keystone says, kept for a time. One for each process: nothing here survives a fork."""

    def __init__(self, client: KeystoneClient, cache: Cache) -> None:
        self._client = client
        self._cache = cache

    def service(self) -> Service:
        """The service whose limits are meant."""
        return self._cache.get("service", self._client.service)

    def is_two_level(self) -> bool:
        """Whether Keystone enforces strict_two_level; else flat. Raises ConfigurationError for what is neither."""
        model = self._cache.get("model", self._client.model)
        if model not in (FLAT, STRICT_TWO_LEVEL):
            raise exceptions.ConfigurationError(
                f"Keystone's enforcement model is {model!r}; the limit driver keystone knows {FLAT} and "
                f"{STRICT_TWO_LEVEL} only."
            )
        return model == STRICT_TWO_LEVEL

    def registered(self) -> Mapping[str, RegisteredLimit]:
        """Every registered limit of the service."""
        service = self.service()
        return self._cache.get("registered", lambda: self._client.registered(service))

    def project(self, project_id: str) -> Project | None:
        """Where a project belongs; None for an unknown one."""
        return self._cache.get(("project", project_id), lambda: self._client.project(project_id))

    def limits_of_project(self, project_id: str) -> Limits:
        """What was set for a project."""
        service = self.service()
        return self._cache.get(
            ("limits of project", project_id), lambda: self._client.limits_of_project(service, project_id)
        )

    def limits_of_domain(self, domain_id: str) -> Limits:
        """What was set for a domain."""
        service = self.service()
        return self._cache.get(
            ("limits of domain", domain_id), lambda: self._client.limits_of_domain(service, domain_id)
        )

    def all_limits(self) -> Mapping[str, Limits]:
        """What was set for anybody."""
        service = self.service()
        return self._cache.get("all limits", lambda: self._client.all_limits(service))


class KeystoneLimitDriver(base.LimitDriver):
    """Enforces what Keystone's registered limits, project limits and domain limits say, flat or strict_two_level.

    A limit that is changed in Keystone is enforced ``[limits] keystone_cache_ttl`` seconds later at most, and while
    Keystone cannot be asked ``[limits] keystone_stale_seconds`` after that. Then every look-up raises
    LimitsUnavailable. LimitNotSet: the resource is not registered, and ``[limits] missing`` says refuse.
    """

    set_where: ClassVar[str] = "in Keystone (openstack registered limit set, openstack limit set)"
    bounds_subtree = True
    origin = KEYSTONE

    def __init__(
        self,
        make_answers: Callable[[], Answers],
        *,
        names: Mapping[str, str] | None = None,
        refuses_missing: bool = True,
        service_name: str | None = None,
    ) -> None:
        self._make_answers = make_answers
        self._names = dict(names or {})
        self._refuses_missing = refuses_missing
        self._service_name = service_name
        self._answers_of: dict[int, Answers] = {}

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> KeystoneLimitDriver:
        try:
            from cyborg_quota.limits import keystone_client, keystone_session
        except ImportError as error:
            raise exceptions.ConfigurationError(
                f"[limits] driver = keystone needs {error.name}: pip install 'cyborg_quota[keystone]'."
            ) from None
        keystone_session.register_opts(conf)
        keystone_session.check(conf)
        options = conf.limits

        def make_answers() -> Answers:
            cache = Cache(
                ttl_seconds=options.keystone_cache_ttl,
                stale_seconds=options.keystone_stale_seconds,
                patience_seconds=keystone_session.timeout_seconds(conf),
                clock=time.monotonic,
            )
            return Answers(keystone_client.KeystoneClient(conf), cache)

        named = (keystone_session.endpoint_option(conf, f"service_{one}") for one in ("name", "type"))
        return cls(
            make_answers,
            names=options.keystone_names,
            refuses_missing=options.missing == "refuse",
            service_name=next(filter(None, named), None),
        )

    def parent_of(self, project_id: str) -> str | None:
        """The domain of ``project_id`` under strict_two_level; None under flat, and for whom Keystone does not know."""
        answers = self._answers()
        if not answers.is_two_level():
            return None
        project = answers.project(project_id)
        return None if project is None else project.domain_id

    def get_constraints(self, path: Sequence[str], resources: Collection[str]) -> list[Constraint]:
        answers = self._answers()
        defaults = self._defaults(answers, resources)
        if not defaults:
            return []
        project_id = path[0]
        if not answers.is_two_level():
            own = answers.limits_of_project(project_id)
            return _constraints(project_id, own, defaults)
        project = answers.project(project_id)
        if project is None:
            raise exceptions.InvalidName("project", project_id, "Keystone does not know it")
        if project.domain_id is None:
            return _constraints_of_domain(project_id, answers.limits_of_domain(project_id), defaults)
        found = _constraints(project_id, answers.limits_of_project(project_id), defaults)
        if project.domain_id in path:
            above = answers.limits_of_domain(project.domain_id)
            found += _constraints_of_domain(project.domain_id, above, defaults)
        return found

    def get_limits(self, project_ids: Collection[str], resources: Collection[str]) -> Mapping[tuple[str, str], int]:
        """As LimitDriver says; a domain may be among ``project_ids``. What is refused for want of a limit has 0."""
        answers = self._answers()
        registered = answers.registered()
        own: Mapping[str, Limits]
        if len(project_ids) <= _MOST_SINGLE_QUESTIONS:
            own = {project_id: self._own(answers, project_id) for project_id in project_ids}
        else:
            own = answers.all_limits()
        found = {}
        for resource in resources:
            name = self._names.get(resource, resource)
            default = registered.get(name)
            for project_id in project_ids:
                if default is not None:
                    limit = own.get(project_id, {}).get((name, default.region_id), default.default)
                    found[project_id, resource] = limit
                elif self._refuses_missing:
                    found[project_id, resource] = 0
        return found

    def get_limits_of_paths(self, states: Sequence[PathState], resources: Collection[str]) -> list[base.PathLimits]:
        """As LimitDriver says, but in a few requests, and with the domains that the ledger has stored.

        A project that Keystone has moved to another domain since its last charge is limited by its previous domain.
        """
        if len(states) <= _MOST_SINGLE_QUESTIONS:
            return super().get_limits_of_paths(states, resources)
        answers = self._answers()
        registered = answers.registered()
        names = {resource: self._names.get(resource, resource) for resource in resources}
        defaults = {resource: (name, registered[name]) for resource, name in names.items() if name in registered}
        unregistered = set(resources) - set(defaults) if self._refuses_missing else set()
        own, is_two_level = answers.all_limits(), answers.is_two_level()
        return [
            base.PathLimits(
                _constraints_of_path(state.project_ids, own, defaults, is_two_level=is_two_level),
                dict.fromkeys(unregistered, state.project_ids[0]),
            )
            for state in states
        ]

    def _own(self, answers: Answers, project_id: str) -> Limits:
        if answers.is_two_level():
            project = answers.project(project_id)
            if project is not None and project.domain_id is None:
                return answers.limits_of_domain(project_id)
        return answers.limits_of_project(project_id)

    def _answers(self) -> Answers:
        """This process's own. Without a lock, for one might be held where a fork happens.

        Those of the processes before stay where they are: to drop them here would close connections they still use.
        """
        pid = os.getpid()
        found = self._answers_of.get(pid)
        return found if found is not None else self._answers_of.setdefault(pid, self._make_answers())

    def _defaults(self, answers: Answers, resources: Collection[str]) -> dict[str, tuple[str, RegisteredLimit]]:
        """{resource: (its name in Keystone, its registered limit)}, without what may be charged freely."""
        registered = answers.registered()
        found = {}
        for resource in resources:
            name = self._names.get(resource, resource)
            if name in registered:
                found[resource] = (name, registered[name])
            elif self._refuses_missing:
                raise exceptions.LimitNotSet(resource, self._how_to_register(answers, name))
        return found

    def _how_to_register(self, answers: Answers, name: str) -> str:
        service = answers.service()
        region = f" --region {service.region_id}" if service.region_id is not None else ""
        return (
            f"Register one in Keystone: openstack registered limit create --service "
            f"{self._service_name or service.service_id}{region} --default-limit N {name}"
        )


def _constraints(project_id: str, own: Limits, defaults: Mapping[str, tuple[str, RegisteredLimit]]) -> list[Constraint]:
    return [
        Constraint(project_id, resource, own.get((name, default.region_id), default.default))
        for resource, (name, default) in defaults.items()
    ]


def _constraints_of_domain(
    domain_id: str, own: Limits, defaults: Mapping[str, tuple[str, RegisteredLimit]]
) -> list[Constraint]:
    return [
        Constraint(one.project_id, one.resource, one.limit, "subtree") for one in _constraints(domain_id, own, defaults)
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
        return _constraints_of_domain(path[0], own, defaults)
    above = limits.get(path[1], {})
    return _constraints(path[0], own, defaults) + _constraints_of_domain(path[1], above, defaults)
