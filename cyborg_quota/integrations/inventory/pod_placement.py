# SPDX-License-Identifier: Apache-2.0
"""Measure a pod by its Placement, which a cloud of clouds.yaml names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oslo_config import cfg

from cyborg_quota.capacity_types import ResourceUse
from cyborg_quota.integrations.cyborg.mapping import ResourceMap
from cyborg_quota.integrations.inventory import placement
from cyborg_quota.integrations.inventory.api import PLACEMENT, ServiceApi
from cyborg_quota.integrations.inventory.plan import use_by_resource


class PodReader:
    """Reads what the providers of a pod have and what consumers use of it, by the resource rules of [cyborg]."""

    def __init__(self, conf: cfg.ConfigOpts, timeout_seconds: float) -> None:
        """``timeout_seconds``: of each request. Raises ConfigurationError."""
        self._resource_map = ResourceMap.from_conf(conf)
        self._timeout_seconds = timeout_seconds

    def __call__(self, endpoint: str, check: Callable[[int], object]) -> Mapping[str, ResourceUse]:
        """Read the Placement of ``endpoint``, CLOUD or CLOUD/REGION. ``check``: called after each provider.

        Raises SourceUnavailable.
        """
        cloud, _, region = endpoint.partition("/")
        api = ServiceApi.from_cloud(cloud, region or None, PLACEMENT, timeout_seconds=self._timeout_seconds)
        return use_by_resource(placement.read(api, self._resource_map, check), self._resource_map)
