# SPDX-License-Identifier: Apache-2.0
"""The ledger in plain Python: lists and sums, without a database. It repeats the table of calls and states.

It shares nothing with the code under test except the error classes and the names of the states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from cyborg_quota import exceptions

ENDED = ("rolled_back", "expired", "released")

REFUSALS: dict[str, dict[str, type[exceptions.ReservationError]]] = {
    "commit": {
        "rolled_back": exceptions.ReservationRolledBack,
        "expired": exceptions.ReservationExpired,
        "released": exceptions.ReservationReleased,
    },
    "rollback": {"committed": exceptions.ReservationCommitted},
    "release": {},
}
REFUSALS["extend"] = REFUSALS["commit"]
GOALS = {
    ("commit", "reserved"): "committed",
    ("rollback", "reserved"): "rolled_back",
    ("release", "reserved"): "rolled_back",
    ("release", "committed"): "released",
}


@dataclasses.dataclass(eq=False)
class Row:
    """One reservation. Times are ticks of the model's own clock."""

    uuid: str | None
    project: str
    resource: str
    delta: int
    state: str
    consumer: str | None
    group: str | None
    made: int
    ended: int | None = None
    overdue: bool = False
    provider: str | None = None
    transfers: tuple[tuple[str, str], ...] = ()


class Model:
    """The expected content of a ledger."""

    def __init__(self, parents: Mapping[str, str | None]) -> None:
        self.parents = dict(parents)
        self.limits: dict[tuple[str, str], int] = {}
        self.subtree_limits: dict[tuple[str, str], int] = {}
        self.rows: list[Row] = []
        self.pods: dict[str, str] = {}  # of providers
        self._clock = 0

    # --- figures ---

    def held(self, project: str, resource: str, *states: str) -> int:
        """``resource``: also a name with a pod, as ``names`` returns it. ``states``: by default, both live ones."""
        return sum(
            row.delta
            for row in self.rows
            if row.project == project
            and row.state in (states or ("reserved", "committed"))
            and resource in self.names(row)
        )

    def names(self, row: Row) -> list[str]:
        return [row.resource, *self.in_pod(row.provider, {row.resource: row.delta})]

    def in_pod(self, provider: str | None, amounts: Mapping[str, int]) -> dict[str, int]:
        """The amounts by the names of the counters of the provider's pod; empty if it has none."""
        if provider not in self.pods:
            return {}
        return {f"{resource} in pod {self.pods[provider]}": amount for resource, amount in amounts.items()}

    def path(self, project: str) -> list[str]:
        path = [project]
        while (parent := self.parents.get(path[-1])) is not None:
            path.append(parent)
        return path

    def subtree(self, project: str, resource: str) -> int:
        return sum(self.held(descendant, resource) for descendant in self.parents if project in self.path(descendant))

    def blockers(self, project: str, request: Mapping[str, int]) -> list[tuple[str, str, str]]:
        """Return (project, resource, scope) of every limit that the request would exceed, sorted."""
        found = []
        for resource, amount in request.items():
            if amount <= 0:  # (of a resize)
                continue
            limit = self.limits.get((project, resource), -1)
            if limit != -1 and self.held(project, resource) + amount > limit:
                found.append((project, resource, "project"))
            for ancestor in self.path(project):
                limit = self.subtree_limits.get((ancestor, resource), -1)
                if limit != -1 and self.subtree(ancestor, resource) + amount > limit:
                    found.append((ancestor, resource, "subtree"))
        return sorted(found)

    # --- calls ---

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def reserve(
        self, project: str, claims: Sequence[tuple[str | None, Mapping[str, int]]], group: str | None, state: str
    ) -> list[Row]:
        """Return the rows of each claim; raises OverQuota (with empty .overs) or ReservationConflict."""
        names = [consumer for consumer, _ in claims if consumer is not None]
        held = {name: self._live(project, name) for name in names}
        if any(row.overdue for rows in held.values() for row in rows):
            self._end((row for rows in held.values() for row in rows if row.overdue), "expired")
            held = {name: self._live(project, name) for name in names}
        for consumer, deltas in claims:
            rows = held.get(consumer or "", [])
            if rows and {row.resource: row.delta for row in rows} != dict(deltas):
                raise exceptions.ReservationConflict(str(consumer), {}, deltas)
        fresh = [(consumer, deltas) for consumer, deltas in claims if not held.get(consumer or "")]
        request: dict[str, int] = {}
        for _, deltas in fresh:
            for resource, delta in deltas.items():
                request[resource] = request.get(resource, 0) + delta
        if state == "reserved" and self.blockers(project, request):
            raise exceptions.OverQuota([])
        now = self.tick()
        answer = []
        for consumer, deltas in claims:
            rows = {row.resource: row for row in held.get(consumer or "", [])}
            for resource, delta in deltas.items():
                row = rows.get(resource) or Row(None, project, resource, delta, state, consumer, group, now)
                if resource not in rows:
                    self.rows.append(row)
                answer.append(row)
        return answer

    def adopt(self, project: str, consumer: str | None, deltas: Mapping[str, int], group: str | None) -> list[Row]:
        rows = self.reserve(project, [(consumer, deltas)], group, "committed")
        self.settle("commit", rows)
        return rows

    def settle(self, call: str, rows: Sequence[Row]) -> None:
        """Settle all rows or none; raises the error of the first row that cannot be settled."""
        if call in ("commit", "extend"):
            offended = [row for row in rows if row.overdue or row.state in REFUSALS[call]]
        else:
            offended = [row for row in rows if row.state in REFUSALS[call]]
        self._end([row for row in rows if row.overdue], "expired")
        if offended:
            first = offended[0]
            raise REFUSALS[call][first.state](str(first.uuid))
        for row in rows:
            goal = GOALS.get((call, row.state))
            if goal == "committed":
                row.state = goal
            elif goal is not None:
                self._end([row], goal)
        self.tick()

    def resize(
        self,
        project: str,
        consumer: str,
        amounts: Mapping[str, int],
        expected: Mapping[str, int],
        check: Callable[[Sequence[Row]], None] = lambda _rows: None,
    ) -> None:
        """``check(rows)`` may refuse the resize of these rows because of their capacity."""
        held = self.select(project, consumer=consumer)
        if not held:
            raise exceptions.ReservationNotFound(consumer)
        if missing := [resource for resource in amounts if resource not in {row.resource for row in held}]:
            raise exceptions.ResourceNotHeld(consumer, project, missing[0])
        rows = self._changeable([row for row in held if row.resource in amounts], "commit")
        if any(row.delta not in (expected.get(row.resource, row.delta), amounts[row.resource]) for row in rows):
            raise exceptions.AmountChanged(consumer, {}, expected)
        rows = [row for row in rows if row.delta != amounts[row.resource]]
        growth = {name: amounts[row.resource] - row.delta for row in rows for name in self.names(row)}
        if self.blockers(project, growth):
            raise exceptions.OverQuota([])
        check(rows)
        for row in rows:
            row.delta = amounts[row.resource]

    def _changeable(self, rows: Sequence[Row], call: str) -> Sequence[Row]:
        """Expire the overdue ones; raise the error of the first row that is not live."""
        overdue = [row for row in rows if row.overdue]
        self._end(overdue, "expired")
        if offended := overdue or [row for row in rows if row.state in REFUSALS[call]]:
            raise REFUSALS[call][offended[0].state](str(offended[0].uuid))
        return rows

    def transfer(self, project: str, receiver: str, consumer: str) -> None:
        live = self._live(project, consumer)
        if not live:
            if any((project, receiver) in row.transfers for row in self._live(receiver, consumer)):
                return
            self._changeable(self.select(project, consumer=consumer), "commit")
            raise exceptions.ReservationNotFound(consumer)
        self._changeable(live, "commit")
        amounts = {name: row.delta for row in live for name in self.names(row)}
        self._end([row for row in self._live(receiver, consumer) if row.overdue], "expired")
        if self._live(receiver, consumer):
            raise exceptions.ReservationConflict(consumer, {}, amounts)
        above_both = {(ancestor, "subtree") for ancestor in self.path(project)}
        if any((one, scope) not in above_both for one, _, scope in self.blockers(receiver, amounts)):
            raise exceptions.OverQuota([])
        for row in live:
            row.project = receiver
            row.transfers = (*row.transfers, (project, receiver))

    def commit_as(self, rows: Sequence[Row], name: str) -> None:
        if any(row.overdue or row.state in REFUSALS["commit"] for row in rows):
            self.settle("commit", rows)
        if len({row.resource for row in rows}) < len(rows) or len({row.project for row in rows}) > 1:
            raise exceptions.InvalidSelection("")
        others = [row for row in self._live(rows[0].project, name) if row not in rows]
        self._end([row for row in others if row.overdue], "expired")
        held = self._live(rows[0].project, name)
        if set(map(id, held)) != set(map(id, rows)) and (held or any(row.consumer not in (None, name) for row in rows)):
            raise exceptions.NameConflict(name, {}, {}, "")
        for row in rows:
            row.consumer = name
        self.settle("commit", rows)

    def expire(self) -> int:
        overdue = [row for row in self.rows if row.overdue]
        self._end(overdue, "expired")
        return len(overdue)

    def purge(self) -> None:
        """Purge all ended rows, regardless of their age."""
        self.rows = [row for row in self.rows if row.state not in ENDED]
        loose: dict[tuple[str, str, str | None], list[Row]] = {}
        for row in self.rows:
            if row.state == "committed" and row.consumer is None and row.group is None:
                loose.setdefault((row.project, row.resource, row.provider), []).append(row)
        for (project, resource, provider), rows in loose.items():
            if len(rows) < 2:
                continue
            self.rows = [row for row in self.rows if row not in rows]
            total, now = sum(row.delta for row in rows), self.tick()
            self.rows.append(Row(None, project, resource, total, "committed", None, None, now, provider=provider))

    def select(self, project: str, *, consumer: str | None = None, group: str | None = None) -> list[Row]:
        """Return the rows that a call by name selects: the latest of each claim, without those of previous attempts."""
        newest: dict[tuple[object, str], Row] = {}
        for row in self.rows:
            is_held = row.consumer == consumer if group is None else f"{row.group}/".startswith(f"{group}/")
            if row.project == project and is_held:
                newest[row.consumer if row.consumer is not None else id(row), row.resource] = row
        if not newest:
            return []
        flying = [row.made for row in newest.values() if row.state == "reserved"]
        begin = min(flying) if flying else max(row.made for row in newest.values())
        return [row for row in self.rows if row in newest.values() and (row.ended is None or row.ended >= begin)]

    def _live(self, project: str, consumer: str) -> list[Row]:
        return [
            row for row in self.rows if row.project == project and row.consumer == consumer and row.state not in ENDED
        ]

    def _end(self, rows: Iterable[Row], state: str) -> None:
        now = self.tick()
        for row in list(rows):
            row.state, row.ended, row.overdue = state, now, False
