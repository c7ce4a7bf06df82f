# SPDX-License-Identifier: Apache-2.0
"""[quota]: the counted resources, the lifetime of reservations, and database limits."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types as cfg_types

GROUP = "quota"

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "driver",
        default="db",
        help="The driver that stores usage and reservations, a name in the entry points cyborg_quota.drivers.",
    ),
    cfg.ListOpt(
        "resources",
        default=["fpga", "gpu"],
        help="The resources that are counted. A request for any other resource is refused.",
    ),
    cfg.Opt(
        "resource_descriptions",
        type=cfg_types.Dict(),
        default={},
        sample_default="fpga:Programmable accelerator,gpu:Graphics accelerator of any model",
        help="What each resource is, and in which unit it is counted, for display (cyborg-quota resource list). The "
        "text must not contain a comma.",
    ),
    cfg.IntOpt(
        "reservation_expire",
        default=86400,
        min=1,
        help="The default lifetime of a reservation, in seconds, if the caller gives none. A reservation that is "
        "neither committed nor rolled back occupies quota until then.",
    ),
    cfg.FloatOpt(
        "expire_grace",
        default=0.0,
        min=0.0,
        help="Seconds between the expiry of a reservation and the time at which it is overdue. Set this to the maximum "
        "difference between the clocks of the database nodes (Galera: each node has a clock; one server: 0).",
    ),
    cfg.IntOpt(
        "expire_interval",
        default=60,
        min=1,
        help="Seconds between two runs of cyborg-quota-expirer: of expiry, purge and notices of thresholds.",
    ),
    cfg.IntOpt(
        "purge_age",
        default=30 * 86400,
        min=0,
        help="Seconds for which an ended reservation is kept. Until it is purged, a late or repeated call gets the "
        "correct answer about it.",
    ),
    cfg.FloatOpt(
        "retry_seconds",
        default=6.0,
        min=0.0,
        help="Seconds for which a transaction is retried after a deadlock, a Galera certification failure, a lost "
        "connection or a busy SQLite file, before DatabaseUnavailable is raised.",
    ),
    cfg.IntOpt(
        "connect_timeout",
        default=3,
        min=1,
        help="The timeout of one attempt to connect to MariaDB, MySQL or PostgreSQL, in seconds.",
    ),
    cfg.IntOpt(
        "statement_timeout",
        default=8,
        min=1,
        help="The timeout of one statement in MariaDB, MySQL or PostgreSQL, in seconds. After it, the connection is "
        "closed (drivers PyMySQL and psycopg2). Audits and lists may take longer.",
    ),
    cfg.StrOpt(
        "postgresql_pool_mode",
        default="session",
        choices=[
            ("session", "there is no pooler, or a client keeps one server connection until it disconnects"),
            ("transaction", "each transaction of a client may use another server connection"),
        ],
        help="The pool_mode of PgBouncer, or of another connection pooler, between cyborg_quota and PostgreSQL.",
    ),
]
