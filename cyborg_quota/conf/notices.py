# SPDX-License-Identifier: Apache-2.0
"""[notices]: who is told that a project comes near its limit."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types as cfg_types

GROUP = "notices"

OPTS: list[cfg.Opt] = [
    cfg.ListOpt(
        "thresholds",
        item_type=cfg_types.Integer(min=1, max=100),
        default=[80, 95],
        help="The percentages of a limit at which cyborg-quota-expirer says so in its log, once when a project comes "
        "to hold so much, and once when it falls back. More than the limit (after it was lowered) is always told.",
    ),
    cfg.IntOpt(
        "interval",
        default=60,
        min=1,
        help="How often cyborg-quota-expirer looks, in seconds.",
    ),
    cfg.BoolOpt(
        "notifications",
        default=False,
        help="Whether each notice is also sent as an oslo.messaging notification (event type "
        "cyborg_quota.threshold), over the transport of [oslo_messaging_notifications].",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator."""
    return [(GROUP, OPTS)]
