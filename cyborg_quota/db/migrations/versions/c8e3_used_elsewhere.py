# SPDX-License-Identifier: Apache-2.0
"""inventories.used_elsewhere: what is in use at a provider without a reservation of this ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "c8e3"
down_revision = "c8e1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("inventories")}
    if "used_elsewhere" not in present:
        op.add_column("inventories", sa.Column("used_elsewhere", sa.BigInteger))
