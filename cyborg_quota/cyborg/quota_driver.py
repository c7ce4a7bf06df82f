# SPDX-License-Identifier: Apache-2.0
"""Quota for a Cyborg that has the entry point ``cyborg.quota``: three calls around each bind.

Such a Cyborg runs its own conductor and API. doc/source/contributor/upstream.rst describes the change to Cyborg.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.cyborg import arq_records, binds, compatibility, cyborg_host, errors, process_state


@contextmanager
def _answered() -> Iterator[None]:
    """Answer the caller of the RPC with Cyborg's error for a refusal, without a traceback."""
    try:
        yield
    except exceptions.QuotaError as error:
        raise errors.answer_refusal(error) from None


class QuotaDriver:
    """The driver of a process. It is made without I/O, so that a forked child may use it.

    Raises ConfigurationError or cfg.Error if the configuration is wrong. The reservation of a bind is an attribute of
    its ExtARQ.
    """

    def __init__(self) -> None:
        compatibility.check(compatibility.RECORD_PARTS)
        cyborg_host.connection(cfg.CONF)
        self._tracker = process_state.bind_tracker()
        process_state.log_start("quota driver")

    def reserve(self, context: Any, extarqs: Sequence[Any], valid_fields: Mapping[str, Any]) -> None:
        """Reserve for all of these binds or none, and extend the reservations until they are settled."""
        with _answered():
            groups = [(extarq.arq.uuid, extarq.device_profile_group) for extarq in extarqs]
            reservations = binds.reserve(context, groups, valid_fields)
        for extarq in extarqs:
            extarq.quota_reservation = reservations[extarq.arq.uuid]
        self._tracker.extend_in_thread()

    def commit(self, context: Any, extarq: Any) -> None:  # noqa: ARG002
        """Charge the bound ARQ. If this raises, Cyborg unbinds it, and calls ``release``."""
        with _answered():
            extarq.quota_reservation.commit(lambda: arq_records.is_bound(extarq.arq.uuid))

    def release(self, context: Any, extarq: Any) -> None:  # noqa: ARG002
        """Roll back the reservation of a bind that failed, or else release the charge of the ARQ."""
        reservation = getattr(extarq, "quota_reservation", None)
        if reservation is None or reservation.is_settled:
            self._tracker.release(extarq.arq.uuid, extarq.arq.project_id)
        elif arq_records.is_bound(extarq.arq.uuid):
            reservation.leave()  # another delivery of the same call has bound it, and commits
        else:
            reservation.give_up()
