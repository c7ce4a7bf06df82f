# SPDX-License-Identifier: Apache-2.0
"""Which reservations existed when a reservation ended, so that no clock needs to say which of them came later."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "c3d0"
down_revision = "b2e0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: the column may be there although the revision was not recorded.
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("reservations")}
    if "ended_after" not in columns:
        op.add_column("reservations", sa.Column("ended_after", sa.Integer))
