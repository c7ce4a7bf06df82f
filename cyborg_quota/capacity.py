# SPDX-License-Identifier: Apache-2.0
"""Capacity, the public interface for providers and their inventories."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from cyborg_quota import exceptions, paging, units, validation
from cyborg_quota.capacity_types import (
    Allocation,
    CapacityDrift,
    CapacityNotice,
    Inventory,
    InventoryRecord,
    Provider,
    ResourceReport,
)
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.subject import Subject
from cyborg_quota.types import MAX_AMOUNT, MAX_LIMIT, Marker
from cyborg_quota.validation import Context


class Capacity(Subject):
    """Providers, and how many of each resource they have. All calls need an admin's context.

    A ``provider`` argument is a UUID or a name. Claims with a provider are made with ``QuotaEngine.reserve``.
    A ``reason`` is one line of text, recorded in the history.
    """

    # --- providers ---

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
        validation.admin_only(context, "add_provider")
        provider = Provider(
            uuid=str(uuids.uuid4()) if uuid is None else validation.provider_uuid(uuid),
            name=validation.provider_name(name),
            generation=0,
            can_host=bool(can_host),
            parent=validation.optional_name("provider", parent),
            pod=validation.optional_name("pod", pod),
        )
        self._driver.providers.add(provider, self._author(context, reason))
        return self._driver.providers.show(provider.uuid)

    def list_providers(self, context: Context, *, limit: int | None = None, after: str | None = None) -> list[Provider]:
        """All providers, by name.

        ``limit``: the maximum number. ``after``: the name of the last provider of the previous page. Raises
        MarkerNotFound.
        """
        validation.admin_only(context, "list_providers")
        return self._driver.providers.list_providers(
            validation.row_limit(limit), validation.optional_name("marker", after)
        )

    def show_provider(self, context: Context, provider: str) -> Provider:
        """One provider. Raises ProviderNotFound."""
        validation.admin_only(context, "show_provider")
        return self._driver.providers.show(validation.check_name("provider", provider))

    def set_pod(self, context: Context, provider: str, pod: str | None, *, reason: str | None = None) -> Provider:
        """Put a provider that has no claims into a pod, or into none (None), and return it.

        Raises ProviderNotFound, PodNotFound, ProviderInUse.
        """
        validation.admin_only(context, "set_pod")
        return self._driver.providers.set_pod(
            validation.check_name("provider", provider),
            validation.optional_name("pod", pod),
            self._author(context, reason),
        )

    def set_can_host(self, context: Context, provider: str, *, can_host: bool, reason: str | None = None) -> Provider:
        """Make a provider one that ANY chooses, or a shared pool (False), and return it. Claims stay where they are.

        Raises ProviderNotFound.
        """
        validation.admin_only(context, "set_can_host")
        return self._driver.providers.set_can_host(
            validation.check_name("provider", provider), bool(can_host), self._author(context, reason)
        )

    def require_pods(self, context: Context, pods: Collection[str]) -> None:
        """Raise PodNotFound if one of these pods does not exist."""
        validation.admin_only(context, "require_pods")
        self._driver.providers.require_pods(sorted(validation.check_names("pod", pods)))

    def remove_provider(self, context: Context, provider: str, *, reason: str | None = None) -> None:
        """Remove a provider and its inventories. Raises ProviderNotFound, ProviderInUse (it has claims or children)."""
        validation.admin_only(context, "remove_provider")
        self._driver.providers.remove(validation.check_name("provider", provider), self._author(context, reason))

    # --- inventories ---

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

        ``used_elsewhere``: what ``set_used_elsewhere`` would set, in the same transaction, so that no claim takes it.

        ``generation``: that of the provider when the caller read it (compare-and-update). If the provider or its
        inventories have been changed since, raises ProviderConflict and changes nothing. None: do not compare.

        An inventory may be lowered below its use; claims are then refused until the use is below the capacity again.
        Raises ProviderNotFound, ProviderConflict, UnknownResource, InvalidInventory.
        """
        validation.admin_only(context, "set_inventories")
        if not isinstance(inventories, Mapping) or not (inventories or used_elsewhere):
            raise exceptions.InvalidRequest("Inventories must map at least one resource to an Inventory.")
        validation.refuse_unknown(inventories, self._resources)
        checked = {}
        for resource, inventory in inventories.items():
            if not isinstance(inventory, Inventory):
                raise exceptions.InvalidInventory(resource, "value", inventory, "it must be an Inventory")
            checked[resource] = units.check_inventory(resource, inventory)
        return self._driver.providers.set_inventories(
            validation.check_name("provider", provider),
            checked,
            _check_generation(generation),
            self._author(context, reason),
            _check_amounts(used_elsewhere),
        )

    def remove_inventory(
        self,
        context: Context,
        provider: str,
        resource: str,
        *,
        generation: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Remove an inventory; does nothing if there is none. ``generation``: as in ``set_inventories``.

        Raises ProviderNotFound, ProviderConflict, ProviderInUse (it has claims).
        """
        validation.admin_only(context, "remove_inventory")
        self._driver.providers.remove_inventory(
            validation.check_name("provider", provider),
            validation.check_name("resource", resource),
            _check_generation(generation),
            self._author(context, reason),
        )

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
        validation.admin_only(context, "list_inventories")
        page = paging.check(limit, after, resource, owner="provider")
        return self._driver.providers.list_inventories(validation.optional_name("provider", provider), page)

    def find_provider(self, context: Context, names: Sequence[str], resources: Collection[str]) -> str | None:
        """The UUID of the first of these providers that has an inventory of each resource, or None.

        What is free does not matter, but an inventory whose total is 0 does not count.
        """
        validation.admin_only(context, "find_provider")
        return self._driver.providers.find_with(
            validation.check_names("provider", names), validation.check_names("resource", resources)
        )

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
        validation.admin_only(context, "list_allocations")
        return self._driver.providers.list_allocations(
            validation.optional_name("provider", provider),
            limit=validation.row_limit(limit),
            after=validation.optional_name("marker", after),
            resource=validation.optional_name("resource", resource),
        )

    def set_used_elsewhere(self, context: Context, provider: str, amounts: Mapping[str, int]) -> None:
        """Set the amounts that are in use at a provider without a reservation in this ledger, by resource.

        Claims get only what is left. Like a claim, this does not change the generation. A resource of which the
        provider has no inventory is ignored. Raises ProviderNotFound, InvalidRequest.
        """
        validation.admin_only(context, "set_used_elsewhere")
        self._driver.providers.set_used_elsewhere(validation.check_name("provider", provider), _check_amounts(amounts))

    def report(self, context: Context) -> list[ResourceReport]:
        """For each resource: what exists, what is claimed or used elsewhere, and what is promised. Sorted by resource.

        Reads all inventories, usage rows and limits. Raises LimitsUnavailable.
        """
        validation.admin_only(context, "report")
        return self._driver.capacity_reporter.read(sorted(self._resources))

    # --- notices, audit and repair ---

    def notices(self, context: Context) -> list[CapacityNotice]:
        """The inventories that crossed a threshold of their capacity since the last call, by any host.

        After them, the resources whose capacity at all providers together did (provider None).
        """
        validation.admin_only(context, "notices")
        return self._driver.providers.notices()

    def audit(self, context: Context) -> list[CapacityDrift]:
        """The inventories whose counters differ from the reservations. Normally none."""
        validation.admin_only(context, "audit")
        return self._driver.providers.audit()

    def heal(self, context: Context, *, progress: Callable[[int], None] | None = None) -> list[CapacityDrift]:
        """Repair the counters that ``audit`` reports. Returns the counters before and after it."""
        validation.admin_only(context, "heal")
        return self._driver.providers.heal(progress)


def _check_amounts(amounts: object) -> dict[str, int]:
    if not isinstance(amounts, Mapping):
        raise exceptions.InvalidRequest(
            f"What is used elsewhere must map resources to amounts, not {safe_repr(amounts)}."
        )
    return {validation.check_name("resource", name): _check_amount(amount) for name, amount in amounts.items()}


def _check_amount(amount: object) -> int:
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= MAX_LIMIT:
        raise exceptions.InvalidRequest(f"What is used elsewhere must be a whole number of at least 0, not {amount!a}.")
    return int(amount)


def _check_generation(generation: object) -> int | None:
    if generation is None:
        return None
    if isinstance(generation, bool) or not isinstance(generation, int) or not 0 <= generation <= MAX_AMOUNT:
        raise exceptions.InvalidRequest("The generation of a provider must be a whole number of at least 0.")
    return int(generation)
