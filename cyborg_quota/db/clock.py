# SPDX-License-Identifier: Apache-2.0
"""The database's clock, in UTC and microseconds, as one SQL expression for three databases.

Only this clock is used to set and compare expiry. Each dialect has its own functions (Dialect.now). (SQLite has
only the host's clock.)
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.functions import FunctionElement

from cyborg_quota.types.limits import EPOCH


class utc_after(FunctionElement[Any]):
    """Now plus a number of microseconds (an int or a bound parameter; may be negative)."""

    type = sa.DateTime()
    inherit_cache = True
    name = "utc_after"


utc_now: Final = utc_after
"""``utc_now()``: the start time of the statement."""


class second(FunctionElement[Any]):
    """The start of the statement in whole seconds since 2020-01-01 UTC."""

    type = sa.BigInteger()
    inherit_cache = True
    name = "second"


EPOCH_MICROSECONDS: Final = (EPOCH - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
"""EPOCH in microseconds since 1970."""

AT: Final = "b_at"
"""The name of the parameter ``at``."""
at: Final = sa.cast(sa.bindparam(AT, type_=sa.BigInteger), sa.BigInteger)
"""The second of a call, which is the same in all its statements."""
_SECOND: Final = sa.select(second())


def read_second(connection: sa.Connection) -> int:
    """The present second. A transaction of several statements reads it once, so that all its postings have one time."""
    return int(connection.execute(_SECOND).scalar_one())


def moment_of(value: datetime.datetime | str) -> datetime.datetime:
    """Convert a time that a prepared.Statement has read. (It is as the driver returns it: on SQLite, a text.)"""
    return value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(value)
