# SPDX-License-Identifier: Apache-2.0
"""Cyborg's ExtARQ with quota for bind, unbind and destroy, for the conductor and the API (which runs deletes).

The classes are registered in Cyborg's object registry under Cyborg's names, so that code that creates an ExtARQ
creates one of these. Cyborg's own files are not changed.
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
from cyborg_quota.cyborg import arq_records, bind_tracker, compatibility, errors, process_state
from cyborg_quota.cyborg.bind_tracker import BindReservation

LOG = logging.getLogger(__name__)

RESERVATIONS: Final[contextvars.ContextVar[Mapping[str, BindReservation]]] = contextvars.ContextVar(
    "cyborg_quota_reservations"
)
"""The reservations of the PATCH that this thread applies, by ARQ. A job's thread reads its own from the ExtARQ."""


class _Quota:
    """Settles the reservation of the bind. ``_reservation`` is None if the bind has none."""

    _reservation: BindReservation | None = None
    _is_released = False

    def start_bind_job(self: Any, context: Any, valid_fields: Any) -> Any:
        self._reservation = RESERVATIONS.get({}).get(self.arq.uuid)
        try:
            job = super().start_bind_job(context, valid_fields)  # type: ignore[misc]
        except exception.ARQBadState:
            # The state allowed a bind when the reservation was made: another call has started the bind since.
            if self._reservation is not None:
                self._reservation.leave()
            raise
        except BaseException:
            self._give_up()
            raise
        if job is not None and self._reservation is not None:
            self._reservation.goes_on = True
            job.add_done_callback(self._job_ended)
        return job

    def _job_ended(self, job: Any) -> None:
        if job.cancelled():  # it did not run: Cyborg cancels waiting jobs when another job of the call fails
            self._give_up()

    def bind(self: Any, context: Any, deployable: Any) -> Any:
        try:
            result = super().bind(context, deployable)  # type: ignore[misc]
        except BaseException:
            self._give_up()
            raise
        if self._reservation is not None:
            try:
                self._reservation.commit(lambda: arq_records.is_bound(self.arq.uuid))
            except exceptions.QuotaError as error:
                self._refuse(context, error)
                raise errors.translated(error) from None
        return result

    bind.is_job = True  # type: ignore[attr-defined]  # Cyborg reads this attribute to decide whether it runs as a job

    def _refuse(self: Any, context: Any, error: Exception) -> None:
        """Detach an ARQ that is bound but cannot be charged. Nova does not know of the bind yet."""
        LOG.error("ARQ %s was bound but cannot be charged; detaching it: %s", self.arq.uuid, error)
        handle_id, self.attach_handle_id, self.deployable_id = self.attach_handle_id, None, None
        try:
            self.update_check_state(context, constants.ARQ_BIND_FAILED)
            if handle_id:
                self._deallocate_attach_handle(context, handle_id, self.arq.hostname)
        except BaseException:
            process_state.bind_tracker().guard.want_repair()  # while the ARQ is bound, it must be charged
            raise

    def _give_up(self: Any) -> None:
        if self._reservation is None:
            return
        if arq_records.is_bound(self.arq.uuid):
            # The bind failed after this state was written, or Cyborg's database is unavailable, or another delivery of
            # the call has bound the ARQ. The next comparison commits the reservation of a bound ARQ; others expire.
            self._reservation.leave()
        else:
            self._reservation.give_up()

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
        process_state.bind_tracker().release(self.arq.uuid, self.arq.project_id)
        self._is_released = True  # if it failed, the next comparison releases the charge


class ExtARQ(_Quota, ext_arq.ExtARQ):  # type: ignore[misc]
    """The ExtARQ of any accelerator. Cyborg's registry and messages require this class name."""


class FPGAExtARQ(_Quota, fpga_ext_arq.FPGAExtARQ):  # type: ignore[misc]
    """The ExtARQ of an FPGA, which Cyborg may program in a separate job."""


def install() -> None:
    """Register the classes, after Cyborg's configuration is read. May be repeated. Raises ConfigurationError."""
    objects.register_all()
    for replacement in (ExtARQ, FPGAExtARQ):
        objects_base.CyborgObjectRegistry.register(replacement)
    utils.factory_register(ext_arq.ExtARQ, constants.FPGA)(FPGAExtARQ)
    compatibility.check_registered(ExtARQ, FPGAExtARQ)
