# SPDX-License-Identifier: Apache-2.0
"""What a conductor that died has left: reserved, and bound. Knows Cyborg only by what is passed in.

If it expired, the accelerator would be attached and not charged, and its project could pass its limit by as much, until
a reconciliation. So it is committed, before what is overdue is expired. Several hosts may do so at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from oslo_log import log as logging

from cyborg_quota import Claim, QuotaEngine, exceptions, validation
from cyborg_quota.integrations.cyborg.diff import Attached, Records
from cyborg_quota.types import RESERVED, Reservation

LOG = logging.getLogger(__name__)

_MAX_ROWS: Final = 5000
"""Looked at in one turn: the oldest."""


def commit_bound(engine: QuotaEngine, records: Records, own: Collection[str], source: str | None = None) -> int:
    """Commit what is reserved for an ARQ that Cyborg says is bound; returns for how many ARQs.

    ``own``: the ARQs that this process is binding. Of another's that is still alive, the commit is early, and no harm.
    ``source``: whose charge it is, where it has to be charged anew.
    """
    admin = validation.admin_context()
    reserved: dict[str, list[Reservation]] = {}
    for row in engine.list_reservations(admin, state=RESERVED, limit=_MAX_ROWS):
        if row.consumer is not None and row.consumer not in own:
            reserved.setdefault(row.consumer, []).append(row)
    if not reserved:
        return 0
    committed = 0
    adopted: dict[str, tuple[Attached, list[str]]] = {}
    for arq, attached in records.bound_of(reserved).items():
        uuids = [row.uuid for row in reserved[arq] if row.project_id == attached.project_id]
        if not uuids:
            continue
        try:
            if _commit(engine, uuids):
                committed += 1
                _say(arq)
            elif attached.deltas:
                claim = Claim(arq, attached.deltas, attached.instance, source)
                adopted[arq] = attached, engine.adopt(admin, [claim], attached.project_id)
        except (exceptions.ReservationError, exceptions.ReservationConflict):
            continue  # settled by somebody else, at this moment
    return committed + _look_again(engine, records, adopted)


def _commit(engine: QuotaEngine, uuids: list[str]) -> bool:
    """False: it is overdue, for nobody ran until now."""
    try:
        engine.commit(validation.admin_context(), uuids)
    except exceptions.ReservationExpired:
        return False
    return True


def _look_again(engine: QuotaEngine, records: Records, adopted: Mapping[str, tuple[Attached, list[str]]]) -> int:
    """Release what had been unbound, and released, when it was charged; returns how many are bound still.

    A commit needs no second look: it fails behind a release.
    """
    if not adopted:
        return 0
    bound = records.bound_of(adopted)
    still = 0
    for arq, (attached, uuids) in adopted.items():
        if arq in bound and bound[arq].project_id == attached.project_id:
            still += 1
            _say(arq)
        else:
            engine.release(validation.admin_context(), uuids)
    return still


def _say(arq: str) -> None:
    LOG.warning("ARQ %s was bound by a conductor that did not come to say so; it is charged.", arq)
