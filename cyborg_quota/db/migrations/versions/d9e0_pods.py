# SPDX-License-Identifier: Apache-2.0
"""Pods, their measurements, and the bindings of projects to pods."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "d9e0"
down_revision = "c7e0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    present = set(sa.inspect(op.get_bind()).get_table_names())
    if "pods" not in present:
        _create_pods()
    if "pod_usages" not in present:
        op.create_table(
            "pod_usages",
            sa.Column("pod_id", sa.Integer, nullable=False, autoincrement=False),
            sa.Column("usage", sa.Text),
            sa.Column("measured_at", column_types.moment()),
            sa.PrimaryKeyConstraint("pod_id", name=op.f("pk_pod_usages")),
            **column_types.TABLE,
        )
    if "pod_bindings" not in present:
        _create_bindings()
    if "ix_pod_bindings_pod" not in {one["name"] for one in sa.inspect(op.get_bind()).get_indexes("pod_bindings")}:
        op.create_index("ix_pod_bindings_pod", "pod_bindings", ["pod", "current"])


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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pods")),
        sa.UniqueConstraint("name", name=op.f("uq_pods_name")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )


def _create_bindings() -> None:
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
