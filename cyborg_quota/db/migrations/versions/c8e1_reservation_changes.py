# SPDX-License-Identifier: Apache-2.0
"""Resize and transfer: the generation of a reservation, and the table reservation_changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "c8e1"
down_revision = "c8e4"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    inspector = sa.inspect(op.get_bind())
    if "generation" not in {column["name"] for column in inspector.get_columns("reservations")}:
        op.add_column("reservations", sa.Column("generation", sa.Integer))
    if inspector.has_table("reservation_changes"):
        return
    op.create_table(
        "reservation_changes",
        sa.Column("created_at", column_types.moment()),
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("reservation_id", sa.Integer, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        *(sa.Column(name, column_types.name(), nullable=False) for name in ("project_before", "project_after")),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("delta_before", "delta_after")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation_changes")),
        sa.UniqueConstraint("uuid", name=op.f("uq_reservation_changes_uuid")),
        sa.UniqueConstraint("reservation_id", "generation", name=op.f("uq_reservation_changes_reservation_generation")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )
