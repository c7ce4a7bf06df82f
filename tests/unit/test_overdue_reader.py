# SPDX-License-Identifier: Apache-2.0
"""The backlog of overdue reservations: read in the order of expiry, returned by usage row."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota.db.history import ExpiryPosition
from cyborg_quota.db.maintenance import Overdue
from cyborg_quota.ledger.expire import OverdueReader

BATCH = 3
KEYS = st.tuples(st.sampled_from(["p1", "p2", "p3"]), st.sampled_from(["fpga", "gpu"]))


class Source:
    """Overdue reservations of these (project_id, resource), in the order of expiry; IDs are 0, 1, ..."""

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        self.rows = [(number, *key, 1, None, 0, None) for number, key in enumerate(keys)]
        self.asked: list[int] = []

    def read(self, place: ExpiryPosition | None, most: int) -> tuple[Sequence[Any], ExpiryPosition | None]:
        self.asked.append(most)
        first = 0 if place is None else place[1] + 1
        rows = self.rows[first : first + most]
        return rows, (datetime.datetime(2001, 1, 1), rows[-1][0]) if rows else place


def all_of(backlog: OverdueReader) -> list[list[Overdue]]:
    batches = []
    while not backlog.is_over:
        while not backlog.is_full:
            backlog.read()
        batches += backlog.hand_out()
    return batches


class TestBacklog(base.BaseTestCase):
    @given(st.lists(KEYS, max_size=60))
    def test_each_once_and_no_usage_row_twice_without_need(self, keys: list[tuple[str, str]]) -> None:
        source = Source(keys)
        batches = all_of(OverdueReader(source.read, BATCH))
        self.assertEqual(source.rows, sorted(row for batch in batches for row in batch))
        self.assertTrue(all(1 <= len(batch) <= BATCH for batch in batches))
        among = collections.Counter(key for batch in batches for key in {row[1:3] for row in batch})
        sizes = collections.Counter(keys)
        for key, count in among.items():
            # A number of rows gives as many batches of its own; the rest is in one more batch.
            self.assertLessEqual(count, -(-sizes[key] // BATCH), (key, batches))

    def test_sorted_together_as_far_as_it_reads_ahead(self) -> None:
        """A window is bounded, and the next one starts after it."""
        source = Source([("p1", "gpu")] * 1000)
        backlog = OverdueReader(source.read, BATCH)
        while not backlog.is_full:
            backlog.read()
        self.assertFalse(backlog.is_read)
        first = backlog.hand_out()
        self.assertLess(len(first), 120)
        self.assertEqual(list(range(1000)), sorted(row[0] for batch in first + all_of(backlog) for row in batch))

    def test_one_statement_does_not_read_it_all(self) -> None:
        source = Source([("p1", "gpu")] * 100)
        all_of(OverdueReader(source.read, BATCH))
        self.assertEqual({5 * BATCH}, set(source.asked))

    def test_nothing(self) -> None:
        backlog = OverdueReader(Source([]).read, BATCH)
        backlog.read()
        self.assertTrue(backlog.is_read and backlog.is_full and backlog.is_over)
        self.assertEqual([], backlog.hand_out())
