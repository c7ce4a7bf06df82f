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

from cyborg_quota import exceptions
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

    def at(seconds: float) -> datetime.datetime:
        """Return a time, by the clock of this process."""
        return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)

    def naive_expire() -> int:
        """The naive implementation: it compares the expiry with the clock of this process."""
        with sql.begin() as connection:
            return connection.execute(sa.text(_NAIVE_EXPIRE), {"now": at(0).replace(tzinfo=None)}).rowcount

    calls: dict[str, Any] = {
        "time": time.time,
        "reserve": lambda deltas, expire: engine.reserve(CONTEXT, deltas, expire),
        "reserve_until": lambda deltas, seconds: engine.reserve(CONTEXT, deltas, at(seconds)),
        "commit": lambda uuids: engine.commit(CONTEXT, uuids),
        "extend": lambda uuids, seconds: engine.extend(CONTEXT, uuids, seconds),
        "release": lambda uuids: engine.release(CONTEXT, uuids),
        "expire": lambda: engine.expire(base.ADMIN),
        "naive_expire": naive_expire,
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
