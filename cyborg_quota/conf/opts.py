# SPDX-License-Identifier: Apache-2.0
"""The options for the oslo.config generator; see etc/cyborg_quota/config-generator.conf."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_quota.conf import GROUPS, database


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """(group, options) for each group, but [database] and [oslo_limit]: oslo.db and oslo.limit have entry points."""
    return [(module.GROUP, module.OPTS) for module in GROUPS if module is not database]
