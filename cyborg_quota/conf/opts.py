# SPDX-License-Identifier: Apache-2.0
"""What the oslo.config generator asks for: see etc/cyborg_quota/config-generator.conf."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_quota.conf import database, keystone, limits, quota


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """(group, options) for each group."""
    return [*quota.list_opts(), *limits.list_opts(), *keystone.list_opts(), *database.list_opts()]
