# SPDX-License-Identifier: Apache-2.0
"""Capacity: providers, their inventories, the provider of a reservation, and the view allocations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "c7e0"
down_revision = "b6e2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    inspector = sa.inspect(op.get_bind())
    present = set(inspector.get_table_names())
    if "provider_id" not in {column["name"] for column in inspector.get_columns("reservations")}:
        op.add_column("reservations", sa.Column("provider_id", sa.Integer))
    if "resource_providers" not in present:
        _create_providers()
    if "ix_resource_providers_parent" not in _indexes("resource_providers"):
        op.create_index("ix_resource_providers_parent", "resource_providers", ["parent_id"])
    if "inventories" not in present:
        _create_inventories()
    if "ix_inventories_free" not in _indexes("inventories"):
        op.create_index("ix_inventories_free", "inventories", ["resource", "free", "provider_id"])
    if "features" not in present:
        op.create_table(
            "features",
            sa.Column("name", sa.String(32), nullable=False),
            sa.Column("enabled_at", column_types.moment()),
            sa.PrimaryKeyConstraint("name", name=op.f("pk_features")),
            **column_types.TABLE,
        )
    _create_view()


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}


def _create_providers() -> None:
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


def _create_inventories() -> None:
    ratio = sa.Numeric(16, 4).with_variant(sa.String(20), "sqlite")
    op.create_table(
        "inventories",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("provider_id", sa.Integer, nullable=False),
        sa.Column("resource", column_types.name(), nullable=False),
        *(
            sa.Column(name, sa.Integer, nullable=False)
            for name in ("total", "reserved", "min_unit", "max_unit", "step_size")
        ),
        sa.Column("allocation_ratio", ratio, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("capacity", "used", "free")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inventories")),
        sa.UniqueConstraint("provider_id", "resource", name=op.f("uq_inventories_provider_resource")),
        sa.CheckConstraint("used >= 0", name=op.f("ck_inventories_used")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )


def _create_view() -> None:
    """The table ``allocations`` of the specification, read from the reservations that name a provider."""
    op.execute("DROP VIEW IF EXISTS allocations")
    op.execute(
        "CREATE VIEW allocations AS SELECT provider_id, consumer_id, resource, delta AS used"
        " FROM reservations WHERE provider_id IS NOT NULL AND live = 1"
    )
