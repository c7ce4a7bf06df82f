# SPDX-License-Identifier: Apache-2.0
"""Projects use servers with accelerators on the real Nova, while a nova-compute is killed and restarted.

After each round of 20 seconds, no project may have more bound than its limit, and every counter must equal the number
that Cyborg has bound, without any reconciliation. A scenario of tests/faults/soak.py.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from tests.cyborgs.load import at_work
from tests.faults.ledger_check import Report
from tests.novas import base
from tests.novas.cloud import HOSTS, Cloud
from tests.novas.load import Load
from tests.servers import machine

if TYPE_CHECKING:
    from tests.faults.soak import Stage

PROJECTS = 4
ROUND_SECONDS = 20.0
FEWEST_ROUNDS = 2
RELEASE_SECONDS = 15.0


class Soak:
    """Rounds of load on one cloud."""

    def __init__(self, cloud: Cloud, seed: str) -> None:
        self._cloud = cloud
        self._ledger = base.Ledger(cloud)
        self._rng = random.Random(seed)
        self._limits: dict[str, int] = {}
        self._loads: list[Load] = []
        for number in range(PROJECTS):
            user = cloud.create_user()
            self._limits[user.project_id] = self._rng.randint(1, 5)
            self._ledger.set_limit(user.project_id, self._limits[user.project_id])
            self._loads.append(Load(user, cloud.flavors, cloud.image_id, f"{seed} {number}"))

    def round(self, seconds: float) -> Report:
        """Run the load for ``seconds``, with one kill in the middle; then check."""
        with at_work(self._loads) as outcomes:
            # In this thread: a service ends with the thread that started it.
            compute = self._cloud.computes[self._rng.choice(HOSTS)]
            time.sleep(self._rng.uniform(0.2, 0.8) * seconds)
            compute.kill()
            compute.start()
            time.sleep(seconds * 0.2)
        report = Report(calls=sum(outcomes.values()), checks=2, problems=self._ledger.wait_until_equal(arqs=False))
        report.errors.update({status: count for (_, status), count in outcomes.items() if "rror" in status})
        for project_id, count in self._cloud.records.bound().items():
            limit = self._limits.get(project_id, 0)
            if count > limit:
                report.problems.append(f"project {project_id} has {count} bound, its limit is {limit}")
        return report

    def delete_all(self) -> Report:
        """Delete every server. Devices that stay bound must stay charged.

        (Nova forgets the devices of a server that is deleted while it is scheduled.)
        """
        for load in self._loads:
            load.user.delete(*load.user.servers())
        machine.wait_until(lambda: not self._cloud.records.bound(), RELEASE_SECONDS)
        return Report(checks=1, problems=self._ledger.wait_until_equal(arqs=False))


def run(stage: Stage) -> None:
    """Raises NotAvailable. The time includes the cloud's start."""
    cloud = Cloud(base.OPTIONS)
    try:
        cloud.start()
        soak = Soak(cloud, str(stage.seed))
        while stage.rounds < FEWEST_ROUNDS or stage.seconds_left > 2 * ROUND_SECONDS:
            stage.report(soak.round(ROUND_SECONDS), 1)
        stage.report(soak.delete_all(), 0)
    finally:
        cloud.close()
    stage.end()
