# SPDX-License-Identifier: Apache-2.0
"""A process whose clock may be wrong: ``python -m tests.faults.clock_worker URL``.

Each line of stdin is a call, ``["reserve", {"gpu": 1}, 5]``. For each it prints a line with the call's result, or the
name of its error.
"""

from __future__ import annotations

import datetime
import json
import select
import sys
import time
from typing import Any

import sqlalchemy as sa

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.db import overrides
from cyborg_quota.ledger.driver import DbQuotaDriver
from cyborg_quota.ledger.settings import DriverSettings
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models.flat import Flat
from tests import base, fixtures

CONTEXT = base.Context("p")
_NAIVE_EXPIRE = (
    "UPDATE reservations SET state = 'expired', deleted = TRUE, live = NULL, place = NULL, deleted_at = :now"
    " WHERE state = 'reserved' AND expire <= :now"
)


def main(url: str) -> None:
    # libfaketime 0.9 does not support the system call with which Python sleeps until a given time.
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None
    engine = fixtures.make_engine(url)
    sql = sa.create_engine(url)
    driver = DbQuotaDriver(
        DriverSettings(database=fixtures.settings(url)), DatabaseLimitDriver(Flat(), InitialLimits())
    )
    limited = QuotaEngine(driver)
    limited.register_resources(["gpu"])

    def room() -> int:
        """How many of a resource fit, by the limits in the tables."""
        usage = limited.get_usages(CONTEXT)["gpu"]
        over = limited.check(CONTEXT, {"gpu": max(usage.available or 0, 0) + 1})
        assert [one.limit for one in over] == [usage.limit], (over, usage)
        return usage.available or 0

    def naive_room() -> int:
        """The known-bad way: which overrides are active is asked of this process's clock."""
        query = "SELECT MAX(most) FROM limit_overrides WHERE starts_at <= :now AND ends_at > :now"
        with sql.connect() as connection:
            return connection.execute(sa.text(query), {"now": at(0).replace(tzinfo=None)}).scalar() or 0

    def at(seconds: float) -> datetime.datetime:
        """Return a time, by the clock of this process."""
        return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)

    def naive_expire() -> int:
        """The naive implementation: it compares the expiry with the clock of this process."""
        with sql.begin() as connection:
            return connection.execute(sa.text(_NAIVE_EXPIRE), {"now": at(0).replace(tzinfo=None)}).rowcount

    def override(limit: int, start: float, end: float) -> str:
        """Make an override; its span is in seconds from now, by the clock of the database."""
        now = limited._driver._database.read(overrides.now)  # type: ignore[attr-defined]
        span = [now + datetime.timedelta(seconds=seconds) for seconds in (start, end)]
        return limited.administration.set_overrides(base.ADMIN, {"gpu": limit}, "p", span[1], start=span[0])[0].id

    calls: dict[str, Any] = {
        "time": time.time,
        "reserve": lambda deltas, expire: engine.reserve(CONTEXT, deltas, expire),
        "reserve_until": lambda deltas, seconds: engine.reserve(CONTEXT, deltas, at(seconds)),
        "commit": lambda uuids: engine.commit(CONTEXT, uuids),
        "extend": lambda uuids, seconds: engine.extend(CONTEXT, uuids, seconds),
        "release": lambda uuids: engine.release(CONTEXT, uuids),
        "expire": lambda: engine.expire(base.ADMIN),
        "naive_expire": naive_expire,
        "room": room,
        "naive_room": naive_room,
        "override": override,
    }
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = calls[name](*arguments)
        except exceptions.QuotaError as error:
            answer = type(error).__name__
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
