# SPDX-License-Identifier: Apache-2.0
"""Measures Cyborg's API while the ledger's database refuses connections, or does not answer.

    python -m tests.servers run --only mariadb -- python -m benchmarks.cyborg_outage

For each kind of outage: the first DELETE of eight bound ARQs during the outage, together with the slowest of many
concurrent GETs; then a DELETE of eight other ARQs; and the time from the end of the outage until all are released. The
same is measured without an outage, for comparison.
"""

from __future__ import annotations

import os
import threading
import time
import uuid

from oslo_config import cfg

import cyborg_quota
from cyborg_quota.conf import loading
from tests import base, fixtures
from tests.cyborgs import environment, quota
from tests.cyborgs import stack as stacks
from tests.cyborgs.client import Client
from tests.faults.proxy import Proxy

ARQS = 8
RECOVERY_SECONDS = 90.0


def seconds(function: object, *args: object) -> float:
    start = time.monotonic()
    response = function(*args)  # type: ignore[operator]
    assert response.status in (200, 204), response
    return time.monotonic() - start


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


def main() -> None:
    url = fixtures.synced_url("mariadb", os.getpid(), "outage")
    proxy = Proxy(url)
    proxy.setUp()
    environment.DIRECTORY.mkdir(exist_ok=True)
    options = "reconcile_interval = 0\n[quota]\nexpire_interval = 600"
    conf_file = quota.write_conf(environment.DIRECTORY, proxy.url, options)
    conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(conf_file)])
    conf.set_override("connection", url, group="database")
    engine = cyborg_quota.make_engine(conf)
    stack = stacks.running(quota.CONDUCTOR, quota.API, f"[cyborg_quota]\nconfig_file = {conf_file}\n")
    client = stack.client(uuid.uuid4().hex)
    admin = stack.client(uuid.uuid4().hex, "admin", "member", "reader")
    admin.create_profile("outage", {"resources:FPGA": "1"})

    def bind_arqs() -> str:
        instance = str(uuid.uuid4())
        assert client.bind(client.created("outage", ARQS), instance, stack.rps[0]).status == 202
        return instance

    for attribute, text in (("is_refusing", "refuses connections"), ("is_dead", "does not answer")):
        second = bind_arqs()
        with Reader(client) as baseline:
            usual_seconds = seconds(client.delete_instance, bind_arqs())
            first = bind_arqs()
        setattr(proxy, attribute, True)
        with Reader(client) as reader:
            first_seconds = seconds(client.delete_instance, first)
        next_seconds = seconds(client.delete_instance, second)
        setattr(proxy, attribute, False)
        start = time.monotonic()
        while time.monotonic() < start + RECOVERY_SECONDS:
            if engine.get_usages(base.ADMIN, client.project_id)["fpga"].used == 0:
                break
            time.sleep(0.1)
        left = engine.get_usages(base.ADMIN, client.project_id)["fpga"].used
        print(
            f"{text}: DELETE of {ARQS} {first_seconds:.2f} s, the next one {next_seconds:.2f} s, "
            f"usually {usual_seconds:.2f} s;",
            end=" ",
        )
        print(f"slowest GET {reader.slowest:.2f} s (without an outage {baseline.slowest:.2f} s);", end=" ")
        print(f"{left} still charged {time.monotonic() - start:.1f} s after it", flush=True)
        engine.release(base.ADMIN, project_id=client.project_id, group=first)
        engine.release(base.ADMIN, project_id=client.project_id, group=second)
    engine.close()
    conf_file.unlink()
    proxy.cleanUp()


if __name__ == "__main__":
    main()
