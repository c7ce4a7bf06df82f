# SPDX-License-Identifier: Apache-2.0
"""16 projects bind, unbind and delete through the real Cyborg while its conductors and its API are killed.

In each round, all users pause after some seconds. Reservations in flight are settled or expire; then no project may
have more bound than its limit, the ledger must be consistent, and after `reconcile --heal` it must agree with Cyborg.
Every other round has no kills, and then reconcile must find nothing at all. A scenario of tests/faults/soak.py.
"""

from __future__ import annotations

import collections
import functools
import json
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import sqlalchemy as sa
from oslo_config import cfg

import cyborg_quota
from cyborg_quota import QuotaEngine
from cyborg_quota.conf import loading
from tests import base as ledger_base
from tests import fixtures
from tests.cyborgs import base, quota
from tests.cyborgs import stack as stacks
from tests.cyborgs.load import Outcomes, User, at_work, kill
from tests.cyborgs.service import Service
from tests.faults.ledger_check import Report
from tests.servers import machine

if TYPE_CHECKING:
    from tests.faults.soak import Stage

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
        self._users: list[User] = []
        self._seed = seed
        self.limits: dict[str, int] = {}
        self.outcomes: Outcomes = collections.Counter()
        """Of all rounds."""

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

    def round(self, seconds: float, *, is_deadly: bool) -> tuple[Report, int]:
        """Run the load for ``seconds``, then check. ``is_deadly``: with kills. Returns the report and the kills."""
        kills, one = 0, [[conductor] for conductor in self._conductors]
        with at_work(self._users) as outcomes:
            # In this thread: a service ends with the thread that started it.
            if is_deadly:
                kills = kill([*one, *one, *one, self._conductors, [self._stack.api]], self._rng, seconds)
            else:
                time.sleep(seconds)
        self.outcomes += outcomes
        report = Report(calls=sum(outcomes.values()))
        self._check_after_round(report, is_deadly=is_deadly)
        return report, kills

    def _check_after_round(self, report: Report, *, is_deadly: bool) -> None:
        def fault_if(what: str, found: Iterable[object]) -> None:
            report.checks += 1
            report.problems += [f"{what}: {item}" for item in found]

        time.sleep(RPC_SECONDS if is_deadly else 0)  # a message that waits for a conductor exists as long as its caller
        machine.wait_until(lambda: not self._in_flight(), SETTLE_SECONDS)
        fault_if("still reserved", self._in_flight())
        bound = self._stack.records.bound()
        over = [f"{one}: {count} of {self.limits[one]}" for one, count in bound.items() if count > self.limits[one]]
        fault_if("more bound than the limit", over)
        output = self._reconcile("--heal", "--force")
        fault_if("reconcile failed", [output.err] if output.status else [])
        repaired = [] if is_deadly else json.loads(output.out or "[]")
        fault_if("the ledger differs from Cyborg although no process was killed", repaired)
        fault_if("after the repair", quota.differences(self._engine, self._stack.records, self._sql))
        with self._sql.connect() as connection:
            fault_if("more charged than the limit", connection.execute(sa.text("SELECT * FROM soak_overs")).all())
        fault_if("audit", self._engine.audit(ledger_base.ADMIN))

    def _in_flight(self) -> list[str]:
        return [str(row.consumer) for row in self._engine.list_reservations(ledger_base.ADMIN, state="reserved")]


def run(stage: Stage) -> None:
    """Raises NotAvailable."""
    url = fixtures.fresh_url("mariadb", "soak")
    fixtures.create_schema(url)
    stack = stacks.Stack()
    conf_file = quota.write_conf(stack.workdir, url, OPTIONS)
    try:
        stack.start()
        stack.need_hosts(HOSTS)
        stack.use(quota.CONDUCTOR, quota.API, CONFIG.format(seconds=RPC_SECONDS, file=conf_file))
        engine = cyborg_quota.make_engine(loading.load(cfg.ConfigOpts(), ["--config-file", str(conf_file)]))
        reconcile = functools.partial(quota.reconcile, stack, conf_file, "-f", "json")
        soak = Soak(stack, engine, url, reconcile, second=stack.add_conductor("second"), seed=str(stage.seed))
        soak.set_up()
        while not stage.is_over or stage.rounds < 2:
            stage.report(*soak.round(min(ROUND_SECONDS, stage.seconds / 2), is_deadly=stage.rounds % 2 == 0))
    finally:
        stack.close()
