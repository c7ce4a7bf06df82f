# SPDX-License-Identifier: Apache-2.0
"""capacity_changes: the history of providers and inventories. It begins with a checkpoint of the present state.

resource_notices: the thresholds of the capacity of each resource that were last reported.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from cyborg_quota.db.migrations import column_types

revision = "f9e1"
down_revision = "c8e3"
branch_labels = None
depends_on = None

_PIECE = 1000
_COLUMNS = ("generation", "ordinal", "provider_uuid", "provider", "resource", "value_after")
_PROVIDERS = (
    "SELECT provider.uuid, provider.name, provider.can_host, parent.name AS parent, provider.pod"
    " FROM resource_providers AS provider LEFT JOIN resource_providers AS parent ON parent.id = provider.parent_id"
    " ORDER BY provider.id"
)
_INVENTORIES = (
    "SELECT provider.uuid, provider.name, resource, total, reserved, min_unit, max_unit, step_size, allocation_ratio"
    " FROM inventories JOIN resource_providers AS provider ON provider.id = inventories.provider_id"
    " ORDER BY inventories.id"
)


def upgrade() -> None:
    bind = op.get_bind()
    # MariaDB commits each statement: an upgrade that was interrupted starts again here.
    if not sa.inspect(bind).has_table("capacity_changes"):
        op.create_table(
            "capacity_changes",
            sa.Column("created_at", column_types.moment()),
            sa.Column("generation", sa.Integer, autoincrement=False, nullable=False),
            sa.Column("ordinal", sa.Integer, autoincrement=False, nullable=False),
            sa.Column("user_id", column_types.name()),
            sa.Column("user_project_id", column_types.name()),
            sa.Column("request_id", column_types.name()),
            sa.Column("action", sa.String(32), nullable=False),
            sa.Column("operation", sa.String(16)),
            sa.Column("provider_uuid", sa.String(36)),
            sa.Column("provider", column_types.name()),
            sa.Column("resource", column_types.name()),
            sa.Column("value_before", sa.Text),
            sa.Column("value_after", sa.Text),
            sa.Column("reason", column_types.name(1000)),
            sa.PrimaryKeyConstraint("generation", "ordinal", name=op.f("pk_capacity_changes")),
            **column_types.TABLE,
        )
    indexes = {index["name"] for index in sa.inspect(bind).get_indexes("capacity_changes")}
    if "ix_capacity_changes_provider" not in indexes:
        op.create_index("ix_capacity_changes_provider", "capacity_changes", ["provider", "generation", "ordinal"])
    if not sa.inspect(bind).has_table("resource_notices"):
        op.create_table(
            "resource_notices",
            sa.Column("resource", column_types.name(), nullable=False),
            sa.Column("notified_level", sa.SmallInteger, nullable=False),
            sa.PrimaryKeyConstraint("resource", name=op.f("pk_resource_notices")),
            **column_types.TABLE,
        )
    # The tables of a first sync must stay empty, so that an interrupted one can be repeated.
    is_written = bind.exec_driver_sql("SELECT 1 FROM capacity_changes LIMIT 1").first() is not None
    if not is_written and bind.exec_driver_sql("SELECT 1 FROM resource_providers LIMIT 1").first() is not None:
        _write_checkpoint(bind)


def _write_checkpoint(bind: sa.Connection) -> None:
    bump = "UPDATE fences SET generation = generation + 1 WHERE name = 'capacity'"
    if bind.exec_driver_sql(bump).rowcount == 0:
        bind.exec_driver_sql("INSERT INTO fences (name, generation) VALUES ('capacity', 1)")
    generation = bind.exec_driver_sql("SELECT generation FROM fences WHERE name = 'capacity'").scalar()
    columns = ", ".join(_COLUMNS)
    parameters = ", ".join(f":{column}" for column in _COLUMNS)
    insert = sa.text(
        f"INSERT INTO capacity_changes (created_at, user_id, action, operation, {columns})"
        f" VALUES ({column_types.utc_now(bind)}, 'db sync', 'checkpoint', 'migration', {parameters})"
    )
    rows = [
        dict(zip(_COLUMNS, (generation, ordinal, *row), strict=True)) for ordinal, row in enumerate(_state(bind))
    ]
    for start in range(0, len(rows), _PIECE):
        bind.execute(insert, rows[start : start + _PIECE])


def _state(bind: sa.Connection) -> Iterator[tuple[Any, ...]]:
    """(UUID, provider, resource, value_after) of each row; the first one has none."""
    yield None, None, None, None
    for row in bind.exec_driver_sql(_PROVIDERS):
        values: dict[str, Any] = {"can_host": bool(row.can_host), "name": row.name, "parent": row.parent}
        yield row.uuid, row.name, None, _text({**values, "pod": row.pod})
    for row in bind.exec_driver_sql(_INVENTORIES):
        names = ("max_unit", "min_unit", "reserved", "step_size", "total")
        values = {name: getattr(row, name) for name in names}
        ratio = _ratio(str(row.allocation_ratio))
        yield row.uuid, row.name, row.resource, _text({**values, "allocation_ratio": ratio})


def _ratio(text: str) -> str:
    """Without trailing zeros. (SQLite stores the ratio as a text, which might be anything.)"""
    try:
        return str(decimal.Decimal(text).normalize() + 0)
    except decimal.InvalidOperation:
        return text


def _text(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
