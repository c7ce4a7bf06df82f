# SPDX-License-Identifier: Apache-2.0
"""The ledger's reservations and Cyborg's ARQs, joined in bounded memory."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fixtures as fx
from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.cyborg import diff, reconciler
from cyborg_quota.cyborg.diff import Difference, Record, Report
from cyborg_quota.types import COMMITTED, RESERVED, Reservation
from tests.unit.test_reconcile_diff import compare

RESOURCES = ("gpu", "gpu.A100")
PAGE, MOST = 20, 10


class Ledger:
    """Makes the reservations of each page when it is read. ``rows``: (state, consumer, project, resource, source)."""

    def __init__(self, rows: list[tuple[str, str | None, str, str, str | None]]) -> None:
        self.rows = sorted((row for row in rows if row[1] is not None), key=lambda row: str(row[1]))
        self.pages = 0

    def list_by_consumer(self, _context: Any, *, limit: int, after: tuple[str, str] | None = None) -> list[Reservation]:
        self.pages += 1
        start = 0 if after is None else int(after[1]) + 1
        return [self.reservation(number) for number in range(start, len(self.rows))[:limit]]

    def reservation(self, number: int) -> Reservation:
        state, consumer, project_id, resource, source = self.rows[number]
        return Reservation(
            uuid=str(number),
            project_id=project_id,
            resource=resource,
            delta=1,
            state=state,  # type: ignore[arg-type]
            consumer=consumer,
            group=None,
            expire=None,
            created_at=None,
            ended_at=None,
            source=source,
        )


class Records:
    """Makes each ARQ when it is read. ``rows``: (ARQ, project, resource)."""

    def __init__(self, rows: list[tuple[str, str | None, str]]) -> None:
        self.rows = rows

    def all(self) -> Iterator[Record]:
        for arq, project_id, resource in sorted(self.rows, key=lambda row: row[0]):
            yield Record(arq, project_id, None, {resource: 1}, ("n1",))


def in_memory(ledger: Ledger, records: Records) -> Report:
    """What a comparison of all rows at once finds."""
    charges: dict[str, list[Reservation]] = {}
    in_flight = set()
    for number in range(len(ledger.rows)):
        row = ledger.reservation(number)
        if row.consumer is not None and row.state == COMMITTED:
            charges.setdefault(row.consumer, []).append(row)
        elif row.consumer is not None:
            in_flight.add(row.consumer)
    return compare(charges, in_flight, list(records.all()), RESOURCES, "east")


def random_rows(seed: int, count: int) -> tuple[Ledger, Records]:
    """Charges, attachments, or both, of ``count`` consumers; few in one of ten ways differ."""
    chance = random.Random(seed)
    rows: list[tuple[str, str | None, str, str, str | None]] = []
    bound: list[tuple[str, str | None, str]] = []
    for number in chance.sample(range(10 * count), count):
        arq, project_id, resource = f"arq {number}", f"p{number % 3}", chance.choice(RESOURCES)
        way = chance.randrange(40)
        more = {
            4: (RESERVED, arq, "another project", resource, "east"),
            5: (COMMITTED, arq, "p9", resource, "east"),
            6: (COMMITTED, arq, project_id, "fpga", chance.choice((None, "east"))),
            7: (COMMITTED, None, project_id, resource, "east"),
            9: (COMMITTED, f"ghost {number}", project_id, resource, chance.choice((None, "east", "west"))),
        }
        if way in more:
            rows.append(more[way])
        if way != 8:
            rows.append((COMMITTED, arq, project_id, resource, "west" if way == 3 else "east"))
        if way != 1:
            bound.append((arq, None if way == 2 else project_id, resource))
    chance.shuffle(rows)
    return Ledger(rows), Records(bound)


class RowCounter:
    """Counts the objects that exist of several classes."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def add(self, number: int) -> None:
        self.now += number
        self.most = max(self.most, self.now)

    def counted(self, kind: type) -> type:
        """A subclass that counts its objects."""

        def new(cls: type, *_arguments: object, **_options: object) -> object:
            self.add(1)
            return object.__new__(cls)

        members = {"__slots__": (), "__new__": new, "__del__": lambda _row: self.add(-1)}
        return type(kind.__name__, (kind,), members)


class TestObservations(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fx.MockPatchObject(reconciler, "_PAGE_ROWS", PAGE))

    def test_equal_to_a_comparison_in_memory(self) -> None:
        for seed in range(20):
            ledger, records = random_rows(seed, 10 * seed)
            observed = reconciler.observations(ledger, records)  # type: ignore[arg-type]
            found = diff.compare(observed, RESOURCES, "east", maximum=99)
            self.assertEqual(in_memory(ledger, records), found, seed)
            kinds = {difference.problem for difference in found.differences}
            if seed > 10:
                self.assertEqual({"not attached", "not charged", "wrong project", "wrong amount"}, kinds)

    def held(self, count: int) -> tuple[int, int, Report]:
        """The largest number of rows in memory while ``count`` ARQs are compared, the pages read, and the report.

        None of them is charged, so that each differs.
        """
        ledger = Ledger([(COMMITTED, f"ghost {number}", "p1", "gpu", "east") for number in range(count)])
        records = Records([(f"arq {number}", "p1", "gpu") for number in range(count)])
        rows = RowCounter()
        this = sys.modules[__name__]
        with contextlib.ExitStack() as stack:
            for module, kind in ((this, Reservation), (this, Record), (diff, Difference)):
                stack.enter_context(mock.patch.object(module, kind.__name__, rows.counted(kind)))
            stack.enter_context(mock.patch.object(reconciler, "_MAX_DIFFERENCES", MOST))
            report = reconciler.Reconciler(
                ledger,  # type: ignore[arg-type]
                records,  # type: ignore[arg-type]
                RESOURCES,
                grace_seconds=1,
                share=0,
                source="east",
                wait=lambda _seconds: None,
            ).find()
        return rows.most, ledger.pages, report

    def test_memory(self) -> None:
        """Ten times as many ARQs and charges: as many rows in memory, in both comparisons; all are counted."""
        small, few_pages, _ = self.held(100)
        large, many_pages, report = self.held(1000)
        self.assertEqual((12, 102), (few_pages, many_pages))
        self.assertLessEqual(large, min(small, 2 * (PAGE + 6 * MOST) - 1))
        self.assertEqual(
            (MOST, 2000, 1000, 1000), (len(report.differences), report.total, report.missing, report.charged)
        )

    def test_not_in_order(self) -> None:
        """A database that sorts names otherwise: what is attached would seem not to be charged."""
        records = Records([("a", "p1", "gpu"), ("b", "p1", "gpu")])
        with mock.patch.object(records, "all", lambda: reversed([Record("a"), Record("b")])):
            observed = reconciler.observations(Ledger([]), records)  # type: ignore[arg-type]
            self.assertRaises(exceptions.QuotaError, list, observed)
