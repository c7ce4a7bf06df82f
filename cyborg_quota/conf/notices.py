# SPDX-License-Identifier: Apache-2.0
"""[notices]: notices about projects that approach or exceed their limits."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types as cfg_types

GROUP = "notices"

OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "thresholds",
        item_type=cfg_types.Integer(min=1, max=100),
        default=[80, 95],
        help="Percentages of a limit. cyborg-quota-expirer logs a notice when the usage of a project reaches one, and "
        "another when it falls below it. Usage above the limit (after it was lowered) always causes a notice.",
    ),
    cfg.IntOpt(
        "least_limit",
        default=2,
        min=0,
        help="The smallest limit whose thresholds cause notices. With 2, a project that holds 1 of 1 causes none. "
        "Usage above the limit always does.",
    ),
    cfg.IntOpt(
        "least_capacity",
        default=32,
        min=0,
        help="The smallest capacity of a provider whose thresholds cause notices: a node with 8 accelerators that are "
        "all in use is usual. Use above the capacity (after an inventory was lowered) always causes a notice. The "
        "capacity of a resource at all providers together always has thresholds.",
    ),
    cfg.IntOpt(
        "summarize_above",
        default=10,
        min=0,
        help="If more projects (or inventories) than this cross a threshold upwards (or downwards) between two checks, "
        "the log gets one line with their numbers instead of a line for each. Notifications are always sent one by "
        "one.",
    ),
    cfg.IntOpt(
        "interval",
        default=60,
        min=1,
        help="Seconds between two checks of the thresholds by cyborg-quota-expirer.",
    ),
    cfg.BoolOpt(
        "notifications",
        default=False,
        help="Send each notice also as an oslo.messaging notification (event type "
        "cyborg_quota.threshold, for capacity cyborg_quota.capacity_threshold, for a pod "
        "cyborg_quota.pod_threshold), and each change of a limit or of the project tree as a CADF event (event types "
        "cyborg_quota.limit.*, cyborg_quota.limits.updated, cyborg_quota.override.* and cyborg_quota.project.*), over "
        "the transport of [oslo_messaging_notifications].",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options of this group, for the oslo.config generator."""
    return [(GROUP, OPTS)]
