# SPDX-License-Identifier: Apache-2.0
"""Read providers, inventories, traits and allocations from Placement.

One request lists the providers. Each provider then costs one request, and each that has accelerators two more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from oslo_config import cfg

from cyborg_quota.capacity.imports.api import PLACEMENT, ServiceApi, SourceNotFound
from cyborg_quota.capacity.imports.plan import SourceProvider, ratio_of, use_by_resource
from cyborg_quota.cyborg.mapping import ResourceMap
from cyborg_quota.types.capacity import Inventory, ResourceUse

_VERSION: Final = "1.14"
"""The microversion that added parents; Placement has had it since 2017."""
_SHARES: Final = "MISC_SHARES_VIA_AGGREGATE"


def read(
    api: ServiceApi, resource_map: ResourceMap, progress: Callable[[int], object] = lambda _count: None
) -> Iterator[SourceProvider]:
    """All providers, each after the one that contains it. ``progress``: called for each. Raises SourceUnavailable.

    A provider that is removed after it was listed is left out, with those that it contains. Read one by one: the
    memory has what consumers use at one provider, unless the caller keeps it.
    """
    listed = api.get("/resource_providers", _VERSION)["resource_providers"]
    parents = {row["uuid"]: row["parent_provider_uuid"] for row in listed}
    gone: set[str] = set()
    for row in sorted(listed, key=lambda row: len(_path(row["uuid"], parents))):
        try:
            one = _provider(api, row, resource_map)
        except SourceNotFound:
            gone.add(row["uuid"])
        else:
            if gone.isdisjoint(_path(one.uuid, parents)):
                yield one
        progress(1)


def read_use(
    conf: cfg.ConfigOpts, endpoint: str, check: Callable[[int], object], *, timeout_seconds: float
) -> Mapping[str, ResourceUse]:
    """What all providers of a cloud have and what consumers use of it, by the resource rules of [cyborg].

    ``endpoint``: CLOUD or CLOUD/REGION of clouds.yaml. ``check``: called after each provider. ``timeout_seconds``: of
    each request. Raises ConfigurationError, SourceUnavailable.
    """
    resource_map = ResourceMap.from_conf(conf)
    cloud, _, region = endpoint.partition("/")
    api = ServiceApi.from_cloud(cloud, region or None, PLACEMENT, timeout_seconds=timeout_seconds)
    return use_by_resource(read(api, resource_map, check), resource_map)


def _path(uuid: str, parents: Mapping[str, str | None]) -> list[str]:
    """The provider and those that contain it."""
    path = [uuid]
    while (parent := parents.get(path[-1])) is not None and parent not in path:
        path.append(parent)
    return path


def _provider(api: ServiceApi, row: Any, resource_map: ResourceMap) -> SourceProvider:
    path = f"/resource_providers/{row['uuid']}"
    rows = api.get(f"{path}/inventories", _VERSION)["inventories"]
    may_count = any(resource_map.may_count(resource_class) for resource_class in rows)
    traits = api.get(f"{path}/traits", _VERSION)["traits"] if may_count else []
    allocations = api.get(f"{path}/allocations", _VERSION)["allocations"] if may_count else {}
    return SourceProvider(
        uuid=row["uuid"],
        name=row["name"],
        parent=row["parent_provider_uuid"],
        traits=frozenset(traits),
        inventories={resource_class: _inventory(values) for resource_class, values in rows.items()},
        used={consumer: values["resources"] for consumer, values in allocations.items()},
        is_shared=_SHARES in traits if may_count else None,
    )


def _inventory(values: Any) -> Inventory:
    return Inventory(
        total=values["total"],
        reserved=values["reserved"],
        min_unit=values["min_unit"],
        max_unit=max(values["max_unit"], values["min_unit"]),
        step_size=values["step_size"],
        allocation_ratio=ratio_of(values["allocation_ratio"]),
    )
