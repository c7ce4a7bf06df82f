# SPDX-License-Identifier: Apache-2.0
"""Projects use servers with accelerators on the real Nova, while a nova-compute is killed and restarted.

    python -m tests.servers run --only mariadb -- python -m tests.novas.soak [--minutes N] [--seed S] [--json FILE]

Every 20 seconds all users pause. Then no project may have more bound than its limit, and every counter must equal the
number that Cyborg has bound, without any reconciliation. The exit status is 1 if a check failed. The time includes the
cloud's start.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import random
import sys
import threading
import time

from tests.installing import NotAvailable
from tests.novas import base
from tests.novas.cloud import HOSTS, Cloud
from tests.novas.load import Load, Outcomes
from tests.servers import machine

PROJECTS = 4
ROUND_SECONDS = 20.0
FEWEST_ROUNDS = 2
RELEASE_SECONDS = 15.0


@dataclasses.dataclass
class Summary:
    """The counts of a run. ``faults``: violations that fail the test."""

    outcomes: Outcomes = dataclasses.field(default_factory=collections.Counter)
    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rounds: int = 0
    left_bound: int = 0
    """Devices bound to deleted servers: Nova forgets the devices of a server that is deleted while it is scheduled."""
    faults: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        outcomes = {f"{what}: {status}": count for (what, status), count in sorted(self.outcomes.items()) if count}
        counts = {"kills": dict(self.kills), "left_bound": self.left_bound}
        return {"rounds": self.rounds, "outcomes": outcomes, **counts, "faults": self.faults}


class Soak:
    """Rounds of load on one cloud."""

    def __init__(self, cloud: Cloud, seed: str) -> None:
        self._cloud = cloud
        self._ledger = base.Ledger(cloud)
        self._rng = random.Random(seed)
        self.summary = Summary()
        self._limits: dict[str, int] = {}
        self._loads: list[Load] = []
        for number in range(PROJECTS):
            user = cloud.create_user()
            self._limits[user.project_id] = self._rng.randint(1, 5)
            self._ledger.set_limit(user.project_id, self._limits[user.project_id])
            self._loads.append(Load(user, cloud.flavors, cloud.image_id, f"{seed} {number}"))

    def round(self, seconds: float) -> None:
        """Run the load for ``seconds``, with one kill in the middle; then check."""
        stop = threading.Event()
        threads = [threading.Thread(target=load.work, args=[stop], daemon=True) for load in self._loads]
        for thread in threads:
            thread.start()
        # In this thread: a service ends with the thread that started it.
        host = self._rng.choice(HOSTS)
        time.sleep(self._rng.uniform(0.2, 0.8) * seconds)
        self._cloud.computes[host].kill()
        self.summary.kills[f"nova-compute on {host}"] += 1
        self._cloud.computes[host].start()
        time.sleep(seconds * 0.2)
        stop.set()
        for thread in threads:
            thread.join()
        for load in self._loads:
            self.summary.outcomes += load.outcomes
            load.outcomes.clear()
        self.summary.rounds += 1
        self._check_after_round()

    def _check_after_round(self) -> None:
        problems = self._ledger.wait_until_equal(arqs=False)
        for project_id, count in self._cloud.records.bound().items():
            limit = self._limits.get(project_id, 0)
            if count > limit:
                problems.append(f"project {project_id} has {count} bound, its limit is {limit}")
        self.summary.faults += [f"round {self.summary.rounds}: {problem}" for problem in problems]

    def delete_all(self) -> None:
        """Delete every server. Devices that stay bound were forgotten by Nova, and must stay charged."""
        for load in self._loads:
            load.user.delete(*load.user.servers())
        machine.wait_until(lambda: not self._cloud.records.bound(), RELEASE_SECONDS)
        self.summary.faults += [f"at the end: {problem}" for problem in self._ledger.wait_until_equal(arqs=False)]
        self.summary.left_bound = sum(self._cloud.records.bound().values())


def main() -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0, help="the approximate total duration (default: 4)")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="the seed of all random choices")
    parser.add_argument("--json", type=pathlib.Path, help="also write the summary to this file")
    arguments = parser.parse_args()
    try:
        cloud = Cloud(base.OPTIONS)
    except NotAvailable as reason:
        print(f"tests.novas.soak: no Nova: {reason}", file=sys.stderr)
        return 3
    try:
        cloud.start()
        print(f"{time.monotonic() - began:5.0f} s: the cloud runs", file=sys.stderr)
        soak = Soak(cloud, arguments.seed)
        _run(soak, began, arguments.minutes * 60)
    finally:
        cloud.close()
    summary = {"seed": arguments.seed, **soak.summary.as_dict()}
    print(json.dumps(summary, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 1 if soak.summary.faults else 0


def _run(soak: Soak, began: float, seconds: float) -> None:
    """Run rounds while one more, and the end, fit into the time."""
    longest = 0.0
    while soak.summary.rounds < FEWEST_ROUNDS or time.monotonic() - began + 1.5 * longest < seconds:
        round_began = time.monotonic()
        soak.round(ROUND_SECONDS)
        longest = max(longest, time.monotonic() - round_began)
        calls, faults = sum(soak.summary.outcomes.values()), len(soak.summary.faults)
        print(f"{time.monotonic() - began:5.0f} s: {calls} calls, {faults} faults", file=sys.stderr)
    soak.delete_all()


if __name__ == "__main__":
    sys.exit(main())
