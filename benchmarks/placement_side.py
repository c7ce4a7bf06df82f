# SPDX-License-Identifier: Apache-2.0
"""One process that measures Placement's object layer. Runs in an environment with openstack-placement.

    python placement_side.py make PROVIDERS TOTAL            creates the tables, and providers with an inventory of VGPU
    python placement_side.py replace PROVIDERS NUMBER SECONDS
    python placement_side.py candidates PROVIDERS NUMBER SECONDS

The first line of stdin is the database URL. ``replace`` measures allocation.replace_all: each call moves the allocation
of one VGPU of the process's consumer to a random provider. (A new consumer would take another transaction.)
``candidates`` measures AllocationCandidates.get_by_requests for one VGPU. Both print "ready", wait for a line, and
print their latencies as JSON. No HTTP, no token and no policy is involved.
"""

import json
import logging
import os
import random
import sys
import time
import uuid

import sqlalchemy as sa
from oslo_config import cfg
from placement import conf, context, db_api, deploy, lib
from placement.db.sqlalchemy import models
from placement.objects import allocation, allocation_candidate, consumer, project, resource_provider, user

RESOURCE = "VGPU"
WARM_SECONDS = 0.5  # as in harness.py: cycles before this time are not counted
NAMESPACE = uuid.UUID(int=1)


def provider_uuid(number):
    return str(uuid.uuid5(NAMESPACE, str(number)))


def connect(url):
    config = cfg.ConfigOpts()
    conf.register_opts(config)
    os.environ["OS_PLACEMENT_DATABASE__CONNECTION"] = url  # (not an argument, which any local user can read)
    config([], project="placement", default_config_files=[])
    db_api.configure(config)
    logging.disable(logging.CRITICAL)
    return config


def make(config, providers, total):
    models.BASE.metadata.create_all(db_api.get_placement_engine())
    deploy.update_database(config)
    request = context.RequestContext(config=config)
    class_id = request.rc_cache.id_from_string(RESOURCE)
    tables = models.BASE.metadata.tables
    numbers = range(1, providers + 1)
    rows = [
        {"id": number, "uuid": provider_uuid(number), "name": f"n{number}", "generation": 0, "root_provider_id": number}
        for number in numbers
    ]
    units = {"total": total, "reserved": 0, "min_unit": 1, "max_unit": total, "step_size": 1, "allocation_ratio": 1.0}
    with db_api.get_placement_engine().begin() as connection:
        connection.execute(sa.insert(tables["resource_providers"]), rows)
        connection.execute(
            sa.insert(tables["inventories"]),
            [{"resource_provider_id": number, "resource_class_id": class_id, **units} for number in numbers],
        )
    for kind in (project.Project, user.User):
        kind(request, external_id="benchmark").create()


def replacing(config, providers, number):
    """A cycle: what PUT /allocations/{consumer} does below the WSGI layer for a consumer that exists."""
    rng = random.Random(number)
    request = context.RequestContext(config=config)
    owners = [kind.get_by_external_id(request, "benchmark") for kind in (project.Project, user.User)]
    holder = consumer.Consumer(request, uuid=str(uuid.uuid4()), project=owners[0], user=owners[1])
    holder.create()

    def cycle():
        provider = resource_provider.ResourceProvider.get_by_uuid(request, provider_uuid(rng.randint(1, providers)))
        one = allocation.Allocation(resource_provider=provider, consumer=holder, resource_class=RESOURCE, used=1)
        allocation.replace_all(request, [one])

    return cycle


def candidates(config):
    """A cycle: what GET /allocation_candidates?resources=VGPU:1&limit=1 does below the WSGI layer."""

    request = context.RequestContext(config=config)

    def cycle():
        groups = {"": lib.RequestGroup(use_same_provider=False, resources={RESOURCE: 1})}
        found = allocation_candidate.AllocationCandidates.get_by_requests(
            request, groups, lib.RequestWideParams(limit=1)
        )
        if len(found.allocation_requests) != 1:
            raise RuntimeError("no provider fits")

    return cycle


def measure(cycle, seconds):
    for _ in range(3):
        cycle()
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


def main():
    url = sys.stdin.readline().rstrip("\n")
    mode, providers, *rest = sys.argv[1:]
    config = connect(url)
    if mode == "make":
        make(config, int(providers), int(rest[0]))
    else:
        cycle = replacing(config, int(providers), int(rest[0])) if mode == "replace" else candidates(config)
        measure(cycle, float(rest[1]))


if __name__ == "__main__":
    main()
