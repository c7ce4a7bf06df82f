# SPDX-License-Identifier: Apache-2.0
"""What quota adds to a bind of the real Cyborg: binds with and without it, taking turns.

python -m tests.servers run --only mariadb --durable -- python -m benchmarks.cyborg

Two Cyborgs on one MariaDB: one as it is shipped, and one with quota, of a project with limits in force. A turn binds
one ARQ, or eight in one PATCH, and deletes them again; only the PATCH is timed.
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
"""How many ARQs one PATCH binds."""
LIMIT = 10**6
WARM_UP = 10


@dataclasses.dataclass(frozen=True)
class Counters:
    """Of one way: milliseconds of a PATCH."""

    median: float
    p90: float

    @classmethod
    def of(cls, seconds: list[float]) -> Counters:
        ordered = sorted(seconds)
        return cls(1000 * statistics.median(ordered), 1000 * ordered[len(ordered) * 9 // 10])


@dataclasses.dataclass(frozen=True)
class ProjectPath:
    """One Cyborg, ready to bind; ``profiles`` by how many ARQs one of them makes."""

    client: Client
    profiles: dict[int, str]
    rp: str

    def bind(self, count: int) -> float:
        """Bind so many ARQs in one PATCH, and delete them; seconds of the PATCH."""
        arqs = self.client.created(self.profiles[count])
        began = time.perf_counter()
        answer = self.client.bind(arqs, str(uuid.uuid4()), self.rp)
        seconds = time.perf_counter() - began
        assert answer.status == 202, answer
        assert self.client.delete(arqs).status == 204
        return seconds


def ready(stack: stacks.Stack, project_id: str) -> ProjectPath:
    """What runs there."""
    admin = stack.client(base.new_id(), "admin", "member", "reader")
    profiles = {count: f"bench-{count}" for count in SIZES}
    for count, name in profiles.items():
        assert admin.create_profile(name, {"resources:FPGA": str(count)}).status == 201
    return ProjectPath(stack.client(project_id), profiles, stack.rps[0])


def compare(ways: dict[str, ProjectPath], count: int, binds: int) -> dict[str, Counters]:
    """Let the ways take turns, each first as often as the other."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(WARM_UP + binds):
        for name in sorted(ways, reverse=bool(turn % 2)):
            seconds = ways[name].bind(count)
            if turn >= WARM_UP:
                taken[name].append(seconds)
    return {name: Counters.of(seconds) for name, seconds in taken.items()}


def table(title: str, figures: dict[str, Counters]) -> str:
    """The figures for a person."""
    lines = [title, f"  {'':8} {'median ms':>10} {'p90 ms':>8}"]
    lines += [f"  {name:8} {one.median:10.1f} {one.p90:8.1f}" for name, one in figures.items()]
    more = figures["with"].median - figures["without"].median, figures["with"].p90 - figures["without"].p90
    return "\n".join([*lines, f"  {'more':8} {more[0]:10.1f} {more[1]:8.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binds", type=int, default=200, help="of each way and size (default: 200)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    url = fixtures.fresh_url("mariadb", "bench")
    schema.sync(Database(fixtures.settings(url)))
    conf_file = quota.write_conf(environment.PLACE, url)
    engine = cyborg_quota.make_engine(loading.load(cfg.ConfigOpts(), ["--config-file", str(conf_file)]))
    project_id = base.new_id()
    for resource in ("fpga", "fpga.fake"):
        engine.administration.set_limit(ledger_base.ADMIN, resource, LIMIT, project_id)
    results = {}
    with contextlib.closing(stacks.Stack()) as without, contextlib.closing(stacks.Stack()) as with_quota:
        without.start()
        with_quota.start()
        with_quota.use(quota.CONDUCTOR, quota.API, f"[cyborg_quota]\nconfig_file = {conf_file}\n")
        ways = {"without": ready(without, project_id), "with": ready(with_quota, project_id)}
        for count in SIZES:
            figures = compare(ways, count, arguments.binds)
            print(table(f"a bind of {count}, of {arguments.binds} each", figures), flush=True)
            results[f"bind of {count}"] = {name: dataclasses.asdict(one) for name, one in figures.items()}
    conf_file.unlink()
    if arguments.json is not None:
        host = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
        arguments.json.write_text(json.dumps({"machine": host, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
