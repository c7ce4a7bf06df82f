# SPDX-License-Identifier: Apache-2.0
"""What a bind of Cyborg claims: the amounts, the project, and the provider or pod. Reads Cyborg's records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from cyborg_quota import Claim, exceptions, validation
from cyborg_quota.conf import resource_rules
from cyborg_quota.cyborg import process_state
from cyborg_quota.cyborg.bind_tracker import BindReservation, Caller
from cyborg_quota.cyborg.ledger_guard import LedgerNotCalled
from cyborg_quota.metrics import setup as metrics

LOG = logging.getLogger(__name__)


def reserve(
    context: Any, groups: Iterable[tuple[str, Mapping[str, str]]], valid_fields: Mapping[str, Any]
) -> dict[str, BindReservation]:
    """Reserve for all ARQs or none; returns {arq: reservation}. Raises QuotaError.

    :param groups: each ARQ with its device profile group.
    :param valid_fields: {arq: hostname, device_rp_uuid, instance_uuid and perhaps project_id}, as Cyborg passes them.
    """
    binds = [_bind(context, uuid, group, valid_fields[uuid]) for uuid, group in groups]
    try:
        return process_state.bind_tracker().reserve_binds(binds)
    except exceptions.QuotaError as error:
        if isinstance(error, LedgerNotCalled):
            resources = {resource for _, claim in binds for resource in claim.deltas}
            metrics.count_refused(process_state.conf(), resources, error)
        # Nova does not show the reason to its user. An operator can find it in this log by the server's UUID.
        LOG.info(
            "Accelerator requests %s of instances %s are not bound; the next message gives the reason.",
            [str(claim.consumer) for _, claim in binds],
            sorted({str(claim.group) for _, claim in binds}),
        )
        raise


def _bind(context: Any, arq: str, group: Mapping[str, str], fields: Mapping[str, Any]) -> tuple[Caller, Claim]:
    deltas, conf = process_state.resource_map().deltas(group), process_state.conf()
    provider = None
    if deltas and conf.cyborg.claim_capacity:
        # The capacity of the device's provider, or else that of its host, where devices are summed.
        tracker, names = process_state.bind_tracker(), [fields["device_rp_uuid"], fields["hostname"]]
        find = tracker.engine.capacity.find_provider
        try:
            provider = tracker.call(find, validation.admin_context(), names, list(deltas))
        except exceptions.DatabaseError as error:
            metrics.count_refused(conf, deltas, error)
            raise
        if provider is None:
            LOG.warning(
                "Neither the provider %s nor its host %s is imported with %s: the bind claims no capacity. Run: "
                "cyborg-quota capacity import --from placement",
                *names,
                ", ".join(deltas),
            )
    where = {"provider": provider, "pod": resource_rules.pod(conf) if provider is None else None}
    claim = Claim(arq, deltas, group=fields["instance_uuid"], source=resource_rules.source(conf), **where)
    # Cyborg determines the project of the ARQ in the same way.
    return Caller(fields.get("project_id", context.project_id)), claim
