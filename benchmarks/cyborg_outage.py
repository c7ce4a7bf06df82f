# SPDX-License-Identifier: Apache-2.0
"""How long Cyborg's API takes while the ledger refuses connections, or does not answer.

    python -m tests.servers run --only mariadb -- python -m benchmarks.cyborg_outage

For each kind of outage: a DELETE of eight bound ARQs, with which the outage begins for the API, and beside it the
slowest of many GETs; then a DELETE of eight others; and, after the outage, the time until all are released. Beside
them the same without an outage.
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
BACK_SECONDS = 90.0


def seconds(work: object, *args: object) -> float:
    began = time.monotonic()
    answer = work(*args)  # type: ignore[operator]
    assert answer.status in (200, 204), answer
    return time.monotonic() - began


class Reader:
    """GETs one after the other, in a thread; ``slowest`` in seconds."""

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
    environment.PLACE.mkdir(exist_ok=True)
    conf_file = quota.write_conf(environment.PLACE, proxy.url, "reconcile_interval = 0\n[quota]\nexpire_interval = 600")
    conf = loading.load(cfg.ConfigOpts(), ["--config-file", str(conf_file)])
    conf.set_override("connection", url, group="database")
    engine = cyborg_quota.make_engine(conf)
    stack = stacks.running(quota.CONDUCTOR, quota.API, f"[cyborg_quota]\nconfig_file = {conf_file}\n")
    client = stack.client(uuid.uuid4().hex)
    admin = stack.client(uuid.uuid4().hex, "admin", "member", "reader")
    admin.create_profile("outage", {"resources:FPGA": "1"})

    def bound() -> str:
        instance = str(uuid.uuid4())
        assert client.bind(client.created("outage", ARQS), instance, stack.rps[0]).status == 202
        return instance

    for how, text in (("is_refusing", "refuses connections"), ("is_dead", "does not answer")):
        second = bound()
        with Reader(client) as quiet:
            usual = seconds(client.delete_instance, bound())
            first = bound()
        setattr(proxy, how, True)
        with Reader(client) as reader:
            closed = seconds(client.delete_instance, first)
        opened = seconds(client.delete_instance, second)
        setattr(proxy, how, False)
        began = time.monotonic()
        while time.monotonic() < began + BACK_SECONDS:
            if engine.get_usages(base.ADMIN, client.project_id)["fpga"].used == 0:
                break
            time.sleep(0.1)
        left = engine.get_usages(base.ADMIN, client.project_id)["fpga"].used
        print(f"{text}: DELETE of {ARQS} {closed:.2f} s, the next one {opened:.2f} s, usually {usual:.2f} s;", end=" ")
        print(f"slowest GET {reader.slowest:.2f} s (without an outage {quiet.slowest:.2f} s);", end=" ")
        print(f"{left} still charged {time.monotonic() - began:.1f} s after it", flush=True)
        engine.release(base.ADMIN, project_id=client.project_id, group=first)
        engine.release(base.ADMIN, project_id=client.project_id, group=second)
    engine.close()
    conf_file.unlink()
    proxy.cleanUp()


if __name__ == "__main__":
    main()
