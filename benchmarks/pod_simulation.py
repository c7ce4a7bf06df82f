# SPDX-License-Identifier: Apache-2.0
"""Replays a trace of claims on the nodes of a cloud that form six pods, and compares rules for the choice of the pod.

    python -m benchmarks.pod_simulation DIRECTORY [--every N] [--threshold PERCENT]

DIRECTORY has gpu_nodes.csv (gpu_capacity_num, node_name) and gpu_attach_trace.csv, a trace as `replay` takes it. Every
N-th node is used, so that the pods fill up. Consecutive nodes form a pod. Each rule has a SQLite ledger of its own, and
each claim is a selection and a reserve of the engine. The pods are measured once in each day of the trace.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from cyborg_quota import ANY, SELECT, Inventory, QuotaEngine, exceptions
from cyborg_quota.capacity import tables
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.driver import DbQuotaDriver, DriverSettings
from cyborg_quota.limits.sources.config import NoopLimitDriver
from cyborg_quota.pods import selection as pod_selection
from cyborg_quota.replay.totals import Series
from cyborg_quota.replay.traces import Event, Trace
from cyborg_quota.types import ResourceKey
from tests import base, fixtures, hooks

PODS: Final = tuple(f"pod{number}" for number in range(1, 7))
DAY_SECONDS: Final = 86400.0
SAMPLE_SECONDS: Final = DAY_SECONDS / 4
RESOURCE: Final = "gpu"

Claim = Callable[[QuotaEngine, Event], None]


def _in_bound_pod(engine: QuotaEngine, event: Event) -> None:
    """Select the pod of the project, then claim in it. Both may move the binding."""
    with contextlib.suppress(exceptions.NoPodFits):  # (the claim is refused then)
        engine.pods.select(base.ADMIN, project_id=event.project_id, request={event.resource: event.amount})
    _reserve(engine, event, SELECT)


def _in_first_pod(engine: QuotaEngine, event: Event) -> None:
    """Claim in the first pod that takes it, without bindings."""
    for pod in PODS[:-1]:
        try:
            return _reserve(engine, event, pod)
        except exceptions.OverCapacity:
            continue
    return _reserve(engine, event, PODS[-1])


def _reserve(engine: QuotaEngine, event: Event, pod: object) -> None:
    engine.reserve(
        base.ADMIN,
        {event.resource: event.amount},
        project_id=event.project_id,
        consumer=event.consumer,
        provider=ANY,
        pod=pod,  # type: ignore[arg-type]
    )


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule for the choice of the pod. ``weigher``: of the pods that pass the filters."""

    name: str
    claim: Claim
    weigher: pod_selection.PodWeigher


RULES: Final = (
    Rule("bound", _in_bound_pod, pod_selection.CreationTime()),
    Rule("idle", _in_bound_pod, pod_selection.IdleCapacity()),
    Rule("first", _in_first_pod, pod_selection.CreationTime()),
)


@dataclasses.dataclass
class Outcome:
    """What a rule led to. ``use``: by pod.

    ``spread``: the number of pods that a project uses, the mean over projects and days. ``split``: the number of
    projects that use more than one at the end.
    """

    rule: str
    use: dict[str, Series]
    capacity: Mapping[str, int]
    claims: int = 0
    refused: int = 0
    moved: Counter[str] = dataclasses.field(default_factory=Counter)
    spread: float = 0.0
    split: int = 0

    @property
    def row(self) -> str:
        peaks = " ".join(f"{100 * self.use[pod].peak / self.capacity[pod]:4.0f}" for pod in PODS)
        moves = sum(self.moved.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.moved.items())) or "-"
        return (
            f"{self.rule:6} {self.claims:6} {self.refused:8} {moves:6} {self.spread:7.2f} {self.split:6}  {peaks}  "
            f"({reasons})"
        )


HEAD: Final = "rule   claims  refused  moved  spread  split  peak of each pod, percent"


def simulate(rule: Rule, nodes: Sequence[int], trace: Iterable[Event], threshold: int = 90) -> Outcome:
    """Replay the trace by one rule. ``nodes``: the accelerators of each node. ``threshold``: that of each pod."""
    database_settings = fixtures.settings(fixtures.fresh_url("sqlite", f"pods_{rule.name}"))
    database = Database(database_settings)
    schema.sync(database)
    database.close()
    selection = pod_selection.PodSelection(weighers=[(rule.weigher, 1.0)])
    settings = DriverSettings(database=database_settings, subjects={"pods": selection})
    engine = QuotaEngine(DbQuotaDriver(settings, NoopLimitDriver()))
    engine.register_resource(RESOURCE)
    try:
        capacity = make_pods(engine, nodes, threshold)
        return _simulate(engine, rule, Outcome(rule.name, {pod: Series() for pod in PODS}, capacity), trace)
    finally:
        engine.close()


