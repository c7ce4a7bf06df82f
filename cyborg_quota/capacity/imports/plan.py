# SPDX-License-Identifier: Apache-2.0
"""Turn the providers of Placement or Cyborg into those to import, by the resource rules of [cyborg].

A device is usually a provider of its own, below its host, with one unit. None of them can take a claim of
four units, so the devices of a host are summed at the host, unless they are imported as nested providers.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from oslo_config import cfg

from cyborg_quota import units
from cyborg_quota.capacity.api import Capacity
from cyborg_quota.capacity.imports import sources
from cyborg_quota.capacity.imports.changes import CapacityImporter, Change, WantedProvider
from cyborg_quota.capacity.imports.sources import SourceProvider
from cyborg_quota.conf.resource_rules import ResourceMap
from cyborg_quota.types import MAX_AMOUNT
from cyborg_quota.types.capacity import Inventory, ResourceUse
from cyborg_quota.validation import Context


def wanted_providers(
    providers: Iterable[SourceProvider], resource_map: ResourceMap, *, nested: bool
) -> list[WantedProvider]:
    """The providers to import, each after the provider that contains it.

    Providers without accelerators are imported only if they contain one that has some. ``nested``: do not sum the
    devices at their hosts.
    """
    by_uuid = {provider.uuid: provider for provider in providers}
    parents = {provider.uuid: provider.parent if provider.parent in by_uuid else None for provider in by_uuid.values()}
    inventories: defaultdict[str, defaultdict[str, list[Inventory]]] = defaultdict(lambda: defaultdict(list))
    used: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for provider in by_uuid.values():
        target = provider.uuid if nested else sources.path(provider.uuid, parents)[-1]
        for resource, inventory in _counted(provider, resource_map):
            inventories[target][resource].append(inventory)
        for resource, amounts in _used(provider, resource_map).items():
            used[target][resource].update(amounts)
    needed = {above for uuid in inventories for above in sources.path(uuid, parents)}
    names = {provider.uuid: provider.name for provider in by_uuid.values()}
    return [
        WantedProvider(
            name=provider.name,
            uuid=provider.uuid if provider.is_uuid_known else None,
            parent=names.get(provider.parent or ""),
            can_host=None if provider.is_shared is None else not provider.is_shared,
            inventories={
                resource: total_of(counted) for resource, counted in sorted(inventories[provider.uuid].items())
            },
            covers=resource_map.resources,
            used=None if provider.used is None else used[provider.uuid],
            is_needed=provider.uuid in needed,
        )
        for provider in sorted(
            by_uuid.values(), key=lambda provider: (len(sources.path(provider.uuid, parents)), provider.name)
        )
    ]


def _counted(provider: SourceProvider, resource_map: ResourceMap) -> Iterator[tuple[str, Inventory]]:
    """The inventories of a provider, each as the resources as which it is counted."""
    for resource_class, inventory in provider.inventories.items():
        for resource, weight in resource_map.amounts_of(resource_class, provider.traits).items():
            weighted = dataclasses.replace(
                inventory,
                total=inventory.total * weight,
                reserved=inventory.reserved * weight,
                min_unit=inventory.min_unit * weight,
                max_unit=None if inventory.max_unit is None else min(MAX_AMOUNT, inventory.max_unit * weight),
                step_size=inventory.step_size * weight,
            )
            yield resource, weighted


def _used(provider: SourceProvider, resource_map: ResourceMap) -> dict[str, Counter[str]]:
    """What consumers use at a provider of the source, by resource and consumer."""
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for consumer, amounts in (provider.used or {}).items():
        for resource_class, amount in amounts.items():
            for resource, weight in resource_map.amounts_of(resource_class, provider.traits).items():
                used[resource][consumer] += amount * weight
    return used


def use_by_resource(providers: Iterable[SourceProvider], resource_map: ResourceMap) -> dict[str, ResourceUse]:
    """What all providers together have and use. A resource without an inventory is not listed."""
    capacity: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for provider in providers:
        for resource, inventory in _counted(provider, resource_map):
            capacity[resource] += units.capacity_of(inventory)
        used.update({resource: amounts.total() for resource, amounts in _used(provider, resource_map).items()})
    return {resource: ResourceUse(amount, used[resource]) for resource, amount in capacity.items()}


def total_of(inventories: Sequence[Inventory]) -> Inventory:
    """The sum of inventories, in units that a claim over several of them can take.

    The total of several is the sum of their capacities, each rounded down.
    """
    if len(inventories) == 1:
        return inventories[0]
    total = sum(units.capacity_of(inventory) for inventory in inventories)
    min_unit = min(inventory.min_unit for inventory in inventories)
    max_unit = max(sum(min(units.max_unit_of(inventory), inventory.total) for inventory in inventories), min_unit)
    steps = {inventory.step_size for inventory in inventories}
    return Inventory(
        total=total,
        min_unit=min_unit,
        max_unit=None if max_unit >= total else max_unit,
        step_size=steps.pop() if len(steps) == 1 else 1,
    )


# --- Imports of a service ---


def read_use(conf: cfg.ConfigOpts, endpoint: str, *, timeout_seconds: float) -> Mapping[str, ResourceUse]:
    """What all providers of a cloud have and what consumers use of it, by the resource rules of [cyborg].

    ``endpoint``: CLOUD or CLOUD/REGION of clouds.yaml. ``timeout_seconds``: of all requests together. Raises
    ConfigurationError, SourceUnavailable.
    """
    deadline = time.monotonic() + timeout_seconds

    def check(_count: int) -> None:
        if time.monotonic() > deadline:
            raise sources.SourceUnavailable(f"It did not answer within {timeout_seconds:g} seconds.")

    resource_map = ResourceMap.from_conf(conf)
    cloud, _, region = endpoint.partition("/")
    api = sources.ServiceApi.from_cloud(cloud, region or None, sources.PLACEMENT, timeout_seconds=timeout_seconds)
    return use_by_resource(sources.read_placement(api, resource_map, check), resource_map)


def run(
    conf: cfg.ConfigOpts,
    capacity: Capacity,
    resources: Collection[str],
    context: Context,
    source: str,
    *,
    nested: bool = False,
    dry_run: bool = False,
    reason: str | None = None,
    progress: Callable[[int], object] = lambda _count: None,
) -> list[Change]:
    """Import from ``source`` (placement or cyborg); returns the changes. ``progress``: called for providers done.

    ``reason``: for the history; None: "imported from placement", or from cyborg.

    Raises ConfigurationError, SourceUnavailable, and what CapacityImporter.run raises.
    """
    from_placement = source == sources.PLACEMENT
    api = sources.ServiceApi.from_conf(conf, sources.PLACEMENT if from_placement else sources.ACCELERATOR)
    resource_map = ResourceMap.from_conf(conf)

    def read() -> Sequence[WantedProvider]:
        providers = sources.read_placement(api, resource_map, progress) if from_placement else sources.read_cyborg(api)
        return wanted_providers(providers, resource_map, nested=nested)

    # Nova allocates in Placement before the conductor claims. A bind that was running must not be counted twice.
    settle_seconds = conf.cyborg.reconcile_grace if conf.cyborg.claim_capacity and not dry_run else 0
    settle = functools.partial(time.sleep, settle_seconds)
    importer = CapacityImporter(
        capacity, context, resources, settle, reason or f"imported from {source}", knows_use=from_placement
    )
    return importer.run(read, dry_run=dry_run, progress=progress)
