# SPDX-License-Identifier: Apache-2.0
"""Compare the charges of the ledger with the bound ARQs of Cyborg. Pure: no I/O, no import of Cyborg."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

Problem = Literal["not attached", "not charged", "wrong project", "wrong amount", "released, not charged"]
"""The last problem remains after a repair that released the ARQ and met a concurrent charge of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attached:
    """A bound ARQ. ``deltas``: the amount to charge per resource; {} if it is not counted.

    ``providers``: the UUID of its device's provider and the name of its host, if binds claim capacity.
    """

    arq: str
    project_id: str | None
    instance: str | None
    deltas: Mapping[str, int]
    providers: tuple[str, ...] = ()

    @property
    def wanted(self) -> dict[tuple[str, str], int]:
        """The amounts to charge: {(project, resource): amount}."""
        return {(str(self.project_id), resource): delta for resource, delta in self.deltas.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Charge:
    """A committed reservation of an ARQ. ``source``: the service that made it; None if it was not recorded."""

    uuid: str
    project_id: str
    resource: str
    delta: int
    source: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """An ARQ whose charges differ from Cyborg's record. ``attached`` None: the ARQ is not bound in Cyborg.

    ``is_own``: all of its charges have the compared source. Only those differences are repaired.
    ``is_certain``: the ARQ is not attached, and Cyborg has deleted or unbound it.
    """

    problem: Problem
    arq: str
    charges: tuple[Charge, ...]
    attached: Attached | None
    is_own: bool = True
    is_certain: bool = False

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two observations of the same difference: the same charges and the same attachment."""
        attached = None if self.attached is None else (self.attached.project_id, self.attached.instance)
        return self.arq, self.charges, attached

    def __str__(self) -> str:
        charged, attached = format_amounts(self.before), format_amounts(self.after)
        return f"ARQ {self.arq}: {self.problem}; charged {charged}, attached {attached}"

    @property
    def sources(self) -> str:
        """The sources of its charges, as ``cyborg``, separated by commas; ``none`` for a charge without a source."""
        return ", ".join(sorted({charge.source or "none" for charge in self.charges}))

    @property
    def before(self) -> dict[tuple[str, str], int]:
        """The amounts in the ledger: {(project, resource): amount}."""
        return _sums(self.charges)

    @property
    def after(self) -> dict[tuple[str, str], int]:
        """The amounts according to Cyborg's records: {(project, resource): amount}."""
        return {} if self.attached is None else self.attached.wanted


class Records(Protocol):
    """Read access to Cyborg's ARQs."""

    def bound(self) -> Iterator[Attached]: ...

    def bound_of(self, arqs: Collection[str]) -> dict[str, Attached]: ...

    def unbound_of(self, arqs: Collection[str]) -> set[str]:
        """The ARQs among ``arqs`` that Cyborg has deleted or unbound."""
        ...

    def is_empty(self) -> bool:
        """Whether Cyborg has no ARQ in any state."""
        ...

    def identity(self) -> list[str]:
        """UUIDs that no other Cyborg has; [] if nothing can be bound yet."""
        ...


@dataclasses.dataclass(frozen=True)
class Report:
    """The differences of a reconciliation, and the number of ARQs compared.

    ``charged``: the number of consumers with a charge of this source. ``attached``: the number of them that are bound
    ARQs. ``is_empty``: Cyborg has no ARQ in any state.
    """

    compared: int
    differences: Sequence[Difference]
    charged: int = 0
    attached: int = 0
    is_empty: bool = False

    @property
    def lost(self) -> int:
        """The number of ARQs charged by this source that are not attached."""
        return sum(difference.attached is None and difference.is_own for difference in self.differences)


def compare(
    charges: Mapping[str, Sequence[Charge]],
    in_flight: Collection[str],
    bound: Iterable[Attached],
    resources: Collection[str],
    source: str | None = None,
) -> Report:
    """All differences, sorted by ARQ. ARQs in ``in_flight`` (a bind is in progress) are skipped. Pure.

    For a bound ARQ, all charges are compared, including those of a resource rule that was removed. A consumer that is
    not bound may not be an ARQ: of its charges, only those of ``resources``, with ``source`` or without a source, are
    compared.
    """
    unmatched = dict(charges)
    differences, compared, own = [], 0, 0
    charged = sum(any(charge.source == source for charge in held) for held in charges.values())
    for attached in bound:
        compared += 1
        held = tuple(unmatched.pop(attached.arq, ()))
        own += any(charge.source == source for charge in held)
        if attached.arq not in in_flight and attached.project_id is not None:
            problem = _problem(held, attached)
            if problem is not None:
                differences.append(Difference(problem, attached.arq, held, attached, _has_source(held, source)))
    for arq, of_consumer in unmatched.items():
        held = tuple(
            charge for charge in of_consumer if charge.resource in resources and charge.source in (source, None)
        )
        compared += bool(held)
        if held and arq not in in_flight:
            differences.append(Difference("not attached", arq, held, None, _has_source(held, source)))
    return Report(compared, sorted(differences, key=lambda difference: difference.arq), charged, own)


def _has_source(held: Iterable[Charge], source: str | None) -> bool:
    return all(charge.source == source for charge in held)


def _problem(held: Sequence[Charge], attached: Attached) -> Problem | None:
    before, after = _sums(held), attached.wanted
    if before == after:
        return None
    if not held:
        return "not charged"
    if {project_id for project_id, _ in before} != {attached.project_id}:
        return "wrong project"
    return "wrong amount"


def _sums(charges: Iterable[Charge]) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for charge in charges:
        key = charge.project_id, charge.resource
        sums[key] = sums.get(key, 0) + charge.delta
    return sums


def format_amounts(amounts: Mapping[tuple[str, str], int]) -> str:
    """Format amounts as ``p1 gpu=1 gpu.A100=1``, or as ``nothing``."""
    by_project: dict[str, list[str]] = {}
    for (project_id, resource), amount in sorted(amounts.items()):
        by_project.setdefault(project_id, []).append(f"{resource}={amount}")
    return ", ".join(" ".join([project_id, *parts]) for project_id, parts in by_project.items()) or "nothing"
