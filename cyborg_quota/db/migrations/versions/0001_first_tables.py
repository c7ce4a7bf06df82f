# SPDX-License-Identifier: Apache-2.0
"""The tables, the view ``allocations``, and the server's functions of reserve and settle.

Its names are whole (op.f): the naming convention of the models must not be put in front of them once more.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db import dialects
from cyborg_quota.db.migrations import column_types

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_quota_usages()
    _create_reservations()
    _create_reservation_changes()
    _create_allocations()
    _create_projects()
    _create_limit_defaults()
    _create_project_limits()
    _create_limit_overrides()
    _create_changes()
    _create_fences()
    _create_resource_providers()
    _create_inventories()
    _create_resource_notices()
    _create_pods()
    _create_pod_usages()
    _create_pod_bindings()
    _create_replays()
    connection = op.get_bind()
    dialects.of(connection).create_functions(connection)


def _create_quota_usages() -> None:
    op.create_table(
        "quota_usages",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("project_id", column_types.name(), nullable=False),
        sa.Column("resource", column_types.name(), nullable=False),
        sa.Column("pod", column_types.name(), nullable=False),
        sa.Column("reserved", sa.Integer, nullable=False),
        sa.Column("used", sa.Integer, nullable=False),
        sa.Column("subtree", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("notified_level", sa.SmallInteger, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quota_usages")),
        sa.UniqueConstraint("project_id", "pod", "resource", name=op.f("uq_quota_usages_project_pod_resource")),
        sa.CheckConstraint("reserved >= 0", name=op.f("ck_quota_usages_reserved")),
        sa.CheckConstraint("used >= 0", name=op.f("ck_quota_usages_used")),
        sa.CheckConstraint("subtree >= 0", name=op.f("ck_quota_usages_subtree")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )


def _create_reservations() -> None:
    op.create_table(
        "reservations",
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
        sa.Column("group_id", column_types.name()),
        sa.Column("live", sa.SmallInteger),
        sa.Column("claim_ordinal", sa.SmallInteger),
        sa.Column("ended_after", sa.Integer),
        sa.Column("source", column_types.name()),
        sa.Column("provider_id", sa.Integer),
        sa.Column("pod", column_types.name()),
        sa.Column("generation", sa.Integer),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
        sa.UniqueConstraint("uuid", name=op.f("uq_reservations_uuid")),
        sa.UniqueConstraint(
            "project_id", "consumer_id", "resource", "live", name=op.f("uq_reservations_live_consumer")
        ),
        sa.UniqueConstraint("project_id", "consumer_id", "claim_ordinal", name=op.f("uq_reservations_live_claim")),
        sa.CheckConstraint("delta > 0", name=op.f("ck_reservations_delta")),
        sa.CheckConstraint(
            "state IN ('reserved', 'committed', 'rolled_back', 'expired', 'released')",
            name=op.f("ck_reservations_state"),
        ),
        sa.CheckConstraint(
            "(state IN ('reserved', 'committed') AND NOT deleted AND live IS NOT NULL AND live = 1)"
            " OR (state IN ('rolled_back', 'expired', 'released') AND deleted AND live IS NULL"
            " AND claim_ordinal IS NULL)",
            name=op.f("ck_reservations_ended"),
        ),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )
    op.create_index("ix_reservations_usage", "reservations", ["usage_id", "state"])
    op.create_index(
        "ix_reservations_group",
        "reservations",
        ["project_id", "group_id"],
        postgresql_where=sa.text("group_id IS NOT NULL"),
    )
    op.create_index("ix_reservations_expire", "reservations", ["state", "expire"])
    op.create_index("ix_reservations_deleted_at", "reservations", ["deleted_at"])


def _create_reservation_changes() -> None:
    op.create_table(
        "reservation_changes",
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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation_changes")),
        sa.UniqueConstraint("uuid", name=op.f("uq_reservation_changes_uuid")),
        sa.UniqueConstraint("reservation_id", "generation", name=op.f("uq_reservation_changes_reservation_generation")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )


def _create_allocations() -> None:
    op.execute(
        "CREATE VIEW allocations AS SELECT provider_id, consumer_id, resource, delta AS used"
        " FROM reservations WHERE provider_id IS NOT NULL AND live = 1"
    )


def _create_projects() -> None:
    op.create_table(
        "projects",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("project_id", column_types.name(), nullable=False),
        sa.Column("parent_id", column_types.name()),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_projects")),
        **column_types.TABLE,
    )
    op.create_index("ix_projects_parent", "projects", ["parent_id"])


def _create_limit_defaults() -> None:
    op.create_table(
        "limit_defaults",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("resource", column_types.name(), nullable=False),
        sa.Column("hard_limit", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("resource", name=op.f("pk_limit_defaults")),
        **column_types.TABLE,
    )


def _create_project_limits() -> None:
    op.create_table(
        "project_limits",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("project_id", column_types.name(), nullable=False),
        sa.Column("pod", column_types.name(), nullable=False),
        sa.Column("resource", column_types.name(), nullable=False),
        sa.Column("hard_limit", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "pod", "resource", name=op.f("pk_project_limits")),
        **column_types.TABLE,
    )


def _create_limit_overrides() -> None:
    op.create_table(
        "limit_overrides",
        sa.Column("created_at", column_types.moment()),
        sa.Column("generation", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("ordinal", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("project_id", column_types.name(), nullable=False),
        sa.Column("resource", column_types.name(), nullable=False),
        sa.Column("hard_limit", sa.BigInteger, nullable=False),
        sa.Column("starts_at", column_types.moment(), nullable=False),
        sa.Column("ends_at", column_types.moment(), nullable=False),
        sa.Column("reason", column_types.name(1000)),
        sa.PrimaryKeyConstraint("generation", "ordinal", name=op.f("pk_limit_overrides")),
        **column_types.TABLE,
    )
    op.create_index("ix_limit_overrides_limit", "limit_overrides", ["project_id", "resource"])


def _create_changes() -> None:
    op.create_table(
        "changes",
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
        sa.PrimaryKeyConstraint("generation", "ordinal", name=op.f("pk_changes")),
        **column_types.TABLE,
    )
    op.create_index("ix_changes_project", "changes", ["project_id", "generation", "ordinal"])
    op.create_index("ix_changes_provider", "changes", ["provider", "generation", "ordinal"])


def _create_fences() -> None:
    op.create_table(
        "fences",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_fences")),
        **column_types.TABLE,
    )


def _create_resource_providers() -> None:
    op.create_table(
        "resource_providers",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("name", column_types.name(), nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("can_host", sa.SmallInteger, nullable=False),
        sa.Column("parent_id", sa.Integer),
        sa.Column("pod", column_types.name()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_resource_providers")),
        sa.UniqueConstraint("uuid", name=op.f("uq_resource_providers_uuid")),
        sa.UniqueConstraint("name", name=op.f("uq_resource_providers_name")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )
    op.create_index("ix_resource_providers_parent", "resource_providers", ["parent_id"])


def _create_inventories() -> None:
    op.create_table(
        "inventories",
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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inventories")),
        sa.UniqueConstraint("provider_id", "resource", name=op.f("uq_inventories_provider_resource")),
        sa.CheckConstraint("used >= 0", name=op.f("ck_inventories_used")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )
    units = ["min_unit", "max_unit", "step_size"]
    op.create_index("ix_inventories_free", "inventories", ["resource", "free", "provider_id", *units])
    op.create_index("ix_inventories_provider", "inventories", ["provider_id", "resource", "free"])


def _create_resource_notices() -> None:
    op.create_table(
        "resource_notices",
        sa.Column("resource", column_types.name(), nullable=False),
        sa.Column("notified_level", sa.SmallInteger, nullable=False),
        sa.PrimaryKeyConstraint("resource", name=op.f("pk_resource_notices")),
        **column_types.TABLE,
    )


def _create_pods() -> None:
    op.create_table(
        "pods",
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
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("notified_resources", sa.Text),
        sa.Column("measurement_began_at", column_types.moment()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pods")),
        sa.UniqueConstraint("name", name=op.f("uq_pods_name")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )


def _create_pod_usages() -> None:
    op.create_table(
        "pod_usages",
        sa.Column("pod_id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("usage", sa.Text),
        sa.Column("measured_at", column_types.moment()),
        sa.PrimaryKeyConstraint("pod_id", name=op.f("pk_pod_usages")),
        **column_types.TABLE,
    )


def _create_pod_bindings() -> None:
    op.create_table(
        "pod_bindings",
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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pod_bindings")),
        sa.UniqueConstraint(
            "project_id", "availability_zone", "affinity_hash", "current", name=op.f("uq_pod_bindings_current")
        ),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )
    op.create_index("ix_pod_bindings_pod", "pod_bindings", ["pod", "current"])


def _create_replays() -> None:
    op.create_table(
        "replays",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("line", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("limits", sa.Text),
        sa.PrimaryKeyConstraint("digest", "line", name=op.f("pk_replays")),
        **column_types.TABLE,
    )
