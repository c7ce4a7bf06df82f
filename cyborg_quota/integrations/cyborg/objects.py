# SPDX-License-Identifier: Apache-2.0
"""Cyborg's ExtARQ with quota around bind, unbind and destroy: in the conductor, and in the API, where deletes run.

Registered in Cyborg's own object registry under Cyborg's own names, so that whatever makes an ExtARQ makes one of
these. Nothing of Cyborg's is changed.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import Any, Final

from cyborg import objects
from cyborg.common import constants, exception, utils
from cyborg.objects import base as objects_base
from cyborg.objects import ext_arq
from cyborg.objects.extarq import fpga_ext_arq
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg import arq_records, bind_tracker, compatibility, errors, process_state
from cyborg_quota.integrations.cyborg.bind_tracker import BindReservation

LOG = logging.getLogger(__name__)

FLIGHTS: Final[contextvars.ContextVar[Mapping[str, BindReservation]]] = contextvars.ContextVar("cyborg_quota_flights")
"""Of the PATCH that this thread works on: what was reserved, by ARQ. A job's thread gets its flight with its ExtARQ."""


class _Quota:
    """What is charged when. ``_flight`` is None outside a bind that was reserved for."""

    _flight: BindReservation | None = None
    _is_released = False

    def start_bind_job(self: Any, context: Any, valid_fields: Any) -> Any:
        self._flight = FLIGHTS.get({}).get(self.arq.uuid)
        try:
            job = super().start_bind_job(context, valid_fields)  # type: ignore[misc]
        except exception.ARQBadState:
            # It could be bound when it was reserved for, and now it cannot: somebody else was quicker.
            if self._flight is not None:
                self._flight.leave()
            raise
        except BaseException:
            self._give_up()
            raise
        if job is not None and self._flight is not None:
            self._flight.goes_on = True
            job.add_done_callback(self._job_ended)
        return job

    def _job_ended(self, job: Any) -> None:
        if job.cancelled():  # it never ran: Cyborg cancels what waits when another job of the same call fails
            self._give_up()

    def bind(self: Any, context: Any, deployable: Any) -> Any:
        try:
            result = super().bind(context, deployable)  # type: ignore[misc]
        except BaseException:
            self._give_up()
            raise
        if self._flight is not None:
            try:
                self._flight.commit(lambda: arq_records.is_bound(self.arq.uuid))
            except exceptions.QuotaError as error:
                self._refuse(context, error)
                raise errors.translated(error) from None
        return result

    bind.is_job = True  # type: ignore[attr-defined]  # Cyborg asks the function whether it may run as a job

    def _refuse(self: Any, context: Any, error: Exception) -> None:
        """Bound, not told to Nova yet, and it cannot be charged any more. Not forgotten before it is detached."""
        try:
            self.quota_detach(context, error)
        except BaseException:
            # As long as it is bound all the same, it is charged by the periodic task.
            process_state.charger().retry_commit_later(self._flight, lambda: arq_records.is_bound(self.arq.uuid))
            raise
        self._flight.leave()

    def _give_up(self: Any) -> None:
        if self._flight is None or self._flight.is_owed:
            return
        if arq_records.is_bound(self.arq.uuid):
            # It failed behind that, or Cyborg's database is away, or another delivery of the call was quicker: what is
            # bound is committed by the periodic task, and the rest expires.
            self._flight.leave()
        else:
            self._flight.give_up(lambda: False)

    def quota_detach(self: Any, context: Any, error: Exception) -> None:
        """It is bound, and cannot be charged any more: give its handle back; the bind has failed."""
        LOG.error("ARQ %s cannot be charged any more, and is detached: %s", self.arq.uuid, error)
        handle_id, self.attach_handle_id, self.deployable_id = self.attach_handle_id, None, None
        self.update_check_state(context, constants.ARQ_BIND_FAILED)
        if handle_id:
            self._deallocate_attach_handle(context, handle_id, self.arq.hostname)

    @classmethod
    def delete_by_uuid(cls, context: Any, arq_uuid_list: Any) -> None:
        with bind_tracker.one_request():
            super().delete_by_uuid(context, arq_uuid_list)  # type: ignore[misc]

    @classmethod
    def delete_by_instance(cls, context: Any, instance_uuid: str) -> None:
        with bind_tracker.one_request():
            super().delete_by_instance(context, instance_uuid)  # type: ignore[misc]

    def unbind(self: Any, context: Any) -> None:
        super().unbind(context)  # type: ignore[misc]
        self._release()

    def destroy(self: Any, context: Any) -> None:
        super().destroy(context)  # type: ignore[misc]
        if not self._is_released:
            self._release()

    def _release(self: Any) -> None:
        process_state.charger().release(self.arq.uuid, self.arq.project_id)
        self._is_released = True  # or it is tried again by the charger


class ExtARQ(_Quota, ext_arq.ExtARQ):  # type: ignore[misc]
    """Any accelerator's. The name is what Cyborg's registry and its messages know."""


class FPGAExtARQ(_Quota, fpga_ext_arq.FPGAExtARQ):  # type: ignore[misc]
    """One that may be programmed, in a job of its own."""


def install() -> None:
    """Have Cyborg make these: after its configuration is read. May be repeated. Raises ConfigurationError."""
    objects.register_all()
    for replacement in (ExtARQ, FPGAExtARQ):
        objects_base.CyborgObjectRegistry.register(replacement)
    utils.factory_register(ext_arq.ExtARQ, constants.FPGA)(FPGAExtARQ)
    compatibility.check_registered(ExtARQ, FPGAExtARQ)
