# SPDX-License-Identifier: Apache-2.0
"""Charge bound ARQs regardless of limits, at the providers where they are. Does not import Cyborg."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_log import log as logging

from cyborg_quota import Claim, QuotaEngine, exceptions, validation
from cyborg_quota.integrations.cyborg.diff import Attached

LOG = logging.getLogger(__name__)

_NO_PROVIDER = (exceptions.OverCapacity, exceptions.ProviderNotFound)
"""Errors of an adoption whose provider has been removed, or has no inventory any more."""


def adopt(engine: QuotaEngine, attached: Sequence[Attached], source: str | None) -> dict[str, list[str]]:
    """Charge ARQs of one project, and the capacity of their providers; returns {arq: reservation UUIDs}.

    Where the provider is not imported with all resources of an ARQ, only the quota is charged. Raises what
    ``QuotaEngine.adopt`` raises.
    """
    context = validation.admin_context()
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], str | None] = {}
    claims = []
    for arq in attached:
        key = (arq.providers, tuple(sorted(arq.deltas)))
        if key not in found:
            found[key] = engine.capacity.find_provider(context, *key) if arq.providers else None
        claims.append(Claim(arq.arq, arq.deltas, group=arq.instance, source=source, provider=found[key]))
    try:
        return _adopt(engine, claims, attached[0].project_id)
    except _NO_PROVIDER as error:
        if not any(found.values()):
            raise
        LOG.warning("%s The quota of the accelerators there is charged without their capacity.", error)
    without = [Claim(arq.arq, arq.deltas, group=arq.instance, source=source) for arq in attached]
    return _adopt(engine, without, attached[0].project_id)


def _adopt(engine: QuotaEngine, claims: Sequence[Claim], project_id: str | None) -> dict[str, list[str]]:
    uuids = iter(engine.adopt(validation.admin_context(), claims, project_id))
    return {claim.consumer or "": [next(uuids) for _ in claim.deltas] for claim in claims}
