# SPDX-License-Identifier: Apache-2.0
"""Measures the REST API under gunicorn with a real Keystone: 8 clients on `detail` beside 100 reserves a second.

    python -m tests.servers run --only mariadb -- python -m benchmarks.rest_api

Each client has one connection and waits for the answer before it sends its next request, at its share of 220 requests a
second. Another process makes one reserve every 10 ms. A call that cannot begin in time begins as soon as the one before
has ended. The latency of a call is counted from its begin; that of a request also from when it was due, which shows
whether the pace is kept. All clients run in one process without a library, so that they take little processor time
from the server. The reserves are measured alone and beside the clients, in turns; the figures are medians of the
rounds. Then the clients run without a pace and without the reserves. keystonemiddleware keeps tokens in its cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import logging
import os
import pathlib
import selectors
import socket
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

import cyborg_quota
from benchmarks import disk
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


@dataclasses.dataclass
class Calls:
    """The calls of one round: seconds from the begin of each call, and from when it was due, to its end."""

    latencies: list[float] = dataclasses.field(default_factory=list)
    delays: list[float] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    processor_seconds: float = 0.0

    def add(self, due: float, begin: float, end: float) -> None:
        self.latencies.append(end - begin)
        self.delays.append(end - due)

    @property
    def sample(self) -> Sample:
        return Sample(len(self.latencies), self.seconds, self.latencies)

    @property
    def delayed(self) -> Sample:
        """The same calls, with latencies from when they were due."""
        return Sample(len(self.delays), self.seconds, self.delays)


class Clients:
    """All clients, in one thread. ``rate``: requests per second of all together; None: as fast as possible."""

    def __init__(self, url: str, path: str, token: str, rate: float | None) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Auth-Token: {token}\r\n\r\n".encode()
        self._period = 0.0 if rate is None else CLIENTS / rate
        self._address = host, int(port)
        for _ in range(4 * CLIENTS):  # fills the caches of the workers
            connection = self._connect()
            connection.sendall(self._request)
            connection.recv(65536)
            connection.close()

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=30)

    def run(self, seconds: float) -> Calls:
        """Send requests for this time, and wait for all answers."""
        calls = Calls()
        selector = selectors.DefaultSelector()
        connections = [self._connect() for _ in range(CLIENTS)]
        for number, connection in enumerate(connections):
            selector.register(connection, selectors.EVENT_READ, number)
        began = time.monotonic()
        waiting = [(began + number * self._period / CLIENTS, number) for number in range(CLIENTS)]
        sent: dict[int, tuple[float, float]] = {}
        received = [b""] * CLIENTS
        while waiting or sent:
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                due, number = heapq.heappop(waiting)
                sent[number] = due, time.monotonic()
                connections[number].sendall(self._request)
            timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for key, _ in selector.select(timeout):
                number = key.data
                data = connections[number].recv(65536)
                assert data, "the server closed the connection"
                received[number] += data
                if not _is_complete(received[number]):
                    continue
                received[number] = b""
                due, begin = sent.pop(number)
                now = time.monotonic()
                calls.add(due, begin, now)
                following = due + self._period if self._period else now
                if following - began < seconds:
                    heapq.heappush(waiting, (following, number))
        calls.seconds = time.monotonic() - began
        return calls


def _is_complete(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    assert head.startswith(b"HTTP/1.1 200 "), answer
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    return len(body) == length


def request(address: tuple[str, str, str], rate: float | None, barrier: Any, seconds: float, pipe: Any) -> None:
    """``address``: URL, path and token. ``rate``: see Clients."""
    clients = Clients(*address, rate)
    barrier.wait(60)
    before = time.process_time()
    calls = clients.run(seconds)
    calls.processor_seconds = time.process_time() - before
    pipe.send(calls)


def reserve(url: str, project_id: str, barrier: Any, seconds: float, pipe: Any) -> None:
    """Reserve at the given pace; roll back at the end."""
    engine = cyborg_quota.make_engine(api_server.settings(url))
    context = base.Context(project_id)
    held: list[str] = engine.reserve(context, {"gpu": 1})
    calls = Calls()
    barrier.wait(60)
    began = time.monotonic()
    while (due := began + len(calls.delays) / RESERVES_PER_SECOND) - began < seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        begin = time.monotonic()
        held += engine.reserve(context, {"gpu": 1})
        calls.add(due, begin, time.monotonic())
    calls.seconds = time.monotonic() - began
    pipe.send(calls)
    engine.rollback(context, held)


def processor_seconds(api: rest_api.RestAPI) -> float:
    """What the workers of the server have used so far."""
    children = pathlib.Path(f"/proc/{api.pid}/task/{api.pid}/children").read_text().split()
    fields = [pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children]
    return sum(int(found[11]) + int(found[12]) for found in fields) / os.sysconf("SC_CLK_TCK")


def _child(target: Callable[..., None], *arguments: Any) -> None:
    try:
        target(*arguments)
    except BaseException as error:
        arguments[-1].send(f"{type(error).__name__}: {error}")


def run_round(targets: list[tuple[Any, ...]], seconds: float) -> list[Calls]:
    """Run each of these functions with its arguments in a process, together."""
    barrier = _FORK.Barrier(len(targets))
    pipes = [_FORK.Pipe(duplex=False) for _ in targets]
    children = [
        _FORK.Process(target=_child, args=(target, *arguments, barrier, seconds, writer))
        for (target, *arguments), (_, writer) in zip(targets, pipes, strict=True)
    ]
    for child in children:
        child.start()
    for _, writer in pipes:
        writer.close()  # so that the end of a process that fails is seen
    return gather(children, [reader for reader, _ in pipes])


def prepare(backend: str, keystone: servers.Keystone) -> tuple[str, str, str]:
    """A ledger with a project of Keystone; returns its URL, the project and a token of a reader of the project."""
    ledger = disk.fresh_url(backend, "rest_api")
    database = Database(fixtures.settings(ledger))
    schema.sync(database)
    database.close()
    project_id = keystone.create("project", name=f"bench-{uuid.uuid4().hex[:8]}", domain_id="default")
    engine = cyborg_quota.make_engine(api_server.settings(ledger))
    engine.limits.set_limits(base.ADMIN, {"gpu": 0, "fpga": 0})
    engine.limits.add_project(base.ADMIN, "top")
    engine.limits.set_limit(base.ADMIN, "gpu", 100_000, "top")
    engine.limits.add_project(base.ADMIN, project_id, "top")
    engine.limits.set_limit(base.ADMIN, "gpu", 10_000, project_id)
    engine.close()
    name, password = keystone.create_user(f"projects/{project_id}", "member")
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
    reserves = (reserve, ledger, project_id)
    with rest_api.RestAPI(ledger, keystone, {}) as api:
        address = (api.url, f"/v2/quotas/{project_id}/detail", token)
        for _ in range(arguments.rounds):
            alone += run_round([reserves], arguments.seconds)
            used = processor_seconds(api)
            first, second = run_round([reserves, (request, address, REQUESTS_PER_SECOND)], arguments.seconds)
            costs.append((processor_seconds(api) - used) / len(second.latencies))
            beside.append(first)
            details.append(second)
        [unpaced] = run_round([(request, address, None)], arguments.seconds)
    print(f"{arguments.on}: {CLIENTS} clients on detail beside {RESERVES_PER_SECOND} reserves a second")
    rate = statistics.median(calls.sample.rate for calls in details)
    print(f"requests a second: {rate:.0f} (must {MIN_RATE:.0f})")
    print(f"without a pace and without reserves: {unpaced.sample.rate:.0f} requests a second")
    client = statistics.median(calls.processor_seconds / len(calls.latencies) for calls in details)
    print(f"processor time of a request: {1000 * statistics.median(costs):.2f} ms, client {1000 * client:.2f} ms")
    p50, p99 = (statistics.median(calls.sample.percentile(percent) for calls in details) for percent in (50, 99))
    due = statistics.median(calls.delayed.percentile(99) for calls in details)
    print(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms (must {MAX_P99_MS:.0f}); from when it was due: p99 {due:.1f} ms")
    before, after = (statistics.median(calls.sample.percentile(99) for calls in runs) for runs in (alone, beside))
    made = statistics.median(calls.sample.rate for calls in beside)
    print(f"p99 of a reserve: alone {before:.1f} ms, beside {after:.1f} ms ({made:.0f} reserves a second)")
    print(f"ratio {after / before:.2f} (must {MAX_RATIO:.1f})")


if __name__ == "__main__":
    main()
