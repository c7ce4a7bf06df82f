# SPDX-License-Identifier: Apache-2.0
"""On PostgreSQL, the index of groups leaves out the reservations without a group.

A partial index serves only a query whose conditions imply its predicate. So the lookup of a consumer, which names a
project but no group, can no longer be planned with this index.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "d3e1"
down_revision = "c3d0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.drop_index("ix_reservations_group", "reservations")
    op.create_index(
        "ix_reservations_group",
        "reservations",
        ["project_id", "group_id"],
        postgresql_where=sa.text("group_id IS NOT NULL"),
    )
