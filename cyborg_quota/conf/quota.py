# SPDX-License-Identifier: Apache-2.0
"""[quota]: what is counted, how long a reservation lives, what becomes of it after."""

from __future__ import annotations

from oslo_config import cfg

GROUP = "quota"

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "driver",
        default="db",
        help="What keeps usage and reservations: a name in the entry points cyborg_quota.drivers.",
    ),
    cfg.ListOpt(
        "resources",
        default=["fpga", "gpu"],
        help="The resources that are counted. A request for any other is refused.",
    ),
    cfg.IntOpt(
        "reservation_expire",
        default=86400,
        min=1,
        help="How long a reservation lives when the caller does not say, in seconds. An attach that nobody commits "
        "or rolls back keeps its quota for so long.",
    ),
    cfg.FloatOpt(
        "expire_grace",
        default=0.0,
        min=0.0,
        help="How long after its expiry a reservation is still not overdue, in seconds. Set it to the most that the "
        "clocks of the database's nodes can differ (Galera: each node has its own; one server: 0).",
    ),
    cfg.IntOpt(
        "max_open_reservations",
        default=10_000,
        min=-1,
        help="How many reservations of one resource a project may have open (neither committed nor ended) at a time, "
        "at most half of them with negative amounts; more are refused with TooManyOpenReservations. It keeps one "
        "project from filling the table. -1 is unlimited; 0 is refused, for nothing could be reserved.",
    ),
    cfg.IntOpt(
        "expire_interval",
        default=60,
        min=1,
        help="How often cyborg-quota-expirer looks for overdue reservations, in seconds.",
    ),
    cfg.IntOpt(
        "purge_interval",
        default=3600,
        min=1,
        help="How often cyborg-quota-expirer purges, in seconds.",
    ),
    cfg.IntOpt(
        "purge_age",
        default=30 * 86400,
        min=0,
        help="How long a reservation is kept after it ended, in seconds. As long as it is kept, a late or repeated "
        "call gets a true answer about it.",
    ),
    cfg.IntOpt(
        "batch_rows",
        default=2000,
        min=1,
        max=10_000,
        help="How many reservations one transaction of expiry or purge takes at most. So many while nobody reserves; "
        "else so few that it takes some milliseconds.",
    ),
    cfg.FloatOpt(
        "retry_seconds",
        default=6.0,
        min=0.0,
        help="How long a transaction is tried again, in seconds, after a deadlock, a Galera certification failure, "
        "a lost connection or a busy SQLite file, before the caller gets DatabaseUnavailable.",
    ),
    cfg.IntOpt(
        "connect_timeout",
        default=3,
        min=1,
        help="How long one attempt to connect to MariaDB, MySQL or PostgreSQL may take, in seconds.",
    ),
    cfg.IntOpt(
        "statement_timeout",
        default=8,
        min=1,
        help="How long MariaDB, MySQL or PostgreSQL may take to answer one statement, in seconds, before the "
        "connection is given up (drivers PyMySQL and psycopg2). Audits and lists "
        "may take longer.",
    ),
    cfg.StrOpt(
        "postgresql_pool_mode",
        default="session",
        choices=[
            ("session", "there is no pooler, or a client keeps one connection of PostgreSQL until it disconnects"),
            ("transaction", "each transaction of a client may run on another connection of PostgreSQL"),
        ],
        help="The pool_mode of PgBouncer, or of another pooler, between cyborg_quota and PostgreSQL.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator."""
    return [(GROUP, OPTS)]
