# SPDX-License-Identifier: Apache-2.0
"""The enforcer for the programs of oslo.policy: oslopolicy-validator, -list-redundant, -policy-generator."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from cyborg_quota import policy
from cyborg_quota.conf import loading


def get_enforcer() -> Any:
    """The entry point oslo.policy.enforcer. Without --config-file, reads the default files of cyborg_quota.

    These programs have parsed their arguments into oslo.config's global object, pass nothing, and read that object
    afterwards; so it is used here, and nowhere else.
    """
    conf = cfg.CONF
    if not conf.config_file and not conf.config_dir:
        files = cfg.find_config_files(project=loading.PROJECT, prog=loading.PROJECT)
        conf([], project=loading.PROJECT, default_config_files=files)
    return policy.make_enforcer(conf)
