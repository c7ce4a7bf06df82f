# SPDX-License-Identifier: Apache-2.0
"""From a configuration to an engine. The one place that reads options for the engine and its drivers."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg
from stevedore import driver as stevedore_driver
from stevedore import exception as stevedore_exception

from cyborg_quota import exceptions
from cyborg_quota.drivers.base import QuotaDriver
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.types import Resource


def make_engine(conf: cfg.ConfigOpts) -> QuotaEngine:
    """An engine as ``conf`` says (see cyborg_quota.conf.register_opts). No I/O: a forked child may use it.

    Raises ConfigurationError for a driver that does not exist or an option that cannot be used.
    """
    limits: LimitDriver = _load("cyborg_quota.limits", "[limits] driver", conf.limits.driver).from_conf(conf)
    driver: QuotaDriver = _load("cyborg_quota.drivers", "[quota] driver", conf.quota.driver).from_conf(conf, limits)
    engine = QuotaEngine(driver, reservation_expire_seconds=conf.quota.reservation_expire)
    try:
        engine.register_resources(Resource(name) for name in conf.quota.resources)
    except exceptions.InvalidName as error:
        raise exceptions.ConfigurationError(f"[quota] resources: {error}") from None
    return engine


def _load(namespace: str, option: str, name: str) -> Any:
    try:
        return stevedore_driver.DriverManager(namespace, name, warn_on_missing_entrypoint=False).driver
    except stevedore_exception.NoMatches:
        raise exceptions.ConfigurationError(
            f"{option} = {name}: no such entry point in {namespace}. Is the package that brings it installed?"
        ) from None
