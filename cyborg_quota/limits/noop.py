# SPDX-License-Identifier: Apache-2.0
"""No limits: the place that the Cyborg specification reserves for the call of oslo.limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from oslo_config import cfg

from cyborg_quota.limits import base
from cyborg_quota.types import Constraint


class NoopLimitDriver(base.LimitDriver):
    """Counts everything and refuses nothing."""

    set_where: ClassVar[str] = "nowhere while [limits] driver is noop, which has none"

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> NoopLimitDriver:
        return cls()

    def get_constraints(self, path: Sequence[str], resources: Collection[str]) -> list[Constraint]:
        return []

    def get_limits(self, project_ids: Collection[str], resources: Collection[str]) -> Mapping[tuple[str, str], int]:
        return {}

    def defaults(self) -> Mapping[str, int]:
        return {}
