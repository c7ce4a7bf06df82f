# SPDX-License-Identifier: Apache-2.0
"""Measures the overhead of the quota on a bind in the real Cyborg: alternating binds with and without quota.

python -m tests.servers run --only mariadb --durable -- python -m benchmarks.cyborg

Two Cyborgs run on one MariaDB: one unmodified, and one with quota and limits for the project. A round binds one ARQ,
or eight in one PATCH, and deletes them again; only the PATCH is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import time
import uuid

from oslo_config import cfg

import cyborg_quota
from cyborg_quota.conf import loading
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base as ledger_base
from tests import fixtures
from tests.cyborgs import base, environment, quota
from tests.cyborgs import stack as stacks
from tests.cyborgs.client import Client

SIZES = (1, 8)
"""The numbers of ARQs in one PATCH."""
LIMIT = 10**6
WARM_UP = 10


@dataclasses.dataclass(frozen=True)
class Timing:
    """The duration of a PATCH of one variant, in milliseconds."""

    median: float
    p90: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        ordered = sorted(seconds)
        return cls(1000 * statistics.median(ordered), 1000 * ordered[len(ordered) * 9 // 10])


@dataclasses.dataclass(frozen=True)
class Variant:
    """A running Cyborg. ``profiles``: the device profile for each number of ARQs."""

    client: Client
    profiles: dict[int, str]
    rp: str

    def bind(self, count: int) -> float:
        """Bind ``count`` ARQs in one PATCH, and delete them; returns the seconds of the PATCH."""
        arqs = self.client.created(self.profiles[count])
        start = time.perf_counter()
        response = self.client.bind(arqs, str(uuid.uuid4()), self.rp)
        seconds = time.perf_counter() - start
        assert response.status == 202, response
        assert self.client.delete(arqs).status == 204
        return seconds


def prepare(stack: stacks.Stack, project_id: str) -> Variant:
    """Create the device profiles in a Cyborg that runs, and return the variant."""
    admin = stack.client(base.new_id(), "admin", "member", "reader")
    profiles = {count: f"bench-{count}" for count in SIZES}
    for count, name in profiles.items():
        assert admin.create_profile(name, {"resources:FPGA": str(count)}).status == 201
    return Variant(stack.client(project_id), profiles, stack.rps[0])


def compare(variants: dict[str, Variant], count: int, binds: int) -> dict[str, Timing]:
    """Alternate the variants; each comes first in half of the rounds."""
    durations: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(WARM_UP + binds):
        for name in sorted(variants, reverse=bool(number % 2)):
            seconds = variants[name].bind(count)
            if number >= WARM_UP:
                durations[name].append(seconds)
    return {name: Timing.of(seconds) for name, seconds in durations.items()}


def table(title: str, timings: dict[str, Timing]) -> str:
    """Format the timings as a table."""
    lines = [title, f"  {'':8} {'median ms':>10} {'p90 ms':>8}"]
    lines += [f"  {name:8} {timing.median:10.1f} {timing.p90:8.1f}" for name, timing in timings.items()]
    difference = timings["with"].median - timings["without"].median, timings["with"].p90 - timings["without"].p90
    return "\n".join([*lines, f"  {'overhead':8} {difference[0]:10.1f} {difference[1]:8.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--binds", type=int, default=200, help="the number of binds of each variant and size (default: 200)"
    )
    parser.add_argument("--json", type=pathlib.Path, help="also write the timings to this file")
    arguments = parser.parse_args()
    url = fixtures.fresh_url("mariadb", "bench")
    schema.sync(Database(fixtures.settings(url)))
    conf_file = quota.write_conf(environment.DIRECTORY, url)
    engine = cyborg_quota.make_engine(loading.load(cfg.ConfigOpts(), ["--config-file", str(conf_file)]))
    project_id = base.new_id()
    for resource in ("fpga", "fpga.fake"):
        engine.limits.set_limit(ledger_base.ADMIN, resource, LIMIT, project_id)
    results = {}
    with contextlib.closing(stacks.Stack()) as without, contextlib.closing(stacks.Stack()) as with_quota:
        without.start()
        with_quota.start()
        with_quota.use(quota.CONDUCTOR, quota.API, f"[cyborg_quota]\nconfig_file = {conf_file}\n")
        variants = {"without": prepare(without, project_id), "with": prepare(with_quota, project_id)}
        for count in SIZES:
            timings = compare(variants, count, arguments.binds)
            print(table(f"a bind of {count}, of {arguments.binds} each", timings), flush=True)
            results[f"bind of {count}"] = {name: dataclasses.asdict(timing) for name, timing in timings.items()}
    conf_file.unlink()
    if arguments.json is not None:
        host = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
        arguments.json.write_text(json.dumps({"machine": host, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
