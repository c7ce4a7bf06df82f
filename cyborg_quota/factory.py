# SPDX-License-Identifier: Apache-2.0
"""Creates an engine from a configuration. Only this module and the drivers' from_conf read options."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.conf import plugins
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.limits import cadf
from cyborg_quota.limits.sources import keystone_projects
from cyborg_quota.metrics import setup as metrics
from cyborg_quota.policy import Policy

if TYPE_CHECKING:  # the command line's help must not load a database
    from cyborg_quota.driver import DbQuotaDriver
    from cyborg_quota.ledger.limit_source import LimitDriver

_LOOKUP_SECONDS: Final = 10.0
"""A call that changes limits or projects waits at most this time for Keystone."""


def make_engine(conf: cfg.ConfigOpts) -> QuotaEngine:
    """Create an engine from ``conf`` (see cyborg_quota.conf.register_opts). No I/O; usable in forked children.

    Raises ConfigurationError if a driver does not exist, an option is invalid, or the options are not registered.
    """
    if "quota" not in conf or "limits" not in conf:
        raise exceptions.ConfigurationError(
            "The options are not registered: call cyborg_quota.conf.register_opts(conf) first."
        )
    limits: LimitDriver = plugins.load("cyborg_quota.limits", "[limits] driver", conf.limits.driver).from_conf(conf)
    driver: DbQuotaDriver = plugins.load("cyborg_quota.drivers", "[quota] driver", conf.quota.driver).from_conf(
        conf, limits
    )
    lookup = functools.partial(keystone_projects.make_directory, conf, _LOOKUP_SECONDS)
    driver.history.listener = cadf.Sender(conf) if conf.notices.notifications else None
    try:
        return metrics.engine_class(conf)(
            driver,
            resources=conf.quota.resources,
            reservation_expire_seconds=conf.quota.reservation_expire,
            authority=Policy(conf),
            require_reason=conf.limits.require_reason,
            directory=lookup if plugins.has_credentials(conf) else None,
        )
    except exceptions.InvalidName as error:
        raise exceptions.ConfigurationError(f"[quota] resources: {error}") from None
