# SPDX-License-Identifier: Apache-2.0
"""16 projects bind, unbind and delete through the real Cyborg while its conductors and its API are killed.

    python -m tests.servers run --only mariadb -- python -m tests.cyborgs.soak [--minutes N] [--seed S] [--json FILE]

Every 20 seconds all users pause. Reservations in flight are settled or expire; then no project may have more bound than
its limit, the ledger must be consistent, and after `reconcile --heal` it must agree with Cyborg. Every other round has
no kills, and then reconcile must find nothing at all. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import pathlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable

import sqlalchemy as sa
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import QuotaEngine
from cyborg_quota.conf import loading
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import base as ledger_base
from tests import fixtures, invariants
from tests.cyborgs import base, environment, quota
from tests.cyborgs import stack as stacks
from tests.cyborgs.load import Killer, Outcomes, User
from tests.cyborgs.service import Service
from tests.servers import machine

PROJECTS, USERS, HOSTS = 16, 20, 3
"""Some projects have two users, who compete for the same limit."""
ROUND_SECONDS = 20.0
RPC_SECONDS = 4
SETTLE_SECONDS = 60.0
OPTIONS = "bind_expire = 12\nreconcile_heal = true\nreconcile_seconds = 1\nreconcile_grace = 1"
"""A conductor that was killed between bind and commit is away for less than a reservation lives."""
CONFIG = "[DEFAULT]\nrpc_response_timeout = {seconds}\n[cyborg_quota]\nconfig_file = {file}\n"
WATCH = (
    "CREATE TABLE soak_limits (project_id VARCHAR(255) PRIMARY KEY, most INT NOT NULL)",
    "CREATE TABLE soak_overs (project_id VARCHAR(255), used INT, reserved INT, most INT)",
    # The whole history of the ledger: it contains every state.
    """
    CREATE TRIGGER soak_watch AFTER UPDATE ON quota_usages FOR EACH ROW
    INSERT INTO soak_overs SELECT NEW.project_id, NEW.used, NEW.reserved, most FROM soak_limits
    WHERE project_id = NEW.project_id AND NEW.resource = 'fpga' AND NEW.used + NEW.reserved > most
    """,
)
UNWATCH = ("DROP TRIGGER soak_watch", "DROP TABLE soak_overs", "DROP TABLE soak_limits")


@dataclasses.dataclass
class Summary:
    """The counts of a run. ``faults``: violations that fail the test."""

    outcomes: Outcomes = dataclasses.field(default_factory=collections.Counter)
    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    repaired: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rounds: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        outcomes = {
            f"{what}: {status or 'no answer'}": count for (what, status), count in sorted(self.outcomes.items())
        }
        counts = {"kills": dict(self.kills), "repaired": dict(self.repaired)}
        return {"rounds": self.rounds, "outcomes": outcomes, **counts, "faults": self.faults}

    def __str__(self) -> str:
        whats = sorted({what for what, _ in self.outcomes})
        statuses = sorted({status for _, status in self.outcomes})
        lines = ["".join([f"{'':16}", *(f"{status or 'none':>7}" for status in statuses)])]
        lines += ["".join([f"{what:16}", *(f"{self.outcomes[what, code]:7}" for code in statuses)]) for what in whats]
        for title, counts in (("killed", self.kills), ("repaired", self.repaired)):
            lines.append(f"{title}: " + (", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing"))
        return "\n".join([*lines, f"{self.rounds} rounds, {len(self.faults)} faults", *self.faults])


class Soak:
    """Rounds of load on a stack whose conductor and API charge the ledger at ``url``.

    :param reconcile: runs ``cyborg-quota reconcile -f json`` with these arguments.
    """

    def __init__(
        self,
        stack: stacks.Stack,
        engine: QuotaEngine,
        url: str,
        reconcile: Callable[..., quota.Output],
        *,
        second: Service | None = None,
        seed: str = "0",
    ) -> None:
        self._stack = stack
        self._engine = engine
        self._sql = sa.create_engine(url, poolclass=sa.NullPool)
        self._reconcile = reconcile
        self._conductors = [stack.conductor, *([second] if second else [])]
        self._rng = random.Random(seed)
        self.summary = Summary()
        self.limits: dict[str, int] = {}
        self._users: list[User] = []
        self._seed = seed

    def set_up(self) -> None:
        """Make the projects, with limits and users."""
        self._run_sql(*WATCH)
        admin = self._stack.client(base.new_id(), "admin", "member", "reader")
        profiles = {count: f"soak-{count}-{base.new_id()}" for count in (1, 2, 4)}
        for count, name in profiles.items():
            assert admin.create_profile(name, {"resources:FPGA": str(count)}).status == 201
        self.limits = {base.new_id(): self._rng.randint(1, 5) for _ in range(PROJECTS)}
        for project_id, limit in self.limits.items():
            self._engine.limits.set_limit(ledger_base.ADMIN, "fpga", limit, project_id)
        with self._sql.begin() as connection:
            rows = [{"project_id": one, "most": most} for one, most in self.limits.items()]
            connection.execute(sa.text("INSERT INTO soak_limits VALUES (:project_id, :most)"), rows)
        rps = dict(zip(self._stack.hosts, self._stack.rps, strict=True))
        projects = [*self.limits, *self.limits][:USERS]
        self._users = [
            User(self._stack.client(project_id), profiles, rps, f"{self._seed} {number}")
            for number, project_id in enumerate(projects)
        ]

    def tear_down(self) -> None:
        self._run_sql(*UNWATCH)

    def _run_sql(self, *statements: str) -> None:
        with self._sql.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    # --- a round ---

    def round(self, seconds: float, *, is_deadly: bool) -> None:
        """Run the load for ``seconds``, then check. ``is_deadly``: with kills."""
        stop = threading.Event()
        killer = Killer(self._victims(), self._rng)
        threads = [threading.Thread(target=user.work, args=[stop], daemon=True) for user in self._users]
        for thread in threads:
            thread.start()
        # In this thread: a service ends with the thread that started it.
        if is_deadly:
            killer.work(seconds)
        else:
            time.sleep(seconds)
        stop.set()
        for thread in threads:
            thread.join()
        for user in self._users:
            self.summary.outcomes += user.outcomes
            user.outcomes.clear()
        self.summary.kills += killer.kills
        self.summary.rounds += 1
        self._check_after_round(is_deadly=is_deadly)

    def _victims(self) -> list[list[Service]]:
        one = [[conductor] for conductor in self._conductors]
        return [*one, *one, *one, self._conductors, [self._stack.api]]

    def _check_after_round(self, *, is_deadly: bool) -> None:
        time.sleep(RPC_SECONDS if is_deadly else 0)  # a message that waits for a conductor exists as long as its caller
        machine.wait_until(lambda: not self._in_flight(), SETTLE_SECONDS)
        self._fault_if("still reserved", self._in_flight())
        bound = self._stack.records.bound()
        over = [f"{one}: {count} of {self.limits[one]}" for one, count in bound.items() if count > self.limits[one]]
        self._fault_if("more bound than the limit", over)
        output = self._reconcile("--heal", "--force")
        differences = json.loads(output.out or "[]")
        self._fault_if("reconcile failed", [output.err] if output.status else [])
        self.summary.repaired.update(difference["problem"] for difference in differences)
        unexpected = [] if is_deadly else [str(row) for row in differences]
        self._fault_if("the ledger differs from Cyborg although no process was killed", unexpected)
        self._fault_if("charged is not bound", [] if self.charged() == bound else [f"{self.charged()}, {bound}"])
        with self._sql.connect() as connection:
            self._fault_if("invariant", invariants.find_violations(connection))
            overs = connection.execute(sa.text("SELECT * FROM soak_overs")).all()
        self._fault_if("more charged than the limit", map(str, overs))
        self._fault_if("audit", map(str, self._engine.audit(ledger_base.ADMIN)))

    def _in_flight(self) -> list[str]:
        return [str(row.consumer) for row in self._engine.list_reservations(ledger_base.ADMIN, state="reserved")]

    def charged(self) -> dict[str, int]:
        """Return {project: number of attached accelerators}, from the ledger."""
        usages = self._engine.list_usages(ledger_base.ADMIN)
        return {usage.project_id: usage.usage.used for usage in usages if usage.resource == "fpga" and usage.usage.used}

    def _fault_if(self, what: str, found: Iterable[str]) -> None:
        self.summary.faults += [f"round {self.summary.rounds}: {what}: {item}" for item in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="the approximate total duration (default: 1)")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="the seed of all random choices")
    parser.add_argument("--json", type=pathlib.Path, help="also write the summary to this file")
    arguments = parser.parse_args()
    url = fixtures.fresh_url("mariadb", "soak")
    schema.sync(Database(fixtures.settings(url)))
    conf_file = quota.write_conf(environment.DIRECTORY, url, OPTIONS)
    stack = stacks.Stack()
    try:
        stack.start()
        stack.need_hosts(HOSTS)
        stack.use(quota.CONDUCTOR, quota.API, CONFIG.format(seconds=RPC_SECONDS, file=conf_file))
        engine = cyborg_quota.make_engine(loading.load(cfg.ConfigOpts(), ["--config-file", str(conf_file)]))
        reconcile = functools.partial(quota.reconcile, stack, conf_file, "-f", "json")
        soak = Soak(stack, engine, url, reconcile, second=stack.add_conductor("second"), seed=arguments.seed)
        soak.set_up()
        _run(soak, arguments.minutes * 60)
    finally:
        stack.close()
        conf_file.unlink(missing_ok=True)
    print(f"seed {arguments.seed}\n{soak.summary}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"seed": arguments.seed, **soak.summary.as_dict()}, indent=2) + "\n")
    return 1 if soak.summary.faults else 0


def _run(soak: Soak, seconds: float) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds or soak.summary.rounds < 2:
        soak.round(min(ROUND_SECONDS, seconds / 2), is_deadly=soak.summary.rounds % 2 == 0)
        calls, kills = sum(soak.summary.outcomes.values()), sum(soak.summary.kills.values())
        elapsed = time.monotonic() - began
        print(f"{elapsed:5.0f} s: {calls} calls, {kills} kills, {len(soak.summary.faults)} faults", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
