# SPDX-License-Identifier: Apache-2.0
"""limit_overrides: limits that apply only between a start and an end time."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "b6e2"
down_revision = "a6e1"
branch_labels = None
depends_on = None

_TABLE: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def _name(chars: int = 255) -> Any:
    return sa.String(chars).with_variant(
        mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def _moment() -> Any:
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    bind = op.get_bind()
    if not sa.inspect(bind).has_table("limit_overrides"):
        op.create_table(
            "limit_overrides",
            sa.Column("created_at", _moment()),
            sa.Column("generation", sa.Integer, autoincrement=False, nullable=False),
            sa.Column("ordinal", sa.Integer, autoincrement=False, nullable=False),
            sa.Column("project_id", _name(), nullable=False),
            sa.Column("resource", _name(), nullable=False),
            sa.Column("most", sa.BigInteger, nullable=False),
            sa.Column("starts_at", _moment(), nullable=False),
            sa.Column("ends_at", _moment(), nullable=False),
            sa.Column("reason", _name(1000)),
            sa.PrimaryKeyConstraint("generation", "ordinal", name=op.f("pk_limit_overrides")),
            **_TABLE,
        )
    indexes = {index["name"] for index in sa.inspect(bind).get_indexes("limit_overrides")}
    if "ix_limit_overrides_limit" not in indexes:
        op.create_index("ix_limit_overrides_limit", "limit_overrides", ["project_id", "resource"])
