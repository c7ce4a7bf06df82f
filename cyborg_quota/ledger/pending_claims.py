# SPDX-License-Identifier: Apache-2.0
"""A claim while it is being charged, and what its consumer holds already."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from cyborg_quota import exceptions, transitions
from cyborg_quota.types import ANY, RESERVED, Claim, ResourceKey


@dataclasses.dataclass(slots=True)
class PendingClaim:
    """A claim that is being charged. Its UUIDs are generated once, so that a retry finds the rows of earlier attempts.

    ``group``: that of the claim, or else that of the call. ``reserved``: the UUIDs of reservations of the same consumer
    that existed before and are not committed. ``provider_id``: the provider of the present attempt, and
    ``counted_pod`` its pod (None: it has none). ``tried``: providers that ANY does not choose again.
    ``pod_room``: what limits per pod permitted when one had refused a claim of the call (``refusal``), by resource and
    pod. What is missing is not limited.
    """

    claim: Claim
    project_id: str
    group: str | None
    uuids: dict[str, str]
    is_charged: bool = False
    reserved: tuple[str, ...] = ()
    provider_id: int | None = None
    counted_pod: str | None = None
    tried: set[int] = dataclasses.field(default_factory=set)
    pod_room: Mapping[ResourceKey, int] = dataclasses.field(default_factory=dict)
    refusal: exceptions.OverQuota | None = None

    def avoided_pods(self, taken: Mapping[tuple[str, str], int]) -> set[str]:
        """The pods without room for the claim after others of its call, which take ``taken``, by resource and pod."""
        amounts = self.claim.deltas
        return {
            pod
            for (resource, pod), room in self.pod_room.items()
            if resource in amounts and room - taken.get((resource, pod), 0) < amounts[resource]
        }

    def use_held(self, held: Sequence[transitions.Row], pods: Mapping[int, str | None]) -> None:
        """Use the rows that the consumer already holds. ``pods``: the pod of each provider, if the claim names a pod.

        Raises ReservationConflict if the deltas, the provider or the pod differ.
        """
        claim = self.claim
        deltas = {row.resource: row.delta for row in held}
        if deltas != dict(claim.deltas):
            raise exceptions.ReservationConflict(str(claim.consumer), deltas, claim.deltas)
        providers = {row.provider_id for row in held}
        is_same = None not in providers if claim.provider == ANY else providers == {self.provider_id}
        if claim.provider is not None and not is_same:
            raise exceptions.ReservationConflict(str(claim.consumer), deltas, claim.deltas, provider=claim.provider)
        if isinstance(claim.pod, str) and {pods.get(row.provider_id or 0) for row in held} != {claim.pod}:
            raise exceptions.ReservationConflict(str(claim.consumer), deltas, claim.deltas, pod=claim.pod)
        uuids = {row.resource: row.uuid for row in held}
        self.uuids = {resource: uuids[resource] for resource in claim.deltas}
        self.is_charged = True
        self.reserved = tuple(row.uuid for row in held if row.state == RESERVED)


def can_move(pending: Iterable[PendingClaim], refusal: exceptions.OverQuota) -> bool:
    """Whether claims that may choose another pod have caused ``refusal``. Records it in them.

    False: another limit than those of pods is exceeded, too, or each claim names its provider or its pod.
    """
    exceeded = {(over.resource, over.pod) for over in refusal.overs}
    if any(pod is None for _, pod in exceeded):
        return False
    movable = [
        item
        for item in pending
        if item.claim.provider == ANY
        and not isinstance(item.claim.pod, str)
        and any((resource, item.counted_pod) in exceeded for resource in item.claim.deltas)
    ]
    for item in movable:
        item.refusal = refusal
    return bool(movable)
