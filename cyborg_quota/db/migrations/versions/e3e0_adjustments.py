# SPDX-License-Identifier: Apache-2.0
"""An adjustment names the reservation that it adjusts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "e3e0"
down_revision = "d3e1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: the column may be there although the revision was not recorded.
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("reservations")}
    if "adjusts" not in columns:
        op.add_column("reservations", sa.Column("adjusts", sa.Integer))
