# SPDX-License-Identifier: Apache-2.0
"""Turn the providers of Placement or Cyborg into those to import, by the resource rules of [cyborg].

A device is usually a provider of its own, below its host, with one unit. None of them can take a claim of
four units, so the devices of a host are summed at the host, unless they are imported as nested providers.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cyborg_quota import units
from cyborg_quota.capacity.imports.changes import Used, WantedProvider
from cyborg_quota.cyborg.mapping import ResourceMap
from cyborg_quota.spool import Spool
from cyborg_quota.types.capacity import Inventory, ResourceUse

_PLACES: Final = decimal.Decimal(1).scaleb(-units.MAX_RATIO_PLACES)


@dataclasses.dataclass(frozen=True, slots=True)
class SourceProvider:
    """A provider of the source. ``inventories``: by resource class. ``used``: by consumer and resource class.

    ``uuid`` and ``parent`` (the key of the containing provider) identify providers within the source. ``is_uuid_known``
    False: ``uuid`` is not that of Placement. ``used``, ``is_shared`` None: the source does not say.
    """

    uuid: str
    name: str
    parent: str | None = None
    traits: frozenset[str] = frozenset()
    inventories: Mapping[str, Inventory] = dataclasses.field(default_factory=dict)
    used: Mapping[str, Mapping[str, int]] | None = None
    is_shared: bool | None = None
    is_uuid_known: bool = True


@dataclasses.dataclass(slots=True)
class _Parts:
    """What is counted at one provider of the import. ``used``: where the spool has what consumers use."""

    inventories: dict[str, list[Inventory]] = dataclasses.field(default_factory=dict)
    used: list[int] = dataclasses.field(default_factory=list)

    def add(self, one: SourceProvider, resource_map: ResourceMap) -> None:
        for resource_class, inventory in one.inventories.items():
            for resource in resource_map.resources_of(resource_class, one.traits):
                self.inventories.setdefault(resource, []).append(inventory)


def wanted_providers(
    providers: Iterable[SourceProvider], resource_map: ResourceMap, spool: Spool, *, nested: bool
) -> list[WantedProvider]:
    """The providers to import, each after the provider that contains it.

    Providers without accelerators are imported only if they contain one that has some. What consumers use is kept in
    ``spool``, from which ``WantedProvider.used`` reads it. ``nested``: do not sum the devices at their hosts.
    """
    by_uuid: dict[str, SourceProvider] = {}
    places: dict[str, int] = {}
    for one in providers:
        if one.used:
            places[one.uuid] = spool.put(_used(one, resource_map))
        by_uuid[one.uuid] = dataclasses.replace(one, used={}) if one.used else one
    parts: dict[str, _Parts] = {}
    for one in by_uuid.values():
        target = one if nested else _path(one, by_uuid)[-1]
        part = parts.setdefault(target.uuid, _Parts())
        part.add(one, resource_map)
        part.used += [places[one.uuid]] if one.uuid in places else []
    counted = {uuid for uuid, part in parts.items() if part.inventories}
    needed = {above.uuid for uuid in counted for above in _path(by_uuid[uuid], by_uuid)}
    ordered = sorted(by_uuid.values(), key=lambda one: (len(_path(one, by_uuid)), one.name))
    return [
        _wanted(one, by_uuid, parts.get(one.uuid, _Parts()), resource_map, spool=spool, needed=needed)
        for one in ordered
    ]


def _used(one: SourceProvider, resource_map: ResourceMap) -> dict[str, dict[str, int]]:
    """What consumers use at a provider of the source, by resource and consumer."""
    used: dict[str, dict[str, int]] = {}
    for consumer, amounts in (one.used or {}).items():
        for resource_class, amount in amounts.items():
            for resource in resource_map.resources_of(resource_class, one.traits):
                held = used.setdefault(resource, {})
                held[consumer] = held.get(consumer, 0) + amount
    return used


def _read_used(spool: Spool, places: Sequence[int]) -> Used:
    """The sums of what was kept at these places."""
    used: dict[str, dict[str, int]] = {}
    for place in places:
        for resource, amounts in spool.get(place).items():
            held = used.setdefault(resource, {})
            for consumer, amount in amounts.items():
                held[consumer] = held.get(consumer, 0) + amount
    return used


def use_by_resource(providers: Iterable[SourceProvider], resource_map: ResourceMap) -> dict[str, ResourceUse]:
    """What all providers together have and use. A resource without an inventory is not listed."""
    parts = _Parts()
    used: dict[str, int] = {}
    for one in providers:
        parts.add(one, resource_map)
        for resource, amounts in _used(one, resource_map).items():
            used[resource] = used.get(resource, 0) + sum(amounts.values())
    return {
        resource: ResourceUse(sum(units.capacity_of(inventory) for inventory in inventories), used.get(resource, 0))
        for resource, inventories in parts.inventories.items()
    }


def _path(one: SourceProvider, by_uuid: Mapping[str, SourceProvider]) -> list[SourceProvider]:
    """The provider and those that contain it, the outermost last."""
    path = [one]
    while (parent := by_uuid.get(path[-1].parent or "")) is not None and parent not in path:
        path.append(parent)
    return path


def _wanted(
    one: SourceProvider,
    by_uuid: Mapping[str, SourceProvider],
    parts: _Parts,
    resource_map: ResourceMap,
    *,
    spool: Spool,
    needed: set[str],
) -> WantedProvider:
    parent = by_uuid.get(one.parent or "")
    return WantedProvider(
        name=one.name,
        uuid=one.uuid if one.is_uuid_known else None,
        parent=None if parent is None else parent.name,
        can_host=None if one.is_shared is None else not one.is_shared,
        inventories={resource: total_of(found) for resource, found in sorted(parts.inventories.items())},
        covers=resource_map.resources,
        used=None if one.used is None else functools.partial(_read_used, spool, parts.used),
        is_needed=one.uuid in needed,
    )


def total_of(inventories: Sequence[Inventory]) -> Inventory:
    """The sum of inventories, in units that a claim over several of them can take.

    Its capacity is the sum of their capacities. If the sums of ``total`` and ``reserved`` would give another one,
    because the allocation ratios differ or each capacity was rounded down, its total is the sum of the capacities.
    """
    first = inventories[0]
    total, reserved = sum(one.total for one in inventories), sum(one.reserved for one in inventories)
    ratio = first.allocation_ratio
    capacity = sum(units.capacity_of(one) for one in inventories)
    has_one_ratio = all(one.allocation_ratio == ratio for one in inventories)
    if not has_one_ratio or units.capacity_of(Inventory(total, reserved, allocation_ratio=ratio)) != capacity:
        total, reserved, ratio = capacity, 0, decimal.Decimal(1)
    min_unit = min(one.min_unit for one in inventories)
    max_unit = max(sum(min(units.max_unit_of(one), one.total) for one in inventories), min_unit)
    steps = {one.step_size for one in inventories}
    return Inventory(
        total=total,
        reserved=reserved,
        min_unit=min_unit,
        max_unit=None if max_unit >= total else max_unit,
        step_size=first.step_size if len(steps) == 1 else 1,
        allocation_ratio=ratio,
    )


def ratio_of(value: float | str) -> decimal.Decimal:
    """An allocation ratio of an API (a binary fraction) as it is written, rounded down to what is stored."""
    ratio = decimal.Decimal(str(value)).quantize(_PLACES, rounding=decimal.ROUND_DOWN).normalize()
    return ratio + 0
