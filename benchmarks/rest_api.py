# SPDX-License-Identifier: Apache-2.0
"""Measures the REST API under gunicorn with a real Keystone: 8 clients on `detail` beside 100 reserves a second.

    python -m tests.servers run --only mariadb -- python -m benchmarks.rest_api

Requests and reserves are paced, and a late one is counted from when it was due: without a pace, the clients take all
processor time of a small machine. The reserves are measured alone and beside the clients, in turns. Then the clients
run without a pace and without the reserves. keystonemiddleware keeps tokens in its cache.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import os
import pathlib
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import cyborg_quota
from benchmarks.harness import _FORK, Sample, gather
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base, fixtures
from tests.api import server as api_server
from tests.integration import rest_api
from tests.integration import server as servers

CLIENTS = 8
RESERVES_PER_SECOND = 100
REQUESTS_PER_SECOND = 220
MIN_RATE, MAX_P99_MS, MAX_RATIO = 200.0, 60.0, 2.0


def read_detail(url: str, path: str, token: str) -> Iterator[None]:
    """Yield after each GET, all on one connection."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    while True:
        connection.request("GET", path, headers={"X-Auth-Token": token})
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        yield


def client(address: tuple[str, str, str], rate: float | None, barrier: Any, seconds: float, pipe: Any) -> None:
    """``address``: as for read_detail. ``rate``: requests per second; None: as fast as possible."""
    requests = read_detail(*address)
    next(requests)  # connects, and fills the cache
    barrier.wait()
    pipe.send(_timed(lambda: next(requests), rate, seconds))


def reserver(url: str, project_id: str, barrier: Any, seconds: float, pipe: Any) -> None:
    """Reserve at the given pace; roll back at the end."""
    engine = cyborg_quota.make_engine(api_server.settings(url))
    context = base.Context(project_id)
    held: list[str] = engine.reserve(context, {"gpu": 1})
    barrier.wait()
    pipe.send(_timed(lambda: held.extend(engine.reserve(context, {"gpu": 1})), RESERVES_PER_SECOND, seconds))
    engine.rollback(context, held)


def _timed(call: Callable[[], object], rate: float | None, seconds: float) -> tuple[list[float], float]:
    """Call repeatedly; returns the duration of each call, from when it was due, and of all of them."""
    began = time.monotonic()
    latencies: list[float] = []
    while (due := time.monotonic() if rate is None else began + len(latencies) / rate) - began < seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        call()
        latencies.append(time.monotonic() - due)
    return latencies, time.monotonic() - began


def processor_seconds(api: rest_api.RestAPI) -> float:
    """What the workers of the server have used so far."""
    children = pathlib.Path(f"/proc/{api.pid}/task/{api.pid}/children").read_text().split()
    fields = [pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children]
    return sum(int(found[11]) + int(found[12]) for found in fields) / os.sysconf("SC_CLK_TCK")


def run_round(clients: list[tuple[Any, ...]], seconds: float) -> list[Sample]:
    """Run each of these in a process, together."""
    barrier = _FORK.Barrier(len(clients))
    pipes = [_FORK.Pipe(duplex=False) for _ in clients]
    children = [
        _FORK.Process(target=target, args=(*arguments, barrier, seconds, writer))
        for (target, *arguments), (_, writer) in zip(clients, pipes, strict=True)
    ]
    for child in children:
        child.start()
    results = gather(children, [reader for reader, _ in pipes])
    return [Sample(len(latencies), elapsed, latencies) for latencies, elapsed in results]


def together(samples: list[Sample]) -> Sample:
    """The calls of several processes as one sample."""
    latencies = [latency for sample in samples for latency in sample.latencies]
    return Sample(len(latencies), max(sample.seconds for sample in samples), latencies)


def prepare(backend: str, keystone: servers.Keystone) -> tuple[str, str, str]:
    """A ledger with a project of Keystone; returns its URL, the project and a token of a reader of the project."""
    ledger = fixtures.fresh_disk_url(backend, "rest_api")
    database = Database(fixtures.settings(ledger))
    schema.sync(database)
    database.close()
    project_id = keystone.create("project", name=f"bench-{uuid.uuid4().hex[:8]}", domain_id="default")
    engine = cyborg_quota.make_engine(api_server.settings(ledger))
    engine.administration.set_limits(base.ADMIN, {"gpu": 0, "fpga": 0})
    engine.administration.add_project(base.ADMIN, "top")
    engine.administration.set_limit(base.ADMIN, "gpu", 100_000, "top")
    engine.administration.add_project(base.ADMIN, project_id, "top")
    engine.administration.set_limit(base.ADMIN, "gpu", 1_000, project_id)
    engine.close()
    name, password = keystone.create_user(project_id=project_id)
    from keystoneauth1.identity.v3 import Password
    from keystoneauth1.session import Session

    auth = Password(keystone.url, username=name, password=password, user_domain_id="default", project_id=project_id)
    return ledger, project_id, str(Session(auth).get_token())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=fixtures.BACKENDS, default="mariadb")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    keystone = servers.running("flat")
    ledger, project_id, token = prepare(arguments.on, keystone)
    alone, beside, details, costs = [], [], [], []
    reserve = (reserver, ledger, project_id)
    with rest_api.RestAPI(ledger, keystone, {}) as api:
        address = (api.url, f"/v2/quotas/{project_id}/detail", token)
        get = (client, address, REQUESTS_PER_SECOND / CLIENTS)
        for _ in range(arguments.rounds):
            alone += run_round([reserve], arguments.seconds)
            used = processor_seconds(api)
            first, *others = run_round([reserve, *[get] * CLIENTS], arguments.seconds)
            costs.append((processor_seconds(api) - used) / sum(sample.cycles for sample in others))
            beside.append(first)
            details.append(together(others))
        unpaced = together(run_round([(client, address, None)] * CLIENTS, arguments.seconds))
    rate = statistics.median(sample.rate for sample in details)
    p50, p99 = (statistics.median(sample.percentile(percent) for sample in details) for percent in (50, 99))
    before, after = (statistics.median(sample.percentile(99) for sample in samples) for samples in (alone, beside))
    print(f"{arguments.on}: {CLIENTS} clients on detail beside {RESERVES_PER_SECOND} reserves a second")
    print(f"requests a second: {rate:.0f} (must {MIN_RATE:.0f})")
    print(f"without a pace and without reserves: {unpaced.rate:.0f} requests a second")
    print(f"processor time of a request: {1000 * statistics.median(costs):.2f} ms")
    print(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms (must {MAX_P99_MS:.0f})")
    print(f"p99 of a reserve: alone {before:.1f} ms, beside {after:.1f} ms")
    print(f"ratio {after / before:.2f} (must {MAX_RATIO:.1f})")


if __name__ == "__main__":
    main()
