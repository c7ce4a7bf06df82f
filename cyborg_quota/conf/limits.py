# SPDX-License-Identifier: Apache-2.0
"""[limits]: where limits come from."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types as cfg_types

GROUP = "limits"

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "driver",
        default="noop",
        help="Where limits come from: a name in the entry points cyborg_quota.limits. noop counts and refuses "
        "nothing; config takes [limits] limits.",
    ),
    cfg.Opt(
        "limits",
        type=cfg_types.Dict(value_type=cfg_types.Integer(min=-1)),
        default={},
        sample_default="fpga:5,gpu:10",
        help="The limit of each resource, the same for every project, for the driver config: fpga:5,gpu:10. "
        "-1 is unlimited, 0 allows nothing, and a resource that is not named is unlimited.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator."""
    return [(GROUP, OPTS)]
