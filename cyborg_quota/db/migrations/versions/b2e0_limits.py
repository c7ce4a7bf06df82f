# SPDX-License-Identifier: Apache-2.0
"""Limits of our own: a default per resource, an override per project, and the fence of their changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "b2e0"
down_revision = "a1c0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each DDL statement, so an interrupted upgrade runs this revision again.
    present = set(sa.inspect(op.get_bind()).get_table_names())
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("quota_usages")}
    if "told" not in columns:
        # With a default of the server's: the previous release does not name the column.
        op.add_column("quota_usages", sa.Column("told", sa.SmallInteger, nullable=False, server_default="0"))
    if "limit_defaults" not in present:
        op.create_table(
            "limit_defaults",
            sa.Column("created_at", column_types.moment()),
            sa.Column("updated_at", column_types.moment()),
            sa.Column("resource", column_types.name(), nullable=False),
            sa.Column("most", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint("resource", name=op.f("pk_limit_defaults")),
            **column_types.TABLE,
        )
    if "project_limits" not in present:
        op.create_table(
            "project_limits",
            sa.Column("created_at", column_types.moment()),
            sa.Column("updated_at", column_types.moment()),
            sa.Column("project_id", column_types.name(), nullable=False),
            sa.Column("resource", column_types.name(), nullable=False),
            sa.Column("most", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint("project_id", "resource", name=op.f("pk_project_limits")),
            **column_types.TABLE,
        )
    if "fences" not in present:
        op.create_table(
            "fences",
            sa.Column("name", sa.String(32), nullable=False),
            sa.Column("generation", sa.Integer, nullable=False),
            sa.PrimaryKeyConstraint("name", name=op.f("pk_fences")),
            **column_types.TABLE,
        )
