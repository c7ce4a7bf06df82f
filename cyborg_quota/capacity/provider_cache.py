# SPDX-License-Identifier: Apache-2.0
"""Caches the ids of providers and inventories, so that a claim with a given provider and its rollback read neither."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from cyborg_quota.db.inventories import Place
from cyborg_quota.types import InventoryKey

_MAX_ENTRIES: Final = 50_000
"""The most entries of each kind. When it is exceeded, that cache is cleared."""

_MAX_AGE_SECONDS: Final = 60.0
"""After this time, a name is read again: another provider may have it now."""


class ProviderCache:
    """The ids of providers by name or UUID, and of inventories by provider and resource. Shared by threads.

    The id of an inventory is never given to another one, even after a restore from a backup (db/inventories.py). If a
    provider or an inventory was removed, the UPDATE therefore matches no row; the caller then calls ``forget`` and
    reads again.
    """

    def __init__(self) -> None:
        self._providers: dict[str, tuple[int, float]] = {}
        self._inventories: dict[InventoryKey, Place] = {}

    def provider_ids(self, names: Collection[str]) -> dict[str, int] | None:
        """The ids of the providers with these names or UUIDs; None unless all of them are cached."""
        oldest = time.monotonic() - _MAX_AGE_SECONDS
        found = {}
        for name in names:
            entry = self._providers.get(name)
            if entry is None or entry[1] < oldest:
                return None
            found[name] = entry[0]
        return found

    def places(self, keys: Collection[InventoryKey]) -> dict[InventoryKey, Place] | None:
        """These inventories; None unless all of them are cached."""
        found = {key: self._inventories.get(key) for key in keys}
        known = {key: place for key, place in found.items() if place is not None}
        return known if len(known) == len(found) else None

    def remember(self, providers: Mapping[str, int], inventories: Mapping[InventoryKey, Place]) -> None:
        """Store what was just read."""
        if len(self._providers) > _MAX_ENTRIES:
            self._providers.clear()
        if len(self._inventories) > _MAX_ENTRIES:
            self._inventories.clear()
        now = time.monotonic()
        self._providers.update({name: (provider_id, now) for name, provider_id in providers.items()})
        self._inventories.update(inventories)

    def forget(self, names: Collection[str]) -> None:
        """Drop these providers, because a claim was refused there: the next call reads them and their inventories."""
        for name in names:
            self._providers.pop(name, None)
