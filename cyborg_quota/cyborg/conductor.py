# SPDX-License-Identifier: Apache-2.0
"""Cyborg's conductor with quota: each bind reserves before it starts, and commits or rolls back by its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyborg.common import constants, exception
from cyborg.common import service as cyborg_service
from cyborg.conductor import manager
from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import service

from cyborg_quota import Claim, exceptions, validation
from cyborg_quota.conf import resource_rules
from cyborg_quota.cyborg import arq_records, bind_tracker, cyborg_host, errors, process_state, repair
from cyborg_quota.cyborg import objects as quota_objects
from cyborg_quota.cyborg.bind_tracker import Caller
from cyborg_quota.cyborg.ledger_guard import LedgerNotCalled
from cyborg_quota.metrics import setup as metrics

LOG = logging.getLogger(__name__)


class ConductorManager(manager.ConductorManager):  # type: ignore[misc]
    """Reserves before a PATCH binds, and settles every reservation of the PATCH."""

    _periodic_tasks: repair.PeriodicTasks | None = None

    def init_host(self) -> None:
        super().init_host()
        metrics.serve_counters(process_state.conf())  # here, because this runs after the fork
        self._periodic_tasks = repair.PeriodicTasks(
            process_state.conf(), process_state.bind_tracker(), process_state.repair()
        )

    def periodic_tasks(self, context: Any, raise_on_error: bool = False) -> Any:  # noqa: ARG002
        """Run the periodic work that is due; returns the seconds until the next call."""
        return None if self._periodic_tasks is None else self._periodic_tasks.turn()

    def arq_apply_patch(self, context: Any, patch_list: Any, valid_fields: Any) -> None:
        """Bind and unbind as Cyborg does, and charge each bind."""
        try:
            with bind_tracker.one_request():
                apply_patch(context, patch_list, valid_fields)
        except exceptions.QuotaError as error:
            refused = errors.translated(error)
            is_unavailable = isinstance(refused, exception.ServiceUnavailable)
            # The reason of a call that was not made has been logged as an error.
            level = logging.ERROR if is_unavailable and not isinstance(error, LedgerNotCalled) else logging.INFO
            # With the details that are not sent to the API's caller.
            LOG.log(level, "Bind refused%s: %s", " with 503" if is_unavailable else "", error)
            raise errors.answer(refused) from None
        except errors.ANSWERED as refused:  # raised by a bind that could not be charged and was detached
            raise errors.answer(refused) from None


def apply_patch(context: Any, patch_list: Mapping[str, Any], valid_fields: Mapping[str, Any]) -> None:
    """Reserve for every ARQ that the PATCH binds, all or none; then apply the PATCH as Cyborg does."""
    from cyborg import objects  # imported late: objects.ExtARQ is the registered replacement

    arqs = [uuid for uuid, patch in patch_list.items() if patch[0]["op"] == "add"]
    binds = [
        _bind(context, uuid, group, valid_fields[uuid]) for uuid, group in arq_records.groups_to_bind(context, arqs)
    ]
    try:
        reservations = process_state.bind_tracker().reserve_binds(binds)
    except exceptions.QuotaError as error:
        if isinstance(error, LedgerNotCalled):
            resources = {resource for _, claim in binds for resource in claim.deltas}
            metrics.count_refused(process_state.conf(), resources, error)
        # Nova does not show the reason to its user. An operator can find it in this log by the server's UUID.
        instances = sorted({str(claim.group) for _, claim in binds})
        LOG.info(
            "Accelerator requests %s of instances %s are not bound; the next message gives the reason.", arqs, instances
        )
        raise
    token = quota_objects.RESERVATIONS.set(reservations)
    try:
        objects.ExtARQ.apply_patch(context, patch_list, valid_fields)
    except BaseException as error:
        for reservation in reservations.values():
            if reservation.goes_on:
                continue
            # ARQBadState: the states allowed a bind when the reservations were made, so another delivery of this call
            # is binding with the same reservations. Which of the other ARQs it will still bind is unknown. If those
            # were rolled back here, another request could take the quota, and this call's binds would be detached. So
            # they are left alone; the reservations that the other delivery does not use expire.
            if isinstance(error, exception.ARQBadState):
                reservation.leave()
            else:
                reservation.give_up()
        raise
    finally:
        quota_objects.RESERVATIONS.reset(token)


def _bind(context: Any, arq: str, group: Mapping[str, str], fields: Mapping[str, Any]) -> tuple[Caller, Claim]:
    has_several_classes = len(resource_rules.classes_of(group)) > 1
    resource_class = arq_records.class_of_provider(context, fields["device_rp_uuid"]) if has_several_classes else None
    deltas, conf = process_state.resource_map().deltas(group, resource_class), process_state.conf()
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
    where = {"provider": provider, "pod": conf.cyborg.pod if provider is None else None}
    claim = Claim(arq, deltas, group=fields["instance_uuid"], source=resource_rules.source(conf), **where)
    # Cyborg determines the project of the ARQ in the same way.
    return Caller(fields.get("project_id", context.project_id)), claim


def serve(argv: list[str]) -> None:
    """Run until the service is stopped. ``argv``: as for cyborg-conductor. Raises ConfigurationError or cfg.Error."""
    cyborg_service.prepare_service(argv)
    cyborg_host.connection(cfg.CONF)  # an unescaped $ fails here; else each query of Cyborg logs the text after it
    quota_objects.install()
    process_state.bind_tracker()  # raises configuration errors now instead of at the first bind
    process_state.log_start("conductor")
    conductor = cyborg_service.RPCService(__name__, ConductorManager.__name__, constants.CONDUCTOR_TOPIC)
    service.launch(cfg.CONF, conductor, restart_method="mutate").wait()
