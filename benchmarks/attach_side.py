# SPDX-License-Identifier: Apache-2.0
"""One process that measures reserve and commit with the cyborg_quota of its environment. See against.py.

    python attach_side.py CASE PROJECTS NUMBER SECONDS

``CASE``: the limit driver and the accelerators of an attach, as in database:8. The protocol is that of cinder_side.py.
Only what both commits have may be used here: options, the public interface, and no module of the tests.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
import uuid
from typing import NamedTuple

from oslo_config import cfg

import cyborg_quota
import cyborg_quota.conf
from cyborg_quota.factory import make_engine

OPTIONS = {"quota": {"resources": ["gpu"]}, "limits": {"limits": {"gpu": str(10**9)}}}
WARM_SECONDS = 0.5
"""As in harness.py: cycles before this time are not counted."""


class Context(NamedTuple):
    """A request context, with the attributes that the engine reads."""

    project_id: str
    is_admin: bool = False


def connect(url: str, driver: str) -> cyborg_quota.QuotaEngine:
    conf = cfg.ConfigOpts()
    conf([], project="cyborg-quota", default_config_files=[], default_config_dirs=[])
    cyborg_quota.conf.register_opts(conf)
    for group, values in {**OPTIONS, "database": {"connection": url}}.items():
        for name, value in values.items():
            conf.set_override(name, value, group)
    conf.set_override("driver", driver, "limits")
    return make_engine(conf)


def main() -> None:
    driver, size = sys.argv[1].split(":")
    projects, number, seconds = (float(argument) for argument in sys.argv[2:])
    logging.disable(logging.CRITICAL)
    engine = connect(sys.stdin.readline().rstrip("\n"), driver)
    rng = random.Random(number)
    contexts = [Context(f"p{index}") for index in range(int(projects))]

    def cycle() -> None:
        context = contexts[rng.randrange(len(contexts))]
        claims = [cyborg_quota.Claim(str(uuid.uuid4()), {"gpu": 1}) for _ in range(int(size))]
        engine.commit(context, engine.reserve_many(context, claims, group="g"))

    for context in contexts:  # fill the caches, as in a conductor that runs
        engine.commit(context, engine.reserve(context, {"gpu": 1}))
    print("ready", flush=True)
    sys.stdin.readline()
    warm_end = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < warm_end:
        cycle()
    latencies = []
    start = now = time.perf_counter()
    while now - start < seconds:
        cycle()
        before, now = now, time.perf_counter()
        latencies.append(now - before)
    print(json.dumps([latencies, now - start]), flush=True)


if __name__ == "__main__":
    main()
