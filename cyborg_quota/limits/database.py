# SPDX-License-Identifier: Apache-2.0
"""The limit driver ``database``: limits and the project tree in the tables of cyborg_quota."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from oslo_config import cfg

from cyborg_quota import exceptions, plugins
from cyborg_quota.db import limits as tables
from cyborg_quota.db import overrides, path_state, totals
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.path_state import PathState
from cyborg_quota.limits import base
from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree, effective
from cyborg_quota.limits.models.base import EnforcementModel
from cyborg_quota.types import TOTAL, UNLIMITED, Constraint, ResourceKey, UsageKey

_MAX_NAMED_PROJECTS: Final = 500
"""For more projects than this, all limits are read."""

HINT: Final = "Set one: cyborg-quota limit set --default {resource}=10 (-1 is unlimited)."


class DatabaseLimitDriver(base.LimitDriver):
    """Defaults, limits of projects, overrides, and an enforcement model. Two short reads per reserve.

    No limit is cached, so that an override begins and ends on time by the clock of the database: a reserve applies the
    limits of the moment of its look-up.
    """

    def __init__(
        self,
        model: EnforcementModel,
        initial_limits: InitialLimits,
        *,
        missing_is_unlimited: bool = False,
    ) -> None:
        self._database: Database | None = None
        self._missing_is_unlimited = missing_is_unlimited
        self.model = model
        self.initial_limits = initial_limits
        self.bounds_subtree = model.bounds_subtree
        self.missing_limit = UNLIMITED if missing_is_unlimited else 0

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> DatabaseLimitDriver:
        return cls(
            plugins.load("cyborg_quota.policies", "[limits] enforcement_model", conf.limits.enforcement_model)(),
            InitialLimits.parse(conf.limits.child_initial_limit, conf.limits.root_initial_limit),
            missing_is_unlimited=conf.limits.missing == "unlimited",
        )

    def use(self, database: Database) -> None:
        self._database = database

    @property
    def _tables(self) -> Database:
        assert self._database is not None, "use() must be called first"
        return self._database

    def get_constraints(self, path: Sequence[str], resources: Collection[str]) -> list[Constraint]:
        state = self._tables.read(lambda connection: path_state.read_limits(connection, path))
        limits = self._path_limits(state, resources)
        for resource in limits.missing:
            raise exceptions.LimitNotSet(resource, HINT.format(resource=resource))
        return list(limits.constraints)

    def get_total_constraints(self, resources: Collection[str]) -> list[Constraint]:
        return _total_constraints(self._tables.read(lambda connection: totals.read_enforced(connection, resources)))

    def get_pod_constraints(self, path: Sequence[str], keys: Collection[ResourceKey]) -> list[Constraint]:
        pods = {key.pod for key in keys}
        pod = pods.pop() if len(pods) == 1 else ""
        state = self._tables.read(lambda connection: path_state.read_limits(connection, path, pod=pod))
        return [constraint for constraint in self.get_pod_limits(state) if constraint.key.resource_key in keys]

    def get_pod_limits(self, state: PathState) -> Sequence[Constraint]:
        limits = {key: limit for key, limit in state.project_limits.items() if key.pod}
        return self.model.constraints(state.project_ids, limits) if limits else []

    def get_limits_in_pod(
        self, project_ids: Collection[str], resources: Collection[str], pod: str
    ) -> Mapping[tuple[str, str], int]:
        return self._limits(project_ids, resources, pod)

    def _limits(
        self, project_ids: Collection[str], resources: Collection[str], pod: str
    ) -> Mapping[tuple[str, str], int]:
        names = None if len(project_ids) > _MAX_NAMED_PROJECTS else project_ids

        def work(connection: Connection) -> LimitTree:
            found = LimitTree(*tables.read_limits(connection, names), self.initial_limits)
            found.project_limits.update(overrides.active(connection, names))
            return found

        tree = self._tables.long_transactions.read(work)
        limits = {}
        for project_id in project_ids:
            for resource in resources:
                limit = tree.limit(project_id, resource, pod)
                if limit is not None:
                    limits[project_id, resource] = limit
        return limits

    def get_path_limits(self, state: PathState, resources: Collection[str]) -> base.PathLimits:
        limits = self._path_limits(state, resources)
        return limits._replace(constraints=[*limits.constraints, *_total_constraints(state.totals)])

    def _path_limits(self, state: PathState, resources: Collection[str]) -> base.PathLimits:
        path = state.project_ids
        limits: dict[UsageKey, int] = {}
        missing: dict[str, str] = {}
        for index, project_id in enumerate(path):
            for resource in resources:
                key = UsageKey(project_id, resource)
                limit = effective(
                    index == len(path) - 1,
                    state.project_limits.get(key),
                    state.defaults.get(resource),
                    self.initial_limits,
                )
                if limit is not None:
                    limits[key] = limit
                elif not self._missing_is_unlimited:
                    missing.setdefault(resource, project_id)
        return base.PathLimits(self.model.constraints(path, limits), missing)

    def get_limits(self, project_ids: Collection[str], resources: Collection[str]) -> Mapping[tuple[str, str], int]:
        return self._limits(project_ids, resources, "")

    def get_limits_on_path(self, state: PathState, resources: Collection[str]) -> Mapping[str, int]:
        tree = self.tree_of_path(state)
        limits = {resource: tree.limit(state.project_ids[0], resource) for resource in resources}
        return {resource: limit for resource, limit in limits.items() if limit is not None}

    def get_limits_on_paths(
        self, states: Sequence[PathState], resources: Collection[str]
    ) -> Mapping[tuple[str, str], int]:
        return {
            (state.project_ids[0], resource): limit
            for state in states
            for resource, limit in self.get_limits_on_path(state, resources).items()
        }

    def tree_of_path(self, state: PathState) -> LimitTree:
        """The limits of a project and its ancestors."""
        parents = dict(zip(state.project_ids, [*state.project_ids[1:], None], strict=True))
        return LimitTree(dict(state.defaults), dict(state.project_limits), parents, self.initial_limits)


def _total_constraints(limits: Mapping[str, int]) -> list[Constraint]:
    return [Constraint(TOTAL, resource, limit, "total") for resource, limit in limits.items()]
