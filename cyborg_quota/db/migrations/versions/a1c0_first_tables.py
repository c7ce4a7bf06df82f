# SPDX-License-Identifier: Apache-2.0
"""The first tables: usages, reservations, the project tree, replays.

A revision is a record of what was done: it names its columns itself, and does not follow the models. Its names are
whole (op.f): the naming convention of the models must not be put in front of them once more.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "a1c0"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _make_quota_usages()
    _make_reservations()
    _make_projects()
    _make_replays()


def _make_quota_usages() -> None:
    op.create_table(
        "quota_usages",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("project_id", column_types.name(), nullable=False),
        sa.Column("resource", column_types.name(), nullable=False),
        sa.Column("reserved", sa.Integer, nullable=False),
        sa.Column("used", sa.Integer, nullable=False),
        sa.Column("subtree", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_quota_usages"),
        sa.UniqueConstraint("project_id", "resource", name=op.f("uq_quota_usages_project_resource")),
        sa.CheckConstraint("reserved >= 0", name=op.f("ck_quota_usages_reserved")),
        sa.CheckConstraint("used >= 0", name=op.f("ck_quota_usages_used")),
        sa.CheckConstraint("subtree >= 0", name=op.f("ck_quota_usages_subtree")),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )


def _make_reservations() -> None:
    op.create_table(
        "reservations",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("deleted_at", column_types.moment()),
        sa.Column("deleted", sa.Boolean, nullable=False),
        sa.Column("id", sa.Integer, autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("usage_id", sa.Integer, nullable=False),
        sa.Column("project_id", column_types.name(), nullable=False),
        sa.Column("resource", column_types.name(), nullable=False),
        sa.Column("delta", sa.Integer, nullable=False),
        sa.Column("expire", column_types.moment()),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("consumer_id", column_types.name()),
        sa.Column("group_id", column_types.name()),
        sa.Column("live", sa.SmallInteger),
        sa.Column("place", sa.SmallInteger),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
        sa.UniqueConstraint("uuid", name=op.f("uq_reservations_uuid")),
        sa.UniqueConstraint(
            "project_id", "consumer_id", "resource", "live", name=op.f("uq_reservations_live_consumer")
        ),
        sa.UniqueConstraint("project_id", "consumer_id", "place", name=op.f("uq_reservations_live_claim")),
        sa.CheckConstraint(
            "state IN ('reserved', 'committed', 'rolled_back', 'expired', 'released')",
            name=op.f("ck_reservations_state"),
        ),
        sa.CheckConstraint(
            "(state IN ('reserved', 'committed') AND NOT deleted AND live IS NOT NULL AND live = 1)"
            " OR (state IN ('rolled_back', 'expired', 'released') AND deleted AND live IS NULL AND place IS NULL)",
            name=op.f("ck_reservations_ended"),
        ),
        sqlite_autoincrement=True,
        **column_types.TABLE,
    )
    op.create_index("ix_reservations_usage", "reservations", ["usage_id", "state"])
    op.create_index("ix_reservations_group", "reservations", ["project_id", "group_id"])
    op.create_index("ix_reservations_expire", "reservations", ["state", "expire"])
    op.create_index("ix_reservations_deleted_at", "reservations", ["deleted_at"])


def _make_projects() -> None:
    op.create_table(
        "projects",
        sa.Column("created_at", column_types.moment()),
        sa.Column("updated_at", column_types.moment()),
        sa.Column("project_id", column_types.name(), nullable=False),
        sa.Column("parent_id", column_types.name()),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name="pk_projects"),
        **column_types.TABLE,
    )
    op.create_index("ix_projects_parent", "projects", ["parent_id"])


def _make_replays() -> None:
    op.create_table(
        "replays",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("line", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("limits", sa.Text),
        sa.PrimaryKeyConstraint("digest", "line", name="pk_replays"),
        **column_types.TABLE,
    )
