# SPDX-License-Identifier: Apache-2.0
"""The options of [api]."""

from __future__ import annotations

from oslo_config import cfg

GROUP = "api"

OPTS: list[cfg.Opt] = [
    cfg.IntOpt(
        "max_limit",
        default=1000,
        min=1,
        max=10_000,
        help="The maximum number of entries in one answer of the REST API. A longer list has a link to its next page.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options of this group, for the oslo.config generator."""
    return [(GROUP, OPTS)]
