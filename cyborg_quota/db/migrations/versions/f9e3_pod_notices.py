# SPDX-License-Identifier: Apache-2.0
"""pods.notified and pods.attempted_at: the thresholds that were reported, and when a periodic measurement began."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "f9e3"
down_revision = "f9e1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("pods")}
    if "notified" not in present:
        op.add_column("pods", sa.Column("notified", sa.Text))
    if "attempted_at" not in present:
        op.add_column("pods", sa.Column("attempted_at", column_types.moment()))
