# SPDX-License-Identifier: Apache-2.0
"""Limits of our own: a default per resource, an override per project, and the fence of their changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "b2e0"
down_revision = "a1c0"
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
    # MariaDB commits each DDL statement, so an interrupted upgrade runs this revision again.
    present = set(sa.inspect(op.get_bind()).get_table_names())
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("quota_usages")}
    if "told" not in columns:
        # With a default of the server's: the previous release does not name the column.
        op.add_column("quota_usages", sa.Column("told", sa.SmallInteger, nullable=False, server_default="0"))
    if "limit_defaults" not in present:
        op.create_table(
            "limit_defaults",
            sa.Column("created_at", _moment()),
            sa.Column("updated_at", _moment()),
            sa.Column("resource", _name(), nullable=False),
            sa.Column("most", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint("resource", name=op.f("pk_limit_defaults")),
            **_TABLE,
        )
    if "project_limits" not in present:
        op.create_table(
            "project_limits",
            sa.Column("created_at", _moment()),
            sa.Column("updated_at", _moment()),
            sa.Column("project_id", _name(), nullable=False),
            sa.Column("resource", _name(), nullable=False),
            sa.Column("most", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint("project_id", "resource", name=op.f("pk_project_limits")),
            **_TABLE,
        )
    if "fences" not in present:
        op.create_table(
            "fences",
            sa.Column("name", sa.String(32), nullable=False),
            sa.Column("generation", sa.Integer, nullable=False),
            sa.PrimaryKeyConstraint("name", name=op.f("pk_fences")),
            **_TABLE,
        )
