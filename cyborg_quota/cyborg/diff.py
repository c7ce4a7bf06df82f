# SPDX-License-Identifier: Apache-2.0
"""Compare the charges of the ledger with the bound ARQs of Cyborg. Pure: no I/O, no import of Cyborg."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from cyborg_quota.types import Reservation, grouped, summed

Problem = Literal[
    "not attached", "not charged", "not committed", "wrong project", "wrong amount", "released, not charged"
]
"""The last problem remains after a repair that released the ARQ and met a concurrent charge of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """An ARQ of Cyborg. ``deltas``: the amount to charge per resource, {} if it is not counted; None: it is not bound.

    ``providers``: the UUID of its device's provider and the name of its host, if binds claim capacity.
    ``is_changing``: its bind or delete is in progress.
    """

    arq: str
    project_id: str | None = None
    instance: str | None = None
    deltas: Mapping[str, int] | None = None
    providers: tuple[str, ...] = ()
    is_changing: bool = False

    @property
    def wanted(self) -> dict[tuple[str, str], int]:
        """The amounts to charge: {(project, resource): amount}."""
        return {(str(self.project_id), resource): delta for resource, delta in (self.deltas or {}).items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """A consumer of the ledger, or an ARQ, or both.

    ``charges`` and ``in_flight``: its reservations that are committed and reserved. ``record`` None: Cyborg has no such
    ARQ.
    """

    arq: str
    charges: tuple[Reservation, ...] = ()
    in_flight: tuple[Reservation, ...] = ()
    record: Record | None = None

    @property
    def attached(self) -> Record | None:
        """The record, if the ARQ is bound."""
        return None if self.record is None or self.record.deltas is None else self.record


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """An ARQ whose charges differ from Cyborg's record. ``attached`` None: the ARQ is not bound in Cyborg.

    ``is_own``: all of its charges have the compared source. Only those differences are repaired.
    ``is_missing``: Cyborg has no such ARQ.
    """

    problem: Problem
    arq: str
    charges: tuple[Reservation, ...]
    attached: Record | None
    is_own: bool = True
    is_missing: bool = False

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two observations of the same difference: the same charges and the same attachment."""
        attached = None if self.attached is None else (self.attached.project_id, self.attached.instance)
        return self.arq, self.problem, *(charge.uuid for charge in self.charges), attached

    def __str__(self) -> str:
        charged, attached = format_amounts(self.before), format_amounts(self.after)
        return f"ARQ {self.arq}: {self.problem}; charged {charged}, attached {attached}"

    @property
    def before(self) -> dict[tuple[str, str], int]:
        """The amounts in the ledger: {(project, resource): amount}."""
        return _sums(self.charges)

    @property
    def after(self) -> dict[tuple[str, str], int]:
        """The amounts according to Cyborg's records: {(project, resource): amount}."""
        return {} if self.attached is None else self.attached.wanted


@dataclasses.dataclass(frozen=True)
class Report:
    """The differences of a reconciliation, sorted by ARQ, and the number of ARQs compared.

    ``charged``: the number of consumers with a charge of this source. ``attached``: the number of them that are bound
    ARQs. ``missing``: the number of them that Cyborg does not have. ``is_empty``: Cyborg has no ARQ in any state.
    ``omitted_own`` and ``omitted_others``: the numbers of further differences that can be repaired, and that cannot,
    which are not in ``differences``; see ``compare``.
    ``unclaimed``: the number of bound ARQs that are charged correctly, but without a source.
    """

    compared: int
    differences: Sequence[Difference]
    charged: int = 0
    attached: int = 0
    missing: int = 0
    is_empty: bool = False
    omitted_own: int = 0
    omitted_others: int = 0
    unclaimed: int = 0

    @property
    def total(self) -> int:
        """The number of differences, including those that are omitted."""
        return len(self.differences) + self.omitted_own + self.omitted_others


def compare(
    observations: Iterable[Observation],
    resources: Collection[str],
    source: str | None,
    *,
    maximum: int,
) -> Report:
    """The differences. ``observations`` has one for each ARQ, and is sorted by ARQ. Pure.

    ARQs whose bind or delete is in progress are skipped, unless they are bound already. For a bound ARQ, all charges
    are compared, including those of a resource rule that was removed. A consumer that is not bound may not be an ARQ:
    of its charges, only those of ``resources``, with ``source`` or without a source, are compared. The report has at
    most ``maximum`` differences that can be repaired, and as many that cannot; it counts the others.
    """
    differences: list[Difference] = []
    counts = {True: 0, False: 0}
    compared = charged = own = missing = unclaimed = records = 0
    for seen in observations:
        is_charged = any(charge.source == source for charge in seen.charges)
        charged += is_charged
        own += is_charged and seen.attached is not None
        records += seen.record is not None
        charges = seen.charges
        if seen.attached is None:
            charges = tuple(
                charge for charge in charges if charge.resource in resources and charge.source in (source, None)
            )
        compared += seen.attached is not None or bool(charges)
        if seen.in_flight:
            charges = _uncommitted(seen, source)
            left: Problem = "not attached" if seen.record is None else "not committed"
            problem = left if charges else None
        else:
            problem = None if seen.record and seen.record.is_changing else _problem(charges, seen.attached)
        if problem is None:
            unclaimed += source is not None and bool(seen.attached) and not all(charge.source for charge in charges)
        else:
            is_own = all(charge.source == source for charge in charges)
            difference = Difference(problem, seen.arq, charges, seen.attached, is_own, seen.record is None)
            missing += difference.is_own and difference.is_missing
            counts[is_own] += 1
            if counts[is_own] <= maximum:
                differences.append(difference)
    omitted_own, omitted_others = (max(count - maximum, 0) for count in counts.values())
    return Report(compared, differences, charged, own, missing, not records, omitted_own, omitted_others, unclaimed)


def _uncommitted(seen: Observation, source: str | None) -> tuple[Reservation, ...]:
    """The reservations of an ARQ that is bound: the conductor that bound it could not commit them, or will do so.

    Or those of a deleted one. Others may belong to a bind that begins now; they expire.
    """
    own = [reservation for reservation in seen.in_flight if reservation.source == source]
    if seen.record is not None:
        project_id = None if seen.attached is None else seen.attached.project_id
        own = [reservation for reservation in own if reservation.project_id == project_id]
    return tuple(own)


def _problem(charges: Sequence[Reservation], attached: Record | None) -> Problem | None:
    if attached is None:
        return "not attached" if charges else None
    if attached.project_id is None:
        return None  # bound before Cyborg stored projects: it cannot be charged
    before, after = _sums(charges), attached.wanted
    if before == after:
        return None
    if not charges:
        return "not charged"
    if {project_id for project_id, _ in before} != {attached.project_id}:
        return "wrong project"
    return "wrong amount"


def _sums(charges: Iterable[Reservation]) -> dict[tuple[str, str], int]:
    return summed(((charge.project_id, charge.resource), charge.delta) for charge in charges)


def format_amounts(amounts: Mapping[tuple[str, str], int]) -> str:
    """Format amounts as ``p1 gpu=1 gpu.A100=1``, or as ``nothing``."""
    by_project = grouped(sorted(amounts.items()), lambda item: item[0][0])
    return (
        ", ".join(
            " ".join([project_id, *(f"{key[1]}={amount}" for key, amount in items)])
            for project_id, items in by_project.items()
        )
        or "nothing"
    )
