# SPDX-License-Identifier: Apache-2.0
"""Read the ledger's live reservations and Cyborg's ARQs, and join them by ARQ. Does not import Cyborg.

Both are read in the order of the ARQs, page by page, so that a comparison needs the memory of two pages.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from cyborg_quota import QuotaEngine, exceptions, validation
from cyborg_quota.cyborg.diff import Observation, Record, Records
from cyborg_quota.types import RESERVED, Reservation

Item = Reservation | Record
Row = TypeVar("Row")
Marker = TypeVar("Marker")

_PAGE_ROWS: Final = 10_000
_key: Final = operator.itemgetter(0)


def observations(engine: QuotaEngine, records: Records) -> Iterator[Observation]:
    """Yield every consumer that has a live reservation or is an ARQ of Cyborg, in the order of their ids."""
    return _join(_live(engine), records.all())


def observations_of(
    engine: QuotaEngine, records: Records, arqs: Mapping[str, Collection[str]]
) -> Iterator[Observation]:
    """As ``observations``, for these ARQs, by project. Charges to other projects are not seen."""
    context = validation.admin_context()
    rows = [row for project, some in arqs.items() for row in engine.list_by_consumer(context, project, consumers=some)]
    found = records.of({arq for some in arqs.values() for arq in some})
    return _join(sorted(rows, key=lambda row: str(row.consumer)), [found[arq] for arq in sorted(found)])


def _live(engine: QuotaEngine) -> Iterator[Reservation]:
    context = validation.admin_context()
    return in_pages(
        lambda after: engine.list_by_consumer(context, limit=_PAGE_ROWS, after=after),
        _PAGE_ROWS,
        lambda row: (str(row.consumer), row.uuid),
    )


def in_pages(
    read: Callable[[Marker | None], Sequence[Row]], rows: int, marker_of: Callable[[Row], Marker]
) -> Iterator[Row]:
    """All rows of a list that is read in pages of ``rows`` rows. ``read``: the page after a marker; None: the first."""
    after: Marker | None = None
    while True:
        page = read(after)
        yield from page
        if len(page) < rows:
            return
        after = marker_of(page[-1])


def _join(rows: Iterable[Reservation], records: Iterable[Record]) -> Iterator[Observation]:
    reserved = _in_order((str(row.consumer), row) for row in rows)
    known = _in_order((record.arq, record) for record in records)
    for arq, group in itertools.groupby(heapq.merge(reserved, known, key=_key), key=_key):
        items = [item for _, item in group]
        live = [item for item in items if isinstance(item, Reservation)]
        yield Observation(
            arq,
            tuple(row for row in live if row.state != RESERVED),
            tuple(row for row in live if row.state == RESERVED),
            next((item for item in items if isinstance(item, Record)), None),
        )


def _in_order(items: Iterable[tuple[str, Item]]) -> Iterator[tuple[str, Item]]:
    """The items, by key. Raises QuotaError if they are not in order: what is attached would seem not to be charged."""
    last = ""
    for key, item in items:
        if key < last:
            raise exceptions.QuotaError(f"The database does not sort names by their bytes: {last!a} before {key!a}.")
        last = key
        yield key, item
