# SPDX-License-Identifier: Apache-2.0
"""Builds the settings of the database driver from the configuration options."""

from __future__ import annotations

import dataclasses

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.capacity.selection import BestFit, ProviderSelection
from cyborg_quota.conf import plugins
from cyborg_quota.conf.opts import DEFAULT_CONNECTION
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.ledger.enforcers import Enforce
from cyborg_quota.pods.selection import PodSelection


@dataclasses.dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """The settings of DbQuotaDriver. Times are in seconds, batch sizes in rows."""

    database: DatabaseSettings
    expire_grace_seconds: float = 0.0
    batch_rows: int = 2000
    thresholds: tuple[int, ...] = (80, 95)
    least_notified_limit: int = 2
    """A project that holds 1 of 1 causes no notice."""
    least_notified_capacity: int = 32
    """A node whose few accelerators are all in use is usual."""
    selection: ProviderSelection = dataclasses.field(default_factory=BestFit)
    pods: PodSelection = dataclasses.field(default_factory=PodSelection)
    hook: Enforce | None = None
    """What OsloLimitHook asks about each reserve; None: nothing."""


def driver_settings(conf: cfg.ConfigOpts) -> DriverSettings:
    """The settings of DbQuotaDriver, from [quota], [notices] and [database]."""
    return DriverSettings(
        database=database_settings(conf),
        expire_grace_seconds=conf.quota.expire_grace,
        thresholds=tuple(conf.notices.thresholds),
        selection=plugins.load("cyborg_quota.selections", "[capacity] selection", conf.capacity.selection)(),
        pods=PodSelection(
            filters=[plugins.load("cyborg_quota.pod_filters", "[pods] filters", name)() for name in conf.pods.filters],
            weighers=[
                (plugins.load("cyborg_quota.pod_weighers", "[pods] weighers", name)(), multiplier)
                for name, multiplier in conf.pods.weighers.items()
            ],
        ),
    )


def database_settings(conf: cfg.ConfigOpts) -> DatabaseSettings:
    """The settings of the connection, from [database] and the timeouts in [quota]."""
    options = conf.database
    url = _with_parameters(*_connection(conf))
    optional = {
        "max_pool_size": options.max_pool_size,
        "max_overflow": options.max_overflow,
        "pool_timeout_seconds": options.pool_timeout,
        "pool_recycle_seconds": options.connection_recycle_time,
        "mysql_wsrep_sync_wait": options.mysql_wsrep_sync_wait,
    }
    return DatabaseSettings(
        url=url,
        sqlite_synchronous=options.sqlite_synchronous,
        mysql_sql_mode=options.mysql_sql_mode or None,
        connect_timeout_seconds=conf.quota.connect_timeout,
        statement_timeout_seconds=conf.quota.statement_timeout,
        retry_seconds=conf.quota.retry_seconds,
        transaction_pooling=conf.quota.postgresql_pool_mode == "transaction",
        **{name: value for name, value in optional.items() if value is not None},
    )


def _connection(conf: cfg.ConfigOpts) -> tuple[str, str]:
    """The URL and its parameters. Error messages must not quote them: they may contain a password."""
    try:
        return conf.database.connection or DEFAULT_CONNECTION, conf.database.connection_parameters
    except cfg.Error:
        raise exceptions.ConfigurationError(
            "[database] connection or connection_parameters names another option: write $$ for a $."
        ) from None


def _with_parameters(url: str, parameters: str) -> str:
    if not parameters:
        return url
    if any("=" not in part for part in parameters.split("&")):
        raise exceptions.ConfigurationError("[database] connection_parameters must read name=value&name=value.")
    return f"{url}{'&' if '?' in url else '?'}{parameters}"
