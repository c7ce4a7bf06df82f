# SPDX-License-Identifier: Apache-2.0
"""[limits] keystone_*: options of the driver keystone. The URL and the credentials are in [oslo_limit]."""

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
        help="The names of resources in Keystone: the name in cyborg_quota, a colon, the resource name of the "
        "registered limit. A resource that is not listed has the same name in Keystone (driver keystone).",
    ),
    cfg.FloatOpt(
        "keystone_cache_ttl",
        default=60.0,
        min=0.0,
        help="Seconds for which a response of Keystone is cached. A limit that is changed in Keystone is enforced "
        "everywhere after this time. 0 disables the cache (driver keystone).",
    ),
    cfg.FloatOpt(
        "keystone_stale_seconds",
        default=600.0,
        min=0.0,
        help="Seconds beyond keystone_cache_ttl for which cached responses are used while Keystone is unavailable. "
        "After that, reserves fail with LimitsUnavailable until Keystone responds (driver keystone).",
    ),
]


def has_credentials(conf: cfg.ConfigOpts) -> bool:
    """Whether the loaded configuration has credentials for Keystone, in [oslo_limit].

    Reads the files again with a separate object, because only keystoneauth1 can register its options, and its import
    takes half a second.
    """
    names = ("auth_type", "auth_section")
    probe = cfg.ConfigOpts()
    probe.register_opts([cfg.StrOpt(name) for name in names], group="oslo_limit")
    probe([], default_config_files=conf.config_file or [], default_config_dirs=conf.config_dir or [])
    return any(probe.oslo_limit[name] for name in names)
