# SPDX-License-Identifier: Apache-2.0
"""limit_overrides: limits that apply only between a start and an end time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "b6e2"
down_revision = "a6e1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    bind = op.get_bind()
    if not sa.inspect(bind).has_table("limit_overrides"):
        op.create_table(
            "limit_overrides",
            sa.Column("created_at", column_types.moment()),
            sa.Column("generation", sa.Integer, autoincrement=False, nullable=False),
            sa.Column("ordinal", sa.Integer, autoincrement=False, nullable=False),
            sa.Column("project_id", column_types.name(), nullable=False),
            sa.Column("resource", column_types.name(), nullable=False),
            sa.Column("most", sa.BigInteger, nullable=False),
            sa.Column("starts_at", column_types.moment(), nullable=False),
            sa.Column("ends_at", column_types.moment(), nullable=False),
            sa.Column("reason", column_types.name(1000)),
            sa.PrimaryKeyConstraint("generation", "ordinal", name=op.f("pk_limit_overrides")),
            **column_types.TABLE,
        )
    indexes = {index["name"] for index in sa.inspect(bind).get_indexes("limit_overrides")}
    if "ix_limit_overrides_limit" not in indexes:
        op.create_index("ix_limit_overrides_limit", "limit_overrides", ["project_id", "resource"])
