# SPDX-License-Identifier: Apache-2.0
"""Pods, their measurements, and the bindings of projects to pods."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "d9e0"
down_revision = "c7e0"
branch_labels = None
depends_on = None

_TABLE: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def _name() -> Any:
    return sa.String(255).with_variant(
        mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def _moment() -> Any:
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


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
            sa.Column("measured_at", _moment()),
            sa.PrimaryKeyConstraint("pod_id", name=op.f("pk_pod_usages")),
            **_TABLE,
        )
    if "pod_bindings" not in present:
        _create_bindings()
    if "ix_pod_bindings_pod" not in {one["name"] for one in sa.inspect(op.get_bind()).get_indexes("pod_bindings")}:
        op.create_index("ix_pod_bindings_pod", "pod_bindings", ["pod", "current"])


def _create_pods() -> None:
    op.create_table(
        "pods",
        sa.Column("created_at", _moment()),
        sa.Column("updated_at", _moment()),
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("name", _name(), nullable=False),
        sa.Column("availability_zone", _name(), nullable=False),
        sa.Column("resource_affinity", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("weight", sa.Integer, nullable=False),
        sa.Column("threshold", sa.SmallInteger, nullable=False),
        sa.Column("endpoint", _name()),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pods")),
        sa.UniqueConstraint("name", name=op.f("uq_pods_name")),
        sqlite_autoincrement=True,
        **_TABLE,
    )


def _create_bindings() -> None:
    op.create_table(
        "pod_bindings",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("project_id", _name(), nullable=False),
        sa.Column("availability_zone", _name(), nullable=False),
        sa.Column("resource_affinity", sa.Text, nullable=False),
        sa.Column("affinity_hash", sa.String(64), nullable=False),
        sa.Column("pod", _name(), nullable=False),
        sa.Column("starts_at", _moment(), nullable=False),
        sa.Column("ends_at", _moment()),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("current", sa.SmallInteger),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pod_bindings")),
        sa.UniqueConstraint(
            "project_id", "availability_zone", "affinity_hash", "current", name=op.f("uq_pod_bindings_current")
        ),
        sqlite_autoincrement=True,
        **_TABLE,
    )
