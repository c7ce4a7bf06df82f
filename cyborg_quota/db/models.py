# SPDX-License-Identifier: Apache-2.0
"""The tables. Columns that the Cyborg quota-usage specification defines have its names and types.

Names compare by bytes on every database: ``ABC`` and ``abc`` are two projects. MariaDB's default collation would
treat them as equal, so every name column is ``utf8mb4_bin`` there; PostgreSQL and SQLite compare bytes by default.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cyborg_quota.db.migrations.column_types import TABLE, moment, name, path
from cyborg_quota.types import MAX_REASON_CHARS, STATES

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "uq": "uq_%(table_name)s_%(constraint_name)s",
    }
)

quota_usages = sa.Table(
    "quota_usages",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("project_id", name(), nullable=False),
    sa.Column("resource", name(), nullable=False),
    # The pod in which the row counts. "": all pods.
    sa.Column("pod", name(), nullable=False),
    sa.Column("reserved", sa.Integer, nullable=False),
    sa.Column("used", sa.Integer, nullable=False),
    # used + reserved of the project and all its descendants (I9). 64 bits: a tree of full projects still fits.
    sa.Column("subtree", sa.BigInteger, nullable=False),
    # What the project, with all its descendants, can always reach, whatever its siblings do; only where pod is "".
    sa.Column("minimum", sa.Integer, nullable=False, server_default="0"),
    # What the minimums below keep beyond subtree; see db/minimums.py.
    sa.Column("promised", sa.BigInteger, nullable=False, server_default="0"),
    # The meter: at the second t, metered + subtree * t device-seconds were used; see db/meters.py.
    sa.Column("metered", sa.BigInteger, nullable=False, server_default="0"),
    # What purges, resizes, transfers and moves have left in metered.
    sa.Column("meter_base", sa.BigInteger, nullable=False, server_default="0"),
    # The second at which the open month of the meter ends.
    sa.Column("month_ends", sa.Integer, nullable=False, server_default=str(2**31 - 1)),
    # A random number, another one after each move of the project. A charge compares it; see projects.py.
    sa.Column("generation", sa.Integer, nullable=False),
    # The last notified threshold (percent of the limit; 101: over it); see usages.py.
    sa.Column("notified_level", sa.SmallInteger, nullable=False, server_default="0"),
    # (The pod before the resource: whoever reads all that a project holds does not read the rows of the pods.)
    sa.UniqueConstraint("project_id", "pod", "resource", name="project_pod_resource"),
    sa.CheckConstraint("reserved >= 0", name="reserved"),
    sa.CheckConstraint("used >= 0", name="used"),
    sa.CheckConstraint("subtree >= 0", name="subtree"),
    sa.CheckConstraint("minimum >= 0", name="minimum"),
    sa.CheckConstraint("promised >= 0", name="promised"),
    # AUTOINCREMENT never reuses an id, so that a cached id never refers to another project's row. (After a restore it
    # can; then the generation differs.)
    sqlite_autoincrement=True,
    **TABLE,
)

reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("deleted_at", moment()),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    # No foreign key, only an index: with a foreign key, MariaDB's INSERT locks the usage row, which causes deadlocks.
    sa.Column("usage_id", sa.Integer, nullable=False),
    sa.Column("project_id", name(), nullable=False),
    sa.Column("resource", name(), nullable=False),
    sa.Column("delta", sa.Integer, nullable=False),
    sa.Column("expire", moment()),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("consumer_id", name()),
    # A path, such as ``cluster/vm-1``.
    sa.Column("group_id", path()),
    # 1 while reserved or committed, then NULL: a unique key ignores NULLs, so that it constrains only the live rows,
    # also on MariaDB, which has no partial indexes.
    sa.Column("live", sa.SmallInteger),
    # 1, 2, ... over the rows of one claim, in the order of their resources, while they are live and have a consumer:
    # two concurrent claims of one consumer, of any resources, conflict at 1.
    sa.Column("claim_ordinal", sa.SmallInteger),
    # The highest id of a reservation when this one ended: it ended after that reservation was made, and before any
    # with a higher id. NULL while it is live. See record 0009.
    sa.Column("ended_after", sa.Integer),
    # What it has added to metered of its usage row: -delta * the second of its reserve + delta * that of its end.
    sa.Column("meter", sa.BigInteger, nullable=False, server_default="0"),
    # The program that made it, if several share the ledger: see Claim.source. Not indexed: queries by it are rare.
    sa.Column("source", name()),
    # The provider whose capacity it takes, while it is live. NULL: it takes none. Not indexed: only reports and repairs
    # read by it, and an index would cost each reserve without a provider, too.
    sa.Column("provider_id", sa.Integer),
    # The pod in which it is counted, besides all pods: that of its provider when it was made. NULL: in none. Not
    # indexed, as provider_id.
    sa.Column("pod", name()),
    # How often it was resized or transferred; NULL: never. Each call that ends it, or changes it, compares this number:
    # otherwise a process that read the row earlier would give back another amount, or to another project.
    sa.Column("generation", sa.Integer),
    sa.UniqueConstraint("uuid", name="uuid"),
    sa.UniqueConstraint("project_id", "consumer_id", "resource", "live", name="live_consumer"),
    # The consumer first: lists of all projects read by it.
    sa.UniqueConstraint("consumer_id", "project_id", "claim_ordinal", name="live_claim"),
    sa.CheckConstraint("delta > 0", name="delta"),
    sa.CheckConstraint("state IN ({})".format(", ".join(f"'{state}'" for state in STATES)), name="state"),
    # ``deleted`` and ``live`` follow the state.
    sa.CheckConstraint(
        "(state IN ('reserved', 'committed') AND NOT deleted AND live IS NOT NULL AND live = 1)"
        " OR (state IN ('rolled_back', 'expired', 'released') AND deleted AND live IS NULL AND claim_ordinal IS NULL)",
        name="ended",
    ),
    sa.Index("ix_reservations_usage", "usage_id", "state"),
    # Partial on PostgreSQL: a query without a group must not use it (decision record 0022).
    sa.Index("ix_reservations_group", "project_id", "group_id", postgresql_where=sa.text("group_id IS NOT NULL")),
    sa.Index("ix_reservations_group_id", "group_id", postgresql_where=sa.text("group_id IS NOT NULL")),
    sa.Index("ix_reservations_expire", "state", "expire"),
    sa.Index("ix_reservations_deleted_at", "deleted_at"),
    sqlite_autoincrement=True,
    **TABLE,
)

# Each resize and each transfer of a reservation, for the export of the history and for repeated calls. ``generation``
# is that of the reservation after the change. It orders the changes of one reservation: times may come from several
# clocks.
reservation_changes = sa.Table(
    "reservation_changes",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    # Made by the call: a call whose answer was lost finds its own change.
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("reservation_id", sa.Integer, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    # The state of the reservation at that time.
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("project_before", name(), nullable=False),
    sa.Column("project_after", name(), nullable=False),
    sa.Column("delta_before", sa.Integer, nullable=False),
    sa.Column("delta_after", sa.Integer, nullable=False),
    sa.UniqueConstraint("uuid", name="uuid"),
    sa.UniqueConstraint("reservation_id", "generation", name="reservation_generation"),
    sqlite_autoincrement=True,
    **TABLE,
)

# The device-seconds of a usage row from its beginning to the end of each month that a later change has closed: those of
# a month are a difference. Kept when the project is removed. See db/meters.py.
usage_months = sa.Table(
    "usage_months",
    metadata,
    sa.Column("project_id", name(), primary_key=True),
    sa.Column("pod", name(), primary_key=True),
    sa.Column("resource", name(), primary_key=True),
    # The number of months since January 2020.
    sa.Column("month", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("device_seconds", sa.BigInteger, nullable=False),
    **TABLE,
)

# The device-hours that a project, with all below it, may use in a period. See hours/tables.py.
budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("project_id", name(), primary_key=True),
    sa.Column("resource", name(), primary_key=True),
    # Hours.
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("carry", sa.BigInteger, nullable=False),
    # The number of months of each period; NULL: one period, from starts to ends (months since January 2020).
    sa.Column("months", sa.SmallInteger),
    sa.Column("starts", sa.Integer, nullable=False),
    sa.Column("ends", sa.Integer),
    # Whether reserves are refused; otherwise notices alone are sent.
    sa.Column("enforce", sa.Boolean, nullable=False),
    # The last notified threshold (percent), and the first month of the period in which it was reached.
    sa.Column("notified_level", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("notified_period", sa.Integer, nullable=False, server_default="0"),
    **TABLE,
)

# Corrections of what a budget counts, in device-seconds: by the month in which they were made.
budget_adjustments = sa.Table(
    "budget_adjustments",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("project_id", name(), primary_key=True),
    sa.Column("resource", name(), primary_key=True),
    sa.Column("month", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("device_seconds", sa.BigInteger, nullable=False),
    **TABLE,
)

# The resources that are counted besides those of the configuration, and what describes both. See db/resources.py.
resources = sa.Table(
    "resources",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("name", name(), primary_key=True),
    sa.Column("description", name()),
    sa.Column("unit", name()),
    **TABLE,
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("project_id", name(), primary_key=True),
    # NULL is a root; a project without a row is a root too, so an empty table is a flat cloud.
    sa.Column("parent_id", name()),
    # Updated by each transaction that needs the edges at this project not to change; see projects.py.
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Index("ix_projects_parent", "parent_id", "project_id"),
    **TABLE,
)

limit_defaults = sa.Table(
    "limit_defaults",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("resource", name(), primary_key=True),
    sa.Column("hard_limit", sa.BigInteger, nullable=False),
    **TABLE,
)

project_limits = sa.Table(
    "project_limits",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("project_id", name(), primary_key=True),
    # "": over all pods. In the key before the resource, as in quota_usages.
    sa.Column("pod", name(), primary_key=True),
    sa.Column("resource", name(), primary_key=True),
    sa.Column("hard_limit", sa.BigInteger, nullable=False),
    **TABLE,
)

# One row that each change that the history records updates first, to serialize these rare changes.
fences = sa.Table(
    "fences",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("generation", sa.Integer, nullable=False),
    **TABLE,
)

# Limits that apply between starts_at and ends_at, by the clock of the database. Of several at one moment, the one with
# the highest (generation, ordinal) applies; these are of the transaction that made it, as in changes.
limit_overrides = sa.Table(
    "limit_overrides",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("project_id", name(), nullable=False),
    sa.Column("resource", name(), nullable=False),
    sa.Column("hard_limit", sa.BigInteger, nullable=False),
    sa.Column("starts_at", moment(), nullable=False),
    sa.Column("ends_at", moment(), nullable=False),
    sa.Column("reason", name(MAX_REASON_CHARS)),
    sa.Index("ix_limit_overrides_limit", "project_id", "resource"),
    **TABLE,
)

# The history: rows are only added, in the transaction of the change, until they are purged. See change_log.py and
# record 0033.
changes = sa.Table(
    "changes",
    metadata,
    sa.Column("created_at", moment()),
    # The generation of the row in fences that serializes the changes, and the number of the row within its transaction.
    # They order the history: times may come from several clocks.
    sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("user_id", name()),
    sa.Column("user_project_id", name()),
    sa.Column("request_id", name()),
    # The call that made several changes at once, or a limit driver: import, keystone.
    sa.Column("operation", sa.String(16)),
    # The verb, and what was changed: limit, override, project, provider, inventory or pod.
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("subject", sa.String(16), nullable=False),
    # The key of what was changed; the subject decides which of these are set. Of a default: only the resource.
    sa.Column("project_id", name()),
    sa.Column("resource", name()),
    sa.Column("pod", name()),
    sa.Column("provider", name()),
    sa.Column("provider_uuid", sa.String(36)),
    sa.Column("override_id", sa.String(32)),
    # The span of an override.
    sa.Column("starts_at", moment()),
    sa.Column("ends_at", moment()),
    # JSON: a limit, the id of a parent, or the values by name. NULL: it does not exist, or the project is a root.
    sa.Column("value_before", sa.Text),
    sa.Column("value_after", sa.Text),
    sa.Column("reason", name(MAX_REASON_CHARS)),
    sa.Index("ix_changes_project", "project_id", "generation", "ordinal"),
    sa.Index("ix_changes_provider", "provider", "generation", "ordinal"),
    **TABLE,
)

replays = sa.Table(
    "replays",
    metadata,
    # The SHA-256 of the trace, in hexadecimal.
    sa.Column("digest", sa.String(64), primary_key=True),
    # Line 0 has the limits and, once the replay has ended, the last line. Any other line is a reserve that was refused.
    sa.Column("line", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("limits", sa.Text),
    **TABLE,
)

# What has accelerators: a node, a device of a node, a shared pool. The columns are those of the specification "Resource
# Providers - Base Models", plus parent_id and pod.
resource_providers = sa.Table(
    "resource_providers",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("name", name(), nullable=False),
    # Compared and increased by each change of the provider or of its inventories; a claim does not change it.
    sa.Column("generation", sa.Integer, nullable=False),
    # 0: a shared pool, which is claimed by its name, or with ANY for a provider that it serves.
    sa.Column("can_host", sa.SmallInteger, nullable=False),
    sa.Column("parent_id", sa.Integer),
    sa.Column("pod", name()),
    sa.UniqueConstraint("uuid", name="uuid"),
    sa.UniqueConstraint("name", name="name"),
    sa.Index("ix_resource_providers_parent", "parent_id"),
    # An id that is used again would give the ended reservations of one provider to another.
    sqlite_autoincrement=True,
    **TABLE,
)

# The shared pool that serves a provider: what the provider has no inventory of, claims with ANY take from the pool.
provider_associations = sa.Table(
    "provider_associations",
    metadata,
    sa.Column("served_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("provider_id", sa.Integer, nullable=False),
    sa.Index("ix_provider_associations_provider", "provider_id"),
    **TABLE,
)

# How many of one resource a provider has. ``capacity`` and ``free`` are stored, so that the claim compares integers and
# an index on (resource, free) finds the providers that fit: no supported database can index capacity - used directly.
inventories = sa.Table(
    "inventories",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("provider_id", sa.Integer, nullable=False),
    sa.Column("resource", name(), nullable=False),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("reserved", sa.Integer, nullable=False),
    sa.Column("min_unit", sa.Integer, nullable=False),
    sa.Column("max_unit", sa.Integer, nullable=False),
    sa.Column("step_size", sa.Integer, nullable=False),
    # SQLite has no decimal type: it would store a binary fraction.
    sa.Column("allocation_ratio", sa.Numeric(16, 4).with_variant(sa.String(20), "sqlite"), nullable=False),
    # (total - reserved) * allocation_ratio, rounded down.
    sa.Column("capacity", sa.BigInteger, nullable=False),
    # The sum of the deltas of the live reservations at the provider (C1).
    sa.Column("used", sa.BigInteger, nullable=False),
    # capacity - used - used_elsewhere. Negative where the inventory was lowered below its use.
    sa.Column("free", sa.BigInteger, nullable=False),
    # What Placement reports as used by consumers that hold no reservation here. NULL: not known, counts as 0.
    sa.Column("used_elsewhere", sa.BigInteger),
    # The threshold of the capacity that was last reported. NULL: none.
    sa.Column("notified_level", sa.SmallInteger),
    sa.UniqueConstraint("provider_id", "resource", name="provider_resource"),
    sa.CheckConstraint("used >= 0", name="used"),
    # Both have all columns that the search compares, so that it reads no row of a provider that does not fit. (On
    # MariaDB, these rows took more than half of the time of a search that found nothing.)
    sa.Index("ix_inventories_free", "resource", "free", "provider_id", "min_unit", "max_unit", "step_size"),
    sa.Index("ix_inventories_provider", "provider_id", "resource", "free"),
    sqlite_autoincrement=True,
    **TABLE,
)

# The threshold of the capacity of all providers together that was last reported. No row: none.
resource_notices = sa.Table(
    "resource_notices",
    metadata,
    sa.Column("resource", name(), primary_key=True),
    sa.Column("notified_level", sa.SmallInteger, nullable=False),
    **TABLE,
)

# An OpenStack deployment of an availability zone. A provider names its pod.
pods = sa.Table(
    "pods",
    metadata,
    sa.Column("created_at", moment()),
    sa.Column("updated_at", moment()),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", name(), nullable=False),
    # '' where there is none.
    sa.Column("availability_zone", name(), nullable=False),
    # The tags, as JSON with sorted keys.
    sa.Column("resource_affinity", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("weight", sa.Integer, nullable=False),
    # The percentage of the capacity at which the pod counts as full.
    sa.Column("threshold", sa.SmallInteger, nullable=False),
    sa.Column("endpoint", name()),
    # The name of its region in the service catalog.
    sa.Column("region", name()),
    # Increased by each change and by each new binding, which it serializes; see pods.py.
    sa.Column("generation", sa.Integer, nullable=False),
    # The resources whose threshold was reached when it was reported last, as a JSON list. NULL: none.
    sa.Column("notified_resources", sa.Text),
    sa.UniqueConstraint("name", name="name"),
    sqlite_autoincrement=True,
    **TABLE,
)

# The last measurement of each pod. No row: it was never measured.
pod_usages = sa.Table(
    "pod_usages",
    metadata,
    sa.Column("pod_id", sa.Integer, primary_key=True, autoincrement=False),
    # {resource: {"capacity": n, "used": n}}, as JSON.
    sa.Column("usage", sa.Text),
    sa.Column("measured_at", moment()),
    **TABLE,
)

# The pod of a project in one zone, for one set of tags. Ended rows are the history.
pod_bindings = sa.Table(
    "pod_bindings",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("project_id", name(), nullable=False),
    # The zone of the pod. '' where it has none.
    sa.Column("availability_zone", name(), nullable=False),
    # The tags, as JSON with sorted keys, and its SHA-256 in hexadecimal, which fits into a key.
    sa.Column("resource_affinity", sa.Text, nullable=False),
    sa.Column("affinity_hash", sa.String(64), nullable=False),
    sa.Column("pod", name(), nullable=False),
    sa.Column("starts_at", moment(), nullable=False),
    sa.Column("ends_at", moment()),
    sa.Column("reason", sa.String(16), nullable=False),
    # 1 while it is the current binding, then NULL, which a unique key ignores.
    sa.Column("current", sa.SmallInteger),
    # 1 while it is current, if the project had no other binding for these tags when it was made, and of those that
    # replace it; otherwise NULL. Of requests that choose pods in different zones at the same time, one makes the first
    # binding, and the others see it: those that name no zone join it.
    sa.Column("is_first", sa.SmallInteger),
    sa.UniqueConstraint("project_id", "availability_zone", "affinity_hash", "current", name="current"),
    sa.UniqueConstraint("project_id", "affinity_hash", "is_first", name="is_first"),
    sa.Index("ix_pod_bindings_pod", "pod", "current"),
    sqlite_autoincrement=True,
    **TABLE,
)

_CREATE_VIEW: Any = sa.DDL(  # type: ignore[no-untyped-call]
    "CREATE VIEW allocations AS"
    " SELECT id, provider_id AS resource_provider_id, consumer_id, resource AS resource_class, delta AS used"
    " FROM reservations WHERE provider_id IS NOT NULL AND live = 1"
)
_DROP_VIEW: Any = sa.DDL("DROP VIEW IF EXISTS allocations")  # type: ignore[no-untyped-call]

# The table ``allocations`` of the specification: the live reservations that take capacity. PostgreSQL does not drop a
# table that a view reads: the view is created and dropped with the table.
sa.event.listen(reservations, "after_create", _CREATE_VIEW)
sa.event.listen(reservations, "before_drop", _DROP_VIEW)
