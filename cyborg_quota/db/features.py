# SPDX-License-Identifier: Apache-2.0
"""The table features: what an operator has enabled after an upgrade. A feature is never disabled again."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects
from cyborg_quota.db.models import features

CAPACITY: Final = "capacity"
"""Claims with a provider, resize and transfer.

A process of a release before revision c7e0 would not give capacity back, and one before revision c8e1 would end a
resized or transferred reservation with the amount and the project that it had at first.
"""

_IS_ENABLED = sa.select(sa.literal(1)).where(features.c.name == sa.bindparam("b_name"))


def is_enabled(connection: sa.Connection, name: str) -> bool:
    """Whether the feature is enabled."""
    return connection.execute(_IS_ENABLED, {"b_name": name}).first() is not None


def enable(connection: sa.Connection, name: str) -> None:
    """Enable the feature. Does nothing if it is enabled."""
    values = {"name": sa.bindparam("b_name"), "enabled_at": clock.utc_now()}
    dialects.of(connection).insert_or_ignore(connection, features, values, {"b_name": name})
