# SPDX-License-Identifier: Apache-2.0
"""One process that measures Cinder's quota. Runs in an environment with cinder, not in that of cyborg_quota.

    python cinder_side.py make PROJECTS      creates Cinder's schema, limits, and a usage row for each project
    python cinder_side.py run PROJECTS NUMBER SECONDS

The first line of stdin is the database URL. ``run`` prints "ready", waits for a line, and prints its latencies as
JSON. ``try`` does the same, but does not count cycles that raise an error.

A cycle reserves and commits one volume without a volume type, as Cinder's services do: ``cinder.quota.QUOTAS`` with its
default driver (DbQuotaDriver) and options, on the schema of ``cinder-manage db sync``. The limits are in its tables:
the default in quota_classes, and the limit of one project (p0) in quotas. So a reserve reads the volume types (there is
one, __DEFAULT__, as in each new installation), the limit of the project and, except for p0, the default; then it locks
and changes the usage. Cinder's reservations have no consumer and no group.
"""

import json
import logging
import random
import sys
import time

sys.argv, ARGUMENTS = sys.argv[:1], sys.argv[1:]  # Cinder would parse our arguments as its options

from cinder import context as cinder_context  # noqa: E402
from cinder import quota  # noqa: E402
from cinder.common import config  # noqa: E402
from cinder.db import api, migration  # noqa: E402

LIMIT = 10**9
WARM_SECONDS = 0.5  # as in harness.py: cycles before this time are not counted


def connect(url):
    config.CONF([], project="cinder", default_config_files=[])
    config.CONF.set_override("connection", url, "database")
    config.CONF.set_override("max_pool_size", 5, "database")
    logging.disable(logging.CRITICAL)
    quota.LOG.exception = raise_again


def raise_again(*_arguments):
    """QUOTAS.commit logs an error and returns; a cycle that fails must not be counted."""
    raise sys.exc_info()[1]


def cycle(context):
    quota.QUOTAS.commit(context, quota.QUOTAS.reserve(context, volumes=1))


def context_of(project):
    return cinder_context.RequestContext("user", f"p{project}", is_admin=False)


def make(url, projects):
    connect(url)
    migration.db_sync()
    admin = cinder_context.get_admin_context()
    api.quota_class_update(admin, "default", "volumes", LIMIT)
    api.quota_create(admin, "p0", "volumes", LIMIT)
    for project in range(projects):
        cycle(context_of(project))


def run(url, projects, number, seconds, *, is_tolerant=False):
    connect(url)
    rng = random.Random(number)
    contexts = [context_of(project) for project in range(projects)]

    def succeeds(context=None):
        try:
            cycle(contexts[rng.randrange(projects)] if context is None else context)
        except Exception:
            if not is_tolerant:
                raise
            return False
        return True

    for context in contexts:
        succeeds(context)
    print("ready", flush=True)
    sys.stdin.readline()
    warm_end = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < warm_end:
        succeeds()
    latencies = []
    start = now = time.perf_counter()
    while now - start < seconds:
        is_done = succeeds()
        before, now = now, time.perf_counter()
        if is_done:
            latencies.append(now - before)
    print(json.dumps([latencies, now - start]), flush=True)


if __name__ == "__main__":
    URL = sys.stdin.readline().rstrip("\n")
    if ARGUMENTS[0] == "make":
        make(URL, int(ARGUMENTS[1]))
    else:
        run(URL, int(ARGUMENTS[1]), int(ARGUMENTS[2]), float(ARGUMENTS[3]), is_tolerant=ARGUMENTS[0] == "try")
