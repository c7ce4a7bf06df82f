# SPDX-License-Identifier: Apache-2.0
"""What each usage row has used: the sum of the intervals in which it counted something; and the bare tables."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import calendar
from tests.invariants import TOTAL, Key


@dataclasses.dataclass
class Interval:
    """An amount that a usage row counts from one second to another. (None: until now.)"""

    amount: int
    start: int
    end: int | None = None

    def used(self, at: int) -> int:
        """The device-seconds until a second."""
        end = at if self.end is None else min(self.end, at)
        return self.amount * (end - min(self.start, at))


@dataclasses.dataclass
class MeteredClaim:
    """What a consumer holds of one resource. ``open``: its interval in each usage row that counts it."""

    project: str
    resource: str
    pod: str
    amount: int
    start: int = 0
    open: dict[Key, Interval] = dataclasses.field(default_factory=dict)


class Meters:
    """The intervals of each usage row, by the log of all calls and their seconds.

    ``parents``: of the known projects. ``totals``: the resources with a total. ``log``: the changes of each row, in the
    order of the calls: what is added, and the second.
    """

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        self.totals: set[str] = set()
        self.intervals: dict[Key, list[Interval]] = collections.defaultdict(list)
        self.log: list[tuple[Key, int, int]] = []
        self.latest = 0
        self._closed: dict[tuple[Key, int], int] = {}
        self._begun: dict[Key, int] = {}

    def path(self, project: str) -> Iterator[str]:
        """The project and those above it."""
        name: str | None = project
        while name is not None:
            yield name
            name = self.parents.get(name)

    def keys(self, claim: MeteredClaim) -> set[Key]:
        """The usage rows that count a claim."""
        pods = {"", claim.pod}
        found = {(name, claim.resource, pod) for name in self.path(claim.project) for pod in pods}
        return found | ({(TOTAL, claim.resource, "")} if claim.resource in self.totals else set())

    def begin(self, claim: MeteredClaim, at: int) -> None:
        """The claim is made, or has changed."""
        claim.start = at
        self.place(claim, at)

    def place(self, claim: MeteredClaim, at: int) -> None:
        """The claim is counted in its rows, after a change of the tree."""
        self.latest = max(self.latest, at)
        keys = self.keys(claim)
        self.end(claim, at, keep=keys)
        for key in keys - set(claim.open):
            claim.open[key] = Interval(claim.amount, at)
            self.intervals[key].append(claim.open[key])
            self.log.append((key, claim.amount, at))

    def end(self, claim: MeteredClaim, at: int, keep: Iterable[Key] = ()) -> None:
        """The claim ends, or is not counted any more in other rows than these."""
        self.latest = max(self.latest, at)
        for key in set(claim.open) - set(keep):
            claim.open.pop(key).end = at
            self.log.append((key, -claim.amount, at))

    def count_total(self, resource: str, claims: Iterable[MeteredClaim]) -> None:
        """A total begins: it has used what all roots have used."""
        self.totals.add(resource)
        total = TOTAL, resource, ""
        self.intervals[total] = [
            dataclasses.replace(one)
            for key, some in self.intervals.items()
            if key[1:] == total[1:] and key[0] != TOTAL and self.parents.get(key[0]) is None
            for one in some
            if one.end is not None
        ]
        for claim in claims:
            if claim.resource == resource:
                *_, root = self.path(claim.project)
                claim.open[total] = dataclasses.replace(claim.open[root, resource, ""])
                self.intervals[total].append(claim.open[total])

    def drop_total(self, resource: str, claims: Iterable[MeteredClaim]) -> None:
        """A total ends."""
        self.totals.remove(resource)
        self.intervals.pop((TOTAL, resource, ""), None)
        for claim in claims:
            claim.open.pop((TOTAL, resource, ""), None)

    def used(self, key: Key, at: int) -> int:
        """The device-seconds until a second, which may be in the past."""
        return sum(one.used(at) for one in self.intervals.get(key, ()))

    def used_before(self, key: Key, month: int) -> int:
        """The device-seconds until the begin of a month, by its number, as the report has them.

        (What a clock that is behind adds to a new row, before the month of the row, counts in this month.)
        """
        if month <= self._begun.get(key, 0):
            return 0
        return self._closed.get((key, month - 1), self.used(key, calendar.second_of(month)))

    def find_violations(
        self, connection: sa.Connection, now: int, without: Collection[str] = (), late: int = 0
    ) -> list[str]:
        """Compare every usage row, and every month that has ended, with the tables. Returns the differences.

        ``without``: projects that are left out. ``late``: the most that clocks that are behind have added to a month
        after it was closed.

        A month is closed by the first later change; what comes later from a clock that is behind does not change it.
        The months of a row are compared from that of its first comparison on. ``now``: the present second.
        """
        faults = []
        self.latest = max(self.latest, now)
        rows, months = _read(connection)
        end = self.latest + 20
        lacking = {key for key in self.intervals if key not in rows and key[0] not in without and self.used(key, end)}
        faults += [f"{key} has no row" for key in sorted(lacking)]
        rows = {key: row for key, row in rows.items() if key[0] not in without}
        self._begun = {key: month for key, month in self._begun.items() if key in rows}
        for key, row in rows.items():
            if (used := row.metered + row.subtree * end) != (expected := self.used(key, end)):
                faults.append(f"{key} has used {used} device-seconds, should be {expected}")
            # (A total that begins has, by a clock that is behind, changes of the next month.)
            begun = self._begun.setdefault(key, calendar.month_of(self.latest if key[0] == TOTAL else now))
            for month in range(begun, calendar.month_of(self.latest)):
                boundary = calendar.second_of(month + 1)
                stored = months.get((*key, month))
                expected = self.used_before(key, month + 1)
                if stored is not None:
                    self._closed[key, month] = expected
                before = row.metered + row.subtree * boundary if stored is None else stored
                if abs(before - expected) > late:
                    how = "not closed" if stored is None else "closed"
                    faults.append(f"{key} used {before} until the end of month {month} ({how}), should be {expected}")
        return faults


def _read(connection: sa.Connection) -> tuple[dict[Key, Any], dict[tuple[str, str, str, int], int]]:
    names = "project_id, resource, pod"
    rows = connection.exec_driver_sql(f"SELECT {names}, subtree, metered FROM quota_usages")
    months = connection.exec_driver_sql(f"SELECT {names}, month, device_seconds FROM usage_months")
    return {tuple(row[:3]): row for row in rows}, {tuple(row[:4]): row[4] for row in months}


class FloatHours:
    """The known-bad meter: hours, as a float, with the time of the last change of each row."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._rows: dict[Key, tuple[float, int, int]] = {}
        for key, amount, at in meters.log:
            hours, held, updated = self._rows.get(key, (0.0, 0, at))
            self._rows[key] = hours + held * max(0, at - updated) / 3600, held + amount, max(at, updated)

    def find_violations(self) -> list[str]:
        """Compare every row with the intervals, as for the real meter."""
        end = self._meters.latest + 20
        return [
            f"{key} has used {used} device-seconds, should be {expected}"
            for key, (hours, held, updated) in self._rows.items()
            if (used := hours * 3600 + held * (end - updated)) != (expected := self._meters.used(key, end))
        ]
