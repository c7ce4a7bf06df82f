# SPDX-License-Identifier: Apache-2.0
"""The database's clock, in UTC and microseconds, as one SQL expression for three databases.

Only this clock is used to set and compare expiry. Each dialect compiles ``utc_after`` to its own functions. (SQLite has
only the host's clock.)
"""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.functions import FunctionElement


class utc_after(FunctionElement[Any]):
    """Now plus a number of microseconds (an int or a bound parameter; may be negative)."""

    type = sa.DateTime()
    inherit_cache = True
    name = "utc_after"


def utc_now() -> utc_after:
    """The start time of the statement."""
    return utc_after()


def moment_of(value: datetime.datetime | str) -> datetime.datetime:
    """Convert a time that a prepared.Statement has read. (It is as the driver returns it: on SQLite, a text.)"""
    return value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(value)
