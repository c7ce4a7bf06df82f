# SPDX-License-Identifier: Apache-2.0
"""The tables, the view ``allocations``, and the server's functions of reserve and settle.

They do not follow the models, and never change once they are released. Constraints have their complete names: the
naming convention of the models does not apply here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db import dialects
from cyborg_quota.db.migrations import column_types

revision = "0001"
down_revision = None

_metadata = sa.MetaData()

sa.Table(
    "quota_usages",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("pod", column_types.name(), nullable=False),
    sa.Column("reserved", sa.Integer, nullable=False),
    sa.Column("used", sa.Integer, nullable=False),
    sa.Column("subtree", sa.BigInteger, nullable=False),
    sa.Column("minimum", sa.Integer, nullable=False, server_default="0"),
    sa.Column("promised", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("metered", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("meter_base", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("month_ends", sa.Integer, nullable=False, server_default="2147483647"),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("notified_level", sa.SmallInteger, nullable=False, server_default="0"),
    sa.PrimaryKeyConstraint("id", name="pk_quota_usages"),
    sa.UniqueConstraint("project_id", "pod", "resource", name="uq_quota_usages_project_pod_resource"),
    sa.CheckConstraint("reserved >= 0", name="ck_quota_usages_reserved"),
    sa.CheckConstraint("used >= 0", name="ck_quota_usages_used"),
    sa.CheckConstraint("subtree >= 0", name="ck_quota_usages_subtree"),
    sa.CheckConstraint("minimum >= 0", name="ck_quota_usages_minimum"),
    sa.CheckConstraint("promised >= 0", name="ck_quota_usages_promised"),
    sqlite_autoincrement=True,
    **column_types.TABLE,
)
sa.Table(
    "reservations",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("deleted_at", column_types.moment()),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("usage_id", sa.Integer, nullable=False),
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("delta", sa.Integer, nullable=False),
    sa.Column("expire", column_types.moment()),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("consumer_id", column_types.name()),
    sa.Column("group_id", column_types.path()),
    sa.Column("live", sa.SmallInteger),
    sa.Column("claim_ordinal", sa.SmallInteger),
    sa.Column("ended_after", sa.Integer),
    sa.Column("meter", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("source", column_types.name()),
    sa.Column("provider_id", sa.Integer),
    sa.Column("pod", column_types.name()),
    sa.Column("generation", sa.Integer),
    sa.PrimaryKeyConstraint("id", name="pk_reservations"),
    sa.UniqueConstraint("uuid", name="uq_reservations_uuid"),
    sa.UniqueConstraint("project_id", "consumer_id", "resource", "live", name="uq_reservations_live_consumer"),
    sa.UniqueConstraint("consumer_id", "project_id", "claim_ordinal", name="uq_reservations_live_claim"),
    sa.CheckConstraint("delta > 0", name="ck_reservations_delta"),
    sa.CheckConstraint(
        "state IN ('reserved', 'committed', 'rolled_back', 'expired', 'released')",
        name="ck_reservations_state",
    ),
    sa.CheckConstraint(
        "(state IN ('reserved', 'committed') AND NOT deleted AND live IS NOT NULL AND live = 1)"
        " OR (state IN ('rolled_back', 'expired', 'released') AND deleted AND live IS NULL"
        " AND claim_ordinal IS NULL)",
        name="ck_reservations_ended",
    ),
    sa.Index("ix_reservations_usage", "usage_id", "state"),
    sa.Index("ix_reservations_group", "project_id", "group_id", postgresql_where=sa.text("group_id IS NOT NULL")),
    sa.Index("ix_reservations_group_id", "group_id", postgresql_where=sa.text("group_id IS NOT NULL")),
    sa.Index("ix_reservations_expire", "state", "expire"),
    sa.Index("ix_reservations_deleted_at", "deleted_at"),
    sqlite_autoincrement=True,
    **column_types.TABLE,
)
sa.Table(
    "reservation_changes",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("reservation_id", sa.Integer, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("project_before", column_types.name(), nullable=False),
    sa.Column("project_after", column_types.name(), nullable=False),
    sa.Column("delta_before", sa.Integer, nullable=False),
    sa.Column("delta_after", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("id", name="pk_reservation_changes"),
    sa.UniqueConstraint("uuid", name="uq_reservation_changes_uuid"),
    sa.UniqueConstraint("reservation_id", "generation", name="uq_reservation_changes_reservation_generation"),
    sqlite_autoincrement=True,
    **column_types.TABLE,
)
sa.Table(
    "usage_months",
    _metadata,
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("pod", column_types.name(), nullable=False),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("month", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("device_seconds", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("project_id", "pod", "resource", "month", name="pk_usage_months"),
    **column_types.TABLE,
)
sa.Table(
    "budgets",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("carry", sa.BigInteger, nullable=False),
    sa.Column("months", sa.SmallInteger),
    sa.Column("starts", sa.Integer, nullable=False),
    sa.Column("ends", sa.Integer),
    sa.Column("enforce", sa.Boolean, nullable=False),
    sa.Column("notified_level", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("notified_period", sa.Integer, nullable=False, server_default="0"),
    sa.PrimaryKeyConstraint("project_id", "resource", name="pk_budgets"),
    **column_types.TABLE,
)
sa.Table(
    "budget_adjustments",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("month", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("device_seconds", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("project_id", "resource", "month", name="pk_budget_adjustments"),
    **column_types.TABLE,
)
sa.Table(
    "resources",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("name", column_types.name(), nullable=False),
    sa.Column("description", column_types.name()),
    sa.Column("unit", column_types.name()),
    sa.PrimaryKeyConstraint("name", name="pk_resources"),
    **column_types.TABLE,
)
sa.Table(
    "projects",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("parent_id", column_types.name()),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("project_id", name="pk_projects"),
    sa.Index("ix_projects_parent", "parent_id", "project_id"),
    **column_types.TABLE,
)
sa.Table(
    "limit_defaults",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("hard_limit", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("resource", name="pk_limit_defaults"),
    **column_types.TABLE,
)
sa.Table(
    "project_limits",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("pod", column_types.name(), nullable=False),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("hard_limit", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("project_id", "pod", "resource", name="pk_project_limits"),
    **column_types.TABLE,
)
sa.Table(
    "limit_overrides",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("ordinal", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("hard_limit", sa.BigInteger, nullable=False),
    sa.Column("starts_at", column_types.moment(), nullable=False),
    sa.Column("ends_at", column_types.moment(), nullable=False),
    sa.Column("reason", column_types.name(1000)),
    sa.PrimaryKeyConstraint("generation", "ordinal", name="pk_limit_overrides"),
    sa.Index("ix_limit_overrides_limit", "project_id", "resource"),
    **column_types.TABLE,
)
sa.Table(
    "changes",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("ordinal", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("user_id", column_types.name()),
    sa.Column("user_project_id", column_types.name()),
    sa.Column("request_id", column_types.name()),
    sa.Column("operation", sa.String(16)),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("subject", sa.String(16), nullable=False),
    sa.Column("project_id", column_types.name()),
    sa.Column("resource", column_types.name()),
    sa.Column("pod", column_types.name()),
    sa.Column("provider", column_types.name()),
    sa.Column("provider_uuid", sa.String(36)),
    sa.Column("override_id", sa.String(32)),
    sa.Column("starts_at", column_types.moment()),
    sa.Column("ends_at", column_types.moment()),
    sa.Column("value_before", sa.Text),
    sa.Column("value_after", sa.Text),
    sa.Column("reason", column_types.name(1000)),
    sa.PrimaryKeyConstraint("generation", "ordinal", name="pk_changes"),
    sa.Index("ix_changes_project", "project_id", "generation", "ordinal"),
    sa.Index("ix_changes_provider", "provider", "generation", "ordinal"),
    **column_types.TABLE,
)
sa.Table(
    "fences",
    _metadata,
    sa.Column("name", sa.String(32), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("name", name="pk_fences"),
    **column_types.TABLE,
)
sa.Table(
    "resource_providers",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("name", column_types.name(), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("can_host", sa.SmallInteger, nullable=False),
    sa.Column("parent_id", sa.Integer),
    sa.Column("pod", column_types.name()),
    sa.PrimaryKeyConstraint("id", name="pk_resource_providers"),
    sa.UniqueConstraint("uuid", name="uq_resource_providers_uuid"),
    sa.UniqueConstraint("name", name="uq_resource_providers_name"),
    sa.Index("ix_resource_providers_parent", "parent_id"),
    sqlite_autoincrement=True,
    **column_types.TABLE,
)
sa.Table(
    "inventories",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
    sa.Column("provider_id", sa.Integer, nullable=False),
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("reserved", sa.Integer, nullable=False),
    sa.Column("min_unit", sa.Integer, nullable=False),
    sa.Column("max_unit", sa.Integer, nullable=False),
    sa.Column("step_size", sa.Integer, nullable=False),
    sa.Column("allocation_ratio", sa.Numeric(16, 4).with_variant(sa.String(20), "sqlite"), nullable=False),
    sa.Column("capacity", sa.BigInteger, nullable=False),
    sa.Column("used", sa.BigInteger, nullable=False),
    sa.Column("free", sa.BigInteger, nullable=False),
    sa.Column("used_elsewhere", sa.BigInteger),
    sa.Column("notified_level", sa.SmallInteger),
    sa.PrimaryKeyConstraint("id", name="pk_inventories"),
    sa.UniqueConstraint("provider_id", "resource", name="uq_inventories_provider_resource"),
    sa.CheckConstraint("used >= 0", name="ck_inventories_used"),
    sa.Index("ix_inventories_free", "resource", "free", "provider_id", "min_unit", "max_unit", "step_size"),
    sa.Index("ix_inventories_provider", "provider_id", "resource", "free"),
    sqlite_autoincrement=True,
    **column_types.TABLE,
)
sa.Table(
    "provider_associations",
    _metadata,
    sa.Column("served_id", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("provider_id", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("served_id", name="pk_provider_associations"),
    sa.Index("ix_provider_associations_provider", "provider_id"),
    **column_types.TABLE,
)
sa.Table(
    "resource_notices",
    _metadata,
    sa.Column("resource", column_types.name(), nullable=False),
    sa.Column("notified_level", sa.SmallInteger, nullable=False),
    sa.PrimaryKeyConstraint("resource", name="pk_resource_notices"),
    **column_types.TABLE,
)
sa.Table(
    "pods",
    _metadata,
    sa.Column("created_at", column_types.moment()),
    sa.Column("updated_at", column_types.moment()),
    sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
    sa.Column("name", column_types.name(), nullable=False),
    sa.Column("availability_zone", column_types.name(), nullable=False),
    sa.Column("resource_affinity", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("weight", sa.Integer, nullable=False),
    sa.Column("threshold", sa.SmallInteger, nullable=False),
    sa.Column("endpoint", column_types.name()),
    sa.Column("region", column_types.name()),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("notified_resources", sa.Text),
    sa.PrimaryKeyConstraint("id", name="pk_pods"),
    sa.UniqueConstraint("name", name="uq_pods_name"),
    sqlite_autoincrement=True,
    **column_types.TABLE,
)
sa.Table(
    "pod_usages",
    _metadata,
    sa.Column("pod_id", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("usage", sa.Text),
    sa.Column("measured_at", column_types.moment()),
    sa.PrimaryKeyConstraint("pod_id", name="pk_pod_usages"),
    **column_types.TABLE,
)
sa.Table(
    "pod_bindings",
    _metadata,
    sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
    sa.Column("project_id", column_types.name(), nullable=False),
    sa.Column("availability_zone", column_types.name(), nullable=False),
    sa.Column("resource_affinity", sa.Text, nullable=False),
    sa.Column("affinity_hash", sa.String(64), nullable=False),
    sa.Column("pod", column_types.name(), nullable=False),
    sa.Column("starts_at", column_types.moment(), nullable=False),
    sa.Column("ends_at", column_types.moment()),
    sa.Column("reason", sa.String(16), nullable=False),
    sa.Column("current", sa.SmallInteger),
    sa.Column("is_first", sa.SmallInteger),
    sa.PrimaryKeyConstraint("id", name="pk_pod_bindings"),
    sa.UniqueConstraint("project_id", "availability_zone", "affinity_hash", "current", name="uq_pod_bindings_current"),
    sa.UniqueConstraint("project_id", "affinity_hash", "is_first", name="uq_pod_bindings_is_first"),
    sa.Index("ix_pod_bindings_pod", "pod", "current"),
    sqlite_autoincrement=True,
    **column_types.TABLE,
)
sa.Table(
    "replays",
    _metadata,
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("line", sa.Integer, nullable=False, autoincrement=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("limits", sa.Text),
    sa.PrimaryKeyConstraint("digest", "line", name="pk_replays"),
    **column_types.TABLE,
)


def upgrade() -> None:
    connection = op.get_bind()
    _metadata.create_all(connection, checkfirst=False)
    op.execute(
        "CREATE VIEW allocations AS"
        " SELECT id, provider_id AS resource_provider_id, consumer_id, resource AS resource_class, delta AS used"
        " FROM reservations WHERE provider_id IS NOT NULL AND live = 1"
    )
    dialects.of(connection).create_functions(connection)
