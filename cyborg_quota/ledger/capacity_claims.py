# SPDX-License-Identifier: Apache-2.0
"""The capacity part of a reserve: find the providers of the claims, take their capacity, explain a refusal.

    read the providers, or the candidates for ANY                          (no transaction)
    INSERT the reservations, UPDATE the inventories, UPDATE the usage rows (one transaction)

reserve.py calls these steps, and only if a claim names a provider. A claim in a pod takes a provider of that pod: see
pod_claims.py.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from oslo_log import log as logging

from cyborg_quota import exceptions, units
from cyborg_quota.capacity_types import CapacityOver
from cyborg_quota.db import candidates, free_capacity, inventories, resource_providers
from cyborg_quota.db.candidates import Candidate
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.inventories import InventoryClaim, Place
from cyborg_quota.ledger import pod_claims
from cyborg_quota.ledger.pending_claims import PendingClaim
from cyborg_quota.ledger.pod_claims import BindingChange, PodUnit
from cyborg_quota.ledger.pod_selection import PodSelection
from cyborg_quota.ledger.provider_cache import ProviderCache
from cyborg_quota.ledger.selection import ProviderSelection
from cyborg_quota.types import ANY, InventoryKey

LOG = logging.getLogger(__name__)

_CANDIDATES: Final = 8
"""The number of providers, besides one for each equal claim and those that were tried, among which ANY chooses."""


_PODS_ONE_BY_ONE: Final = 2
"""After this number of pods that do not fit, one query finds all pods with a provider that fits."""


Search = Callable[[Mapping[str, int], int, Collection[str]], list[Candidate]]
"""Returns up to a number of candidates for these amounts, none in one of these pods."""

ReserveResult = bool | InventoryClaim | None
"""The result of a single-statement reserve: see Dialect.reserve_in_single_statement."""


class CapacityRefused(Exception):
    """An inventory refused a claim: roll back. ``key``: the inventory; None: no provider was found."""

    def __init__(self, key: InventoryKey | None) -> None:
        self.key = key
        super().__init__(key)


class Placement:
    """The inventories that the claims of one attempt take from. ``is_complete``: every claim has a provider.

    ``binding_changes``: those that the claims need because they go to another pod. ``in_pods``: what the claims take in
    pods, by resource and pod.
    """

    def __init__(self) -> None:
        self.is_complete = True
        self.binding_changes: list[BindingChange] = []
        self._ids: dict[InventoryKey, int] = {}
        self._totals: dict[tuple[InventoryKey, int], int] = {}
        self._taken: dict[InventoryKey, int] = {}  # the sums of ``_totals``: a call of n claims asks for n * n of them
        self.in_pods: dict[tuple[str, str], int] = {}

    def add(self, key: InventoryKey, place: Place, amount: int) -> None:
        self._ids[key] = place.inventory_id
        self._totals[key, amount] = self._totals.get((key, amount), 0) + amount
        self._taken[key] = self._taken.get(key, 0) + amount
        if place.pod is not None:
            in_pod = key.resource, place.pod
            self.in_pods[in_pod] = self.in_pods.get(in_pod, 0) + amount

    def copy(self) -> Placement:
        """A complete placement that takes the same."""
        copied = Placement()
        copied._ids, copied._totals = dict(self._ids), dict(self._totals)
        copied._taken, copied.in_pods = dict(self._taken), dict(self.in_pods)
        return copied

    def update(self, other: Placement) -> None:
        """Take what a copy takes, to which claims were added."""
        self._ids, self._totals = other._ids, other._totals
        self._taken, self.in_pods = other._taken, other.in_pods

    def taken(self, key: InventoryKey) -> int:
        """What the claims take from this inventory."""
        return self._taken.get(key, 0)

    @property
    def is_empty(self) -> bool:
        """Whether no claim takes anything."""
        return not self._ids

    @property
    def claims(self) -> list[tuple[InventoryClaim, InventoryKey]]:
        """The changes of the inventories, in the order of their ids, in which every transaction locks them."""
        return sorted(
            (InventoryClaim(self._ids[key], amount, total), key) for (key, amount), total in self._totals.items()
        )

    def is_done(self, result: ReserveResult) -> bool:
        """Whether a reserve with these claims was done. Raises CapacityRefused if ``result`` is the refused claim."""
        if isinstance(result, InventoryClaim):
            raise CapacityRefused(next(key for change, key in self.claims if change == result))
        return bool(result)

    @property
    def inventory_claims(self) -> Sequence[InventoryClaim]:
        """The changes alone."""
        return [change for change, _ in self.claims] if self._ids else ()


NO_PLACEMENT: Final = Placement()


class CapacityClaimer:
    """Finds providers and takes their capacity. Shared by threads."""

    def __init__(
        self, database: Database, selection: ProviderSelection, pod_selection: PodSelection, cache: ProviderCache
    ) -> None:
        self._database = database
        self._pod_selection = pod_selection
        self._selection = selection
        self._cache = cache

    def place(self, pending: Sequence[PendingClaim]) -> Placement:
        """Find the provider of each claim that has one, and the inventories to take from.

        An incomplete placement: ANY fits nowhere, or a named provider has no inventory of a resource. Claims of one
        call are placed one after the other, so that a set of claims with ANY that would fit in another arrangement may
        be refused. Claims in pods: see pod_claims.py. Raises ProviderNotFound.
        """
        if not any(item.claim.provider is not None for item in pending):
            return NO_PLACEMENT
        if (cached := self._place_cached(pending)) is not None:
            return cached
        placement = self._database.read(lambda connection: self._place(connection, pending))
        if not placement.is_complete and any(item.tried for item in pending):
            for item in pending:
                item.tried.clear()
            placement = self._database.read(lambda connection: self._place(connection, pending))
        return placement

    def bind(self, connection: Connection, placement: Placement) -> None:
        """Change the bindings, first in the transaction. Raises BindingChanged; the caller must roll back."""
        pod_claims.bind(connection, placement.binding_changes, self._pod_selection)

    def charge(self, connection: Connection, placement: Placement, *, is_limited: bool) -> None:
        """Take the capacity, in lock order. Raises CapacityRefused; the caller must roll back."""
        take = inventories.claim if is_limited else inventories.adopt
        for change, key in placement.claims:
            if not take(connection, change):
                raise CapacityRefused(key)

    def tries_next(self, pending: Sequence[PendingClaim], refused: InventoryKey | None) -> bool:
        """Whether a retry may choose another provider than that of the inventory ``refused``: claims with ANY chose it.

        If a claim that names this provider takes of the same inventory, no other choice helps: see ``raise_refusal``.
        """
        self._cache.forget([str(item.claim.provider) for item in pending if item.claim.provider not in (None, ANY)])
        if refused is None:
            return False
        provider_id, resource = refused
        takers = [item for item in pending if item.provider_id == provider_id and resource in item.claim.deltas]
        if any(item.claim.provider != ANY for item in takers):
            return False
        for item in takers:
            item.tried.add(provider_id)
        return bool(takers)

    def has_other_pods(self, pending: Sequence[PendingClaim]) -> bool:
        """Whether a provider has another pod than was read. (``tries_next`` has made the next attempt read again.)"""
        placed = [(item.provider_id, item) for item in pending if item.provider_id is not None]
        pods = {provider_id: item.counted_pod for provider_id, item in placed}
        keys = [InventoryKey(provider_id, resource) for provider_id, item in placed for resource in item.claim.deltas]
        places = self._database.read_synced(lambda connection: inventories.places_of(connection, keys))
        return any(place.pod != pods[provider_id] for (provider_id, _), place in places.items())

    def raise_refusal(
        self, pending: Sequence[PendingClaim], refused: InventoryKey | None, *, is_limited: bool, sees_all: bool
    ) -> None:
        """Raise OverCapacity if, after a synced read, a claim does not fit. Returns if all fit now: retry.

        ``refused``: the inventory that refused; None: ``place`` has found no provider.
        """
        overs = self._database.read_synced(
            lambda connection: self._violations(connection, pending, refused, is_limited=is_limited)
        )
        if overs:
            raise exceptions.OverCapacity(overs if sees_all else [_redact(over) for over in overs]) from None

    def _place_cached(self, pending: Sequence[PendingClaim]) -> Placement | None:
        """The placement of claims of which each names a provider or none; None unless their ids are cached."""
        named = [item for item in pending if item.claim.provider is not None]
        if any(item.claim.provider == ANY for item in named):
            return None
        found = self._cache.provider_ids({str(item.claim.provider) for item in named})
        if found is None:
            return None
        keys = _keys(named, found)
        places = self._cache.places(keys)
        if places is None:
            return None
        placement = Placement()
        _add_named(named, found, places, placement)
        return placement

    def _place(
        self, connection: Connection, pending: Sequence[PendingClaim], *, avoids_tried: bool = True
    ) -> Placement:
        """Place named claims first, then those in pods, so that those with ANY avoid what they take."""
        placement = Placement()
        self._place_named(connection, [item for item in pending if item.claim.provider not in (None, ANY)], placement)
        if any(item.claim.pod is not None for item in pending):
            self._database.sync_with_cluster(connection)  # a binding must not move because of an outdated read
            for unit in pod_claims.divide(connection, pending):
                self._place_in_pod(connection, unit, placement, avoids_tried=avoids_tried)
        anywhere = [item for item in pending if item.claim.provider == ANY and item.claim.pod is None]
        self._place_all(self._search(connection), anywhere, placement, avoids_tried=avoids_tried)
        return placement

    def _place_in_pod(
        self, connection: Connection, unit: PodUnit, placement: Placement, *, avoids_tried: bool
    ) -> None:
        """Place the claims in the first pod that fits all of them.

        A provider that has refused a claim of this call is avoided only if another one of the same pod fits, because
        the binding must not move while the claim fits into the pod.
        """
        has_tried = avoids_tried and any(item.tried for item in unit.claims)
        avoided = {pod for item in unit.claims for pod in item.avoided_pods(placement.in_pods)}
        fitting: set[str] | None = None
        for number, option in enumerate(pod_claims.options(connection, unit, self._pod_selection)):
            if number == _PODS_ONE_BY_ONE:
                fitting = set.intersection(
                    *(free_capacity.pods_that_fit(connection, dict(shape)) for shape in unit.shapes)
                )
            if option.pod in avoided or (fitting is not None and option.pod not in fitting):
                continue
            for avoids in (True, False) if has_tried else (False,):
                attempt = placement.copy()
                self._place_all(self._search(connection, option.pod), unit.claims, attempt, avoids_tried=avoids)
                if attempt.is_complete:
                    placement.update(attempt)
                    if option.change is not None:
                        placement.binding_changes.append(option.change)
                    return
        placement.is_complete = False

    def _search(self, connection: Connection, pod: str | None = None) -> Search:
        """Searches among the providers of the pod, or of any (None)."""
        order = self._selection.order
        return lambda amounts, limit, avoided: candidates.find_candidates(
            connection, amounts, order, limit, pod, avoided=avoided
        )

    def _place_all(
        self, search: Search, claims: Iterable[PendingClaim], placement: Placement, *, avoids_tried: bool
    ) -> None:
        """Place claims with ANY, those of equal amounts together."""
        groups: dict[frozenset[tuple[str, int]], list[PendingClaim]] = {}
        for item in claims:
            groups.setdefault(frozenset(item.claim.deltas.items()), []).append(item)
        for items in groups.values():
            self._place_equal(search, items, placement, avoids_tried=avoids_tried)

    def _place_equal(
        self, search: Search, claims: Sequence[PendingClaim], placement: Placement, *, avoids_tried: bool
    ) -> None:
        """Place claims of equal amounts: each takes the best provider that is left."""
        amounts = claims[0].claim.deltas
        tried = {provider_id for item in claims for provider_id in item.tried} if avoids_tried else set()
        limit = _CANDIDATES + len(claims) + len(tried)
        waiting = list(reversed(claims))
        while waiting:
            avoided = waiting[-1].avoided_pods(placement.in_pods)
            found = search(amounts, limit, avoided)
            heap = [
                (self._selection.rank(left, amounts), random.random(), left)
                for left in (_without(one, placement) for one in found if one.provider_id not in tried)
                if _fits(left, amounts)
            ]
            heapq.heapify(heap)
            while waiting and heap and waiting[-1].avoided_pods(placement.in_pods) == avoided:
                _, _, chosen = heapq.heappop(heap)
                self._take(waiting.pop(), chosen, placement)
                left = chosen._replace(free={name: free - amounts[name] for name, free in chosen.free.items()})
                if _fits(left, amounts):
                    heapq.heappush(heap, (self._selection.rank(left, amounts), random.random(), left))
            if waiting and not heap:  # claims of other amounts use up those that were read, or no more exist
                if len(found) < limit:
                    placement.is_complete = False
                    break
                limit *= 2

    def _take(self, item: PendingClaim, chosen: Candidate, placement: Placement) -> None:
        item.provider_id, item.counted_pod = chosen.provider_id, chosen.pod
        places = {
            InventoryKey(chosen.provider_id, resource): Place(chosen.inventory_ids[resource], chosen.pod)
            for resource in item.claim.deltas
        }
        self._cache.remember({}, places)
        for key, place in places.items():
            placement.add(key, place, item.claim.deltas[key.resource])

    def _place_named(self, connection: Connection, pending: Sequence[PendingClaim], placement: Placement) -> None:
        if not pending:
            return
        found = self._find(connection, pending)
        places = inventories.places_of(connection, _keys(pending, found))
        self._cache.remember(found, places)
        _add_named(pending, found, places, placement)

    def _find(self, connection: Connection, pending: Iterable[PendingClaim]) -> dict[str, int]:
        """The ids of the providers that these claims name. Raises ProviderNotFound, after a synced read."""
        names = {str(item.claim.provider) for item in pending}
        found = resource_providers.find(connection, names)
        if found.keys() != names and self._database.sync_with_cluster(connection):
            found = resource_providers.find(connection, names)
        for name in sorted(names - found.keys()):
            raise exceptions.ProviderNotFound(name)
        return {name: stored.id for name, stored in found.items()}

    def _violations(
        self, connection: Connection, pending: Sequence[PendingClaim], refused: InventoryKey | None, *, is_limited: bool
    ) -> list[CapacityOver]:
        """The reasons why the claims do not fit; empty if they fit."""
        named = [item for item in pending if item.claim.provider not in (None, ANY)]
        found = self._find(connection, named) if named else {}
        records = inventories.read(connection, set(found.values())) if found else {}
        totals: dict[InventoryKey, int] = {}
        rows = [
            (item, InventoryKey(found[str(item.claim.provider)], resource), amount)
            for item in named
            for resource, amount in item.claim.deltas.items()
        ]
        for _, key, amount in rows:
            totals[key] = totals.get(key, 0) + amount
        drifted = free_capacity.drifted(connection, set(found.values())) if found else set()
        overs = []
        for item, key, amount in rows:
            record = records.get(key)
            over = None
            if record is None:
                name = str(item.claim.provider)
                over = CapacityOver(name, key.resource, amount, "the provider has no inventory of it")
            elif is_limited and (rule := units.violated_rule(amount, totals[key], record)) is not None:
                counters = (record.capacity, record.used, record.used_elsewhere)
                over = CapacityOver(record.provider, key.resource, amount, rule, *counters)
            elif is_limited and key in drifted:  # (the claim compares with the column ``free``)
                rule = "its counters have drifted: run `capacity heal`"
                over = CapacityOver(record.provider, key.resource, amount, rule)
            if over is not None:
                overs.append(over)
        overs = list(dict.fromkeys(overs))
        # Unless the node of a cluster may have read what is outdated, the search for ANY need not be repeated.
        is_unplaced = refused is None and not named and not self._database.is_galera(connection)
        if not overs and (is_unplaced or not self._place(connection, pending, avoids_tried=False).is_complete):
            pod_claims.check_named(connection, pending)
            overs = [
                CapacityOver(None, resource, amount, pod_claims.refusal(item.claim))
                for item in pending
                if item.claim.provider == ANY
                for resource, amount in item.claim.deltas.items()
            ]
        return overs

    def warn_if_exceeded(self, placement: Placement) -> None:
        """After an adoption: log the inventories whose use exceeds their capacity now."""
        keys = {key for _, key in placement.claims}
        if not keys:
            return
        provider_ids = {key.provider_id for key in keys}
        records = self._database.read(lambda connection: inventories.read(connection, provider_ids))
        for key in sorted(keys & records.keys()):
            if records[key].free < 0:
                LOG.warning(
                    "Adopted claims exceed the capacity of provider %s: %s of %s in use, capacity %s.",
                    records[key].provider,
                    records[key].used + records[key].used_elsewhere,
                    key.resource,
                    records[key].capacity,
                )


def _keys(pending: Iterable[PendingClaim], found: Mapping[str, int]) -> list[InventoryKey]:
    """The inventories of claims that name a provider. ``found``: the ids of the providers."""
    return [
        InventoryKey(found[str(item.claim.provider)], resource) for item in pending for resource in item.claim.deltas
    ]


def _add_named(
    pending: Iterable[PendingClaim],
    found: Mapping[str, int],
    places: Mapping[InventoryKey, Place],
    placement: Placement,
) -> None:
    """Add claims that name a provider to ``placement``, which is incomplete if there is no inventory."""
    for item in pending:
        item.provider_id = found[str(item.claim.provider)]
        for resource, amount in item.claim.deltas.items():
            key = InventoryKey(item.provider_id, resource)
            place = places.get(key)
            if place is not None:
                placement.add(key, place, amount)
                item.counted_pod = place.pod
            else:
                placement.is_complete = False


def _fits(candidate: Candidate, amounts: Mapping[str, int]) -> bool:
    return all(candidate.free[resource] >= amount for resource, amount in amounts.items())


def _without(candidate: Candidate, placement: Placement) -> Candidate:
    """The candidate with what would be free after the claims of ``placement``."""
    if placement.is_empty:
        return candidate
    taken = {resource: placement.taken(InventoryKey(candidate.provider_id, resource)) for resource in candidate.free}
    return candidate._replace(free={resource: free - taken[resource] for resource, free in candidate.free.items()})


def _redact(over: CapacityOver) -> CapacityOver:
    """Without the counters, which show what other projects use."""
    return CapacityOver(over.provider, over.resource, over.requested, over.rule)
