# SPDX-License-Identifier: Apache-2.0
"""A process whose clock may be wrong: ``python -m tests.faults.clock_worker``.

Each line of stdin is a call: ``["use", URL]`` first, then ``["reserve", {"gpu": 1}, 5]``, and ``["close"]`` at the end.
For each it prints a line with the call's result, or the name of its error.
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
from cyborg_quota.driver import DbQuotaDriver, DriverSettings
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from tests import base, fixtures

CONTEXT = base.Context("p")
_NAIVE_EXPIRE = (
    "UPDATE reservations SET state = 'expired', deleted = TRUE, live = NULL, claim_ordinal = NULL, deleted_at = :now"
    " WHERE state = 'reserved' AND expire <= :now"
)


class Calls:
    """The calls on one database, by their names."""

    def __init__(self, url: str) -> None:
        self.engine = fixtures.make_engine(url)
        self.sql = sa.create_engine(url)
        driver = DbQuotaDriver(
            DriverSettings(database=fixtures.settings(url)), DatabaseLimitDriver(Flat(), InitialLimits())
        )
        self.limited = QuotaEngine(driver)
        self.limited.register_resources(["gpu"])

    def close(self) -> None:
        for engine in (self.engine, self.limited):
            engine.close()
        self.sql.dispose()

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the result of a call, or the name of its error."""
        try:
            return getattr(self, f"call_{name}")(*arguments)
        except exceptions.QuotaError as error:
            return type(error).__name__

    def call_time(self) -> float:
        return time.time()

    def call_reserve(self, deltas: dict[str, int], expire: int) -> list[str]:
        return self.engine.reserve(CONTEXT, deltas, expire)

    def call_reserve_until(self, deltas: dict[str, int], seconds: float) -> list[str]:
        return self.engine.reserve(CONTEXT, deltas, at(seconds))

    def call_commit(self, uuids: list[str]) -> None:
        self.engine.commit(CONTEXT, uuids)

    def call_release(self, uuids: list[str]) -> None:
        self.engine.release(CONTEXT, uuids)

    def call_expire(self) -> int:
        return self.engine.expire(base.ADMIN)

    def call_naive_expire(self) -> int:
        """The naive implementation: it compares the expiry with the clock of this process."""
        with self.sql.begin() as connection:
            return connection.execute(sa.text(_NAIVE_EXPIRE), {"now": at(0).replace(tzinfo=None)}).rowcount

    def call_room(self) -> int:
        """How many of a resource fit, by the limits in the tables."""
        usage = self.limited.get_usages(CONTEXT)["gpu"]
        over = self.limited.check(CONTEXT, {"gpu": max(usage.available or 0, 0) + 1})
        assert [one.limit for one in over] == [usage.limit], (over, usage)
        return usage.available or 0

    def call_naive_room(self) -> int:
        """The known-bad way: which overrides are active is asked of this process's clock."""
        query = "SELECT MAX(hard_limit) FROM limit_overrides WHERE starts_at <= :now AND ends_at > :now"
        with self.sql.connect() as connection:
            return connection.execute(sa.text(query), {"now": at(0).replace(tzinfo=None)}).scalar() or 0

    def call_override(self, limit: int, start: float, end: float) -> str:
        """Make an override; its span is in seconds from now, by the clock of the database."""
        now = self.limited._driver._database.read(overrides.now)
        span = [now + datetime.timedelta(seconds=seconds) for seconds in (start, end)]
        return self.limited.limits.set_overrides(base.ADMIN, {"gpu": limit}, "p", span[1], start=span[0])[0].id


def at(seconds: float) -> datetime.datetime:
    """Return a time, by the clock of this process."""
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


def main() -> None:
    # libfaketime 0.9 does not support the system call with which Python sleeps until a given time.
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None
    calls: Calls | None = None
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        answer = None
        if name == "use":
            calls = Calls(*arguments)
        elif calls is not None and name == "close":
            calls.close()
        elif calls is not None:
            answer = calls.call(name, *arguments)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
