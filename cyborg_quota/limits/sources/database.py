# SPDX-License-Identifier: Apache-2.0
"""The limit driver ``database``: limits and the project tree in the tables of cyborg_quota."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.conf import plugins
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger import limit_source as base
from cyborg_quota.limits.limit_tree import InitialLimits, effective
from cyborg_quota.limits.models import EnforcementModel
from cyborg_quota.types import TOTAL, UNLIMITED, ActiveOverride, Constraint, UsageKey

HINT: Final = "Set one: `set --default {resource}=10` (-1 is unlimited)."


class DatabaseLimitDriver(base.LimitDriver):
    """Defaults, limits of projects, overrides, and an enforcement model. Reads nothing: a state has all of them.

    An override begins and ends on time by the clock of the database, at the moment of which the state is.
    """

    is_pure: ClassVar[bool] = True

    def __init__(
        self,
        model: EnforcementModel,
        initial_limits: InitialLimits,
        *,
        missing_is_unlimited: bool = False,
    ) -> None:
        self.model = model
        self.initial_limits = initial_limits
        self.bounds_subtree = model.bounds_subtree
        self.limit_if_missing = UNLIMITED if missing_is_unlimited else None

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> DatabaseLimitDriver:
        model = conf.limits.enforcement_model or "strict_hierarchy"
        return cls(
            plugins.load("cyborg_quota.policies", "[limits] enforcement_model", model)(),
            InitialLimits.parse(conf.limits.child_initial_limit, conf.limits.root_initial_limit),
            missing_is_unlimited=conf.limits.missing == "unlimited",
        )

    def bounds(self, states: Sequence[PathState], resources: Collection[str]) -> list[base.PathLimits]:
        parts: dict[str, dict[UsageKey, int]] = {}  # the limits of what is not the whole resource
        for stored in {id(state.project_limits): state.project_limits for state in states}.values():
            for key, limit in stored.items():
                if not key.is_whole:
                    parts.setdefault(key.project_id, {})[key] = limit
        return [self._bounds(state, resources, parts) for state in states]

    def _bounds(
        self, state: PathState, resources: Collection[str], parts: Mapping[str, Mapping[UsageKey, int]]
    ) -> base.PathLimits:
        limits: dict[UsageKey, int] = {}
        missing: dict[str, str] = {}
        for index, project_id in enumerate(state.project_ids):
            limits.update(parts.get(project_id, {}))
            for resource in resources:
                own = state.project_limits.get(UsageKey(project_id, resource))
                is_root = index == len(state.project_ids) - 1
                limit = effective(is_root, own, state.defaults.get(resource), self.initial_limits)
                if limit is not None:
                    limits[UsageKey(project_id, resource)] = limit
                elif self.limit_if_missing is None:
                    missing.setdefault(resource, project_id)
        error = next((exceptions.LimitNotSet(name, HINT.format(resource=name)) for name in missing), None)
        constraints = [*self.model.constraints(state.project_ids, limits), *self.totals(state)]
        return base.PathLimits(constraints, missing, error)

    def totals(self, state: PathState) -> list[Constraint]:
        return [Constraint(TOTAL, *total, "total") for total in state.totals.items()]

    def set_for(self, state: PathState) -> Mapping[str, ActiveOverride | None]:
        leaf, is_root = state.project_ids[0], len(state.project_ids) == 1
        active_overrides: dict[str, ActiveOverride | None] = dict.fromkeys(
            key.resource for key in state.project_limits if key.project_id == leaf and key.is_whole
        )
        for key, (until, own) in state.overrides.items():
            if key.project_id == leaf:
                otherwise = effective(is_root, own, state.defaults.get(key.resource), self.initial_limits)
                active_overrides[key.resource] = ActiveOverride(
                    until, self.limit_if_missing if otherwise is None else otherwise
                )
        return active_overrides
