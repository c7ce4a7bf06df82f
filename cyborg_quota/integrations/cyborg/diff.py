# SPDX-License-Identifier: Apache-2.0
"""What is charged beside what is attached, ARQ by ARQ, and where the two differ. Pure: no I/O, no Cyborg."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

Problem = Literal["not attached", "not charged", "wrong project", "wrong amount", "released, not charged"]
"""The last one is what a repair may leave, when somebody else charges the ARQ at that moment."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attached:
    """A bound ARQ. ``deltas``: what it is charged as; {} where it is not counted."""

    arq: str
    project_id: str | None
    instance: str | None
    deltas: Mapping[str, int]

    @property
    def wanted(self) -> dict[tuple[str, str], int]:
        """{(project, resource): amount}"""
        return {(str(self.project_id), resource): delta for resource, delta in self.deltas.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Charge:
    """A committed reservation of an ARQ. ``source``: who made it, None where that was not recorded."""

    uuid: str
    project_id: str
    resource: str
    delta: int
    source: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One ARQ about which the two disagree. ``attached`` None: Cyborg has no such ARQ bound.

    ``is_own``: all of its charges are of the source for which the two are compared; others are never changed.
    ``is_certain``: not attached, and Cyborg does not have the ARQ any more, or has unbound it.
    """

    problem: Problem
    arq: str
    charges: tuple[Charge, ...]
    attached: Attached | None
    is_own: bool = True
    is_certain: bool = False

    @property
    def identity(self) -> tuple[object, ...]:
        """The same difference: the same charges, the same attachment."""
        attached = None if self.attached is None else (self.attached.project_id, self.attached.instance)
        return self.arq, self.charges, attached

    def __str__(self) -> str:
        return f"ARQ {self.arq}: {self.problem}; charged {shown(self.before)}, attached {shown(self.after)}"

    @property
    def sources(self) -> str:
        """Who charged it: ``cyborg``, or ``none`` where that was not recorded; several are separated by commas."""
        return ", ".join(sorted({one.source or "none" for one in self.charges}))

    @property
    def before(self) -> dict[tuple[str, str], int]:
        """{(project, resource): amount} in the ledger."""
        return _sums(self.charges)

    @property
    def after(self) -> dict[tuple[str, str], int]:
        """The same by Cyborg's records."""
        return {} if self.attached is None else self.attached.wanted


class Records(Protocol):
    """Where Cyborg's side comes from."""

    def bound(self) -> Iterator[Attached]: ...

    def bound_of(self, arqs: Collection[str]) -> dict[str, Attached]: ...

    def unbound_of(self, arqs: Collection[str]) -> set[str]:
        """Those of these that Cyborg does not have any more, or has unbound."""
        ...

    def is_empty(self) -> bool:
        """Whether Cyborg has no ARQ at all, in whatever state."""
        ...


@dataclasses.dataclass(frozen=True)
class Report:
    """What a reconciliation found, and how many ARQs it compared.

    ``charged``: how many ARQs the ledger has of this source, ``lost`` of which are not attached. ``is_empty``: Cyborg
    has no ARQ at all.
    """

    compared: int
    differences: Sequence[Difference]
    charged: int = 0
    is_empty: bool = False

    @property
    def lost(self) -> int:
        return sum(one.attached is None and one.is_own for one in self.differences)


def compare(
    charges: Mapping[str, Sequence[Charge]],
    in_flight: Collection[str],
    bound: Iterable[Attached],
    resources: Collection[str],
    source: str | None = None,
) -> Report:
    """Every difference, sorted by ARQ. What is in flight is nobody's business yet. Pure.

    Of an ARQ that is bound every charge counts, also one by a rule that is gone. Who is not bound may be no ARQ at all:
    of its charges only those count that are of these ``resources``, and not of another source than ``source``.
    """
    left = dict(charges)
    found, compared = [], 0
    charged = sum(any(one.source == source for one in held) for held in charges.values())
    for attached in bound:
        compared += 1
        held = tuple(left.pop(attached.arq, ()))
        if attached.arq not in in_flight and attached.project_id is not None:
            problem = _problem(held, attached)
            if problem is not None:
                found.append(Difference(problem, attached.arq, held, attached, _is_own(held, source)))
    for arq, rest in left.items():
        held = tuple(one for one in rest if one.resource in resources and one.source in (source, None))
        compared += bool(held)
        if held and arq not in in_flight:
            found.append(Difference("not attached", arq, held, None, _is_own(held, source)))
    return Report(compared, sorted(found, key=lambda one: one.arq), charged)


def _is_own(held: Iterable[Charge], source: str | None) -> bool:
    return all(one.source == source for one in held)


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
    for one in charges:
        sums[one.project_id, one.resource] = sums.get((one.project_id, one.resource), 0) + one.delta
    return sums


def shown(amounts: Mapping[tuple[str, str], int]) -> str:
    """``p1 gpu=1 gpu.A100=1``, or ``nothing``."""
    by_project: dict[str, list[str]] = {}
    for (project_id, resource), amount in sorted(amounts.items()):
        by_project.setdefault(project_id, []).append(f"{resource}={amount}")
    return ", ".join(" ".join([project_id, *parts]) for project_id, parts in by_project.items()) or "nothing"
