# SPDX-License-Identifier: Apache-2.0
"""The options, one module per group. Nothing here keeps a configuration: it is passed in, and passed down."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_quota.conf import cyborg, database, keystone, limits, notices, quota

_GROUPS = (quota, limits, keystone, notices, cyborg, database)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register every option of cyborg_quota on ``conf``. May be done twice."""
    for group in _GROUPS:
        group.register_opts(conf)
