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

OPTS: list[cfg.Opt] = options.database_opts
