# SPDX-License-Identifier: Apache-2.0
"""Read devices and deployables from Cyborg's API. What is in use is not read: Placement has it.

A deployable refers to its device by a number that the API shows nowhere else, so its host cannot be looked up by the
device. But devices name their hosts, and the name of a deployable begins with that of its host: drivers make it unique
in the cloud, because it becomes the name of a resource provider.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cyborg_quota.capacity.imports.api import ServiceApi
from cyborg_quota.capacity.imports.plan import SourceProvider
from cyborg_quota.types.capacity import Inventory

_VERSION: Final = "2.3"
"""The microversion that shows the status of a device; Cyborg has had it since its release 9."""
_CLASS: Final = "rc"
_TRAIT_PREFIX: Final = "trait"
_MAINTENANCE: Final = "maintaining"
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")


def read(api: ServiceApi) -> list[SourceProvider]:
    """The hosts and the deployables; a deployable with an unknown host has no parent. Raises SourceUnavailable.

    The inventory of a deployable is reserved if all devices of its host are under maintenance.
    """
    devices = api.get("/devices", _VERSION)["devices"]
    deployables = api.get("/deployables", _VERSION)["deployables"]
    hosts = {device["hostname"] for device in devices if device["hostname"]}
    in_service = {device["hostname"] for device in devices if device.get("status") != _MAINTENANCE}
    providers = [SourceProvider(uuid=f"host {host}", name=host, is_uuid_known=False) for host in sorted(hosts)]
    for row in deployables:
        host = host_of(row["name"], hosts)
        providers.append(_provider(row, host, is_reserved=host is not None and host not in in_service))
    return providers


def host_of(name: str, hosts: Iterable[str]) -> str | None:
    """The host whose name is the longest one with which the name of the deployable begins; None if there is none.

    Drivers replace characters that a provider's name may not have by an underscore.
    """

    def begins(host: str) -> bool:
        return any(name == part or name.startswith(part + "_") for part in (host, _OTHER.sub("_", host)))

    return max((host for host in hosts if begins(host)), key=len, default=None)


def _provider(row: Mapping[str, Any], host: str | None, *, is_reserved: bool) -> SourceProvider:
    attributes = [pair for one in json.loads(row["attributes_list"] or "[]") for pair in one.items()]
    resource_class = next((value for key, value in attributes if key == _CLASS), None)
    total = int(row["num_accelerators"])
    inventory = Inventory(total, reserved=total if is_reserved else 0)
    return SourceProvider(
        uuid=row["rp_uuid"] or row["uuid"],
        name=row["name"],
        parent=None if host is None else f"host {host}",
        traits=frozenset(value for key, value in attributes if key.startswith(_TRAIT_PREFIX)),
        inventories={} if resource_class is None else {resource_class: inventory},
        is_uuid_known=row["rp_uuid"] is not None,
    )
