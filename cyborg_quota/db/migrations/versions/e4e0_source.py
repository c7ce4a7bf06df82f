# SPDX-License-Identifier: Apache-2.0
"""Which program made a reservation: the column ``source``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "e4e0"
down_revision = "e3e0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each DDL statement, so an interrupted upgrade runs this revision again.
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("reservations")}
    if "source" not in columns:
        # Nullable: the previous release does not name the column, and what it inserts has no source.
        op.add_column("reservations", sa.Column("source", column_types.name()))
