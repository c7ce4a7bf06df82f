# SPDX-License-Identifier: Apache-2.0
"""The limit driver ``noop``: no limits. It is the default, as in the Cyborg specification."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from oslo_config import cfg

from cyborg_quota.limits import base
from cyborg_quota.types import Constraint


class NoopLimitDriver(base.LimitDriver):
    """Returns no constraints: usage is counted, and no request is refused."""

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
