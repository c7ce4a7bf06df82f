# SPDX-License-Identifier: Apache-2.0
"""The enforcer of pods: which pods may take a claim, in which order, and the change of the binding that this needs.

    read what the group holds, the binding, and the pods                               (no transaction)
    INSERT the reservations, UPDATE the row of the pod, end the binding and
    insert the next one, then UPDATE inventories and usage rows                        (one transaction)

A claim that selects its pod tries, in this order:

1. If its group holds something in a pod: that pod only.
2. The pod to which the project is bound, if it is available and was below its threshold when it was measured last.
3. The pods that pass the filters, the best first. The binding then moves in the transaction of the claim.
4. The pod to which the project is bound, if it is available, although it was above its threshold. The binding stays,
   as after a selection for which no other pod passes the filters.

A request without a zone uses the bindings of all zones, the oldest first. What moves is the binding in the zone of the
new pod, or else the oldest binding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import ClassVar, Final, NamedTuple, cast

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.capacity import tables as capacity_tables
from cyborg_quota.capacity.claims import CapacityEnforcer, Taken
from cyborg_quota.conf import plugins
from cyborg_quota.db import path_state
from cyborg_quota.db.database import Connection
from cyborg_quota.db.inventories import InventoryClaim
from cyborg_quota.ledger import enforcement
from cyborg_quota.ledger.enforcers import (
    Enforcer,
    Parts,
    PendingClaim,
    PreparationChanged,
    Refused,
    Rooms,
    choose_in_read,
    conflict,
)
from cyborg_quota.pods import tables
from cyborg_quota.pods.selection import PodRequest, PodSelection, is_full
from cyborg_quota.pods.tables import BindingKey, StoredBinding
from cyborg_quota.types import ANY, PodChoice, RecordedChange, ReserveRequest, ResourceKey, Row, summed
from cyborg_quota.types.capacity import Candidate, Reason, ResourceUse

_PODS_ONE_BY_ONE: Final = 2
"""After this number of pods that do not fit, one query finds all pods with a provider that fits."""


class BindingChange(NamedTuple):
    """A binding that a claim creates. ``ended``: the present bindings that end. ``others``: see replace_bindings.

    ``request``: what the pod was selected for.
    """

    key: BindingKey
    ended: Sequence[StoredBinding]
    others: Collection[int] | None
    candidate: Candidate
    reason: Reason
    request: PodRequest


PodOption = tuple[str, tuple[BindingChange, ...]]
"""A pod that may take claims, and the change of the binding that this needs, if any."""


@dataclasses.dataclass(frozen=True)
class PodUnit:
    """Claims of one call that go to one pod.

    ``target``: the name of the pod; the choice of the pod; or the pods in which the group of the claims holds
    something.
    """

    target: str | PodChoice | tuple[str, ...]
    claims: list[PendingClaim]


class PodEnforcer(Enforcer):
    """Chooses the pods of claims, changes bindings, and tries another pod where the limits of one refuse a claim."""

    fields: ClassVar[tuple[str, ...]] = ("provider", "pod")  # (a provider that a claim names may be in a pod)

    def __init__(self, parts: Parts, selection: PodSelection | None) -> None:
        self.parts: Final = parts
        self.selection: Final = selection or PodSelection()
        self._database = parts.database
        self._limits = parts.limits
        self._capacity = cast(CapacityEnforcer, parts.subjects["capacity"])

    @staticmethod
    def selection_of(conf: cfg.ConfigOpts) -> PodSelection:
        """The filters and weighers that ``conf`` names. Raises ConfigurationError."""
        return PodSelection(
            filters=[plugins.load("cyborg_quota.pod_filters", "[pods] filters", name)() for name in conf.pods.filters],
            weighers=[
                (plugins.load("cyborg_quota.pod_weighers", "[pods] weighers", name)(), multiplier)
                for name, multiplier in conf.pods.weighers.items()
            ],
        )

    def measured(self, connection: Connection) -> tuple[dict[ResourceKey, ResourceUse], dict[str, float]]:
        measurements = tables.list_usages(connection)
        uses = {
            ResourceKey(resource, measurement.pod): use
            for measurement in measurements
            for resource, use in (measurement.usage or {}).items()
        }
        return uses, {
            measurement.pod: measurement.unmeasured_seconds
            for measurement in measurements
            if measurement.unmeasured_seconds is not None
        }

    def counters_of(self, resource: str, pod: str | None) -> Iterable[ResourceKey]:
        return () if pod is None else (ResourceKey(resource, pod),)

    def forget(self, connection: Connection, project_id: str) -> Sequence[RecordedChange]:
        """End the bindings of a project that is removed. They are kept as history."""
        tables.end_bindings_of(connection, project_id)
        return ()

    def narrow(self, connection: Connection, rooms: Rooms) -> None:
        rooms.is_open = rooms.pod is None or is_available(connection, rooms.pod)

    def prepare(self, pending: Sequence[PendingClaim]) -> None:
        """Choose the pods, and the providers in them, after those that other claims name."""

        def work(connection: Connection) -> None:
            self._database.sync_with_cluster(connection)  # a binding must not move because of an outdated read
            if named := [item for item in pending if item.named]:
                self._capacity.choose_named(connection, named)
            for item in pending:
                if item.claim.provider is None and isinstance(pod := item.claim.pod, str):  # (of its quota alone)
                    is_open = not item.is_limited or is_available(connection, pod)
                    item.pods = dict.fromkeys(item.claim.deltas, pod) if is_open else {}
            for unit in divide(connection, pending, self.selection):
                self._choose_pod(connection, unit, pending)

        if any(item.claim.pod is not None for item in pending):
            choose_in_read(self._database, pending, work)

    def _choose_pod(self, connection: Connection, unit: PodUnit, pending: Sequence[PendingClaim]) -> None:
        """Choose the first pod that fits all claims of the unit, and their providers; no pod that has refused one."""
        fitting: set[str] | None = None
        taken = Taken(pending)
        full = {pod for item in unit.claims for pod in taken.full_pods(item)}
        for number, (pod, changes) in enumerate(options(connection, unit, self.selection)):
            if number == _PODS_ONE_BY_ONE:
                shapes = {frozenset(item.claim.deltas.items()) for item in unit.claims}
                fitting = set.intersection(
                    *[capacity_tables.pods_that_fit(connection, dict(shape)) for shape in shapes]
                )
            if pod in full or (fitting is not None and pod not in fitting):
                continue
            if self._capacity.choose_providers(connection, unit.claims, pending, pod):
                unit.claims[0].changes = changes
                return

    def inventory_claims(self, pending: Sequence[PendingClaim]) -> Sequence[InventoryClaim] | None:
        return () if all(pod is None for item in pending for pod in item.pods.values()) else None

    def charge(self, connection: Connection, pending: Sequence[PendingClaim]) -> None:
        """Change the bindings."""
        changes = [change for item in pending for change in item.changes if isinstance(change, BindingChange)]
        if not change_bindings(connection, changes, self.selection):
            raise PreparationChanged

    def retries(self, pending: Sequence[PendingClaim], refusal: Exception) -> bool:
        """Whether claims that may choose another pod have caused ``refusal``: then what all pods leave is read.

        False: another limit than those of pods is exceeded, too, or each claim names its provider or its pod. If no
        pod is found later, the first refusal is the answer.
        """
        if isinstance(refusal, Refused):
            for item in pending:
                if item.refusal is not None and refusal.inventory_id is None:
                    raise item.refusal
        if not isinstance(refusal, exceptions.OverQuota):
            return False
        exceeded = {(over.resource, over.pod) for over in refusal.overs}
        movable = [
            item
            for item in pending
            if item.claim.provider == ANY
            and not isinstance(item.claim.pod, str)
            and any(counted in exceeded for counted in item.pods.items())
        ]
        if not movable or any(pod is None for _, pod in exceeded):
            return False
        rooms = self._rooms(movable[0].project_id, refusal)
        for item in pending:
            item.room = rooms
        for item in movable:
            item.refusal = refusal
        return True

    def _rooms(self, project_id: str, refusal: exceptions.OverQuota) -> dict[ResourceKey, int]:
        """What the limits per pod permit to the project now, by resource and pod: one read for all pods.

        A limit that refused and cannot be read, because it was removed or its driver lists none, permits nothing.
        """
        state = self._database.read_synced(lambda connection: path_state.read(connection, project_id, pod=""))
        (bounds,) = self._limits.bounds([state], ())
        limits = [limit for limit in bounds.constraints if limit.pod]
        request = {limit.key.resource_key: enforcement.TOO_MUCH for limit in limits}
        overs = enforcement.find_violations(project_id, limits, state.counters, request)
        rooms = {ResourceKey(over.resource, over.pod): 0 for over in refusal.overs if over.pod is not None}
        for over in sorted(overs, key=attrgetter("room"), reverse=True):
            rooms[ResourceKey(over.resource, str(over.pod))] = over.room
        return rooms

    def explain(self, request: ReserveRequest, pending: Sequence[PendingClaim]) -> None:  # noqa: ARG002
        """Raise PodNotFound or PodNotAvailable if a claim names such a pod."""
        is_refused = not all(item.is_complete for item in pending)
        for name in sorted({item.claim.pod for item in pending if is_refused and isinstance(item.claim.pod, str)}):
            stored = self._database.read_synced(functools.partial(tables.find, name=name))
            if stored.pod.state != "available":
                raise exceptions.PodNotAvailable(name, stored.pod.state)

    def confirm(self, item: PendingClaim, held: Sequence[Row]) -> None:
        """The consumer must hold in the pod that the claim names."""
        if isinstance(item.claim.pod, str) and {row.pod for row in held} != {item.claim.pod}:
            raise conflict(item.claim, held)


def divide(connection: Connection, pending: Iterable[PendingClaim], selection: PodSelection) -> list[PodUnit]:
    """Divide the claims of a call that have a pod, and any provider there, into units.

    Claims of one group go to one pod: that in which the group holds something; or else that of a claim of this call
    that names its provider (which is placed already) or its pod; or else, if they choose by different tags, that of the
    first one. Claims with equal choices share a binding, and thus a pod; so do one that names no zone and the first one
    of equal tags that names one. Groups that hold something in several pods do not share one.
    """
    pending = list(pending)
    named = _named_pods(pending)
    chosen = _choices(connection, pending, selection)
    units: dict[str | tuple[str | BindingKey | None, ...], PodUnit] = {}
    targets: dict[str, PodChoice | tuple[str, ...]] = {}
    for item in pending:
        target: str | PodChoice | tuple[str, ...] | None = chosen.get(id(item), item.claim.pod)
        if target is None or item.claim.provider is None:
            continue
        if isinstance(target, PodChoice) and item.group is not None:
            if item.group not in targets:
                pods = tables.pods_of_group(connection, item.project_id, item.group)
                targets[item.group] = tuple(pods) or named.get(item.group) or target
            target = targets[item.group]
        key: str | tuple[str | BindingKey | None, ...]
        if isinstance(target, PodChoice):
            key = (BindingKey.of(item.project_id, target.affinity), selection.zone(target.zone))
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
        if pod is None and item.named:
            pod = next((name for name in item.pods.values() if name is not None), None)
        if item.group is not None and isinstance(pod, str):
            pods.setdefault(item.group, (pod,))
    return pods


def _choices(connection: Connection, pending: Iterable[PendingClaim], selection: PodSelection) -> dict[int, PodChoice]:
    """The choices of claims, by the identity of the claim: with the tags that are compared, and a zone if there is one.

    A claim that names no zone has that of the first claim with equal tags.
    """
    chosen = {id(item): item.claim.pod for item in pending if isinstance(item.claim.pod, PodChoice)}
    affinities = tables.compared(connection, [choice.affinity for choice in chosen.values()])
    zones: dict[str, str] = {}
    for choice, affinity in zip(chosen.values(), affinities, strict=True):
        if (zone := selection.zone(choice.zone)) is not None:
            zones.setdefault(tables.affinity_text(affinity), zone)
    return {
        claim_id: PodChoice(choice.zone or zones.get(tables.affinity_text(affinity)), affinity)
        for (claim_id, choice), affinity in zip(chosen.items(), affinities, strict=True)
    }


def options(connection: Connection, unit: PodUnit, selection: PodSelection) -> Iterator[PodOption]:
    """The pods that may take the claims, in the order in which they are tried. Reads only as far as it is iterated."""
    target = unit.target
    if isinstance(target, str):
        if is_available(connection, target):
            yield target, ()
    elif isinstance(target, tuple):
        yield from ((pod, ()) for pod in target)
    else:
        amounts = summed(delta for item in unit.claims for delta in item.claim.deltas.items())
        request = PodRequest(target.zone, target.affinity, amounts)
        yield from options_of_request(connection, unit.claims[0].project_id, request, selection)


def options_of_request(
    connection: Connection, project_id: str, request: PodRequest, selection: PodSelection
) -> Iterator[PodOption]:
    """The pods for a binding, as above. None: there is no binding, and no pod passes the filters."""
    key, zone = BindingKey.of(project_id, request.affinity), selection.zone(request.zone)
    bound = in_zone(tables.find_current(connection, key), zone)
    reasons = {row.id: reason_to_move(row, request) for row in bound}
    yield from ((str(row.binding.pod), ()) for row in bound if reasons[row.id] is None)
    candidates = tables.list_pods(connection)
    for candidate in selection.ranked(candidates, request):
        if all(candidate.id != row.candidate.id for row in bound):
            of_pod = candidate.pod.availability_zone
            ended = [row for row in bound if row.binding.availability_zone == of_pod] or bound[:1]
            reason = (reasons[ended[0].id] or "claim") if ended else "first"
            others = {row.id for row in bound if row not in ended} if zone is None else None
            change = BindingChange(key, ended, others, candidate, reason, request)
            yield candidate.pod.name, (change,)
    yield from ((str(row.binding.pod), ()) for row in bound if reasons[row.id] == "full")


def in_zone(bound: Iterable[StoredBinding], zone: str | None) -> list[StoredBinding]:
    """Those in this zone; None: in any."""
    return [row for row in bound if zone in (None, row.binding.availability_zone)]


def reason_to_move(current: StoredBinding, request: PodRequest) -> Reason | None:
    """Why the binding must move. None: it stays."""
    pod = current.candidate.pod
    if pod.state != "available":
        return pod.state
    return "full" if is_full(current.candidate.usage, pod.threshold, request) else None


def change_bindings(connection: Connection, changes: Sequence[BindingChange], selection: PodSelection) -> bool:
    """End bindings, and insert the next ones. False: something has changed since the pods were ranked; roll back.

    The rows of the pods are locked first, in the order of their ids: a switch to maintenance, a change of tags and a
    new measurement wait for them. What was committed since the pods were ranked is read then (P1).
    """
    for pod_id in sorted({change.candidate.id for change in changes}):
        requests = [change.request for change in changes if change.candidate.id == pod_id]
        if not hold(connection, pod_id, requests, selection):
            return False
    return all(
        tables.replace_bindings(
            connection, change.key, change.ended, change.candidate.pod, change.reason, others=change.others
        )
        for change in sorted(changes, key=lambda change: change.key)
    )


def hold(connection: Connection, pod_id: int, requests: Iterable[PodRequest], selection: PodSelection) -> bool:
    """Lock a pod for new bindings. False: it is not available any more, or the filters refuse it by now."""
    stored = tables.hold_available(connection, pod_id)
    return stored is not None and all(selection.passes(stored, request) for request in requests)


def is_available(connection: Connection, name: str) -> bool:
    """Whether claims that name this pod are taken."""
    with contextlib.suppress(exceptions.PodNotFound):
        return tables.find(connection, name).pod.state == "available"
    return False
