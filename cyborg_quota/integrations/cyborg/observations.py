# SPDX-License-Identifier: Apache-2.0
"""Read the ledger's reservations and Cyborg's bound ARQs, and join them by ARQ. Does not import Cyborg.

Both may have more rows than fit in memory. Neither database can return them in the order of the ARQs without sorting
them for each page: the ledger has no index that begins with the consumer, and Cyborg's db layer sorts by id only. So
both are read by id, page by page, and sorted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from cyborg_quota import QuotaEngine, validation
from cyborg_quota.integrations.cyborg.diff import Attached, Charge, Observation, Records
from cyborg_quota.integrations.cyborg.sorted_rows import Row, SortedRows
from cyborg_quota.types import COMMITTED, RESERVED, Reservation

_PAGE_ROWS: Final = 5000

_IN_FLIGHT: Final = 0
_CHARGE: Final = 1
_BOUND: Final = 2


def observations(engine: QuotaEngine, records: Records) -> Iterator[Observation]:
    """Yield every consumer that has a live reservation or is a bound ARQ, in the order of their ids."""
    with SortedRows() as rows:
        _add_in_flight(engine, rows)
        for row in reservations(engine, COMMITTED):
            rows.add([row.consumer, _CHARGE, row.uuid, row.project_id, row.resource, row.delta, row.source])
        # Read again: an ARQ may have been reserved and committed between the two reads.
        _add_in_flight(engine, rows)
        for attached in records.bound():
            amounts = dict(attached.deltas)
            rows.add([attached.arq, _BOUND, attached.project_id, attached.instance, amounts, list(attached.providers)])
        for arq, group in rows.groups():
            yield _observation(arq, group)


def _add_in_flight(engine: QuotaEngine, rows: SortedRows) -> None:
    for row in reservations(engine, RESERVED):
        rows.add([row.consumer, _IN_FLIGHT])


def reservations(engine: QuotaEngine, state: Literal["reserved", "committed"]) -> Iterator[Reservation]:
    """Yield the reservations that have a consumer, oldest first. One query per page."""
    context, after = validation.admin_context(), None
    while True:
        page = engine.list_reservations(context, state=state, limit=_PAGE_ROWS, after=after)
        yield from (row for row in page if row.consumer is not None)
        if len(page) < _PAGE_ROWS:
            return
        after = page[-1].uuid


def _observation(arq: str, rows: list[Row]) -> Observation:
    attached: Attached | None = None
    charges: list[Charge] = []
    is_in_flight = False
    for _, kind, *values in rows:
        if kind == _CHARGE:
            charges.append(Charge(*values))
        elif kind == _BOUND:
            project_id, instance, deltas, providers = values
            attached = Attached(arq, project_id, instance, deltas, tuple(providers))
        else:
            is_in_flight = True
    return Observation(arq, tuple(charges), attached, is_in_flight)
