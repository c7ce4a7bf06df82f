# SPDX-License-Identifier: Apache-2.0
"""projects.origin: which source of limits put the project below its parent; NULL for an operator's own edge."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "f5e0"
down_revision = "e4e0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("projects")}
    if "origin" not in columns:
        op.add_column("projects", sa.Column("origin", sa.String(16)))
