# SPDX-License-Identifier: Apache-2.0
"""Charge bound ARQs regardless of limits, at the providers where they are. Does not import Cyborg."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from oslo_log import log as logging

from cyborg_quota import Claim, QuotaEngine, exceptions, validation
from cyborg_quota.cyborg.diff import Record

LOG = logging.getLogger(__name__)

_NO_PROVIDER = (exceptions.OverCapacity, exceptions.ProviderNotFound)
"""Errors of an adoption whose provider has been removed, or has no inventory any more."""


def adopt(engine: QuotaEngine, attached: Sequence[Record], source: str | None) -> None:
    """Charge ARQs of one project, and the capacity of their providers.

    Where the provider is not imported with all resources of an ARQ, only the quota is charged. Raises what
    ``QuotaEngine.adopt`` raises.
    """
    context = validation.admin_context()
    find_provider = functools.cache(lambda *key: engine.capacity.find_provider(context, *key))
    claims = [
        Claim(
            arq.arq,
            arq.deltas or {},
            group=arq.instance,
            source=source,
            provider=find_provider(arq.providers, tuple(sorted(arq.deltas or ()))) if arq.providers else None,
        )
        for arq in attached
    ]
    try:
        engine.adopt(context, claims, attached[0].project_id)
    except _NO_PROVIDER as error:
        if not any(claim.provider for claim in claims):
            raise
        LOG.warning("%s The quota of the accelerators there is charged without their capacity.", error)
        claims = [dataclasses.replace(claim, provider=None) for claim in claims]
        engine.adopt(context, claims, attached[0].project_id)
