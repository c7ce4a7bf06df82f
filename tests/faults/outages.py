# SPDX-License-Identifier: Apache-2.0
"""Scenarios of faults of a server under load. Each returns its number of faults."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator

import sqlalchemy as sa
import testtools

from cyborg_quota import Claim
from tests.faults.load import Caller, Ledger, Request
from tests.servers import Server

HOT_AND_COLD = ("hot", "warm", "cold")
_OTHERS = {
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id != CONNECTION_ID()",
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()",
}
_KILL = {"mysql": "KILL {}", "postgresql": "SELECT pg_terminate_backend({})"}


class StepsTestCase(testtools.TestCase):
    """A test of several steps, because its servers take longer to start than each of them."""

    def setUp(self) -> None:
        super().setUp()
        self.seed = random.randrange(2**32)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """The message of a failure names the step."""
        try:
            yield
        except Exception as error:
            raise AssertionError(f"{name} (seed {self.seed}): {error}") from error


def kill_server(ledger: Ledger, server: Server, seconds: float, seed: int) -> int:
    """Kill the server (SIGKILL) and restart it, repeatedly. Calls that outlast the retry deadline are repeated."""
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    kills = 0
    with ledger.crew(4, seed, HOT_AND_COLD):
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.3, 1.0))
            server.kill()
            kills += 1
            time.sleep(rng.uniform(0, 0.3))
            server.start()
        time.sleep(0.3)
    return kills


def pause_server(ledger: Ledger, server: Server, seconds: float, seed: int, **changes: object) -> int:
    """Suspend the server for longer than callers wait, and resume it."""
    with ledger.crew(4, seed, HOT_AND_COLD, **changes):
        time.sleep(0.4)
        server.pause()
        time.sleep(seconds)
        server.resume()
        time.sleep(0.4)
    return 1


def drop_connections(ledger: Ledger, seconds: float, seed: int) -> int:
    """Let the server drop every connection every few milliseconds. No caller may notice."""
    rng = random.Random(seed)
    sql = sa.create_engine(ledger.url, isolation_level="AUTOCOMMIT", pool_size=1)
    backend = sql.dialect.name
    end = time.monotonic() + seconds
    dropped = 0
    with ledger.crew(4, seed, HOT_AND_COLD, retry_seconds=20.0), sql.connect() as killer:
        while time.monotonic() < end:
            time.sleep(rng.uniform(0, 0.04))
            for number in killer.exec_driver_sql(_OTHERS[backend]).scalars().all():
                try:
                    killer.exec_driver_sql(_KILL[backend].format(number))
                    dropped += 1
                except sa.exc.DBAPIError:
                    pass  # the session has ended in the meantime
    sql.dispose()
    return dropped


def reserve_until_refused(ledger: Ledger, most: int) -> Exception | None:
    """Reserve and commit until an outage ends it. Returns the error; None if all calls succeeded."""
    caller = Caller(ledger.engine, ledger.journal, patience_seconds=0.0)
    for _ in range(most):
        request = Request("p", [Claim(None, {"gpu": 1, "fpga": 1})])
        if not (caller.reserve(request) and caller.settle("commit", request)):
            return caller.last_error
    return None
