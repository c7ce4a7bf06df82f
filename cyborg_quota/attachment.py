# SPDX-License-Identifier: Apache-2.0
"""Quota around an attach, as a with statement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.engine import Expire, QuotaEngine
from cyborg_quota.validation import Context

LOG = logging.getLogger(__name__)

LOST = (
    exceptions.ReservationExpired,
    exceptions.ReservationRolledBack,
    exceptions.ReservationNotFound,
)
"""What a commit raises where a reservation was lost while the attach ran."""


@contextlib.contextmanager
def attachment(
    engine: QuotaEngine,
    context: Context,
    deltas: Mapping[str, int],
    *,
    consumer: str,
    group: str | None = None,
    expire: Expire = None,
    project_id: str | None = None,
) -> Iterator[list[str]]:
    """Reserve ``deltas``, run the block (the attach), commit. Yields the reservations' UUIDs.

    When the block raises, the reservation is rolled back and the block's exception comes out. One that another
    delivery of the same call has committed meanwhile stays: that attach worked.

    When the reservation was lost while the block ran (it expired, or somebody rolled it back), the same is reserved
    afresh and committed; what is raised if that cannot be (OverQuota, say) means: attached, but not charged, detach.
    """
    uuids = engine.reserve(context, deltas, expire, project_id, consumer=consumer, group=group)
    try:
        yield uuids
    except BaseException:
        _give_up(engine, context, uuids, project_id)
        raise
    try:
        engine.commit(context, uuids, project_id)
    except LOST as lost:
        LOG.warning("%s It is charged afresh, for the attach of consumer %s worked.", lost, consumer)
        give_up_rest(engine, context, uuids, project_id)
        afresh = engine.reserve(context, deltas, expire, project_id, consumer=consumer, group=group)
        engine.commit(context, afresh, project_id)


def give_up_rest(engine: QuotaEngine, context: Context, uuids: list[str], project_id: str | None = None) -> None:
    """Where only a part was lost, roll the rest back: a consumer's claim is charged as one, or not at all."""
    for uuid in uuids:
        # What has ended is out of the way already, and what another delivery has committed must stay.
        with contextlib.suppress(exceptions.ReservationError):
            engine.rollback(context, [uuid], project_id)


def _give_up(engine: QuotaEngine, context: Context, uuids: list[str], project_id: str | None) -> None:
    """Roll back without hiding the block's exception: what cannot be rolled back now expires by itself."""
    try:
        engine.rollback(context, uuids, project_id)
    except exceptions.ReservationCommitted:
        LOG.info("Reservations %s were committed by another delivery of the call; they stay.", uuids)
    except Exception:
        LOG.exception("Reservations %s could not be rolled back; they are kept until they expire.", uuids)
