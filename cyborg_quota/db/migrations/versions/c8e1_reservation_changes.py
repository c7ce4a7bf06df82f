# SPDX-License-Identifier: Apache-2.0
"""Resize and transfer: the generation of a reservation, and the table reservation_changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "c8e1"
down_revision = "c8e4"
branch_labels = None
depends_on = None


def _name() -> Any:
    return sa.String(255).with_variant(
        mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    inspector = sa.inspect(op.get_bind())
    if "generation" not in {column["name"] for column in inspector.get_columns("reservations")}:
        op.add_column("reservations", sa.Column("generation", sa.Integer))
    if inspector.has_table("reservation_changes"):
        return
    op.create_table(
        "reservation_changes",
        sa.Column("created_at", sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")),
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("reservation_id", sa.Integer, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        *(sa.Column(name, _name(), nullable=False) for name in ("project_before", "project_after")),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("delta_before", "delta_after")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation_changes")),
        sa.UniqueConstraint("uuid", name=op.f("uq_reservation_changes_uuid")),
        sa.UniqueConstraint("reservation_id", "generation", name=op.f("uq_reservation_changes_reservation_generation")),
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
