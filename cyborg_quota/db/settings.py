# SPDX-License-Identifier: Apache-2.0
"""How to connect to the database and use it."""

from __future__ import annotations

import dataclasses

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.conf.opts import DEFAULT_CONNECTION


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatabaseSettings:
    """Times are in seconds. ``repr()`` omits the URL with its password."""

    url: str = dataclasses.field(repr=False)
    max_pool_size: int = 5
    max_overflow: int = 50
    pool_timeout_seconds: float = 30.0
    """An upper bound: a call waits for a pool connection at most as long as for retries, or for connecting."""
    pool_recycle_seconds: int = 3600
    connect_timeout_seconds: int = 3
    statement_timeout_seconds: int | None = 8
    transaction_pooling: bool = False
    """Whether a pooler may run each transaction on another PostgreSQL connection, so that session settings are lost."""
    allow_idle_in_transaction: bool = False
    """Whether a transaction may be idle for long between two statements: see idle_milliseconds."""
    sqlite_synchronous: bool = True
    sqlite_busy_timeout_seconds: float = 5.0
    mysql_sql_mode: str | None = "TRADITIONAL"
    mysql_wsrep_sync_wait: int | None = None
    retry_seconds: float = 6.0
    retry_first_wait_seconds: float = 0.002
    retry_longest_wait_seconds: float = 0.5

    @property
    def idle_milliseconds(self) -> int | None:
        """After what idle time the server ends an open transaction. None: never, without a statement timeout.

        If a client's machine crashes, the server does not notice, and the rows stay locked until the kernel's keepalive
        closes the connection two hours later. The time is shorter than the statement timeout, so that a transaction
        that waits for these rows gets them. Transactions with long client-side work get longer.
        """
        if self.statement_timeout_seconds is None:
            return None
        return 120_000 if self.allow_idle_in_transaction else self.statement_timeout_seconds * 625


def database_settings(conf: cfg.ConfigOpts) -> DatabaseSettings:
    """The settings of the connection, from [database] and the timeouts in [quota].

    Error messages must not quote the URL and its parameters: they may contain a password.
    """
    options = conf.database
    try:
        url, parameters = options.connection or DEFAULT_CONNECTION, options.connection_parameters
    except cfg.Error:
        raise exceptions.ConfigurationError(
            "[database] connection or connection_parameters names another option: write $$ for a $."
        ) from None
    if parameters and any("=" not in part for part in parameters.split("&")):
        raise exceptions.ConfigurationError("[database] connection_parameters must read name=value&name=value.")
    if parameters:
        url = f"{url}{'&' if '?' in url else '?'}{parameters}"
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
