# SPDX-License-Identifier: Apache-2.0
"""The column types of the revisions and of the models.

They never change: a new type gets a new name, which the models then use.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

TABLE: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
"""The keyword arguments of a table."""


def name(chars: int = 255) -> Any:
    """A name that is compared by bytes, with at most ``chars`` characters."""
    return sa.String(chars).with_variant(
        mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


def path(chars: int = 255) -> Any:
    """A name that is also sorted by bytes: what is below a path is one range of the index."""
    return name(chars).with_variant(sa.String(chars, collation="C"), "postgresql")


def moment() -> Any:
    """A time in UTC, with microseconds."""
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
