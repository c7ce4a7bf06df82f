# SPDX-License-Identifier: Apache-2.0
"""[database]: oslo.db's own group, with an SQLite file as the default connection.

Used are connection, connection_parameters, sqlite_synchronous, mysql_sql_mode, mysql_wsrep_sync_wait, max_pool_size,
max_overflow, pool_timeout and connection_recycle_time. Retries are [quota] retry_seconds' business.
"""

from __future__ import annotations

from oslo_config import cfg
from oslo_db import options

GROUP = "database"
DEFAULT_CONNECTION = "sqlite:///cyborg_quota.sqlite"
"""Where [database] connection is not set: a file in the directory the program runs in."""


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(options.database_opts, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator: oslo.db's options come from oslo.db's own entry point."""
    return []
