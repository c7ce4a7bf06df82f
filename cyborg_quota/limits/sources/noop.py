# SPDX-License-Identifier: Apache-2.0
"""The limit driver ``noop``: no limits. It is the default, as in the Cyborg specification."""

from __future__ import annotations

from typing import ClassVar

from oslo_config import cfg

from cyborg_quota.limits.sources.config import ConfigLimitDriver


class NoopLimitDriver(ConfigLimitDriver):
    """As ``config`` with no limit: usage is counted, and no request is refused."""

    set_where: ClassVar[str] = "nowhere while [limits] driver is noop, which has none"

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> NoopLimitDriver:
        return cls()
