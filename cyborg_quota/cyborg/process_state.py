# SPDX-License-Identifier: Apache-2.0
"""The BindTracker and the configuration of a Cyborg process.

They are global, because Cyborg creates its objects from their classes, without arguments of ours.
"""

from __future__ import annotations

import functools
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

import cyborg_quota
from cyborg_quota.conf import loading, opts, resource_rules
from cyborg_quota.conf.resource_rules import ResourceMap
from cyborg_quota.cyborg import cyborg_host
from cyborg_quota.cyborg.bind_tracker import BindTracker
from cyborg_quota.cyborg.repair import Repair

LOG = logging.getLogger(__name__)


@functools.cache
def conf() -> cfg.ConfigOpts:
    """The configuration of cyborg_quota, from the files named in Cyborg's configuration. Raises cfg.Error.

    It is a separate ConfigOpts, because Cyborg and cyborg_quota both have a group [database].
    """
    host: Any = cfg.CONF  # Cyborg's
    host.register_opts(opts.HOST_OPTS, group=opts.HOST_GROUP)
    arguments = [part for path in host.cyborg_quota.config_file for part in ("--config-file", path)]
    return loading.load(cfg.ConfigOpts(), arguments)


@functools.cache
def bind_tracker() -> BindTracker:
    """The BindTracker of this process. Raises ConfigurationError, cfg.Error.

    Created by the first call, without I/O, so that a forked child may use it.
    """
    return BindTracker(
        cyborg_quota.make_engine(conf()),
        bind_expire_seconds=conf().cyborg.bind_expire,
        want_repair=lambda: repair().want_all(),
    )


@functools.cache
def repair() -> Repair:
    """The repair of the ledger by this process."""
    return Repair(
        lambda: cyborg_host.reconciler(conf(), bind_tracker().engine, cyborg_host.new_records(conf())),
        bind_tracker().guard.reaches,
        is_healing=conf().cyborg.reconcile_heal,
    )


@functools.cache
def resource_map() -> ResourceMap:
    """The resource rules in force. Raises ConfigurationError, cfg.Error."""
    return ResourceMap.from_conf(conf())


def log_start(service: str) -> None:
    """Log the main settings of this process in one line. Raises ConfigurationError, cfg.Error."""
    settings = conf()
    resource_rules.pod(settings)  # reports a wrong configuration
    LOG.info(
        "cyborg_quota %s in Cyborg's %s: ledger %s, limit driver %s, source %s, rules %s, heal %s.",
        cyborg_quota.__version__,
        service,
        bind_tracker().engine.location,
        settings.limits.driver,
        resource_rules.source(settings),
        "; ".join(settings.cyborg.resource_rule),
        "on" if settings.cyborg.reconcile_heal else "off",
    )
