# SPDX-License-Identifier: Apache-2.0
"""What a conductor that died has left: reserved, and bound. Knows Cyborg only by what is passed in.

If it expired, the accelerator would be attached and not charged, and its project could pass its limit by as much, until
a reconciliation. So it is committed, before what is overdue is expired. Several hosts may do so at once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oslo_log import log as logging

from cyborg_quota import Claim, QuotaEngine, exceptions, requests
from cyborg_quota.integrations.cyborg.differences import Attached, Records
from cyborg_quota.types import RESERVED, Reservation

LOG = logging.getLogger(__name__)

_MOST_ROWS: Final = 5000
"""Looked at in one turn: the oldest."""


def commit_bound(engine: QuotaEngine, records: Records, own: Collection[str]) -> int:
    """Commit what is reserved for an ARQ that Cyborg says is bound; returns for how many ARQs.

    ``own``: the ARQs that this process is binding. Of another's that is still alive, the commit is early, and no harm.
    """
    admin = requests.admin_context()
    reserved: dict[str, list[Reservation]] = {}
    for row in engine.list_reservations(admin, state=RESERVED, limit=_MOST_ROWS):
        if row.consumer is not None and row.consumer not in own:
            reserved.setdefault(row.consumer, []).append(row)
    if not reserved:
        return 0
    committed = 0
    for arq, attached in records.bound_of(reserved).items():
        rows = [row for row in reserved[arq] if row.project_id == attached.project_id]
        if rows and _commit(engine, attached, [row.uuid for row in rows]):
            committed += 1
            LOG.warning("ARQ %s was bound by a conductor that did not come to say so; it is charged.", arq)
    return committed


def _commit(engine: QuotaEngine, attached: Attached, uuids: list[str]) -> bool:
    admin = requests.admin_context()
    try:
        try:
            engine.commit(admin, uuids)
        except exceptions.ReservationExpired:  # nobody ran until now
            if not attached.deltas:
                return False
            claim = Claim(attached.arq, attached.deltas, attached.instance)
            engine.adopt(admin, [claim], attached.project_id)
    except (exceptions.ReservationError, exceptions.ReservationConflict):
        return False  # settled by somebody else, at this moment
    return True
