# SPDX-License-Identifier: Apache-2.0
"""Imports providers and inventories: compares what a source has with what is stored, and changes what differs.

An import never changes an allocation, and never removes a provider or an inventory: an inventory that its source no
longer has gets the total 0, so that nothing more is claimed there.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from cyborg_quota import exceptions, units, validation
from cyborg_quota.types import in_pages
from cyborg_quota.types.capacity import Inventory, InventoryRecord, Provider
from cyborg_quota.validation import Context

if TYPE_CHECKING:  # the command line's help must not load a database
    from cyborg_quota.capacity.api import Capacity

ADD, SET, ELSEWHERE = "add provider", "set inventory", "set used elsewhere"

PAGE_ROWS: Final = 10_000
"""The number of claims that are read at once."""

_Claims = defaultdict[str, defaultdict[str, Counter[str]]]
"""What consumers hold here, by provider, resource and consumer."""

_GONE: Final = Inventory(0)
"""What is stored where the source has an inventory no longer."""


@dataclasses.dataclass(frozen=True, slots=True)
class WantedProvider:
    """A provider as its source has it.

    ``uuid`` None: the source does not know it; a provider with the same name is the same. ``parent`` is a name or a
    UUID. ``can_host`` None: the source does not say; a new provider can. ``covers``: the resources of which the source
    knows all inventories; what it does not list gets the total 0. ``used``: what consumers use there, by resource and
    consumer; None: the source does not say. ``is_needed`` False: do not add the provider.
    """

    name: str
    uuid: str | None = None
    parent: str | None = None
    pod: str | None = None
    can_host: bool | None = None
    inventories: Mapping[str, Inventory] = dataclasses.field(default_factory=dict)
    covers: frozenset[str] = frozenset()
    used: Mapping[str, Mapping[str, int]] | None = None
    is_needed: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One change: what was done, at which provider, and the total (or the amount) before and after."""

    change: str
    provider: str
    resource: str | None
    before: int | None
    after: int | str


@dataclasses.dataclass(frozen=True)
class CapacityImporter:
    """Applies what a source has. Errors of the input are raised before anything is written.

    ``resources``: the registered ones. ``settle``: waits until the binds in progress have made their claims; called
    once, if the source has consumers that hold no reservation here. ``reason``: of the changes, for the history.
    ``knows_use``: whether the source says what is in use; otherwise, the claims here are not read.
    """

    capacity: Capacity
    context: Context
    resources: Collection[str]
    settle: Callable[[], object] = lambda: None
    reason: str | None = None
    knows_use: bool = True

    def run(
        self,
        read: Callable[[], Sequence[WantedProvider]],
        *,
        dry_run: bool = False,
        progress: Callable[[int], object] = lambda _count: None,
    ) -> list[Change]:
        """Read the source and apply it; returns the changes. ``progress``: called with the number of providers done.

        A provider that another writer changes while the source is read keeps that change, and ends the import.

        Raises what ``read`` raises, UnknownResource, InvalidInventory, InvalidName, InvalidRequest, ProviderNotFound,
        PodNotFound, QuotaError (another writer changed a provider).
        """
        claims: _Claims = defaultdict(lambda: defaultdict(Counter))
        stored = _Stored(self.capacity, self.context)
        if self.knows_use:
            self._add_claims(claims)
        wanted = read()
        self._check(wanted, stored)
        matched = [(entry, stored.find(entry)) for entry in wanted]
        _check_matches(matched)
        self.capacity.require_pods(self.context, {entry.pod for entry in wanted if entry.pod is not None})
        if any(self._elsewhere(entry, provider, claims) for entry, provider in matched):
            self.settle()
            self._add_claims(claims)
        changes: list[Change] = []
        for entry, provider in matched:
            try:
                changes += self._apply(entry, provider, stored, claims, dry_run=dry_run)
            except (exceptions.ProviderConflict, exceptions.ProviderExists, exceptions.ProviderNotFound) as error:
                raise exceptions.QuotaError(
                    f"Another writer changed provider {entry.name!a} while the import ran: {error} Run the import "
                    "again: it compares everything, and changes what still differs."
                ) from None
            progress(1)
        return changes

    def _add_claims(self, claims: _Claims) -> None:
        """Add all claims of this moment, read in pages: the largest amount that each consumer had at any moment.

        A consumer of a source may be a consumer or a group here.
        """
        allocations = in_pages(
            lambda marker: self.capacity.list_allocations(self.context, limit=PAGE_ROWS, after=marker),
            PAGE_ROWS,
            lambda allocation: allocation.reservation,
        )
        for provider, rows in itertools.groupby(allocations, key=operator.attrgetter("provider")):
            usage: defaultdict[str, Counter[str]] = defaultdict(Counter)
            for allocation in rows:
                for holder in {allocation.consumer, allocation.group} - {None}:
                    usage[allocation.resource][str(holder)] += allocation.used
            for resource, amounts in usage.items():
                claims[provider][resource] |= amounts

    def _check(self, wanted: Sequence[WantedProvider], stored: _Stored) -> None:
        used = {resource for entry in wanted for resource in entry.inventories}
        if unknown := used - set(self.resources):
            raise exceptions.UnknownResource(unknown, self.resources)
        names: set[str] = set()
        known = {*stored.by_uuid, *stored.by_name}
        for entry in wanted:
            if entry.is_needed:
                validation.provider_name(entry.name)
            for key in {entry.name, None if entry.uuid is None else entry.uuid.lower()} - {None}:
                if key in names:
                    raise exceptions.InvalidRequest(f"The source has two providers {key!a}.")
                names.add(str(key))
            for resource, inventory in entry.inventories.items():
                units.check_inventory(resource, inventory)
            if entry.parent is not None and entry.parent not in known:
                raise exceptions.ProviderNotFound(entry.parent)
            known |= {entry.name} if entry.uuid is None else {entry.name, entry.uuid}

    def _apply(
        self,
        entry: WantedProvider,
        provider: Provider | None,
        stored: _Stored,
        claims: _Claims,
        *,
        dry_run: bool,
    ) -> list[Change]:
        changes = []
        if provider is None:
            if not entry.is_needed:
                return []
            changes.append(Change(ADD, entry.name, None, None, entry.name))
            if not dry_run:
                self.capacity.add_provider(
                    self.context,
                    entry.name,
                    uuid=entry.uuid,
                    parent=None if entry.parent is None else stored.names.get(entry.parent, entry.parent),
                    pod=entry.pod,
                    can_host=entry.can_host is not False,
                    reason=self.reason,
                )
        name = entry.name if provider is None else provider.name
        records = stored.records.get(name, {})
        gone = dict.fromkeys(sorted(records.keys() & (entry.covers - entry.inventories.keys())), _GONE)
        differing = {
            resource: inventory
            for resource, inventory in {**entry.inventories, **gone}.items()
            if not _is_equal(records.get(resource), inventory)
        }
        elsewhere = self._differing_use(entry, provider, records, claims)
        if (differing or elsewhere) and not dry_run:
            # In one transaction, so that no claim takes what is in use elsewhere.
            self.capacity.set_inventories(
                self.context,
                name,
                differing,
                used_elsewhere={resource: after for resource, (_, after) in elsewhere.items()},
                generation=0 if provider is None else provider.generation,
                reason=self.reason,
            )
        for resource, inventory in differing.items():
            before = records[resource].total if resource in records else None
            changes.append(Change(SET, name, resource, before, inventory.total))
        return changes + [Change(ELSEWHERE, name, resource, *elsewhere[resource]) for resource in sorted(elsewhere)]

    def _differing_use(
        self,
        entry: WantedProvider,
        provider: Provider | None,
        records: Mapping[str, InventoryRecord],
        claims: _Claims,
    ) -> dict[str, tuple[int, int]]:
        """What is used elsewhere before and after the import, by resource, where that differs."""
        if entry.used is None:
            return {}
        elsewhere = self._elsewhere(entry, provider, claims)
        present = {resource: record.used_elsewhere for resource, record in records.items() if resource in entry.covers}
        amounts = {resource: elsewhere.get(resource, 0) for resource in (*present, *entry.inventories)}
        return {
            resource: (present.get(resource, 0), amount)
            for resource, amount in amounts.items()
            if amount != present.get(resource, 0)
        }

    @staticmethod
    def _elsewhere(entry: WantedProvider, provider: Provider | None, claims: _Claims) -> dict[str, int]:
        """What the source reports as used beyond the reservations here, by resource; without zeros."""
        if entry.used is None:
            return {}
        usage = claims[entry.name if provider is None else provider.name]
        beyond = {resource: Counter(amounts) - usage[resource] for resource, amounts in entry.used.items()}
        return {resource: amounts.total() for resource, amounts in beyond.items() if amounts}


