# SPDX-License-Identifier: Apache-2.0
"""State machines of hypothesis that call an engine, and the settings of all model tests."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
from hypothesis import stateful

from cyborg_quota.ledger.limit_source import LimitDriver
from tests import fixtures


class LedgerMachine(stateful.RuleBasedStateMachine):
    """Calls on an empty ledger. ``backend`` is set by the test. ``quotas`` checks the invariants after each call."""

    backend = "sqlite"

    def begin_with(self, limits: LimitDriver, **changes: Any) -> None:
        ledger = fixtures.EmptyLedger(self.backend)
        ledger.setUp()
        self.url = ledger.url
        self.engine = fixtures.make_engine(self.url, limits, **changes)
        self.quotas: Any = fixtures.Checked(self.engine, self.url)

    def teardown(self) -> None:
        self.engine.close()


def run(machine: type[stateful.RuleBasedStateMachine], examples: int, *, seed: int, **attributes: str) -> None:
    """Run ``examples`` random histories of 25 steps. ``attributes`` are set on a subclass of ``machine``.

    In CI, each run has the same histories, those of ``seed``: of the seeds 0 to 7, that whose first five histories
    execute the most of the ledger's code. The phase ``explain`` is left out: it runs a failing history many times.
    """
    is_ci = bool(os.environ.get("CI"))
    chosen: Any = type(machine.__name__, (machine,), attributes)
    stateful.run_state_machine_as_test(
        hypothesis.seed(seed)(chosen) if is_ci else chosen,
        settings=hypothesis.settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            database=None if is_ci else hypothesis.settings().database,
            suppress_health_check=list(hypothesis.HealthCheck),
            print_blob=True,
            phases=[phase for phase in hypothesis.Phase if phase != hypothesis.Phase.explain],
        ),
    )
