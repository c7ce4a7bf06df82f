# SPDX-License-Identifier: Apache-2.0
"""Measures Cyborg's API while the ledger's database refuses connections, or does not answer.

    python -m tests.servers run --only mariadb -- python -m benchmarks.cyborg_outage [--rounds N]

For each kind of outage, and each round: the first DELETE of eight bound ARQs during the outage, together with the
slowest of many concurrent GETs; then a DELETE of eight other ARQs, with the breaker open; and the time from the end of
the outage until all are released. For comparison: the same DELETE without an outage, the same DELETE by Cyborg's own
API (without quota), and the time that the code of cyborg_quota takes for the eight releases with the breaker open.
"""

from __future__ import annotations

import argparse
import logging
import os
import pathlib
import threading
import time
import uuid

from oslo_config import cfg

import cyborg_quota
from cyborg_quota.conf import loading
from cyborg_quota.cyborg.bind_tracker import BindTracker, one_request
from tests import base, fixtures
from tests.cyborgs import environment, quota
from tests.cyborgs import stack as stacks
from tests.cyborgs.client import Client
from tests.faults.proxy import Proxy

ARQS = 8
RECOVERY_SECONDS = 90.0
UNREACHABLE = "mysql+pymysql://nobody@127.0.0.1:1/quota"


def seconds(function: object, *args: object) -> float:
    start = time.monotonic()
    response = function(*args)  # type: ignore[operator]
    assert response.status in (200, 204), response
    return time.monotonic() - start


def processor_seconds(stack: stacks.Stack) -> float:
    """The processor time that the API's process has used."""
    fields = pathlib.Path(f"/proc/{stack.api.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Reader:
    """Sends one GET after the other in a thread; ``slowest`` is in seconds."""

    def __init__(self, client: Client) -> None:
        self.slowest = 0.0
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            self.slowest = max(self.slowest, seconds(self._client.call, "GET", "/device_profiles"))

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()


class Cloud:
    """A Cyborg with quota, whose ledger is reached through ``proxy``, and a project with ARQs."""

    def __init__(self) -> None:
        url = fixtures.synced_url("mariadb", os.getpid(), "outage")
        self.proxy = Proxy(url)
        self.proxy.setUp()
        environment.DIRECTORY.mkdir(exist_ok=True)
        options = "reconcile_heal = true"
        self.conf_file = quota.write_conf(environment.DIRECTORY, self.proxy.url, options)
        direct = loading.load(cfg.ConfigOpts(), ["--config-file", str(self.conf_file)])
        direct.set_override("connection", url, group="database")
        self.engine = cyborg_quota.make_engine(direct)
        self.config = f"[cyborg_quota]\nconfig_file = {self.conf_file}\n"
        self.stack = stacks.running(quota.CONDUCTOR, quota.API, self.config)
        self.client = self.stack.client(uuid.uuid4().hex)
        admin = self.stack.client(uuid.uuid4().hex, "admin", "member", "reader")
        admin.create_profile("outage", {"resources:FPGA": "1"})

    def bind_arqs(self) -> str:
        instance = str(uuid.uuid4())
        answer = self.client.bind(self.client.created("outage", ARQS), instance, self.stack.rps[0])
        assert answer.status == 202, answer
        return instance

    @property
    def used(self) -> int:
        return self.engine.get_usages(base.ADMIN, self.client.project_id)["fpga"].used

    def release(self, *instances: str) -> None:
        for instance in instances:
            self.engine.release(base.ADMIN, project_id=self.client.project_id, group=instance)

    def close(self) -> None:
        self.engine.close()
        self.conf_file.unlink()
        self.proxy.cleanUp()


def measure_outage(cloud: Cloud, attribute: str) -> str:
    """One outage; ``attribute`` of the proxy."""
    second = cloud.bind_arqs()
    with Reader(cloud.client) as baseline:
        usual_seconds = seconds(cloud.client.delete_instance, cloud.bind_arqs())
        first = cloud.bind_arqs()
    setattr(cloud.proxy, attribute, True)
    with Reader(cloud.client) as reader:
        first_seconds = seconds(cloud.client.delete_instance, first)
    before = processor_seconds(cloud.stack)
    next_seconds = seconds(cloud.client.delete_instance, second)
    processor = processor_seconds(cloud.stack) - before
    setattr(cloud.proxy, attribute, False)
    start = time.monotonic()
    while time.monotonic() < start + RECOVERY_SECONDS and cloud.used:
        time.sleep(0.1)
    left, back_seconds = cloud.used, time.monotonic() - start
    cloud.release(first, second)
    return (
        f"DELETE of {ARQS} {first_seconds:.2f} s, the next one {next_seconds:.2f} s ({processor:.2f} s of "
        f"processor time in the API), usually {usual_seconds:.2f} s; "
        f"slowest GET {reader.slowest:.2f} s (without an outage {baseline.slowest:.2f} s); "
        f"{left} still charged {back_seconds:.1f} s after it"
    )


def own_seconds(cloud: Cloud) -> float:
    """The time of the eight releases of a DELETE in cyborg_quota's code, with the breaker open, as the API calls it."""
    log = logging.getLogger("cyborg_quota")
    log.addHandler(logging.FileHandler(os.devnull))
    log.propagate = False
    conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(cloud.conf_file)])
    conf.set_override("connection", UNREACHABLE, group="database")
    tracker = BindTracker(cyborg_quota.make_engine(conf), bind_expire_seconds=60)
    with one_request():
        assert not tracker.release("first", "project")  # it opens the breaker
    began = time.monotonic()
    with one_request():
        assert not any(tracker.release(f"arq-{number}", "project") for number in range(ARQS))
    return time.monotonic() - began


def stock_seconds(cloud: Cloud) -> tuple[float, float]:
    """The time of a DELETE of eight by Cyborg's own API, which releases nothing; and its processor time in the API."""
    cloud.stack.use(quota.CONDUCTOR, stacks.API, cloud.config)
    instances = [cloud.bind_arqs(), cloud.bind_arqs()]
    seconds(cloud.client.delete_instance, instances[0])  # the first call of a process takes longer
    before = processor_seconds(cloud.stack)
    found = seconds(cloud.client.delete_instance, instances[1])
    processor = processor_seconds(cloud.stack) - before
    cloud.release(*instances)
    cloud.stack.use(quota.CONDUCTOR, quota.API, cloud.config)
    return found, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="the number of repetitions (default: 3)")
    rounds = parser.parse_args().rounds
    if reason := fixtures.missing_server("mariadb"):
        parser.error(reason)
    cloud = Cloud()
    for _ in range(rounds):
        for attribute, text in (("is_refusing", "refuses connections"), ("is_dead", "does not answer")):
            print(f"{text}: {measure_outage(cloud, attribute)}", flush=True)
        stock, processor = stock_seconds(cloud)
        print(
            f"DELETE of {ARQS} by Cyborg's own API {stock:.2f} s ({processor:.2f} s of processor time in the API); "
            f"in cyborg_quota, with the breaker open, {own_seconds(cloud) * 1000:.1f} ms",
            flush=True,
        )
    cloud.close()


if __name__ == "__main__":
    main()
