# SPDX-License-Identifier: Apache-2.0
"""The server's functions: on PostgreSQL, a reserve and a settle are one call of a function each.

If the user may not create functions, ``schema.sync`` reports the missing privilege, and a later ``db sync`` creates
them. Reserve and settle work without them.
"""

from __future__ import annotations

from alembic import op

from cyborg_quota.db import dialects

revision = "f6f0"
down_revision = "f5e0"
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    dialects.of(connection).create_functions(connection)
