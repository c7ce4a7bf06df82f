# SPDX-License-Identifier: Apache-2.0
"""Commit the reservations of bound ARQs after a conductor crashed between bind and commit. Does not import Cyborg.

If such a reservation expired, the accelerator would be attached but not charged, and its project could exceed its limit
until the next reconciliation. So it is committed before overdue reservations are expired. Several hosts may run this at
the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from oslo_log import log as logging

from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.integrations.cyborg import adoption
from cyborg_quota.integrations.cyborg.backoff import Reach, reach_of
from cyborg_quota.integrations.cyborg.by_project import work_through
from cyborg_quota.integrations.cyborg.diff import Attached, Records
from cyborg_quota.types import RESERVED, Reservation

LOG = logging.getLogger(__name__)

_PAGE_ROWS: Final = 5000


def commit_bound(engine: QuotaEngine, records: Records, binding: Collection[str], source: str | None = None) -> int:
    """Commit the reservations of ARQs that are bound in Cyborg; returns the number of ARQs charged.

    ``binding``: the ARQs that this process is binding, which are skipped. Committing early for another process that
    is still running does no harm. ``source``: reservations of other sources are skipped; it is recorded if an ARQ must
    be charged again because its reservation expired.
    """
    committed = 0
    for page in _pages(engine):
        reserved: dict[str, list[Reservation]] = {}
        for row in page:
            if row.consumer is not None and row.consumer not in binding and row.source in (source, None):
                reserved.setdefault(row.consumer, []).append(row)
        if reserved:
            committed += _commit_page(engine, records, reserved, source)
    return committed


def _pages(engine: QuotaEngine) -> Iterator[list[Reservation]]:
    """All reservations in state reserved, oldest first."""
    after: str | None = None
    while True:
        page = engine.list_reservations(validation.admin_context(), state=RESERVED, limit=_PAGE_ROWS, after=after)
        yield page
        if len(page) < _PAGE_ROWS:
            return
        after = page[-1].uuid


def _commit_page(
    engine: QuotaEngine, records: Records, reserved: Mapping[str, list[Reservation]], source: str | None
) -> int:
    """Commit the reservations of those ARQs of a page that are bound; returns the number of ARQs charged.

    If the reservations of an ARQ are on two pages, they are committed one after the other. If the database refuses an
    ARQ, the others are still committed; if a lock is not granted, those of other projects. The rest is retried at the
    next call.
    """
    committed: list[str] = []
    adopted: dict[str, tuple[Attached, list[str]]] = {}

    def work(item: tuple[Attached, list[str]]) -> bool:
        attached, uuids = item
        try:
            if _commit(engine, uuids):
                committed.append(attached.arq)
                _log_committed(attached.arq)
            elif attached.deltas:
                adopted[attached.arq] = attached, adoption.adopt(engine, [attached], source)[attached.arq]
        except (exceptions.ReservationError, exceptions.ReservationConflict):
            pass  # settled concurrently by another process
        except exceptions.QuotaError as error:
            reach = reach_of(error)
            if reach is Reach.LEDGER:
                raise
            LOG.error("ARQ %s is bound, and its reservation could not be committed: %s", attached.arq, error)
            return reach is Reach.CALL
        return True

    bound = [
        (attached, uuids)
        for arq, attached in records.bound_of(reserved).items()
        if (uuids := [row.uuid for row in reserved[arq] if row.project_id == attached.project_id])
    ]
    work_through(bound, lambda item: str(item[0].project_id), work)
    return len(committed) + _release_unbound(engine, records, adopted)


def _commit(engine: QuotaEngine, uuids: list[str]) -> bool:
    """Commit; returns False if the reservation has expired because no conductor was running."""
    try:
        engine.commit(validation.admin_context(), uuids)
    except exceptions.ReservationExpired:
        return False
    return True


def _release_unbound(engine: QuotaEngine, records: Records, adopted: Mapping[str, tuple[Attached, list[str]]]) -> int:
    """Release the adopted ARQs that were unbound before they were charged; returns how many are still bound.

    A commit needs no such check: it fails after a release.
    """
    if not adopted:
        return 0
    bound = records.bound_of(adopted)
    still_bound = 0
    for arq, (attached, uuids) in adopted.items():
        if arq in bound and bound[arq].project_id == attached.project_id:
            still_bound += 1
            _log_committed(arq)
            continue
        try:
            engine.release(validation.admin_context(), uuids)
        except exceptions.QuotaError as error:
            if reach_of(error) is Reach.LEDGER:
                raise
            LOG.error("ARQ %s is unbound, and its charge could not be released: %s", arq, error)
    return still_bound


def _log_committed(arq: str) -> None:
    LOG.warning("ARQ %s was bound but its reservation was never committed; committed now.", arq)
