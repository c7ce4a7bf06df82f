# SPDX-License-Identifier: Apache-2.0
"""The resources that the ledger keeps in its database."""

from __future__ import annotations

import dataclasses
import functools

from cyborg_quota.db import resources
from cyborg_quota.db.database import Database
from cyborg_quota.types import Resource


@dataclasses.dataclass(frozen=True)
class StoredResources:
    """Reads and stores resources."""

    _database: Database

    def read(self) -> dict[str, Resource]:
        """All stored resources, by name, also those that another node of a cluster has stored."""
        return self._database.read_synced(resources.read)

    def store(self, resource: Resource) -> None:
        """Add a resource, or change its description and its unit. One that is None stays as it is."""
        self._database.write(functools.partial(resources.store, resource=resource))
