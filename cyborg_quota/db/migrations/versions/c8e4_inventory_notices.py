# SPDX-License-Identifier: Apache-2.0
"""inventories.notified_level: the threshold of the capacity that was last reported. NULL: none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "c8e4"
down_revision = "d9e0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    if "notified_level" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("inventories")}:
        op.add_column("inventories", sa.Column("notified_level", sa.SmallInteger))
