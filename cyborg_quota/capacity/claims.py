# SPDX-License-Identifier: Apache-2.0
"""The enforcer of capacity: it chooses the providers of claims, takes their capacity, and explains a refusal.

    read the providers, or the candidates for ANY                          (no transaction)
    INSERT the reservations, UPDATE the inventories, UPDATE the usage rows (one transaction)

A claim in a pod takes a provider of that pod, which pods/claims.py chooses.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions, units
from cyborg_quota.capacity import tables
from cyborg_quota.capacity.selection import BestFit, ProviderSelection
from cyborg_quota.capacity.tables import Candidate
from cyborg_quota.conf import plugins
from cyborg_quota.db import inventories, resource_providers
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.inventories import InventoryClaim, InventoryLocation
from cyborg_quota.db.resource_providers import StoredProvider
from cyborg_quota.ledger.enforcers import Enforcer, Parts, PendingClaim, Refused, Rooms, choose_in_read, conflict
from cyborg_quota.types import (
    ANY,
    Claim,
    InventoryKey,
    ReserveRequest,
    ResizeRequest,
    ResourceKey,
    Row,
    grouped,
    summed,
)
from cyborg_quota.types.capacity import CapacityDrift, CapacityOver, ResourceUse

LOG = logging.getLogger(__name__)

_CANDIDATES: Final = 8
"""The number of providers, besides one for each equal claim and those that were tried, among which ANY chooses."""

_SEE: Final = "headroom with the provider ANY is the largest amount that fits; `capacity show` shows what is free"

_MAX_CACHED: Final = 50_000
"""The maximum number of entries of each kind. When it is exceeded, that cache is cleared."""

_MAX_CACHED_SECONDS: Final = 60.0
"""After this time, a name is read again: another provider may have it now."""


class CapacityEnforcer(Enforcer):
    """Finds providers and takes their capacity."""

    fields: ClassVar[tuple[str, ...]] = ("provider",)

    def __init__(self, parts: Parts, selection: ProviderSelection | None) -> None:
        self.parts: Final = parts
        self._database = parts.database
        self._selection = selection or BestFit()
        self._cache = ProviderCache()

    @staticmethod
    def selection_of(conf: cfg.ConfigOpts) -> ProviderSelection:
        """The selection that ``conf`` names. Raises ConfigurationError."""
        selection = plugins.load("cyborg_quota.selections", "[capacity] selection", conf.capacity.selection)
        return selection()  # type: ignore[no-any-return]

    def narrow(self, connection: Connection, rooms: Rooms) -> None:
        """Consider what is free at the provider, or with ANY at all that can host, by one statement.

        Raises ProviderNotFound.
        """
        provider_id, name = None, str(rooms.provider)
        if name != ANY:
            stored = find_providers(self._database, connection, {name})[name]
            provider_id, name = stored.id, stored.provider.name
        where = (provider_id, rooms.pod)
        if rooms.bundle is not None:
            bundles = tables.count_bundles(connection, rooms.bundle, *where) if rooms.is_open else {}
            rooms.narrow_bundles(bundles)
        else:
            free = tables.read_free(connection, rooms.resources, *where) if rooms.is_open else {}
            rooms.narrow_fits(name, free)

    # --- Before the transaction ---

    def prepare(self, pending: Sequence[PendingClaim]) -> None:
        """Find the provider of each claim that has one, and that pods have not placed yet.

        A claim that fits nowhere, or at a provider without an inventory of a resource, stays incomplete. Claims of one
        call are placed one after the other, so that a set of claims with ANY that would fit in another arrangement may
        be refused. Raises ProviderNotFound.
        """
        named = [item for item in pending if item.named and not item.provider_ids]
        cached = self._cache.find(named)
        if cached is not None:
            _choose_named(named, *cached)
        elif named:
            self._database.read(lambda connection: self.choose_named(connection, named))
        if anywhere := _anywhere(pending):
            choose_in_read(
                self._database, anywhere, lambda connection: self.choose_providers(connection, anywhere, pending)
            )

    def choose_named(self, connection: Connection, named: Sequence[PendingClaim]) -> None:
        """Read the providers and the inventories that claims name. Raises ProviderNotFound."""
        providers = find_providers(self._database, connection, _names(named))
        ids = {name: stored.id for name, stored in providers.items()}
        locations = inventories.locations_of(connection, _keys(named, ids))
        self._cache.remember(ids, locations)
        _choose_named(named, ids, locations)

    def choose_providers(
        self,
        connection: Connection,
        claims: Sequence[PendingClaim],
        pending: Iterable[PendingClaim],
        pod: str | None = None,
    ) -> bool:
        """Choose the providers of ``claims``: of all or (False) of none. ``pending``: with all others of the call.

        ``pod``: only providers of this pod.
        A provider that has refused a claim of this call is avoided if the claims fit elsewhere.
        """
        groups = grouped(claims, lambda item: frozenset(item.claim.deltas.items()))
        tried = {provider_id for item in claims for provider_id in item.tried}
        for avoided in (tried, set[int]()) if tried else (tried,):
            taken = Taken(pending)
            if all(self._choose_equal(connection, group, taken, avoided, pod) for group in groups.values()):
                for item in () if avoided else claims:
                    item.tried.clear()
                return True
            for item in claims:
                item.choose({}, {})
        return False

    def _choose_equal(
        self,
        connection: Connection,
        claims: Sequence[PendingClaim],
        taken: Taken,
        tried: Collection[int],
        pod: str | None,
    ) -> bool:
        """Choose providers for claims of equal amounts: each takes the best that is left. False: not all of them fit.

        Claims that fit at no single provider take from a provider and from the shared pool that serves it.
        """
        waiting = list(reversed(claims))
        self._choose_beside(connection, waiting, taken, tried, pod=pod)
        for share in tables.find_shares(connection, claims[0].claim.deltas, pod) if waiting else ():
            self._choose_beside(connection, waiting, taken, tried, pod=pod, share=share)
        return not waiting

    def _choose_beside(
        self,
        connection: Connection,
        waiting: list[PendingClaim],
        taken: Taken,
        tried: Collection[int],
        *,
        pod: str | None,
        share: Candidate | None = None,
    ) -> None:
        """Choose for as many claims as fit, the last one first; remove them. ``share``: what they take from a pool."""
        limit = _CANDIDATES + len(waiting) + len(tried)
        while waiting:
            amounts, avoided = waiting[-1].claim.deltas, taken.full_pods(waiting[-1])
            if share is not None and (
                share.provider_id in tried or share.pod in avoided or not _fits(taken.left(share), amounts)
            ):
                return
            candidates = tables.find_candidates(
                connection, amounts, self._selection.order, limit, pod, avoided=avoided, share=share
            )
            heap: list[tuple[int, float, Candidate]] = []
            for candidate in candidates:
                if candidate.provider_id not in tried:
                    self._push(heap, taken.left(candidate), candidate, amounts)
            while waiting and heap and taken.full_pods(waiting[-1]) == avoided:
                _, _, chosen = heapq.heappop(heap)
                if not _fits(taken.left(chosen), amounts):  # another provider has taken from the pool
                    continue
                item = waiting.pop()
                keys = {name: chosen.key(name) for name in amounts}
                locations = {
                    key: InventoryLocation(chosen.inventory_ids[name], chosen.pod) for name, key in keys.items()
                }
                item.choose({name: key.provider_id for name, key in keys.items()}, locations)
                taken.add(item)
                self._push(heap, taken.left(chosen), chosen, amounts)
            if waiting and not heap:  # claims of other amounts use up those that were read, or no more exist
                if len(candidates) < limit:
                    return
                limit *= 2

    def _push(
        self,
        heap: list[tuple[int, float, Candidate]],
        left: Candidate,
        candidate: Candidate,
        amounts: Mapping[str, int],
    ) -> None:
        """Add a candidate if what is left there still fits the amounts."""
        if _fits(left, amounts):
            heapq.heappush(heap, (self._selection.rank(left, amounts), random.random(), candidate))

    # --- In the transaction ---

    def inventory_claims(self, pending: Sequence[PendingClaim]) -> Sequence[InventoryClaim]:
        """What the claims take, in the order of the inventories' ids, in which every transaction locks them."""
        taken = (
            (inventory_id, item.claim.deltas[key.resource])
            for item in pending
            for key, inventory_id in item.inventory_ids.items()
        )
        totals = summed(((inventory_id, amount), amount) for inventory_id, amount in taken)
        return sorted(InventoryClaim(*key, total) for key, total in totals.items())

    def charge(self, connection: Connection, pending: Sequence[PendingClaim]) -> None:
        """Take the capacity, in lock order."""
        statement = inventories.CLAIM if pending[0].is_limited else inventories.ADOPT
        for change in self.inventory_claims(pending):
            if not inventories.take(connection, change, statement):
                raise Refused(change.inventory_id)

    def resize(self, connection: Connection, rows: Sequence[Row], amounts: Mapping[str, int]) -> None:
        """Take or give back the capacity of rows with a provider, in lock order."""
        keys = {InventoryKey(row.provider_id, row.resource): row for row in rows if row.provider_id is not None}
        ids = inventories.ids_of(connection, keys)
        if ids.keys() != keys.keys():
            raise Refused
        for key, inventory_id in ids.items():
            amount = amounts[key.resource]
            total = amount - keys[key].delta
            if total > 0:
                is_taken = inventories.take(connection, InventoryClaim(inventory_id, amount, total))
            else:
                is_taken = inventories.lock_if_unit_fits(connection, inventory_id, amount)
            if not is_taken:
                raise Refused(inventory_id)
        changes = {key: row.delta - amounts[key.resource] for key, row in keys.items()}
        if freed := {key: amount for key, amount in changes.items() if amount > 0}:
            inventories.give_back(connection, freed)

    # --- After it ---

    def finish(self, pending: Sequence[PendingClaim]) -> None:
        """Log the inventories whose use exceeds their capacity now."""
        keys = {key for item in pending for key in item.inventory_ids}
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

    def retries(self, pending: Sequence[PendingClaim], refusal: Exception) -> bool:
        """Whether claims with ANY chose the inventory that refused, or it is no longer the inventory that was read.

        If a claim that names its provider takes of the same inventory, no other choice helps: see ``explain``.
        """
        if not isinstance(refusal, Refused):
            return False
        named = [item for item in pending if item.named]
        self._cache.forget(_names(named))
        takers = [item for item in pending if refusal.inventory_id in item.inventory_ids.values()]
        if not takers:
            return False
        if all(item.claim.provider == ANY for item in takers):
            for item in takers:
                item.tried.update(
                    key.provider_id for key, taken in item.inventory_ids.items() if taken == refusal.inventory_id
                )
            return True
        chosen = {key: inventory_id for item in pending for key, inventory_id in item.inventory_ids.items()}
        locations = self._database.read_synced(lambda connection: inventories.locations_of(connection, chosen))
        return any(location.inventory_id != chosen[key] for key, location in locations.items())

    def explain(self, request: ReserveRequest, pending: Sequence[PendingClaim]) -> None:
        """Raise OverCapacity if a claim does not fit."""
        named = [item for item in pending if item.named]

        def work(connection: Connection) -> list[CapacityOver]:
            overs = self._violations(connection, named) if named else []
            if not overs and (anywhere := _anywhere(pending)) and self._database.is_galera(connection):
                self.choose_providers(connection, anywhere, pending)
            if not overs and named:  # (the next attempt uses what is read here)
                self.choose_named(connection, named)
            return overs

        overs = self._database.read_synced(work)
        if not overs and not all(item.is_complete or item.blocked for item in pending):
            overs = [
                CapacityOver(None, resource, amount, _refusal(item.claim))
                for item in pending
                if item.claim.provider == ANY
                for resource, amount in item.claim.deltas.items()
            ]
        _raise(overs, request.sees_all)

    def _violations(self, connection: Connection, named: Sequence[PendingClaim]) -> list[CapacityOver]:
        """The reasons why claims with a named provider do not fit; each once."""
        providers = find_providers(self._database, connection, _names(named))
        wanted = [
            (item.named[resource], InventoryKey(providers[item.named[resource]].id, resource), amount)
            for item in named
            for resource, amount in item.claim.deltas.items()
        ]
        totals = summed((key, amount) for _, key, amount in wanted)
        return _find_overs(connection, [(*claim, totals[claim[1]]) for claim in wanted], is_limited=named[0].is_limited)

    def explain_resize(self, request: ResizeRequest, rows: Sequence[Row]) -> None:
        """Raise OverCapacity if an amount does not fit."""
        wanted = [
            (None, InventoryKey(row.provider_id, row.resource), amount, amount - row.delta)
            for row, amount in ((row, request.amounts[row.resource]) for row in rows)
            if row.provider_id is not None
        ]
        _raise(self._database.read_synced(lambda connection: _find_overs(connection, wanted)), request.sees_all)

    def audit(self) -> list[CapacityDrift]:
        return list(self._database.untimed.read(tables.audit).values())

    def heal(self, progress: Callable[[int], None] | None) -> list[CapacityDrift]:
        """A reservation whose inventory does not exist is not repaired: set the inventory, or release it."""
        healed = []
        for key, drift in self._database.untimed.read(tables.audit).items():
            counted = self._database.write(functools.partial(tables.recount, key=key))
            if counted is not None:
                healed.append(CapacityDrift(drift.provider, drift.resource, *counted))
                LOG.info("Capacity repaired: %s", healed[-1])
            if progress is not None:
                progress(1)
        return healed

    def measured(self, connection: Connection) -> tuple[dict[ResourceKey, ResourceUse], dict[str, float]]:
        return tables.sums(connection), {}

    def confirm(self, item: PendingClaim, held: Sequence[Row]) -> None:
        """The consumer must hold at the providers that the claim names, or at any for ANY."""
        provider = item.claim.provider
        if provider is None:
            return
        providers = {row.resource: row.provider_id for row in held}
        if None in providers.values() if provider == ANY else providers != item.provider_ids:
            raise conflict(item.claim, held)


