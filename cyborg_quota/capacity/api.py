# SPDX-License-Identifier: Apache-2.0
"""Capacity: the interface for providers and their inventories, and its transactions.

Each change is one transaction, which also records it in the history. It begins with the row of ``fences`` that
serializes all these changes, then locks the row of the provider.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid as uuids
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions, units, validation
from cyborg_quota.capacity import report, tables
from cyborg_quota.capacity.claims import CapacityEnforcer
from cyborg_quota.db import change_log, history, resource_providers
from cyborg_quota.db import inventories as inventory_rows
from cyborg_quota.db import pods as pod_names
from cyborg_quota.db.database import Connection
from cyborg_quota.db.resource_providers import StoredProvider
from cyborg_quota.ledger.enforcers import EnforcedSubject
from cyborg_quota.ledger.thresholds import OVER, level
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.subject import admin_call
from cyborg_quota.types import MAX_AMOUNT, MAX_LIMIT, Author, InventoryKey, Marker, RecordedChange, Value
from cyborg_quota.types.capacity import (
    Allocation,
    CapacityNotice,
    Inventory,
    InventoryRecord,
    Provider,
    ResourceReport,
)
from cyborg_quota.validation import Context

LOG = logging.getLogger(__name__)
T = TypeVar("T")

_UNCHANGED: Final[Any] = object()

_HOW_TO_LIST: Final = "see `allocation list --provider %s`"


class Capacity(EnforcedSubject):
    """Providers, and how many of each resource they have. All calls need an admin's context.

    A ``provider`` argument is a UUID or a name. Claims with a provider are made with ``QuotaEngine.reserve``.
    A ``reason`` is one line of text, recorded in the history.
    """

    _enforcer: CapacityEnforcer

    # --- providers ---

    @admin_call
    def add_provider(
        self,
        context: Context,
        name: str,
        *,
        uuid: str | None = None,
        parent: str | None = None,
        can_host: bool = True,
        pod: str | None = None,
        reason: str | None = None,
    ) -> Provider:
        """Add a provider without inventories, and return it.

        ``uuid`` None: a random one. ``parent``: the provider that contains this one. ``can_host`` False: a shared pool,
        which only claims that name it use. ``pod``: the pod to which it belongs. Raises ProviderExists,
        ProviderNotFound (the parent), PodNotFound, InvalidName.
        """
        provider = Provider(
            uuid=str(uuids.uuid4()) if uuid is None else validation.provider_uuid(uuid),
            name=validation.provider_name(name),
            generation=0,
            can_host=bool(can_host),
            parent=validation.optional_name("provider", parent),
            pod=validation.optional_name("pod", pod),
        )
        author = validation.author_of(context, reason)

        def work(connection: Connection) -> tuple[Provider, list[RecordedChange]]:
            if provider.pod is not None:
                pod_names.lock(connection, provider.pod)  # so that it is not removed in the meantime
            parent = None if provider.parent is None else self._find(connection, provider.parent)
            if parent is not None and not resource_providers.lock(connection, parent.id):
                raise exceptions.ProviderNotFound(str(provider.parent))
            wanted = dataclasses.replace(provider, parent=parent and parent.provider.name)
            for stored in resource_providers.find(connection, [provider.uuid, provider.name]).values():
                # With the same UUID, which is random unless the caller gave it, and the same values: the answer to the
                # COMMIT of an earlier attempt was lost.
                if stored.provider == wanted:
                    return stored.provider, []
                raise exceptions.ProviderExists(provider.name)
            resource_providers.insert(connection, provider, parent and parent.id)
            added = self._find(connection, provider.uuid).provider
            return added, [_recorded(added, None, added)]

        return self._change(author, work)

    @admin_call
    def list_providers(self, context: Context, *, limit: int | None = None, after: str | None = None) -> list[Provider]:
        """All providers, by name.

        ``limit``: the maximum number. ``after``: the name of the last provider of the previous page. Raises
        MarkerNotFound.
        """
        page = validation.row_limit(limit), validation.optional_name("marker", after)
        return self._untimed.read_synced(lambda connection: resource_providers.list_providers(connection, *page))

    @admin_call
    def show_provider(self, context: Context, provider: str) -> Provider:
        """One provider. Raises ProviderNotFound."""
        name = validation.check_name("provider", provider)
        return self._database.read_synced(lambda connection: self._find(connection, name)).provider

    @admin_call
    def set_provider(
        self,
        context: Context,
        provider: str,
        *,
        pod: str | None = _UNCHANGED,
        can_host: bool | None = None,
        reason: str | None = None,
    ) -> Provider:
        """Change a provider, and return it. What is not given stays.

        ``pod``: put a provider that has no claims into this pod, or into none (None). ``can_host``: make it one that
        ANY chooses, or a shared pool (False); claims stay where they are. Raises ProviderNotFound, PodNotFound,
        ProviderInUse.
        """
        name, author = validation.check_name("provider", provider), validation.author_of(context, reason)
        values: dict[str, Any] = {} if pod is _UNCHANGED else {"pod": validation.optional_name("pod", pod)}
        if can_host is not None:
            values["can_host"] = bool(can_host)

        def work(connection: Connection) -> tuple[Provider, list[RecordedChange]]:
            if values.get("pod") is not None:
                pod_names.lock(connection, values["pod"])
            provider_id, before = self._lock(connection, name, None)
            changed = dataclasses.replace(before, **values)
            if changed != before:
                serves = resource_providers.serves(connection, provider_id)
                if (serves and changed.can_host) or ((serves or before.served_by) and changed.pod != before.pod):
                    reason = "it serves another provider, or is served: see `provider set --stop-serving`"
                    raise exceptions.ProviderInUse(before.name, None, reason, change="changed")
                if "pod" in values and not inventory_rows.lock_unused(connection, provider_id):
                    reason, change = f"it has claims; {_HOW_TO_LIST % before.name}", "moved to another pod"
                    raise exceptions.ProviderInUse(before.name, None, reason, change=change)
                if "pod" in values:
                    inventory_rows.renew(connection, provider_id)
                resource_providers.update(connection, provider_id, changed)
            after = self._find(connection, before.uuid).provider
            return after, [_recorded(before, before, after)]

        return self._change(author, work)

    @admin_call
    def set_served(
        self,
        context: Context,
        provider: str,
        *,
        add: Collection[str] = (),
        remove: Collection[str] = (),
        reason: str | None = None,
    ) -> Provider:
        """Let a shared pool serve these providers (``add``), and no longer those (``remove``); return the pool.

        A claim with ANY then takes from the pool what the provider that it chooses has no inventory of. A provider is
        served by one pool, of its own pod. Raises ProviderNotFound, InvalidRequest (it is no shared pool),
        ProviderInUse (another pool serves a provider, or it is in another pod).
        """
        name, author = validation.check_name("provider", provider), validation.author_of(context, reason)
        added, removed = validation.check_names("provider", add), validation.check_names("provider", remove)

        def work(connection: Connection) -> tuple[Provider, list[RecordedChange]]:
            pool_id, pool = self._lock(connection, name, None)
            if pool.can_host:
                raise exceptions.InvalidRequest(f"Provider {pool.name} is no shared pool: see `provider set --shared`.")
            changes = []
            for served in dict.fromkeys((*added, *removed)):
                served_id, before = self._lock(connection, served, None)
                if served not in added and before.served_by != pool.name:
                    continue
                if served in added:
                    _check_served(before, pool)
                resource_providers.set_served_by(connection, served_id, pool_id if served in added else None)
                changes.append(_recorded(before, before, self._find(connection, before.uuid).provider))
            return self._find(connection, pool.uuid).provider, changes

        return self._change(author, work)

    @admin_call
    def require_pods(self, context: Context, pods: Collection[str]) -> None:
        """Raise PodNotFound if one of these pods does not exist."""
        names = sorted(validation.check_names("pod", pods))
        self._database.read_synced(lambda connection: pod_names.require(connection, names))

    @admin_call
    def remove_provider(self, context: Context, provider: str, *, reason: str | None = None) -> None:
        """Remove a provider and its inventories.

        Raises ProviderNotFound, ProviderInUse (it has claims or children, or serves others).
        """
        name = validation.check_name("provider", provider)

        def work(connection: Connection) -> tuple[None, list[RecordedChange]]:
            provider_id, present = self._lock(connection, name, None)
            if resource_providers.any_with(connection, parent_id=provider_id):
                raise exceptions.ProviderInUse(present.name, None, "other providers are nested in it")
            if resource_providers.serves(connection, provider_id):
                raise exceptions.ProviderInUse(
                    present.name, None, "it serves others (see `provider set --stop-serving`)"
                )
            removed = _remove_inventories(connection, provider_id, present)
            resource_providers.delete(connection, provider_id)
            return None, [*removed, _recorded(present, present, None)]

        self._change(validation.author_of(context, reason), work)

    # --- inventories ---

    @admin_call
    def set_inventories(
        self,
        context: Context,
        provider: str,
        inventories: Mapping[str, Inventory],
        *,
        generation: int | None = None,
        used_elsewhere: Mapping[str, int] = MappingProxyType({}),
        reason: str | None = None,
    ) -> list[InventoryRecord]:
        """Set inventories of a provider, all or none, and return them. Its other inventories stay.

        ``used_elsewhere``: the amounts that are in use at the provider without a reservation in this ledger, by
        resource; claims get only what is left. A resource of which the provider has no inventory is ignored.

        ``generation``: that of the provider when the caller read it (compare-and-update). If the provider or its
        inventories have been changed since, raises ProviderConflict and changes nothing. None: do not compare.

        An inventory may be lowered below its use; claims are then refused until the use is below the capacity again.
        Raises ProviderNotFound, ProviderConflict, UnknownResource, InvalidInventory.
        """
        if not isinstance(inventories, Mapping) or not (inventories or used_elsewhere):
            raise exceptions.InvalidRequest("Inventories must map at least one resource to an Inventory.")
        validation.refuse_unknown(inventories, self._resources)
        checked = {}
        for resource, inventory in inventories.items():
            if not isinstance(inventory, Inventory):
                raise exceptions.InvalidInventory(resource, "value", inventory, "it must be an Inventory")
            checked[resource] = units.check_inventory(resource, inventory)
        name, expected = validation.check_name("provider", provider), _check_generation(generation)
        author, elsewhere = validation.author_of(context, reason), _check_amounts(used_elsewhere)

        def work(connection: Connection) -> tuple[list[InventoryRecord], list[RecordedChange]]:
            provider_id, present = self._lock(connection, name, expected)
            before = inventory_rows.read(connection, [provider_id], checked)
            resources = checked.keys() | elsewhere.keys()
            ids = inventory_rows.ids_of(connection, [InventoryKey(provider_id, resource) for resource in resources])
            known = [key.resource for key in ids]
            for resource in (*known, *sorted(checked.keys() - set(known))):
                if resource in checked:
                    inventory_rows.set_inventory(connection, provider_id, resource, checked[resource])
                if resource in elsewhere:
                    inventory_rows.set_used_elsewhere(connection, provider_id, resource, elsewhere[resource])
            after = inventory_rows.read(connection, [provider_id], checked)
            return list(after.values()), [_recorded(present, before.get(key), record) for key, record in after.items()]

        records = self._change(author, work)
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

    @admin_call
    def remove_inventory(
        self,
        context: Context,
        provider: str,
        resource: str,
        *,
        reason: str | None = None,
    ) -> None:
        """Remove an inventory, if there is one. Raises ProviderNotFound, ProviderInUse (it has claims)."""
        name, checked = validation.check_name("provider", provider), validation.check_name("resource", resource)
        self._change(
            validation.author_of(context, reason),
            lambda connection: (None, _remove_inventories(connection, *self._lock(connection, name, None), checked)),
        )

    @admin_call
    def list_inventories(
        self,
        context: Context,
        provider: str | None = None,
        *,
        limit: int | None = None,
        after: Marker | None = None,
        resource: str | None = None,
    ) -> list[InventoryRecord]:
        """The inventories of one provider, or of all, by provider and resource.

        ``limit``: the maximum number. ``after``: (name of the provider, resource) of the last record of the previous
        page; with the resource None, the last one of that provider. ``resource``: only this one. Raises
        ProviderNotFound, MarkerNotFound.
        """
        page = validation.check_page(limit, after, resource, owner="provider")
        name = validation.optional_name("provider", provider)

        records = self._untimed.read_synced(
            lambda connection: inventory_rows.read(
                connection, None if name is None else [self._find(connection, name).id], page=page
            )
        )
        return list(records.values())

    @admin_call
    def find_provider(self, context: Context, names: Sequence[str], resources: Collection[str]) -> str | None:
        """The UUID of the first of these providers that has an inventory of each resource, or None.

        What is free does not matter, but an inventory whose total is 0 does not count.
        """
        checked = validation.check_names("provider", names)
        wanted = set(validation.check_names("resource", resources))

        def work(connection: Connection) -> str | None:
            providers = resource_providers.find(connection, checked)
            for stored in (providers[name] for name in checked if name in providers):
                records = inventory_rows.read(connection, [stored.id], wanted).values()
                if {record.resource for record in records if record.total > 0} == wanted:
                    return stored.provider.uuid
            return None

        return self._database.read(work)

    @admin_call
    def list_allocations(
        self,
        context: Context,
        provider: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
        resource: str | None = None,
    ) -> list[Allocation]:
        """The live claims at one provider, or at all, by provider and project; the oldest first.

        ``limit``: the maximum number. ``after``: the UUID of the last reservation of the previous page. ``resource``:
        only this one. Raises ProviderNotFound, MarkerNotFound.
        """
        name = validation.optional_name("provider", provider)
        which: Any = {
            "after": validation.optional_name("marker", after),
            "resource": validation.optional_name("resource", resource),
            "limit": validation.row_limit(limit),
        }
        return self._untimed.read_synced(
            lambda connection: history.list_allocations(
                connection, None if name is None else self._find(connection, name).id, **which
            )
        )

    @admin_call
    def report(self, context: Context, resources: Collection[str] | None = None) -> list[ResourceReport]:
        """For each resource: what exists, what is claimed or used elsewhere, and what is promised. Sorted by resource.

        Reads all inventories, usage rows and limits. ``resources``: only these; and only those that have an inventory,
        without which no limits are read. Raises LimitsUnavailable, InvalidRequest.
        """
        limits = self._enforcer.parts.limits
        if resources is None:
            return report.read(self._untimed, limits, self._resources.names())
        names = [validation.check_resource_name(name) for name in validation.resource_list(resources)]
        return report.read(self._untimed, limits, names, has_inventory=True)

    # --- notices ---

    @admin_call
    def notices(self, context: Context) -> list[CapacityNotice]:
        """The inventories that crossed a threshold of their capacity since the last call, by any host.

        After them, the resources whose capacity at all providers together did (owner None).
        """
        thresholds, least = sorted(self._enforcer.parts.thresholds), self._enforcer.parts.least_capacity
        stored = self._untimed.read(
            lambda connection: [
                *inventory_rows.read_notified_levels(connection, min(thresholds, default=OVER), least),
                *((None, notice) for notice in tables.read_notices(connection)),
            ]
        )
        notices = []
        for inventory_id, last in stored:
            now = level(last.used, last.limit, thresholds, 0 if inventory_id is None else least)
            if inventory_id is None:
                claim = functools.partial(tables.claim_notice_level, resource=last.resource)
            else:
                claim = functools.partial(inventory_rows.claim_notified_level, inventory_id=inventory_id)
            if now != last.before and self._database.claim(claim, last.before, now):
                notices.append(dataclasses.replace(last, now=now))
        return notices

    # --- parts of the transactions ---

    def _change(self, author: Author, work: Callable[[Connection], tuple[T, Sequence[RecordedChange]]]) -> T:
        """Run ``work`` in a transaction, and record those of its changes that change something.

        It is serialized with all other changes, after what other nodes of a cluster have committed.
        """

        def transaction(connection: Connection) -> tuple[T, Any]:
            self._database.sync_with_cluster(connection)
            change_log.serialize(connection)
            result, made = work(connection)
            return result, change_log.record(
                connection, author, [change for change in made if change.before != change.after]
            )

        result, recorded = self._database.write(transaction)
        self._history.announce(recorded)
        return result

    def _find(self, connection: Connection, name: str) -> StoredProvider:
        stored = resource_providers.find(connection, [name]).get(name)
        if stored is None:
            raise exceptions.ProviderNotFound(name)
        return stored

    def _lock(self, connection: Connection, name: str, generation: int | None) -> StoredProvider:
        """Lock the provider for a change. Raises ProviderNotFound, ProviderConflict."""
        stored = self._find(connection, name)
        if not resource_providers.advance(connection, stored.id, generation):
            provider = self._find(connection, name).provider
            if generation is None:
                raise exceptions.ProviderNotFound(name)
            raise exceptions.ProviderConflict(provider.name, generation, provider.generation)
        return stored


def _remove_inventories(
    connection: Connection, provider_id: int, provider: Provider, resource: str | None = None
) -> list[RecordedChange]:
    """Remove one inventory of a locked provider, or all. Raises ProviderInUse for one that has claims."""
    which = connection, [provider_id], None if resource is None else [resource]
    records = inventory_rows.read(*which)
    inventory_rows.delete_unused(connection, provider_id, resource)
    for record in inventory_rows.read(*which).values():
        raise exceptions.ProviderInUse(
            record.provider,
            record.resource,
            f"claims use {record.used}; {_HOW_TO_LIST % record.provider}; a total of 0 refuses new ones",
        )
    return [_recorded(provider, record, None) for record in records.values()]


def _values(record: Provider | InventoryRecord | None) -> Value:
    """What the history has of a provider or an inventory. None: it does not exist."""
    if record is None:
        return None
    if isinstance(record, Provider):
        return {name: getattr(record, name) for name in ("name", "parent", "can_host", "pod", "served_by")}
    units_of = {name: getattr(record, name) for name in ("total", "reserved", "min_unit", "max_unit", "step_size")}
    return {**units_of, "allocation_ratio": str(record.allocation_ratio)}


def _check_served(provider: Provider, pool: Provider) -> None:
    """Raise ProviderInUse if the pool cannot serve the provider."""
    is_other = provider.served_by not in (None, pool.name)
    pods = ["no pod" if member.pod is None else f"pod {member.pod}" for member in (provider, pool)]
    for is_wrong, reason in (
        (provider.uuid == pool.uuid, "a pool does not serve itself"),
        (is_other, f"{provider.served_by} serves it: see `provider set --stop-serving`"),
        (provider.pod != pool.pod, f"it is in {pods[0]}, and the pool is in {pods[1]}"),
    ):
        if is_wrong:
            raise exceptions.ProviderInUse(provider.name, None, reason, change=f"served by {pool.name}")


def _recorded(
    provider: Provider, before: Provider | InventoryRecord | None, after: Provider | InventoryRecord | None
) -> RecordedChange:
    """The change of a provider, or of an inventory of it, for the history."""
    record: Any = after or before
    is_inventory = isinstance(record, InventoryRecord)
    verb = "remove" if after is None else "add" if before is None and not is_inventory else "set"
    what, resource = ("inventory", record.resource) if is_inventory else ("provider", None)
    values = _values(before), _values(after)
    return RecordedChange(
        f"{verb} {what}", None, resource, *values, provider=provider.name, provider_uuid=provider.uuid
    )


def _check_amounts(amounts: object) -> dict[str, int]:
    if not isinstance(amounts, Mapping):
        raise exceptions.InvalidRequest(
            f"What is used elsewhere must map resources to amounts, not {safe_repr(amounts)}."
        )
    rule = "What is used elsewhere must be a whole number of at least 0"
    return {
        validation.check_name("resource", name): validation.integer(amount, 0, MAX_LIMIT, rule)
        for name, amount in amounts.items()
    }


def _check_generation(generation: object) -> int | None:
    rule = "The generation of a provider must be a whole number of at least 0"
    return None if generation is None else validation.integer(generation, 0, MAX_AMOUNT, rule)
