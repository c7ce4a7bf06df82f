# SPDX-License-Identifier: Apache-2.0
"""The limit drivers ``config`` and ``noop``: the same limits for all projects, from the configuration file; or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from oslo_config import cfg

from cyborg_quota import exceptions, validation
from cyborg_quota.ledger import limit_source as base
from cyborg_quota.types import Constraint

if TYPE_CHECKING:
    from cyborg_quota.db.path_state import PathState


@dataclasses.dataclass(eq=False)
class ConfigLimitDriver(base.LimitDriver):
    """Enforces ``[limits] limits``, for example ``fpga:5,gpu:10``. A resource that is not listed is unlimited."""

    set_where: ClassVar[str] = "in the configuration, [limits] limits"
    is_pure: ClassVar[bool] = True

    _limits: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> ConfigLimitDriver:
        """Raises ConfigurationError. (oslo.config does not check the limits of a program that overrides the option.)"""
        limits = conf.limits.limits.items()
        try:
            return cls(
                {
                    validation.check_name("resource", name): validation.check_limit(int(str(limit)))
                    for name, limit in limits
                }
            )
        except ValueError as error:
            raise exceptions.ConfigurationError(f"[limits] limits: {error}") from None

    def bounds(self, states: Sequence[PathState], resources: Collection[str]) -> list[base.PathLimits]:
        limits = {resource: self._limits[resource] for resource in resources if resource in self._limits}
        return [
            base.PathLimits([Constraint(state.project_ids[0], *limit) for limit in limits.items()]) for state in states
        ]

    def defaults(self) -> Mapping[str, int]:
        return dict(self._limits)


class NoopLimitDriver(ConfigLimitDriver):
    """No limits: usage is counted, and no request is refused. The default, as in the Cyborg specification."""

    set_where: ClassVar[str] = "nowhere: the driver noop has none"

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> NoopLimitDriver:
        return cls()
