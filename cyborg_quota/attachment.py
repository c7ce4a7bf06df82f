# SPDX-License-Identifier: Apache-2.0
"""The context manager that charges quota for an attach."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.engine import Expire, Place, QuotaEngine
from cyborg_quota.types import ANY
from cyborg_quota.validation import Context

if TYPE_CHECKING:
    from typing_extensions import Unpack

LOG = logging.getLogger(__name__)

LOST = (
    exceptions.ReservationExpired,
    exceptions.ReservationRolledBack,
    exceptions.ReservationNotFound,
)
"""The errors of a commit whose reservation was lost during the attach."""


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
    **place: Unpack[Place],
) -> Iterator[list[str]]:
    """Reserve ``deltas``, run the block (the attach), commit. Yields the reservations' UUIDs.

    If the block raises an exception, the reservations are rolled back and the exception is raised again. Reservations
    that a concurrent delivery of the same call has committed are kept, because that attach succeeded.

    If the reservations were lost during the block (they expired or were rolled back), the same deltas are reserved
    again and committed. An error of this second attempt (such as OverQuota) means that the accelerator is attached but
    not charged: detach it.

    ``place``: ``provider`` and what belongs to it, as in ``QuotaEngine.reserve``. With ANY, the attach needs to know
    which provider was chosen: read it with ``QuotaEngine.get_reservations``. The second attempt then names that one.
    """
    reserve = functools.partial(engine.reserve, context, deltas, expire, project_id, consumer=consumer, group=group)
    uuids = reserve(**place)
    try:
        yield uuids
    except BaseException:
        _roll_back(engine, context, uuids, project_id)
        raise
    try:
        engine.commit(context, uuids, project_id)
    except LOST as lost:
        LOG.warning("%s The attach of consumer %s succeeded, so its deltas are charged again.", lost, consumer)
        roll_back_rest(engine, context, uuids, project_id)
        if place.get("provider") == ANY:
            rows = engine.get_reservations(context, project_id, consumer=consumer)
            chosen = next((row.provider for row in rows if row.uuid in uuids and row.provider), None)
            place = {"provider": chosen} if chosen else place
        uuids = reserve(**place)
        engine.commit(context, uuids, project_id)


def roll_back_rest(engine: QuotaEngine, context: Context, uuids: list[str], project_id: str | None = None) -> None:
    """Roll back the reservations that were not lost, because a claim is charged completely or not at all."""
    for uuid in uuids:
        # Ended reservations need no rollback. Those that another delivery has committed must stay.
        with contextlib.suppress(exceptions.ReservationError):
            engine.rollback(context, [uuid], project_id)


def _roll_back(engine: QuotaEngine, context: Context, uuids: list[str], project_id: str | None) -> None:
    """Roll back, but log errors: the exception of the block must be raised. Reservations that remain will expire."""
    try:
        engine.rollback(context, uuids, project_id)
    except exceptions.ReservationCommitted:
        LOG.info("Reservations %s were committed by another delivery of the call; they are kept.", uuids)
    except Exception:
        LOG.exception("Rollback of reservations %s failed; they occupy quota until they expire.", uuids)
