# SPDX-License-Identifier: Apache-2.0
"""limit_totals: limits over all projects. quota_usages.in_total: whether the total of a resource counts a root."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations.column_types import TABLE, moment, name

revision = "c8e2"
down_revision = "f9e3"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table("limit_totals"):
        op.create_table(
            "limit_totals",
            sa.Column("created_at", moment()),
            sa.Column("updated_at", moment()),
            sa.Column("resource", name(), nullable=False),
            sa.Column("most", sa.BigInteger, nullable=False),
            sa.Column("is_enforced", sa.SmallInteger, nullable=False),
            sa.PrimaryKeyConstraint("resource", name=op.f("pk_limit_totals")),
            **TABLE,
        )
    if "in_total" not in {column["name"] for column in inspector.get_columns("quota_usages")}:
        op.add_column("quota_usages", sa.Column("in_total", sa.SmallInteger))
