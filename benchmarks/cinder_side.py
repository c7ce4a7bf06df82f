# SPDX-License-Identifier: Apache-2.0
"""One process that measures Cinder's quota. Runs in an environment with cinder, not in that of cyborg_quota.

    python cinder_side.py make PROJECTS      creates Cinder's quota tables and a usage row for each project
    python cinder_side.py run PROJECTS NUMBER SECONDS

The first line of stdin is the database URL. ``run`` prints "ready", waits for a line, and prints its latencies as
JSON. ``try`` does the same, but does not count cycles that raise an error.
"""

import datetime
import json
import logging
import random
import sys
import time

sys.argv, ARGUMENTS = sys.argv[:1], sys.argv[1:]  # Cinder would parse our arguments as its options

from cinder import context as cinder_context  # noqa: E402
from cinder.common import config  # noqa: E402
from cinder.db import api, models  # noqa: E402

LIMIT = 10**9
WARM_SECONDS = 0.5  # as in harness.py: cycles before this time are not counted


def connect(url):
    config.CONF([], project="cinder", default_config_files=[])
    config.CONF.set_override("connection", url, "database")
    config.CONF.set_override("max_pool_size", 5, "database")
    logging.disable(logging.CRITICAL)


def make(url, projects):
    import sqlalchemy as sa

    engine = sa.create_engine(url)
    names = ("quotas", "quota_classes", "quota_usages", "reservations")
    models.BASE.metadata.create_all(engine, tables=[models.BASE.metadata.tables[name] for name in names])
    now = datetime.datetime.utcnow()
    with engine.begin() as connection:
        for number in range(projects):
            connection.execute(
                models.QuotaUsage.__table__.insert().values(
                    created_at=now, deleted=False, project_id=f"p{number}", resource="gpus", in_use=0, reserved=0
                )
            )


def run(url, projects, number, seconds, *, is_tolerant=False):
    connect(url)
    rng = random.Random(number)
    contexts = {}

    def cycle(project=None):
        project_id = f"p{rng.randrange(projects) if project is None else project}"
        context = contexts.setdefault(project_id, cinder_context.RequestContext("user", project_id, is_admin=True))
        expire = datetime.datetime.utcnow() + datetime.timedelta(days=1)
        uuids = api.quota_reserve(
            context, {"gpus": None}, {"gpus": LIMIT}, {"gpus": 1}, expire, 0, 0, project_id=project_id
        )
        api.reservation_commit(context, uuids, project_id=project_id)

    def succeeds(*project):
        try:
            cycle(*project)
        except Exception:
            if not is_tolerant:
                raise
            return False
        return True

    for project in range(projects):
        succeeds(project)
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