@dataclasses.dataclass(eq=False)
class ProviderCache:
    """The ids of providers by name or UUID, and of inventories by provider and resource. Shared by threads.

    The id of an inventory is never given to another one, even after a restore from a backup (db/inventories.py). If a
    provider or an inventory was removed, the UPDATE therefore matches no row; the caller then calls ``forget`` and
    reads again.
    """

    _providers: dict[str, tuple[int, float]] = dataclasses.field(default_factory=dict)
    _inventories: dict[InventoryKey, InventoryLocation] = dataclasses.field(default_factory=dict)

    def find(
        self, named: Sequence[PendingClaim]
    ) -> tuple[dict[str, int], dict[InventoryKey, InventoryLocation]] | None:
        """The ids of the providers that claims name, and their inventories; None unless all of them are cached."""
        oldest = time.monotonic() - _MAX_CACHED_SECONDS
        entries = {name: self._providers.get(name, (0, -math.inf)) for name in _names(named)}
        if any(read_at < oldest for _, read_at in entries.values()):
            return None
        ids = {name: provider_id for name, (provider_id, _) in entries.items()}
        cached = {key: self._inventories.get(key) for key in _keys(named, ids)}
        locations = {key: location for key, location in cached.items() if location is not None}
        return (ids, locations) if len(locations) == len(cached) else None

    def remember(self, providers: Mapping[str, int], inventories: Mapping[InventoryKey, InventoryLocation]) -> None:
        """Store what was just read."""
        for cached in (self._providers, self._inventories):
            if len(cached) > _MAX_CACHED:
                cached.clear()
        now = time.monotonic()
        self._providers.update({name: (provider_id, now) for name, provider_id in providers.items()})
        self._inventories.update(inventories)

    def forget(self, names: Collection[str]) -> None:
        """Drop these providers, because a claim was refused there: the next call reads them and their inventories."""
        for name in names:
            self._providers.pop(name, None)


