# SPDX-License-Identifier: Apache-2.0
"""In which pod a reservation is counted: the column ``pod``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "f9e0"
down_revision = "c8e2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each DDL statement, so an interrupted upgrade runs this revision again.
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("reservations")}
    if "pod" not in columns:
        # Nullable: the previous release does not name the column, and counts what it inserts in no pod.
        op.add_column("reservations", sa.Column("pod", column_types.name()))
