# SPDX-License-Identifier: Apache-2.0
"""The configuration options, one module per group. There is no global configuration: callers pass one."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_quota.conf import capacity, cyborg, database, keystone, limits, metrics, notices, pods, quota

GROUPS = (quota, limits, keystone, notices, capacity, pods, metrics, cyborg, database)
"""The modules of the groups. Each has the name of its group, GROUP, and its options, OPTS."""


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register every option of cyborg_quota on ``conf``. May be called twice."""
    for module in GROUPS:
        conf.register_opts(module.OPTS, group=module.GROUP)
