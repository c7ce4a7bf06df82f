# SPDX-License-Identifier: Apache-2.0
"""The options of [capacity]."""

from __future__ import annotations

from oslo_config import cfg

GROUP = "capacity"

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "selection",
        default="best_fit",
        help="Which of the providers that fit takes a claim that names no provider: best_fit leaves the least free, "
        "spread leaves the most free, first takes the provider that was added first. An entry point of "
        "cyborg_quota.selections.",
    ),
]