class Taken:
    """What the claims of a call take of what is free, while their providers are chosen."""

    def __init__(self, pending: Iterable[PendingClaim]) -> None:
        self._at_providers: Counter[InventoryKey] = Counter()
        self._in_pods: Counter[tuple[str, str | None]] = Counter()
        for item in pending:
            self.add(item)

    def add(self, item: PendingClaim) -> None:
        """Add what was chosen for a claim."""
        for key in item.inventory_ids:
            amount = item.claim.deltas[key.resource]
            self._at_providers[key] += amount
            self._in_pods[key.resource, item.pods[key.resource]] += amount

    def left(self, candidate: Candidate) -> Candidate:
        """The candidate with what is left there."""
        left = {name: free - self._at_providers[candidate.key(name)] for name, free in candidate.free.items()}
        return candidate._replace(free=left)

    def full_pods(self, item: PendingClaim) -> set[str]:
        """The pods in which the limits per pod leave no room for the claim."""
        amounts = item.claim.deltas
        return {
            pod
            for (resource, pod), room in item.room.items()
            if resource in amounts and room - self._in_pods[resource, pod] < amounts[resource]
        }


def find_providers(database: Database, connection: Connection, names: set[str]) -> dict[str, StoredProvider]:
    """The providers with these UUIDs or names. Raises ProviderNotFound, after a synced read."""
    providers = resource_providers.find(connection, names)
    if providers.keys() != names and database.sync_with_cluster(connection):
        providers = resource_providers.find(connection, names)
    for name in sorted(names - providers.keys()):
        raise exceptions.ProviderNotFound(name)
    return providers


