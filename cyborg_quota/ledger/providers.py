# SPDX-License-Identifier: Apache-2.0
"""Changes providers and inventories. Each change is one transaction, which also records it in the history.

It begins with the row of ``fences`` that serializes all these changes, then locks the row of the provider.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.capacity_types import (
    Allocation,
    CapacityDrift,
    CapacityNotice,
    Inventory,
    InventoryRecord,
    Provider,
)
from cyborg_quota.db import (
    change_log,
    free_capacity,
    history,
    inventories,
    pods,
    resource_notices,
    resource_providers,
)
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.resource_providers import StoredProvider
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.thresholds import OVER, level
from cyborg_quota.types import Author, InventoryKey, Page, RecordedChange, RecordedChanges, Value

LOG = logging.getLogger(__name__)

_HOW_TO_LIST: Final = "see `cyborg-quota capacity allocation list --provider %s`"


class ProviderManager:
    """Adds, changes, lists and removes providers and their inventories; audits and repairs their counters."""

    def __init__(
        self,
        database: Database,
        history: History,
        thresholds: Sequence[int],
        *,
        least_capacity: int,
    ) -> None:
        """``least_capacity``: the smallest capacity of an inventory that has thresholds.

        Use above the capacity is always reported.
        """
        self._database = database
        self._untimed = database.untimed
        self._history = history
        self._thresholds = sorted(thresholds)
        self._least_capacity = least_capacity

    # --- providers ---

    def add(self, provider: Provider, author: Author) -> None:
        """Add a provider. Raises ProviderExists, ProviderNotFound (the parent), PodNotFound."""

        def work(connection: Connection) -> RecordedChanges | None:
            self._serialize(connection)
            _lock_pod(connection, provider.pod)
            parent = None
            if provider.parent is not None:
                parent = self._find(connection, provider.parent)
                if not resource_providers.lock(connection, parent.id):
                    raise exceptions.ProviderNotFound(provider.parent)
            found = resource_providers.find(connection, [provider.uuid, provider.name])
            if any(stored.provider.uuid != provider.uuid for stored in found.values()):
                raise exceptions.ProviderExists(provider.name)
            resource_providers.insert(connection, provider, None if parent is None else parent.id)
            added = provider if parent is None else dataclasses.replace(provider, parent=parent.provider.name)
            change = _provider_change("add provider", added, None, _provider_values(added))
            return _record(connection, author, [change])

        try:
            self._history.announce(self._database.write(work))
        except DuplicateEntry:
            if self._was_added(provider):
                return  # the answer to the COMMIT of an earlier attempt was lost
            raise exceptions.ProviderExists(provider.name) from None

    def _was_added(self, provider: Provider) -> bool:
        """Whether the provider with this UUID, which is random unless the caller gave it, is this one."""
        found = self._database.read_synced(lambda connection: resource_providers.find(connection, [provider.uuid]))
        return any(
            dataclasses.replace(stored.provider, parent=provider.parent) == provider for stored in found.values()
        )

    def list_providers(self, limit: int | None = None, after: str | None = None) -> list[Provider]:
        """At most ``limit`` providers after the one with the name ``after``, by name. Raises MarkerNotFound."""
        return self._untimed.read_synced(lambda connection: resource_providers.list_providers(connection, limit, after))

    def show(self, name: str) -> Provider:
        """The provider with this UUID or name. Raises ProviderNotFound."""
        return self._database.read_synced(lambda connection: self._find(connection, name)).provider

    def require_pods(self, names: Sequence[str]) -> None:
        """Raise PodNotFound if one of these pods does not exist."""
        if names:
            known = self._database.read_synced(lambda connection: pods.existing(connection, names))
            for name in names:
                if name not in known:
                    raise exceptions.PodNotFound(name)

    def set_pod(self, name: str, pod: str | None, author: Author) -> Provider:
        """Put a provider into a pod, or into none (None). Raises ProviderNotFound, PodNotFound, ProviderInUse."""

        def work(connection: Connection) -> tuple[Provider, RecordedChanges | None]:
            self._serialize(connection)
            _lock_pod(connection, pod)
            provider_id, provider = self._lock(connection, name, None)
            if provider.pod == pod:
                return self._find(connection, name).provider, None
            if not inventories.lock_unused(connection, provider_id):
                change = "moved to another pod"
                raise exceptions.ProviderInUse(
                    provider.name, None, f"it has claims; {_HOW_TO_LIST % provider.name}", change=change
                )
            inventories.renew(connection, provider_id)
            resource_providers.set_pod(connection, provider_id, pod)
            return self._record_set(connection, provider, author)

        changed, recorded = self._database.write(work)
        self._history.announce(recorded)
        return changed

    def set_can_host(self, name: str, can_host: bool, author: Author) -> Provider:
        """Set whether ANY chooses a provider. Its claims stay. Raises ProviderNotFound."""

        def work(connection: Connection) -> tuple[Provider, RecordedChanges | None]:
            self._serialize(connection)
            provider_id, provider = self._lock(connection, name, None)
            if provider.can_host == can_host:
                return self._find(connection, name).provider, None
            resource_providers.set_can_host(connection, provider_id, can_host=can_host)
            return self._record_set(connection, provider, author)

        changed, recorded = self._database.write(work)
        self._history.announce(recorded)
        return changed

    def _record_set(
        self, connection: Connection, provider: Provider, author: Author
    ) -> tuple[Provider, RecordedChanges | None]:
        """Record the change of ``provider`` that this transaction has made."""
        changed = self._find(connection, provider.uuid).provider
        before, after = (_provider_values(one) for one in (provider, changed))
        return changed, _record(connection, author, [_provider_change("set provider", provider, before, after)])

    def remove(self, name: str, author: Author) -> None:
        """Remove a provider and its inventories. Raises ProviderNotFound, ProviderInUse."""

        def work(connection: Connection) -> RecordedChanges | None:
            self._serialize(connection)
            provider_id, provider = self._lock(connection, name, None)
            if resource_providers.has_children(connection, provider_id):
                raise exceptions.ProviderInUse(provider.name, None, "other providers are nested in it")
            records = inventories.read(connection, [provider_id])
            inventories.delete_unused(connection, provider_id)
            self._refuse_if_in_use(connection, provider_id, None)
            resource_providers.delete(connection, provider_id)
            removed = [_inventory_change(provider, record, None) for record in records.values()]
            values = _provider_values(provider)
            return _record(connection, author, [*removed, _provider_change("remove provider", provider, values, None)])

        self._history.announce(self._database.write(work))

    # --- inventories ---

    def set_inventories(
        self,
        name: str,
        changes: Mapping[str, Inventory],
        generation: int | None,
        author: Author,
        used_elsewhere: Mapping[str, int],
    ) -> list[InventoryRecord]:
        """Set these inventories of a provider, all or none, and return them. Other inventories stay.

        ``generation``: that of the provider when the caller read it; None: do not compare. ``used_elsewhere``: what is
        used elsewhere from now on, by resource. Raises ProviderNotFound, ProviderConflict.
        """

        def work(connection: Connection) -> tuple[list[InventoryRecord], RecordedChanges | None]:
            self._serialize(connection)
            provider_id, provider = self._lock(connection, name, generation)
            before = inventories.read(connection, [provider_id], changes)
            resources = changes.keys() | used_elsewhere.keys()
            present = inventories.ids_of(connection, [InventoryKey(provider_id, resource) for resource in resources])
            known = [key.resource for key in present]
            for resource in (*known, *sorted(changes.keys() - set(known))):
                if resource in changes:
                    inventories.set_inventory(connection, provider_id, resource, changes[resource])
                if resource in used_elsewhere:
                    amounts = {resource: used_elsewhere[resource]}
                    inventories.set_used_elsewhere(connection, provider_id, amounts)
            after = inventories.read(connection, [provider_id], changes)
            done = [_inventory_change(provider, before.get(key), record) for key, record in after.items()]
            return list(after.values()), _record(connection, author, done)

        records, recorded = self._database.write(work)
        self._history.announce(recorded)
        for record in records:
            if record.free < 0:
                LOG.warning(
                    "Provider %s has %s of %s in use, more than its new capacity %s: claims are refused until the use "
                    "is below the capacity again.",
                    record.provider,
                    record.used + record.used_elsewhere,
                    record.resource,
                    record.capacity,
                )
        return records

    def remove_inventory(self, name: str, resource: str, generation: int | None, author: Author) -> None:
        """Remove an inventory. Raises ProviderNotFound, ProviderConflict, ProviderInUse."""

        def work(connection: Connection) -> RecordedChanges | None:
            self._serialize(connection)
            provider_id, provider = self._lock(connection, name, generation)
            records = inventories.read(connection, [provider_id], [resource])
            inventories.delete_unused(connection, provider_id, resource)
            self._refuse_if_in_use(connection, provider_id, resource)
            removed = [_inventory_change(provider, record, None) for record in records.values()]
            return _record(connection, author, removed)

        self._history.announce(self._database.write(work))

    def list_inventories(self, name: str | None, page: Page) -> list[InventoryRecord]:
        """A page of the inventories of one provider, or of all, by provider and resource.

        Raises ProviderNotFound, MarkerNotFound.
        """

        def work(connection: Connection) -> list[InventoryRecord]:
            ids = None if name is None else [self._find(connection, name).id]
            return list(inventories.read(connection, ids, page=page).values())

        return self._untimed.read_synced(work)

    def set_used_elsewhere(self, name: str, amounts: Mapping[str, int]) -> None:
        """Set what is used elsewhere, by resource. Raises ProviderNotFound."""

        def work(connection: Connection) -> None:
            inventories.set_used_elsewhere(connection, self._find(connection, name).id, amounts)

        self._database.write(work)

    def find_with(self, names: Sequence[str], resources: Collection[str]) -> str | None:
        """The UUID of the first of these providers that has an inventory of all ``resources``, free or not."""

        def work(connection: Connection) -> str | None:
            found = resource_providers.find(connection, names)
            for stored in (found[name] for name in names if name in found):
                records = inventories.read(connection, [stored.id], resources).values()
                if {record.resource for record in records if record.total > 0} == set(resources):
                    return stored.provider.uuid
            return None

        return self._database.read(work)

    def list_allocations(
        self, name: str | None, *, limit: int | None = None, after: str | None = None, resource: str | None = None
    ) -> list[Allocation]:
        """The live claims at one provider, or at all; see history.list_allocations. Raises ProviderNotFound."""

        def work(connection: Connection) -> list[Allocation]:
            provider_id = None if name is None else self._find(connection, name).id
            return history.list_allocations(connection, provider_id, limit=limit, after=after, resource=resource)

        return self._untimed.read_synced(work)

    # --- audit and repair ---

    def audit(self) -> list[CapacityDrift]:
        """The inventories whose counters differ from the reservations."""
        return list(self._untimed.read(free_capacity.audit).values())

    def heal(self, progress: Callable[[int], None] | None) -> list[CapacityDrift]:
        """Repair the counters that audit reports, each in a transaction. Returns the counters before and after it.

        A reservation whose inventory does not exist is reported, not repaired: set the inventory, or release it.
        """
        healed = []
        for key, drift in self._untimed.read(free_capacity.audit).items():
            counted = self._database.write(lambda connection, key=key: free_capacity.recount(connection, key))  # type: ignore[misc]
            if counted is not None:
                healed.append(CapacityDrift(drift.provider, drift.resource, *counted))
                LOG.info("Capacity repaired: %s", healed[-1])
            if progress is not None:
                progress(1)
        return healed

    def notices(self) -> list[CapacityNotice]:
        """The inventories, then the resources at all providers together, that crossed a threshold since the last call.

        Each notice is returned on one host only.
        """
        lowest, least_capacity = min(self._thresholds, default=OVER), self._least_capacity
        read = functools.partial(inventories.read_notified_levels, lowest=lowest, least_capacity=least_capacity)
        notices = []
        for row in self._untimed.read(read):
            now = level(row.used, row.capacity, self._thresholds, least_capacity)
            if now != row.level and self._claim_level(row.id, row.level, now):
                notices.append(CapacityNotice(row.provider, row.resource, row.capacity, row.used, row.level, now))
        return [*notices, *self._resource_notices()]

    def _claim_level(self, inventory_id: int, before: int, now: int) -> bool:
        return self._database.write(
            lambda connection: inventories.claim_notified_level(connection, inventory_id, before, now)
        )

    def _resource_notices(self) -> list[CapacityNotice]:
        sums, levels = self._untimed.read(
            lambda connection: (free_capacity.sums_by_resource(connection), resource_notices.levels(connection))
        )
        notices = []
        for resource in sorted(sums.keys() | levels.keys()):
            capacity, free = sums.get(resource, (0, 0))
            before, now = levels.get(resource, 0), level(capacity - free, capacity, self._thresholds)
            if now != before and self._claim_resource_level(resource, before, now):
                notices.append(CapacityNotice(None, resource, capacity, capacity - free, before, now))
        return notices

    def _claim_resource_level(self, resource: str, before: int, now: int) -> bool:
        return self._database.write(lambda connection: resource_notices.claim_level(connection, resource, before, now))

    # --- parts of the transactions ---

    def _find(self, connection: Connection, name: str) -> StoredProvider:
        stored = resource_providers.find(connection, [name]).get(name)
        if stored is None:
            raise exceptions.ProviderNotFound(name)
        return stored

    def _serialize(self, connection: Connection) -> None:
        """Serialize the change with all others, after what other nodes of a cluster have committed."""
        self._database.sync_with_cluster(connection)
        change_log.serialize(connection)

    def _lock(self, connection: Connection, name: str, generation: int | None) -> StoredProvider:
        """Lock the provider for a change. Raises ProviderNotFound, ProviderConflict."""
        stored = self._find(connection, name)
        if not resource_providers.advance(connection, stored.id, generation):
            provider = self._find(connection, name).provider
            if generation is None:
                raise exceptions.ProviderNotFound(name)
            raise exceptions.ProviderConflict(provider.name, generation, provider.generation)
        return stored

    def _refuse_if_in_use(self, connection: Connection, provider_id: int, resource: str | None) -> None:
        """Raise ProviderInUse for an inventory that is left after the DELETE of those without claims."""
        left = inventories.read(connection, [provider_id], None if resource is None else [resource])
        for record in left.values():
            raise exceptions.ProviderInUse(
                record.provider,
                record.resource,
                f"claims use {record.used}; {_HOW_TO_LIST % record.provider}; a total of 0 refuses new ones",
            )


def _lock_pod(connection: Connection, name: str | None) -> None:
    """Lock the pod that a provider gets, so that it is not removed in the meantime. Raises PodNotFound."""
    if name is not None and pods.lock(connection, name) is None:
        raise exceptions.PodNotFound(name)


def _provider_values(provider: Provider) -> Value:
    """What the history has of a provider."""
    return {
        "name": provider.name,
        "parent": provider.parent,
        "can_host": provider.can_host,
        "pod": provider.pod,
    }


def _inventory_values(record: InventoryRecord | None) -> Value:
    """What the history has of an inventory. None: it does not exist."""
    if record is None:
        return None
    return {
        "total": record.total,
        "reserved": record.reserved,
        "min_unit": record.min_unit,
        "max_unit": record.max_unit,
        "step_size": record.step_size,
        "allocation_ratio": str(record.allocation_ratio),
    }


def _provider_change(action: str, provider: Provider, before: Value, after: Value) -> RecordedChange:
    return RecordedChange(action, None, None, before, after, provider=provider.name, provider_uuid=provider.uuid)


def _inventory_change(
    provider: Provider, before: InventoryRecord | None, after: InventoryRecord | None
) -> RecordedChange:
    resource = (after or before).resource  # type: ignore[union-attr]
    action = "remove inventory" if after is None else "set inventory"
    values = _inventory_values(before), _inventory_values(after)
    return RecordedChange(action, None, resource, *values, provider=provider.name, provider_uuid=provider.uuid)


def _record(connection: Connection, author: Author, changes: Sequence[RecordedChange]) -> RecordedChanges | None:
    """Record the changes that change something."""
    return change_log.record(connection, author, [change for change in changes if change.before != change.after])
