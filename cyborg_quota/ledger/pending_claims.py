# SPDX-License-Identifier: Apache-2.0
"""A claim while it is being charged, and what its consumer holds already."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from cyborg_quota import exceptions, transitions
from cyborg_quota.types import ANY, RESERVED, Claim


@dataclasses.dataclass(slots=True)
class PendingClaim:
    """A claim that is being charged. Its UUIDs are generated once, so that a retry finds the rows of earlier attempts.

    ``group``: that of the claim, or else that of the call. ``reserved``: the UUIDs of reservations of the same consumer
    that existed before and are not committed. ``provider_id``: the provider of the present attempt, and
    ``counted_pod`` its pod (None: it has none). ``tried``: providers that ANY does not choose again.
    ``avoided_pods``: the pods of which it chooses none, because their limit has refused this claim (``refusal``).
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
    avoided_pods: set[str] = dataclasses.field(default_factory=set)
    refusal: exceptions.OverQuota | None = None

    def use_held(self, held: Sequence[transitions.Row], pods: Collection[str | None]) -> None:
        """Use the rows that the consumer already holds; ``pods``: those of their providers, if the claim names a pod.

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
        if isinstance(claim.pod, str) and set(pods) != {claim.pod}:
            raise exceptions.ReservationConflict(str(claim.consumer), deltas, claim.deltas, pod=claim.pod)
        uuids = {row.resource: row.uuid for row in held}
        self.uuids = {resource: uuids[resource] for resource in claim.deltas}
        self.is_charged = True
        self.reserved = tuple(row.uuid for row in held if row.state == RESERVED)


def avoid_pods(pending: Iterable[PendingClaim], refusal: exceptions.OverQuota) -> bool:
    """Whether claims that may choose another pod have caused ``refusal``. If so, a retry avoids the pods that it names.

    False: another limit than those of pods is exceeded, too, or each claim names its provider or its pod.
    """
    pods = {over.pod for over in refusal.overs}
    if None in pods:
        return False
    movable = [
        item
        for item in pending
        if item.claim.provider == ANY and not isinstance(item.claim.pod, str) and item.counted_pod in pods
    ]
    for item in movable:
        item.avoided_pods.add(str(item.counted_pod))
        item.refusal = refusal
    return bool(movable)
