# SPDX-License-Identifier: Apache-2.0
"""The one charger of a Cyborg process. Cyborg makes its objects by class; what they charge with must be found here."""

from __future__ import annotations

import functools
from typing import Any

from oslo_config import cfg

import cyborg_quota
from cyborg_quota.conf import cyborg as options
from cyborg_quota.conf import loading
from cyborg_quota.integrations.cyborg.charging import Charger
from cyborg_quota.integrations.cyborg.mapping import ResourceMap


@functools.cache
def conf() -> cfg.ConfigOpts:
    """cyborg_quota's own configuration, from where Cyborg's says. Raises cfg.Error.

    A ConfigOpts of its own: both have a group [database].
    """
    host: Any = cfg.CONF  # Cyborg's
    options.register_host_opts(host)
    arguments = [part for path in host.cyborg_quota.config_file for part in ("--config-file", path)]
    return loading.load(cfg.ConfigOpts(), arguments, version=cyborg_quota.__version__)


@functools.cache
def charger() -> Charger:
    """Made at the first call, without I/O: a forked child may use it. Raises ConfigurationError, cfg.Error."""
    return Charger(cyborg_quota.make_engine(conf()), bind_expire_seconds=conf().cyborg.bind_expire)


@functools.cache
def resource_map() -> ResourceMap:
    """What accelerators are charged as. Raises ConfigurationError, cfg.Error."""
    return ResourceMap.from_conf(conf())
