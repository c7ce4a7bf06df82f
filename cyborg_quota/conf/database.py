# SPDX-License-Identifier: Apache-2.0
"""[database]: the group of oslo.db, with an SQLite file as the default connection.

Used are connection, connection_parameters, sqlite_synchronous, mysql_sql_mode, mysql_wsrep_sync_wait, max_pool_size,
max_overflow, pool_timeout and connection_recycle_time. [quota] retry_seconds controls the retries.
"""

from __future__ import annotations

from oslo_config import cfg
from oslo_db import options

GROUP = "database"
DEFAULT_CONNECTION = "sqlite:///cyborg_quota.sqlite"
"""The default of [database] connection: a file in the working directory."""


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(options.database_opts, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Empty: the generator gets these options from the entry point of oslo.db."""
    return []
