# SPDX-License-Identifier: Apache-2.0
"""The one charger of a Cyborg process. Cyborg makes its objects by class; what they charge with must be found here."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Collection
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

import cyborg_quota
from cyborg_quota.conf import cyborg as options
from cyborg_quota.conf import loading
from cyborg_quota.integrations.cyborg import mapping
from cyborg_quota.integrations.cyborg.bind_tracker import BindTracker
from cyborg_quota.integrations.cyborg.diff import Attached
from cyborg_quota.integrations.cyborg.mapping import ResourceMap

LOG = logging.getLogger(__name__)


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
def charger() -> BindTracker:
    """Made at the first call, without I/O: a forked child may use it. Raises ConfigurationError, cfg.Error."""
    made = BindTracker(
        cyborg_quota.make_engine(conf()),
        bind_expire_seconds=conf().cyborg.bind_expire,
        source=mapping.source(conf()),
        bound_of=_bound_of,
    )
    atexit.register(made.close)
    return made


def _bound_of(arqs: Collection[str]) -> dict[str, Attached]:
    from cyborg_quota.integrations.cyborg import arq_records  # which opens Cyborg's database

    return arq_records.Records(resource_map()).bound_of(arqs)


@functools.cache
def resource_map() -> ResourceMap:
    """What accelerators are charged as. Raises ConfigurationError, cfg.Error."""
    return ResourceMap.from_conf(conf())


def log_start(service: str) -> None:
    """Log in one line what this process runs with. Raises ConfigurationError, cfg.Error."""
    read = conf()
    LOG.info(
        "cyborg_quota %s in Cyborg's %s: ledger %s, limit driver %s, source %s, rules %s, heal %s.",
        cyborg_quota.__version__,
        service,
        charger().engine.location,
        read.limits.driver,
        mapping.source(read),
        "; ".join(str(rule) for rule in resource_map().rules_in_force) or "none",
        read.cyborg.reconcile_heal if read.cyborg.reconcile_interval else "off",
    )
