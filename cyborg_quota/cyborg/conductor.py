# SPDX-License-Identifier: Apache-2.0
"""Cyborg's conductor with quota: each bind reserves before it starts, and commits or rolls back by its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyborg.common import constants, exception
from cyborg.common import service as cyborg_service
from cyborg.conductor import manager
from oslo_config import cfg
from oslo_service import service

from cyborg_quota import exceptions
from cyborg_quota.cyborg import arq_records, bind_tracker, binds, cyborg_host, errors, process_state, repair
from cyborg_quota.cyborg import objects as quota_objects
from cyborg_quota.metrics import setup as metrics


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
            raise errors.answer_refusal(error) from None
        except errors.ANSWERED as refused:  # raised by a bind that could not be charged and was detached
            raise errors.answer(refused) from None


def apply_patch(context: Any, patch_list: Mapping[str, Any], valid_fields: Mapping[str, Any]) -> None:
    """Reserve for every ARQ that the PATCH binds, all or none; then apply the PATCH as Cyborg does."""
    from cyborg import objects  # imported late: objects.ExtARQ is the registered replacement

    arqs = [uuid for uuid, patch in patch_list.items() if patch[0]["op"] == "add"]
    reservations = binds.reserve(context, arq_records.groups_to_bind(context, arqs), valid_fields)
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


def serve(argv: list[str]) -> None:
    """Run until the service is stopped. ``argv``: as for cyborg-conductor. Raises ConfigurationError or cfg.Error."""
    cyborg_service.prepare_service(argv)
    cyborg_host.connection(cfg.CONF)  # an unescaped $ fails here; else each query of Cyborg logs the text after it
    quota_objects.install()
    process_state.bind_tracker()  # raises configuration errors now instead of at the first bind
    process_state.log_start("conductor")
    conductor = cyborg_service.RPCService(__name__, ConductorManager.__name__, constants.CONDUCTOR_TOPIC)
    service.launch(cfg.CONF, conductor, restart_method="mutate").wait()
