# SPDX-License-Identifier: Apache-2.0
"""Cyborg's conductor, with quota: every bind is reserved for before it starts, and settled by its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyborg.common import constants, exception
from cyborg.common import service as cyborg_service
from cyborg.conductor import manager
from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import service

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg import arq_records, bind_tracker, cyborg_host, errors, periodic, process_state
from cyborg_quota.integrations.cyborg import objects as quota_objects
from cyborg_quota.integrations.cyborg.bind_tracker import BindRequest, BindReservation, Caller
from cyborg_quota.integrations.cyborg.ledger_guard import LedgerOffline
from cyborg_quota.integrations.cyborg.mapping import classes_of

LOG = logging.getLogger(__name__)


class ConductorManager(manager.ConductorManager):  # type: ignore[misc]
    """Reserves before a PATCH binds, and sees to it that nothing of it stays reserved."""

    _upkeep: periodic.Upkeep | None = None

    def init_host(self) -> None:
        super().init_host()
        self._upkeep = periodic.Upkeep(process_state.conf(), process_state.charger(), process_state.resource_map())

    def periodic_tasks(self, context: Any, raise_on_error: bool = False) -> Any:  # noqa: ARG002
        """Returns after how many seconds it wants to be called again."""
        return None if self._upkeep is None else self._upkeep.turn()

    def arq_apply_patch(self, context: Any, patch_list: Any, valid_fields: Any) -> None:
        """Bind and unbind as Cyborg does, with every bind charged."""
        try:
            with bind_tracker.one_request():
                apply_patch(context, patch_list, valid_fields)
        except exceptions.QuotaError as error:
            refused = errors.translated(error)
            _log(error, refused)
            raise errors.answer(refused) from None
        except errors.ANSWERED as refused:  # by what runs inside: it was bound, and could not be charged any more
            raise errors.answer(refused) from None


def _log(error: exceptions.QuotaError, refused: Exception) -> None:
    """Say why a bind was refused, with the details that its caller is not told."""
    if not isinstance(refused, exception.ServiceUnavailable):
        LOG.info("Bind refused: %s", error)
    elif isinstance(error, LedgerOffline):
        LOG.info("Bind refused with 503: %s", error)  # the outage itself was logged as an error
    else:
        LOG.error("Bind refused with 503: %s", error)


def apply_patch(context: Any, patch_list: Mapping[str, Any], valid_fields: Mapping[str, Any]) -> None:
    """Reserve for every ARQ that is to be bound, all or none; then let Cyborg do what the PATCH says."""
    from cyborg import objects  # its ExtARQ is the one that was registered last: ours

    arqs = [uuid for uuid, patch in patch_list.items() if patch[0]["op"] == "add"]
    wishes = [
        _wish(context, uuid, group, valid_fields[uuid]) for uuid, group in arq_records.groups_to_bind(context, arqs)
    ]
    try:
        flights = process_state.charger().reserve_binds(wishes)
    except exceptions.QuotaError:
        # Nova does not show the reason to its user. This line helps to find it by the UUID of the server.
        instances = sorted({wish.instance for wish in wishes})
        LOG.info("Accelerator requests %s of instances %s are not bound; the reason follows.", arqs, instances)
        raise
    token = quota_objects.FLIGHTS.set(flights)
    try:
        objects.ExtARQ.apply_patch(context, patch_list, valid_fields)
    except exception.ARQBadState:
        # Their states were right before they were reserved for, so another delivery of this call is at work, on the
        # same reservations. Which of the others it is about to bind cannot be seen: those are in a bindable state too,
        # and if they were given up here, somebody else might take the room, and its binds be detached. What it leaves
        # expires.
        for flight in flights.values():
            if not flight.goes_on:
                flight.leave()
        raise
    except BaseException:
        _give_up(flights)
        raise
    finally:
        quota_objects.FLIGHTS.reset(token)


def _wish(context: Any, arq: str, group: Mapping[str, str], fields: Mapping[str, Any]) -> BindRequest:
    several = len(classes_of(group)) > 1
    resource_class = arq_records.class_of_provider(context, fields["device_rp_uuid"]) if several else None
    # As Cyborg itself decides whose the ARQ is.
    project_id = fields.get("project_id", context.project_id)
    return BindRequest(
        arq=arq,
        instance=fields["instance_uuid"],
        caller=Caller(project_id, bool(context.is_admin)),
        deltas=process_state.resource_map().deltas(group, resource_class),
    )


def _give_up(flights: Mapping[str, BindReservation]) -> None:
    """What the PATCH never came to, for an ARQ before it failed."""
    for arq, flight in flights.items():
        if not flight.goes_on:
            flight.give_up(lambda arq=arq: arq_records.is_bound(arq))  # type: ignore[misc]


def serve(argv: list[str]) -> None:
    """Run until told to stop. ``argv`` is cyborg-conductor's. Raises ConfigurationError, cfg.Error at once."""
    cyborg_service.prepare_service(argv)
    cyborg_host.connection(cfg.CONF)  # else every query of Cyborg's would log what follows the $ in it
    quota_objects.install()
    process_state.charger()  # what cannot be configured is said here, not by the first bind
    process_state.log_start("conductor")
    conductor = cyborg_service.RPCService(__name__, ConductorManager.__name__, constants.CONDUCTOR_TOPIC)
    service.launch(cfg.CONF, conductor, restart_method="mutate").wait()
