# SPDX-License-Identifier: Apache-2.0
"""[limits] keystone_*: how the driver keystone uses Keystone. Where Keystone is, and who asks, is in [oslo_limit]."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types as cfg_types

GROUP = "limits"

OPTS: list[cfg.Opt] = [
    cfg.Opt(
        "keystone_names",
        type=cfg_types.Dict(value_type=cfg_types.String()),
        default={},
        sample_default="gpu:accelerator_gpu,fpga:accelerator_fpga",
        help="What Keystone calls a resource: our name, a colon, the resource name of the registered limit. What is "
        "not named has the same name there (driver keystone).",
    ),
    cfg.FloatOpt(
        "keystone_timeout",
        default=5.0,
        min=0.1,
        help="How long Keystone may take to answer one call, in seconds, where [oslo_limit] timeout is not set "
        "(driver keystone).",
    ),
    cfg.FloatOpt(
        "keystone_cache_ttl",
        default=60.0,
        min=0.0,
        help="How long an answer of Keystone is used, in seconds. A limit that is changed in Keystone is enforced "
        "everywhere after so long. 0 asks each time (driver keystone).",
    ),
    cfg.FloatOpt(
        "keystone_stale_seconds",
        default=600.0,
        min=0.0,
        help="How much longer an answer is used while Keystone cannot be asked, in seconds. After that, reserves fail "
        "with LimitsUnavailable until it answers (driver keystone).",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register these options on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator. The options of [oslo_limit] come from oslo.limit's own entry point."""
    return [(GROUP, OPTS)]