def _names(named: Iterable[PendingClaim]) -> set[str]:
    """The providers that claims name."""
    return {name for item in named for name in item.named.values()}


def _anywhere(pending: Iterable[PendingClaim]) -> list[PendingClaim]:
    """The claims at any provider, in any pod or in none, that are not placed yet."""
    waiting = [item for item in pending if item.claim.provider == ANY and not item.provider_ids]
    return [item for item in waiting if item.claim.pod is None]


def _keys(named: Iterable[PendingClaim], ids: Mapping[str, int]) -> list[InventoryKey]:
    """The inventories of claims that name a provider. ``ids``: those of the providers."""
    return [InventoryKey(ids[name], resource) for item in named for resource, name in item.named.items()]


def _choose_named(
    named: Iterable[PendingClaim], ids: Mapping[str, int], locations: Mapping[InventoryKey, InventoryLocation]
) -> None:
    """Choose the inventories of claims that name a provider; a claim whose inventory is missing stays incomplete."""
    for item in named:
        existing = {key: locations[key] for key in _keys([item], ids) if key in locations}
        item.choose({resource: ids[name] for resource, name in item.named.items()}, existing)


def _fits(left: Candidate, amounts: Mapping[str, int]) -> bool:
    return all(free >= amounts[resource] for resource, free in left.free.items())


