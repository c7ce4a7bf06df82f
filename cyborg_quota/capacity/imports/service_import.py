# SPDX-License-Identifier: Apache-2.0
"""Import the inventories of Placement or Cyborg into the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from oslo_config import cfg

from cyborg_quota.capacity.imports import cyborg, placement
from cyborg_quota.capacity.imports.api import ACCELERATOR, PLACEMENT, ServiceApi
from cyborg_quota.capacity.imports.changes import CapacityImporter, Change, WantedProvider
from cyborg_quota.capacity.imports.plan import SourceProvider, wanted_providers
from cyborg_quota.cyborg.mapping import ResourceMap
from cyborg_quota.engine import QuotaEngine
from cyborg_quota.spool import Spool
from cyborg_quota.validation import Context


def run(
    conf: cfg.ConfigOpts,
    engine: QuotaEngine,
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
    api = ServiceApi.from_conf(conf, PLACEMENT if source == PLACEMENT else ACCELERATOR)
    resource_map = ResourceMap.from_conf(conf)

    def read() -> Sequence[WantedProvider]:
        found: Iterable[SourceProvider]
        found = placement.read(api, resource_map, progress) if source == PLACEMENT else cyborg.read(api)
        return wanted_providers(found, resource_map, spool, nested=nested)

    def settle() -> None:
        # Nova allocates in Placement before the conductor claims. A bind that was running must not be counted twice.
        if conf.cyborg.claim_capacity and not dry_run:
            time.sleep(conf.cyborg.reconcile_grace)

    reason = reason or f"imported from {source}"
    knows_use = source == PLACEMENT
    importer = CapacityImporter(engine.capacity, context, engine.resources, settle, reason, knows_use=knows_use)
    with Spool() as spool:
        return importer.run(read, dry_run=dry_run, progress=progress)