def _simulate(engine: QuotaEngine, rule: Rule, outcome: Outcome, trace: Iterable[Event]) -> Outcome:
    spreads: list[float] = []
    next_day, next_sample = 0.0, 0.0
    event = None
    for event in trace:
        while event.time >= next_sample:
            _sample(engine, outcome, next_sample)
            next_sample += SAMPLE_SECONDS
        while event.time >= next_day:
            engine.pods.collect(base.ADMIN)
            spreads.append(_spread(engine, outcome))
            next_day += DAY_SECONDS
        _apply(engine, rule, event, outcome)
    if event is not None:
        _sample(engine, outcome, event.time)
        spreads.append(_spread(engine, outcome))
    measured = [spread for spread in spreads if spread]
    outcome.spread = sum(measured) / max(len(measured), 1)
    history = [binding for _, binding in engine.pods.list_bindings(base.ADMIN, history=True)]
    outcome.moved = Counter(binding.reason for binding in history if binding.reason != "first")
    return outcome


def make_pods(engine: QuotaEngine, nodes: Sequence[int], threshold: int) -> dict[str, int]:
    """Make the pods of consecutive nodes; returns the capacity of each."""
    for pod in PODS:
        engine.pods.add(base.ADMIN, pod, threshold=threshold)
    capacity = dict.fromkeys(PODS, 0)
    for number, accelerators in enumerate(nodes):
        pod = PODS[number * len(PODS) // len(nodes)]
        capacity[pod] += accelerators
        engine.capacity.add_provider(base.ADMIN, f"node{number}", pod=pod)
        engine.capacity.set_inventories(base.ADMIN, f"node{number}", {RESOURCE: Inventory(accelerators)})
    return capacity


def _apply(engine: QuotaEngine, rule: Rule, event: Event, outcome: Outcome) -> None:
    if event.kind == "reserve":
        outcome.claims += 1
        try:
            rule.claim(engine, event)
        except exceptions.OverCapacity:
            outcome.refused += 1
        return
    calls = {"commit": engine.commit, "rollback": engine.rollback, "release": engine.release}
    with contextlib.suppress(exceptions.ReservationNotFound):  # its claim was refused
        calls[event.kind](base.ADMIN, project_id=event.project_id, consumer=event.consumer)


def _sample(engine: QuotaEngine, outcome: Outcome, time: float) -> None:
    uses = hooks.database_of(engine).read(lambda connection: tables.sums(connection, PODS))
    for pod in PODS:
        outcome.use[pod].add(time, uses[ResourceKey(RESOURCE, pod)].used)


def _spread(engine: QuotaEngine, outcome: Outcome) -> float:
    """The mean number of pods that a project uses; sets ``split``, the number of projects that use several."""
    pod_of = {provider.name: provider.pod for provider in engine.capacity.list_providers(base.ADMIN)}
    used: dict[str, set[str | None]] = {}
    for allocation in engine.capacity.list_allocations(base.ADMIN):
        used.setdefault(allocation.project_id, set()).add(pod_of[allocation.provider])
    counts = [len(pods) for pods in used.values()]
    outcome.split = sum(count > 1 for count in counts)
    return sum(counts) / len(counts) if counts else 0.0


def read_nodes(path: pathlib.Path, every: int) -> list[int]:
    """The accelerators of every N-th node."""
    with path.open(newline="") as file:
        return [int(row["gpu_capacity_num"]) for row in csv.DictReader(file)][::every]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.pod_simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=3, metavar="N", help="use every N-th node (default: 3)")
    parser.add_argument("--threshold", type=int, default=90, metavar="PERCENT", help="of each pod (default: 90)")
    arguments = parser.parse_args()
    nodes = read_nodes(arguments.directory / "gpu_nodes.csv", arguments.every)
    trace = Trace(str(arguments.directory / "gpu_attach_trace.csv"))
    print(f"{len(nodes)} nodes, {sum(nodes)} accelerators\n{HEAD}")
    for rule in RULES:
        print(simulate(rule, nodes, trace, arguments.threshold).row, flush=True)


if __name__ == "__main__":
    main()
