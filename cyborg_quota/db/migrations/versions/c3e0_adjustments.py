# SPDX-License-Identifier: Apache-2.0
"""An adjustment names the reservation that it adjusts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "c3e0"
down_revision = "b2e0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reservations", sa.Column("adjusts", sa.Integer))
