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
        "another when it falls below it. A limit of 1, and a provider with a capacity below 32, have no thresholds. "
        "Usage above the limit (after it was lowered) always causes a notice.",
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