def _refusal(claim: Claim) -> str:
    """Why a claim with ANY is refused. It does not name a pod that the caller has not named."""
    amounts = ", ".join(f"{resource}={amount}" for resource, amount in sorted(claim.deltas.items()))
    if claim.pod is not None and not isinstance(claim.pod, str):
        return f"no pod that the project may use has a provider that can take {amounts}"
    where = "" if claim.pod is None else f" of pod {claim.pod}"
    also = ", alone or with the shared pool that serves it" if len(claim.deltas) > 1 else ""
    return f"no single provider{where} can take {amounts}{also}; {_SEE}"


def _find_overs(
    connection: Connection, wanted: Sequence[tuple[str | None, InventoryKey, int, int]], *, is_limited: bool = True
) -> list[CapacityOver]:
    """What refuses these amounts; each once.

    ``wanted``: the provider as the caller names it (None: these are resized), the inventory, the amount, and what is
    taken of the capacity. ``is_limited`` False: only an inventory that does not exist refuses.
    """
    providers = {key.provider_id for _, key, _, _ in wanted}
    records, drifted = inventories.read(connection, providers), tables.drifted(connection, providers)
    overs: dict[CapacityOver, None] = {}
    for name, key, amount, taken in wanted:
        if (record := records.get(key)) is None:
            overs[CapacityOver(name, key.resource, amount, f"the provider has no inventory of {key.resource}")] = None
        elif is_limited:
            texts = () if name is not None else (f"the growth by {taken} exceeds the capacity",)
            rule = units.violated_rule(amount, taken, record, *texts)
            if rule is not None:
                counters = (record.capacity, record.used, record.used_elsewhere)
                overs[CapacityOver(record.provider, key.resource, amount, rule, *counters)] = None
            elif key in drifted:  # (the claim compares with the column ``free``)
                rule = "its counters have drifted: run `heal`"
                overs[CapacityOver(record.provider, key.resource, amount, rule)] = None
    return list(overs)


def _raise(overs: Sequence[CapacityOver], sees_all: bool) -> None:
    """Raise OverCapacity; unless ``sees_all``, without the counters, which show what other projects use."""
    if not sees_all:
        overs = [CapacityOver(over.provider, over.resource, over.requested, over.rule) for over in overs]
    if overs:
        raise exceptions.OverCapacity(overs) from None
