# SPDX-License-Identifier: Apache-2.0
"""alembic's entry: run the revisions on the connection that cyborg_quota.db.schema opened."""

from __future__ import annotations

from alembic import context

from cyborg_quota.db import models, schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=models.metadata,
    version_table=schema.VERSION_TABLE,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
