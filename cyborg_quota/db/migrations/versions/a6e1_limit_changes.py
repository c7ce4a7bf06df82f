# SPDX-License-Identifier: Apache-2.0
"""limit_changes: the history of limits and of the project tree. It begins with a checkpoint of the present state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "a6e1"
down_revision = "f6f0"
branch_labels = None
depends_on = None

_SOURCES = ("fences", "limit_defaults", "project_limits", "projects")
# Each SELECT: project_id, resource, value_after, origin; the rows of the checkpoint are numbered through.
_STATES = (
    "SELECT NULL AS p, resource AS r, {most} AS v, NULL AS o FROM limit_defaults",
    "SELECT project_id AS p, resource AS r, {most} AS v, NULL AS o FROM project_limits",
    "SELECT project_id AS p, NULL AS r, parent_id AS v, origin AS o FROM projects WHERE parent_id IS NOT NULL",
)


def upgrade() -> None:
    bind = op.get_bind()
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    if not sa.inspect(bind).has_table("limit_changes"):
        op.create_table(
            "limit_changes",
            sa.Column("created_at", column_types.moment()),
            sa.Column("generation", sa.Integer, autoincrement=False, nullable=False),
            sa.Column("ordinal", sa.Integer, autoincrement=False, nullable=False),
            sa.Column("user_id", column_types.name()),
            sa.Column("user_project_id", column_types.name()),
            sa.Column("request_id", column_types.name()),
            sa.Column("action", sa.String(32), nullable=False),
            sa.Column("operation", sa.String(16)),
            sa.Column("project_id", column_types.name()),
            sa.Column("resource", column_types.name()),
            sa.Column("value_before", column_types.name()),
            sa.Column("value_after", column_types.name()),
            sa.Column("origin", sa.String(16)),
            sa.Column("override_id", sa.String(32)),
            sa.Column("starts_at", column_types.moment()),
            sa.Column("ends_at", column_types.moment()),
            sa.Column("reason", column_types.name(1000)),
            sa.PrimaryKeyConstraint("generation", "ordinal", name=op.f("pk_limit_changes")),
            **column_types.TABLE,
        )
    indexes = {index["name"] for index in sa.inspect(bind).get_indexes("limit_changes")}
    if "ix_limit_changes_project" not in indexes:
        op.create_index("ix_limit_changes_project", "limit_changes", ["project_id", "generation", "ordinal"])
    # The history of an empty database begins with its first change. (The tables of a first sync must stay empty, so
    # that an interrupted one can be repeated.)
    if not _has_rows(bind, "limit_changes") and any(_has_rows(bind, table) for table in _SOURCES):
        _write_checkpoint(bind)


def _has_rows(bind: sa.Connection, table: str) -> bool:
    return bind.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() is not None


def _write_checkpoint(bind: sa.Connection) -> None:
    # The previous release may change limits meanwhile. The fence excludes that until this transaction ends.
    bump = "UPDATE fences SET generation = generation + 1 WHERE name = 'limits'"
    if bind.exec_driver_sql(bump).rowcount == 0:
        bind.exec_driver_sql("INSERT INTO fences (name, generation) VALUES ('limits', 1)")
    generation = bind.exec_driver_sql("SELECT generation FROM fences WHERE name = 'limits'").scalar()
    columns = "created_at, generation, ordinal, user_id, action, operation"
    is_mysql = bind.dialect.name in ("mysql", "mariadb")
    most = "CAST(most AS CHAR)" if is_mysql else "CAST(most AS VARCHAR(255))"
    now = column_types.utc_now(bind)
    constants = "'db sync', 'checkpoint', 'migration'"
    bind.exec_driver_sql(f"INSERT INTO limit_changes ({columns}) VALUES ({now}, {generation}, 0, {constants})")
    first = 0
    for state in _STATES:
        rows = bind.exec_driver_sql(
            f"INSERT INTO limit_changes ({columns}, project_id, resource, value_after, origin)"
            f" SELECT {now}, {generation}, {first} + ROW_NUMBER() OVER (ORDER BY p, r), {constants}, p, r, v, o"
            f" FROM ({state.format(most=most)}) AS present"
        ).rowcount
        first += rows
