# SPDX-License-Identifier: Apache-2.0
"""From a configuration to an engine. The one place that reads options for the engine and its drivers."""

from __future__ import annotations

from oslo_config import cfg

from cyborg_quota import exceptions, plugins
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.ledger.base import QuotaDriver
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.policy import Policy
from cyborg_quota.types import Resource


def make_engine(conf: cfg.ConfigOpts) -> QuotaEngine:
    """An engine as ``conf`` says (see cyborg_quota.conf.register_opts). No I/O: a forked child may use it.

    Raises ConfigurationError for a driver that does not exist, an option that cannot be used, or a conf without them.
    """
    if "quota" not in conf or "limits" not in conf:
        raise exceptions.ConfigurationError(
            "The configuration lacks our options; cyborg_quota.conf.register_opts(conf) adds them."
        )
    limits: LimitDriver = plugins.load("cyborg_quota.limits", "[limits] driver", conf.limits.driver).from_conf(conf)
    driver: QuotaDriver = plugins.load("cyborg_quota.drivers", "[quota] driver", conf.quota.driver).from_conf(
        conf, limits
    )
    engine = QuotaEngine(driver, reservation_expire_seconds=conf.quota.reservation_expire, authority=Policy(conf))
    try:
        engine.register_resources(Resource(name) for name in conf.quota.resources)
    except exceptions.InvalidName as error:
        raise exceptions.ConfigurationError(f"[quota] resources: {error}") from None
    return engine
