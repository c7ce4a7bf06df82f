# SPDX-License-Identifier: Apache-2.0
"""The pod of a claim: which pods may take it, in which order, and the change of the binding that this needs.

    read what the group holds, the binding, and the pods                               (no transaction)
    UPDATE the row of the pod, end the binding and insert the next one, then the
    steps of a reserve (capacity_claims.py)                                            (one transaction)

A claim that selects its pod tries, in this order:

1. If its group holds something in a pod: that pod only.
2. The pod to which the project is bound, if it is available and was below its threshold when it was measured last.
3. The pods that pass the filters, the best first. The binding then moves in the transaction of the claim.
4. The pod to which the project is bound, if it is available, although it was above its threshold. The binding stays,
   as after a selection for which no other pod passes the filters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cyborg_quota import exceptions
from cyborg_quota.db import history, pod_bindings, pods
from cyborg_quota.db.database import Connection
from cyborg_quota.db.pod_bindings import BindingKey, StoredBinding
from cyborg_quota.ledger.pending_claims import PendingClaim
from cyborg_quota.ledger.pod_selection import Candidate, PodRequest, PodSelection, reason_to_leave
from cyborg_quota.pod_types import Reason
from cyborg_quota.types import ANY, Claim, PodChoice

_SEE: Final = "headroom with the provider ANY is the largest amount that fits; `capacity report` shows what is free"


class BindingChanged(Exception):
    """The pod is not available any more, or another call has changed the binding: roll back, and read again."""


class BindingChange(NamedTuple):
    """A binding that a claim creates. ``ended_id``: the present binding, which ends; None: there is none.

    ``request``: what the pod was selected for.
    """

    key: BindingKey
    ended_id: int | None
    pod_id: int
    pod: str
    reason: Reason
    request: PodRequest


class PodOption(NamedTuple):
    """A pod that may take claims, and the change of the binding that this needs (None: none)."""

    pod: str
    change: BindingChange | None = None


@dataclasses.dataclass(frozen=True)
class PodUnit:
    """Claims of one call that go to one pod.

    ``target``: the name of the pod; the choice of the pod; or the pods in which the group of the claims holds
    something.
    """

    target: str | PodChoice | tuple[str, ...]
    claims: list[PendingClaim]

    @property
    def amounts(self) -> dict[str, int]:
        """The sum of the claims."""
        amounts: dict[str, int] = {}
        for item in self.claims:
            for resource, amount in item.claim.deltas.items():
                amounts[resource] = amounts.get(resource, 0) + amount
        return amounts

    @property
    def shapes(self) -> set[tuple[tuple[str, int], ...]]:
        """The different amounts of the claims."""
        return {tuple(sorted(item.claim.deltas.items())) for item in self.claims}


def divide(connection: Connection, pending: Iterable[PendingClaim]) -> list[PodUnit]:
    """Divide the claims of a call that have a pod into units.

    Claims of one group go to one pod: that in which the group holds something; or else that of a claim of this call
    that names its provider (which is placed already) or its pod; or else, if they choose by different tags, that of the
    first one. Claims with equal choices share a binding, and thus a pod; groups that hold something in several pods do
    not share one.
    """
    pending = list(pending)
    named = _named_pods(pending)
    units: dict[str | BindingKey | tuple[str | None, ...], PodUnit] = {}
    targets: dict[str, PodChoice | tuple[str, ...]] = {}
    for item in pending:
        target: str | PodChoice | tuple[str, ...] | None = item.claim.pod
        if target is None:
            continue
        if isinstance(target, PodChoice) and item.group is not None:
            if item.group not in targets:
                held = history.pods_of_group(connection, item.project_id, item.group)
                targets[item.group] = tuple(held) or named.get(item.group) or target
            target = targets[item.group]
        key: str | BindingKey | tuple[str | None, ...]
        if isinstance(target, PodChoice):
            key = _key(item.project_id, target)
        elif isinstance(target, tuple) and len(target) > 1:  # each group may go to another of its pods
            key = (item.project_id, item.group)
        else:
            key = target
        units.setdefault(key, PodUnit(target, [])).claims.append(item)
    return list(units.values())


def _named_pods(pending: Iterable[PendingClaim]) -> dict[str, tuple[str]]:
    """The pod of the first claim of each group that names its provider or its pod."""
    pods: dict[str, tuple[str]] = {}
    for item in pending:
        pod = item.claim.pod
        if pod is None and item.claim.provider != ANY:
            pod = item.counted_pod
        if item.group is not None and isinstance(pod, str):
            pods.setdefault(item.group, (pod,))
    return pods


def _key(project_id: str, choice: PodChoice) -> BindingKey:
    return BindingKey.of(project_id, choice.zone, choice.affinity)


def options(connection: Connection, unit: PodUnit, selection: PodSelection) -> Iterator[PodOption]:
    """The pods that may take the claims, in the order in which they are tried. Reads only as far as it is iterated."""
    target = unit.target
    if isinstance(target, str):
        if is_available(connection, target):
            yield PodOption(target)
    elif isinstance(target, tuple):
        yield from map(PodOption, target)
    else:
        yield from _options_of_choice(connection, unit, target, selection)


def _options_of_choice(
    connection: Connection, unit: PodUnit, choice: PodChoice, selection: PodSelection
) -> Iterator[PodOption]:
    key = _key(unit.claims[0].project_id, choice)
    request = PodRequest(choice.zone, choice.affinity, unit.amounts)
    current = pod_bindings.find_current(connection, key)
    reason: Reason | None = "first"
    if current is not None:
        reason = reason_to_move(current, request)
        if reason is None:
            yield PodOption(str(current.binding.pod))
    candidates = [Candidate(*stored) for stored in pods.list_pods(connection)]
    for candidate in selection.ranked(candidates, request):
        if current is None or candidate.id != current.pod_id:
            ended_id = None if current is None else current.id
            change = BindingChange(key, ended_id, candidate.id, candidate.pod.name, reason or "claim", request)
            yield PodOption(candidate.pod.name, change)
    if current is not None and reason == "full":
        yield PodOption(str(current.binding.pod))


def reason_to_move(current: StoredBinding, request: PodRequest) -> Reason | None:
    """Why the binding must move. None: it stays."""
    return reason_to_leave(current.state, current.usage, current.threshold, request)


def bind(connection: Connection, changes: Sequence[BindingChange], selection: PodSelection) -> None:
    """Change the bindings, first in the transaction of the claims. Raises BindingChanged; the caller must roll back.

    The rows of the pods are locked first, in the order of their ids: a switch to maintenance, a change of tags and a
    new measurement wait for them. What was committed since the pods were ranked is read then (P1).
    """
    for pod_id in sorted({change.pod_id for change in changes}):
        requests = [change.request for change in changes if change.pod_id == pod_id]
        if not hold(connection, pod_id, requests, selection):
            raise BindingChanged
    for change in sorted(changes):
        if change.ended_id is not None and not pod_bindings.end(connection, change.ended_id):
            raise BindingChanged
        pod_bindings.insert(connection, change.key, change.pod, change.reason)


def hold(connection: Connection, pod_id: int, requests: Iterable[PodRequest], selection: PodSelection) -> bool:
    """Lock a pod for new bindings. False: it is not available any more, or the filters refuse it by now."""
    if not pods.hold_available(connection, pod_id):
        return False
    stored = pods.find_held(connection, pod_id)
    return stored is not None and all(selection.passes(Candidate(*stored), request) for request in requests)


def is_available(connection: Connection, name: str) -> bool:
    """Whether claims that name this pod are taken."""
    stored = pods.find(connection, name)
    return stored is not None and stored.pod.state == "available"


def check_named(connection: Connection, pending: Iterable[PendingClaim]) -> None:
    """Raise PodNotFound or PodNotAvailable if a claim names such a pod."""
    for name in sorted({item.claim.pod for item in pending if isinstance(item.claim.pod, str)}):
        stored = pods.find(connection, name)
        if stored is None:
            raise exceptions.PodNotFound(name)
        if stored.pod.state != "available":
            raise exceptions.PodNotAvailable(name, stored.pod.state)


def refusal(claim: Claim) -> str:
    """Why a claim with ANY is refused. It does not name a pod that the caller has not named."""
    amounts = _text(claim.deltas)
    if claim.pod is None:
        return f"no single provider can take {amounts}; {_SEE}"
    if isinstance(claim.pod, str):
        return f"no single provider of pod {claim.pod} can take {amounts}; {_SEE}"
    return f"no pod that the project may use has a provider that can take {amounts}"


def _text(deltas: Mapping[str, int]) -> str:
    return ", ".join(f"{resource}={amount}" for resource, amount in sorted(deltas.items()))
