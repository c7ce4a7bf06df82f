# SPDX-License-Identifier: Apache-2.0
"""The options for the oslo.config generator; see etc/cyborg_quota/config-generator.conf."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_quota.conf import capacity, cyborg, database, keystone, limits, metrics, notices, pods, quota


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """(group, options) for each group."""
    groups = (quota, limits, keystone, notices, capacity, pods, metrics, cyborg, database)
    return [options for group in groups for options in group.list_opts()]
