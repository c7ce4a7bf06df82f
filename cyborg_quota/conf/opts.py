# SPDX-License-Identifier: Apache-2.0
"""The options, by group. [limits] has those of all limit drivers (for Keystone, more are in [oslo_limit]).

[database] is the group of oslo.db. Used are connection, connection_parameters, sqlite_synchronous, mysql_sql_mode,
mysql_wsrep_sync_wait, max_pool_size, max_overflow, pool_timeout and connection_recycle_time. [quota] retry_seconds
controls the retries.
"""

from __future__ import annotations

from oslo_config import cfg, types
from oslo_db import options as oslo_db_options

from cyborg_quota.validation import MAX_EXPIRE_SECONDS

DEFAULT_CONNECTION = "sqlite:///cyborg_quota.sqlite"
"""The default of [database] connection: a file in the working directory."""
KEYSTONE_AUTH, NO_AUTH = "keystone", "noauth"
_INITIAL_LIMIT = r"^(default|-1|[0-9]{1,19})$"

OPTIONS: dict[str, list[cfg.Opt]] = {
    "quota": [
        cfg.StrOpt(
            "driver",
            default="db",
            help="The driver that stores usage and reservations, a name in the entry points cyborg_quota.drivers.",
        ),
        cfg.ListOpt(
            "resources",
            default=["fpga", "gpu"],
            help="The resources that are counted, besides those that programs and `cyborg-quota resource create` add. "
            "A request for any other resource is refused.",
        ),
        cfg.IntOpt(
            "reservation_expire",
            default=86400,
            min=1,
            max=MAX_EXPIRE_SECONDS,
            help="The default lifetime of a reservation, in seconds, if the caller gives none. A reservation that is "
            "neither committed nor rolled back occupies quota until then.",
        ),
        cfg.FloatOpt(
            "expire_grace",
            default=0.0,
            min=0.0,
            max=86400.0,
            help="Seconds between the expiry of a reservation and the time at which it is overdue. Set this to the "
            "maximum difference between the clocks of the database nodes (Galera: each node has a clock; one server: "
            "0).",
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
            max=MAX_EXPIRE_SECONDS,
            help="Seconds for which an ended reservation is kept. Until it is purged, a late or repeated call gets "
            "the correct answer about it.",
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
            help="The timeout of one statement in MariaDB, MySQL or PostgreSQL, in seconds. After it, the connection "
            "is closed (drivers PyMySQL and psycopg2). Audits and lists may take longer, but not in the REST API.",
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
    ],
    "limits": [
        cfg.StrOpt(
            "driver",
            default="noop",
            help="The limit driver, a name in the entry points cyborg_quota.limits. noop: no limits, only counting. "
            "config: the limits of [limits] limits. database: limits and the project tree are stored in the tables of "
            "cyborg_quota. keystone: Keystone's unified limits.",
        ),
        cfg.StrOpt(
            "missing",
            default="refuse",
            choices=[
                ("refuse", "requests are refused with an error that says how to set a limit"),
                ("unlimited", "usage is counted, and requests are not refused"),
            ],
            help="How to treat a resource for which no limit is set (drivers database and keystone).",
        ),
        cfg.StrOpt(
            "enforcement_model",
            sample_default="strict_hierarchy",
            help="The enforcement model: which limits may be set in the project tree, and which usage they limit. With "
            "the driver database, a name in the entry points cyborg_quota.policies, by default strict_hierarchy. "
            "strict_hierarchy: the sum of the limits of the children must not exceed the limit of the parent. "
            "strict_two_level: two levels; no limit of a child exceeds that of its parent, but their sum may "
            "(overbooking). flat: each project is limited alone. With the driver keystone, by default the model of "
            "Keystone; strict_hierarchy: Keystone's model is flat, and each limit of a project limits it together with "
            "its descendants, in the tree of Keystone's projects.",
        ),
        cfg.StrOpt(
            "child_initial_limit",
            default="0",
            regex=_INITIAL_LIMIT,
            help="The initial limit of a project that has a parent, used until one is set: a number, or default for "
            "the default of the resource (driver database).",
        ),
        cfg.StrOpt(
            "root_initial_limit",
            default="default",
            regex=_INITIAL_LIMIT,
            help="The initial limit of a root project: a number, or default (driver database).",
        ),
        cfg.BoolOpt(
            "require_reason",
            default=False,
            help="Whether each change of limits or of the project tree by an administrator needs a reason, which the "
            "history records (--reason).",
        ),
        cfg.IntOpt(
            "history_age",
            min=86400,
            help="Seconds for which the history is kept; by default it is kept forever. "
            "cyborg-quota-expirer deletes older entries. The entries of an override are kept until it has ended that "
            "long ago.",
        ),
        cfg.Opt(
            "limits",
            type=types.Dict(value_type=types.Integer(min=-1)),
            default={},
            sample_default="fpga:5,gpu:10",
            help="The limit of each resource, the same for all projects (driver config): fpga:5,gpu:10. -1 means "
            "unlimited, 0 permits nothing, and a resource that is not listed is unlimited.",
        ),
        cfg.Opt(
            "keystone_names",
            type=types.Dict(value_type=types.String()),
            default={},
            sample_default="gpu:accelerator_gpu,fpga:accelerator_fpga",
            help="The names of resources in Keystone: the name in cyborg_quota, a colon, the resource name of the "
            "registered limit. A resource that is not listed has the same name in Keystone (driver keystone).",
        ),
        cfg.FloatOpt(
            "keystone_cache_ttl",
            default=60.0,
            min=0.0,
            help="Seconds for which a response of Keystone is cached. A limit that is changed in Keystone is enforced "
            "everywhere after this time. 0 disables the cache (driver keystone).",
        ),
        cfg.FloatOpt(
            "keystone_stale_seconds",
            default=600.0,
            min=0.0,
            help="Seconds beyond keystone_cache_ttl for which cached responses are used while Keystone is "
            "unavailable. After that, reserves fail with LimitsUnavailable until Keystone responds (driver keystone).",
        ),
    ],
    "notices": [
        cfg.ListOpt(
            "thresholds",
            item_type=types.Integer(min=1, max=100),
            default=[80, 95],
            help="Percentages of a limit. cyborg-quota-expirer logs a notice when the usage of a project reaches one, "
            "and another when it falls below it. A limit of 1, and a provider with a capacity below 32, have no "
            "thresholds. Usage above the limit (after it was lowered) always causes a notice. Those of a budget are "
            "80 and 100 percent.",
        ),
        cfg.BoolOpt(
            "notifications",
            default=False,
            help="Send each notice also as an oslo.messaging notification (event type cyborg_quota.threshold, for "
            "capacity cyborg_quota.capacity_threshold, for a pod cyborg_quota.pod_threshold, for a budget "
            "cyborg_quota.budget_threshold), and each change of a limit, a budget or the project tree as a CADF event "
            "(event types cyborg_quota.limit.*, cyborg_quota.minimum.*, cyborg_quota.override.*, cyborg_quota.budget.* "
            "and cyborg_quota.project.*), over the transport of [oslo_messaging_notifications].",
        ),
    ],
    "capacity": [
        cfg.StrOpt(
            "selection",
            default="best_fit",
            help="Which of the providers that fit takes a claim that names no provider: best_fit leaves the least "
            "free, spread leaves the most free, first takes the provider that was added first. An entry point of "
            "cyborg_quota.selections.",
        ),
    ],
    "pods": [
        cfg.ListOpt(
            "filters",
            default=["AvailabilityZone", "ResourceAffinity", "Capacity"],
            help="The filters that a pod must pass before a project is bound to it. AllPods passes every pod; "
            "AvailabilityZone those in the requested zone; ResourceAffinity those with the requested tags; Capacity "
            "those whose last measurement is below their threshold. Entry points of cyborg_quota.pod_filters.",
        ),
        cfg.Opt(
            "weighers",
            type=types.Dict(types.Float()),
            default={"weight": 1000.0, "creation_time": 1.0},
            sample_default="weight:1000,creation_time:1",
            help="The weighers and their multipliers. Each weigher gives every pod that passes the filters a weight, "
            "scaled to the range from 0 to 1. The pod with the highest sum of weights times multipliers is selected. "
            "weight: the weight of the pod; creation_time: the pod that was added first; idle_capacity: the largest "
            "free share. Entry points of cyborg_quota.pod_weighers.",
        ),
        cfg.IntOpt(
            "collect_interval",
            default=86400,
            min=0,
            help="Seconds between two measurements of each pod by cyborg-quota-expirer, as `pod measure` makes "
            "them; of several expirers, each may do so. A pod that does not answer is tried again after ten minutes. "
            "0: never.",
        ),
    ],
    "budgets": [
        cfg.IntOpt(
            "hours_ahead",
            default=1,
            min=1,
            max=8784,
            help="A reserve is refused if the hours that are left of a budget do not last this many hours for all that "
            "is held then. Nothing is taken away when a budget is spent: with a longer time, less is used beyond it.",
        ),
    ],
    "metrics": [
        cfg.ListOpt(
            "listen",
            item_type=types.String(regex=r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$"),
            default=[],
            sample_default="127.0.0.1:9877,127.0.0.1:9878",
            help="The addresses at which the conductor and cyborg-quota-expirer serve their counters for Prometheus, "
            "without authentication. Each process uses the first one that is free; if none is, it logs that and runs "
            "without. Empty: nothing is counted. Needs cyborg_quota[metrics].",
        ),
        cfg.ListOpt(
            "projects",
            default=[],
            sample_default="*",
            help="The ids of the projects of which cyborg_quota.metrics.wsgi exports the limit, the usage and the "
            "headroom; * means all. Whoever can reach its port can read them.",
        ),
        cfg.BoolOpt(
            "project_names",
            default=False,
            help="Also export the names of these projects, as cyborg_quota_project_info. A scrape reads them from "
            "Keystone, with the credentials of [oslo_limit], at most once an hour and within 2 seconds.",
        ),
        cfg.IntOpt(
            "audit_interval",
            default=3600,
            min=0,
            help="Seconds between two audits of all counters by cyborg-quota-expirer, for cyborg_quota_drift_rows. An "
            "audit reads all live reservations. 0: no audits.",
        ),
    ],
    "api": [
        cfg.IntOpt(
            "max_limit",
            default=1000,
            min=1,
            max=10_000,
            help="The maximum number of entries of a page, also if a request asks for more.",
        ),
        cfg.StrOpt(
            "auth",
            default=KEYSTONE_AUTH,
            choices=[
                (KEYSTONE_AUTH, "keystonemiddleware validates the token of each request"),
                (NO_AUTH, "no token is needed: each client may claim to be any user, also an admin. For tests only"),
            ],
            help="Who says which user makes a request of the REST API. Under Cyborg's API, its api-paste.ini needs "
            "keystonemiddleware.",
        ),
    ],
    "cyborg": [
        cfg.MultiStrOpt(
            "resource_rule",
            default=[
                "FPGA: fpga",
                "GPU: gpu",
                "PGPU: gpu",
                "VGPU: vgpu",
                "CUSTOM_QAT: qat",
                "CUSTOM_NIC: nic",
                "CUSTOM_SSD: ssd",
                "CUSTOM_PCI: pci",
            ],
            help="The resources that an accelerator is charged as, by the resource class and the required traits of "
            "its device profile group: `CLASS [TRAIT ...]: RESOURCE[=WEIGHT] ...`. All matching rules apply: "
            "`PGPU: gpu` and `PGPU CUSTOM_GPU_A100: gpu.A100` charge an A100 to both resources, and either limit "
            "can refuse it. A weight charges that amount, so that devices of different sizes share one limit or "
            "one budget: `PGPU: gpu su=12`; the largest of several weights of one resource is charged. * matches "
            "any characters in a class or trait. May be given several times; the given rules replace the default.",
        ),
        cfg.StrOpt(
            "unmapped",
            default="refuse",
            choices=[
                ("refuse", "the accelerator cannot be bound, and the error names the class"),
                ("ignore", "the accelerator is bound and not counted"),
            ],
            help="How to treat a resource class that no rule matches, or whose resources are not all in [quota] "
            "resources.",
        ),
        cfg.IntOpt(
            "bind_expire",
            default=600,
            min=3,
            max=MAX_EXPIRE_SECONDS,
            help="The lifetime of the reservation of a bind, in seconds. It is extended while the bind runs. After a "
            "crash of the conductor, the quota is occupied for this time.",
        ),
        cfg.IntOpt(
            "reconcile_interval",
            default=3600,
            min=0,
            help="Seconds between two comparisons of all charges in the ledger with Cyborg's records by the "
            "conductor. 0: never, except at its start and after a failure.",
        ),
        cfg.IntOpt(
            "reconcile_seconds",
            default=15,
            min=1,
            help="Seconds between two comparisons of what changed in Cyborg lately, and of the reservations in "
            "flight, by the conductor. It reads the requests that were changed in the last minute.",
        ),
        cfg.BoolOpt(
            "reconcile_heal",
            default=True,
            help="Whether the conductor and the API repair the charges that differ from Cyborg's records: commit and "
            "charge what is attached, and release what is not. False: the conductor logs the differences, every "
            "reconcile_interval.",
        ),
        cfg.StrOpt(
            "source",
            help="The name that this Cyborg stores with its charges. Required: the name of its region. All hosts of a "
            "Cyborg use the same name, and each Cyborg on a ledger has its own: a repair releases the charges of its "
            "source that are not in this Cyborg's records, and never changes those of other sources.",
        ),
        cfg.IntOpt(
            "reconcile_grace",
            default=10,
            min=0,
            help="Seconds a discrepancy must persist before it is reported or repaired, so that running binds can "
            "finish.",
        ),
        cfg.IntOpt(
            "reconcile_share",
            default=10,
            min=0,
            max=100,
            help="The maximum share of the compared accelerators that one reconciliation may change, in percent. More "
            "changes require --force. Up to ten changes are always permitted.",
        ),
        cfg.IntOpt(
            "max_unbound_requests",
            default=1000,
            min=-1,
            help="The maximum number of accelerator requests without an instance in a project. A POST that would "
            "exceed it is refused with 403. -1: no limit. This protects Cyborg's table from a project that creates "
            "requests without end. It is not exact: concurrent POSTs may together exceed it by the number of requests "
            "they create. Nova creates the requests of a server before it binds them: choose a number above the sum "
            "for all servers that a project starts at the same time. Each POST reads up to this number of rows.",
        ),
        cfg.BoolOpt(
            "claim_capacity",
            default=False,
            help="Whether a bind also claims capacity, at the provider of the accelerator or else at its host. Enable "
            "it after a first `cyborg-quota capacity import`. A device whose provider and host are not imported is "
            "charged to the quota only.",
        ),
        cfg.StrOpt(
            "pod",
            help="The name of the pod to which this Cyborg belongs, if there are several: a bind counts in this pod, "
            "whose limits apply, and which must be available. With claim_capacity, the pod is that of the provider.",
        ),
        cfg.MultiStrOpt(
            "config_file",
            default=[],
            help="The configuration files of Cyborg, for the commands that read its records. Default: the default "
            "files of Cyborg, such as /etc/cyborg/cyborg.conf. The conductor does not need it.",
        ),
    ],
    "database": oslo_db_options.database_opts,
}
"""{group: its options}."""

HOST_GROUP = "cyborg_quota"
HOST_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "config_file",
        default=[],
        help="The configuration files of cyborg_quota; set in Cyborg's configuration. Default: cyborg_quota.conf in "
        "~/.cyborg_quota, ~, /etc/cyborg_quota or /etc.",
    ),
]
"""Set in the configuration of Cyborg: the option names the configuration files of cyborg_quota."""


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register every option of cyborg_quota on ``conf``. May be called twice."""
    for group, options in OPTIONS.items():
        conf.register_opts(options, group=group)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """(group, options), for oslo.config's generator. Without [database]: oslo.db has an entry point of its own."""
    return [(group, options) for group, options in OPTIONS.items() if group != "database"]
