# SPDX-License-Identifier: Apache-2.0
"""Minimums: what a project, with everything below it, can always reach, whatever its siblings do. Pure.

A minimum is a standing claim on the parent. A usage row counts, and a limit bounds::

    counted = its own use + the sum over its children of max(counted, minimum)

The row has the two parts of it: ``subtree``, what is in use there, and ``promised``, what the minimums below keep
beyond that. Within its minimum, a project adds to ``subtree`` of the rows above, and takes as much from ``promised``.

So what a row passes on depends on its counters: they are read after all rows of the charge are locked. Where no row of
a path has a minimum, all that is added is passed on, and ``promised`` does not change.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from cyborg_quota.db.projects import Edges, depth
from cyborg_quota.types import TOTAL, Counters, UsageKey

K = TypeVar("K", int, UsageKey)

Growth = Mapping[UsageKey, tuple[Counters, int]]
"""The present counters of rows, and what is added to what each of them counts."""


def spread(added: Mapping[K, int], rows: Mapping[K, Counters], upwards: Iterable[tuple[K, K | None]]) -> Counter[K]:
    """What is added to what each row counts. ``added``: what is added to these rows themselves.

    ``upwards``: each row, deepest first, and the row above it (None: nothing is passed on).
    """
    total = Counter(added)
    for key, above in upwards:
        if above is not None and total[key]:
            row = rows[key]
            after = max(row.counted + total[key], row.minimum)
            # (Without a minimum, all of it is passed on, also if the counters have drifted.)
            total[above] += after - row.passed_on if row.minimum else total[key]
    return total


def moved(
    rows: Mapping[UsageKey, Counters], moving: Collection[UsageKey], before: Edges, after: Edges
) -> dict[UsageKey, Counters]:
    """The counters of rows after a move, except the meters: see charges.moved."""
    in_use = _changes({key: Counters(subtree=row.subtree) for key, row in rows.items()}, moving, before, after)
    counted = _changes(rows, moving, before, after)
    return {
        key: dataclasses.replace(
            row, subtree=row.subtree + in_use[key], promised=row.promised + counted[key] - in_use[key]
        )
        for key, row in rows.items()
    }


def growth_of_move(
    now: Mapping[UsageKey, Counters], then: Mapping[UsageKey, Counters], moving: Collection[UsageKey]
) -> Growth:
    """The rows whose limits may refuse a move. ``then``: the result of ``moved`` for these rows.

    Usage alone may move below any limit. A row that is above both places counts more if a row below it has a minimum.
    """
    keeping = {key.resource_key for key in moving if key in now and (now[key].minimum or now[key].promised)}
    return {
        key: (now[key], row.counted - now[key].counted)
        for key, row in then.items()
        if row.counted > now[key].counted and (key.resource_key in keeping or row.promised > now[key].promised)
    }


def _changes(
    rows: Mapping[UsageKey, Counters], moving: Collection[UsageKey], before: Edges, after: Edges
) -> Counter[UsageKey]:
    left, entered = _upwards(rows, before), _upwards(rows, after)
    apart = [(key, None if key in moving else above) for key, above in left]
    changes = spread(_passed_on(left, rows, moving, -1), rows, apart)
    between = {key: dataclasses.replace(row, subtree=row.subtree + changes[key]) for key, row in rows.items()}
    changes.update(spread(_passed_on(entered, between, moving, 1), between, entered))
    return changes


_Upwards = list[tuple[UsageKey, "UsageKey | None"]]


def _upwards(rows: Collection[UsageKey], edges: Edges) -> _Upwards:
    """The rows, deepest first, each with the row above it. The total over all projects is above the roots."""
    upwards: _Upwards = []
    for key in sorted(rows, key=lambda key: depth(key.project_id, edges), reverse=True):
        above = key._replace(project_id=edges.get(key.project_id) or TOTAL)
        upwards.append((key, above if above in rows and above != key else None))
    return upwards


def _passed_on(
    upwards: _Upwards, rows: Mapping[UsageKey, Counters], moving: Collection[UsageKey], sign: int
) -> Counter[UsageKey]:
    """What the moving rows take from the rows above them, or add to them."""
    added: Counter[UsageKey] = Counter()
    for key, above in upwards:
        if key in moving and above is not None:
            added[above] += sign * rows[key].passed_on
    return added