def _check_matches(matched: Iterable[tuple[WantedProvider, Provider | None]]) -> None:
    """Refuse two entries for one stored provider: each import would overwrite one entry with the other."""
    entries: dict[str, WantedProvider] = {}
    for entry, provider in matched:
        if provider is None:
            continue
        other = entries.setdefault(provider.uuid, entry)
        if other is not entry:
            raise exceptions.InvalidRequest(
                f"The source's providers {other.name!a} and {entry.name!a} are both the stored provider "
                f"{provider.name!a} (UUID {provider.uuid}): one has its UUID, and the other one its name. Rename one "
                "in the source, or remove the stored provider if it has no claims."
            )


class _Stored:
    """The providers and inventories that are stored, read once. ``names``: the stored name by the source's name."""

    def __init__(self, capacity: Capacity, context: Context) -> None:
        providers = capacity.list_providers(context)
        self.by_uuid = {provider.uuid: provider for provider in providers}
        self.by_name = {provider.name: provider for provider in providers}
        self.names: dict[str, str] = {}
        self.records: dict[str, dict[str, InventoryRecord]] = {}
        for record in capacity.list_inventories(context):
            self.records.setdefault(record.provider, {})[record.resource] = record

    def find(self, entry: WantedProvider) -> Provider | None:
        """The stored provider with the same UUID, else with the same name; a name may be its UUID.

        Raises InvalidRequest if the entry has a UUID, and its name is the UUID of another stored provider.
        """
        by_uuid = None if entry.uuid is None else self.by_uuid.get(entry.uuid.lower())
        named = self.by_uuid.get(entry.name.lower())
        if entry.uuid is not None and named is not None and named is not by_uuid:
            raise exceptions.InvalidRequest(
                f"The name {entry.name!a} is the UUID of the stored provider {named.name!a}."
            )
        provider = by_uuid or named or self.by_name.get(entry.name)
        if provider is not None:
            self.names[entry.name] = provider.name
        return provider


def _is_equal(record: InventoryRecord | None, wanted: Inventory) -> bool:
    if record is None or wanted is _GONE:
        return record is not None and record.total == 0
    names = ("total", "reserved", "min_unit", "step_size", "allocation_ratio")
    return record.max_unit == units.max_unit_of(wanted) and all(
        getattr(record, name) == getattr(wanted, name) for name in names
    )
