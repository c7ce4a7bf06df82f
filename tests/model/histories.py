# SPDX-License-Identifier: Apache-2.0
"""Runs a state machine of hypothesis with the settings of all model tests."""

from __future__ import annotations

import os

import hypothesis
from hypothesis import stateful


def run(machine: type[stateful.RuleBasedStateMachine], examples: int, **attributes: str) -> None:
    """Run ``examples`` random histories of 25 steps. ``attributes`` are set on a subclass of ``machine``.

    In CI, each run has the same histories. The phase ``explain`` is left out: it runs a failing history many times.
    """
    stateful.run_state_machine_as_test(
        type(machine.__name__, (machine,), attributes),
        settings=hypothesis.settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            derandomize=bool(os.environ.get("CI")),
            suppress_health_check=list(hypothesis.HealthCheck),
            print_blob=True,
            phases=[phase for phase in hypothesis.Phase if phase != hypothesis.Phase.explain],
        ),
    )
