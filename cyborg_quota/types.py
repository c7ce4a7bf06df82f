# SPDX-License-Identifier: Apache-2.0
"""The nouns of the quota system: frozen, typed, and without I/O."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Final, Literal

UNLIMITED: Final = -1
"""A limit that never refuses. 0 is a limit like any other: never test one by truthiness."""

MAX_AMOUNT: Final = 2**31 - 1
"""The most of one resource that a project can hold, or one delta can ask for (an SQL INTEGER)."""

MAX_NAME_CHARS: Final = 255
"""The longest project, resource, consumer or group name, in Unicode code points."""

MAX_NAME_BYTES: Final = 765
"""And in bytes of UTF-8: one index holds three names, and a PostgreSQL index entry ends at 2704 bytes."""

MAX_LIMIT: Final = 2**62
"""The highest limit that can be set."""

MICROSECONDS: Final = 1_000_000
"""In a second."""

State = Literal["reserved", "committed", "rolled_back", "expired", "released"]
RESERVED: Final = "reserved"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"
EXPIRED: Final = "expired"
RELEASED: Final = "released"
STATES: Final[tuple[State, ...]] = (RESERVED, COMMITTED, ROLLED_BACK, EXPIRED, RELEASED)
LIVE_STATES: Final[frozenset[str]] = frozenset({RESERVED, COMMITTED})
"""The states whose rows are counted. (A reserved row that is overdue still counts until it is expired.)"""

Scope = Literal["project", "subtree"]

KEYSTONE: Final = "keystone"
ORIGINS: Final = (KEYSTONE,)
"""The sources of limits that put projects into the tree: see LimitDriver.origin."""


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """Something that is counted, by name: ``fpga``, ``gpu``, ``gpu.A100``."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What one consumer asks for.

    ``consumer`` is chosen by the caller (an ARQ's UUID), or None for a claim that only its reservations' UUIDs
    can settle. ``deltas`` maps resources to signed, non-zero integers. ``group`` None: the call's.

    ``source`` names the program that charges, where several share a database (one of two Cyborgs): it is kept with the
    reservations, and has no part in what they count. None: it is not recorded.
    """

    consumer: str | None
    deltas: Mapping[str, int]
    group: str | None = None
    source: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Constraint:
    """What must hold for a reserve to pass.

    Scope ``project``: the project's used + reserved stays within ``limit``. Scope ``subtree``: so does the sum
    over the project and all its descendants.
    """

    project_id: str
    resource: str
    limit: int
    scope: Scope = "project"


@dataclasses.dataclass(frozen=True, slots=True)
class Counters:
    """The three counters of one usage row."""

    used: int = 0
    reserved: int = 0
    subtree: int = 0

    def __str__(self) -> str:
        return f"used {self.used}, reserved {self.reserved}, subtree {self.subtree}"


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """A project's standing for one resource.

    ``limit`` is None where it is unknown, which only a call with ``allow_unknown_limits`` returns. ``available`` is
    limit - (used + reserved): negative after a limit was lowered, None when the limit is unlimited or unknown.
    """

    limit: int | None
    used: int
    reserved: int

    @property
    def available(self) -> int | None:
        if self.limit is None or self.limit == UNLIMITED:
            return None
        return self.limit - (self.used + self.reserved)


@dataclasses.dataclass(frozen=True, slots=True)
class UsageRecord:
    """One line of the usage list: whose usage, and of what."""

    project_id: str
    resource: str
    usage: Usage


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Over:
    """One constraint that a request would pass.

    ``used`` and ``reserved`` are the offended project's own; ``subtree`` is the total that a constraint of
    scope ``subtree`` bounds, None for scope ``project``. All three are None where the context may not see them
    (an ancestor's usage is an admin's to see). ``requested`` is what the call asked for, summed over its claims.
    """

    project_id: str
    resource: str
    scope: Scope
    limit: int
    requested: int
    used: int | None = dataclasses.field(compare=False)
    reserved: int | None = dataclasses.field(compare=False)
    subtree: int | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        parts = [f"limit {self.limit}" + (" with all below it" if self.scope == "subtree" else "")]
        if self.used is not None and self.reserved is not None:
            parts += [f"used {self.used}", f"reserved {self.reserved}"]
        if self.subtree is not None:
            parts.append(f"subtree {self.subtree}")
        parts.append(f"requested {self.requested}")
        return f"project {self.project_id}, resource {self.resource}: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation as it is stored. Times are naive UTC, to the microsecond."""

    uuid: str
    project_id: str
    resource: str
    delta: int
    state: State
    consumer: str | None
    group: str | None
    expire: datetime.datetime | None
    created_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    source: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """Counters of one usage row beside what the reservations (and the children) say they should be.

    ``recorded`` is None for live reservations whose usage row is missing.
    """

    project_id: str
    resource: str
    recorded: Counters | None
    expected: Counters

    def __str__(self) -> str:
        recorded = "no row" if self.recorded is None else self.recorded
        return f"project {self.project_id}, resource {self.resource}: {recorded}, should be {self.expected}"


@dataclasses.dataclass(frozen=True, slots=True)
class LimitRecord:
    """One limit. ``project_id`` None is the resource's default; ``is_own`` says that it was set, not inherited."""

    project_id: str | None
    resource: str
    limit: int
    is_own: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class TreeRow:
    """A project in the tree, for one resource. ``available`` is what its own limit leaves for its subtree."""

    project_id: str
    parent_id: str | None
    depth: int
    resource: str
    limit: int | None
    used: int
    subtree: int

    @property
    def available(self) -> int | None:
        return None if self.limit is None or self.limit == UNLIMITED else self.limit - self.subtree


@dataclasses.dataclass(frozen=True, slots=True)
class Notice:
    """A project's standing has crossed a threshold of its limit.

    ``before`` and ``now`` are the highest thresholds reached, in percent: 0 for none, 101 for more than the limit.
    """

    project_id: str
    resource: str
    limit: int
    held: int
    before: int
    now: int

    def __str__(self) -> str:
        where = {0: "below every threshold", 101: "over the limit"}.get(self.now, f"at {self.now} % of the limit")
        return f"project {self.project_id}, resource {self.resource}: {where} (held {self.held}, limit {self.limit})"


@dataclasses.dataclass(frozen=True, slots=True)
class LimitChange:
    """One thing that an import changes: a project's place (its parents, before and after), or a limit.

    ``project_id`` None is a default; ``resource`` None is a place; None before or after is a root, or no limit.
    """

    action: Literal["add project", "move project", "set limit", "unset limit"]
    project_id: str | None
    resource: str | None
    before: str | int | None
    after: str | int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Which reservations a settling call means: exactly one of the three is given.

    ``project_id`` None means any project's, which only an admin's context may ask for, and only by UUID.
    """

    project_id: str | None
    uuids: Sequence[str] | None = None
    consumer: str | None = None
    group: str | None = None


def __getattr__(name: str) -> object:
    """``Figures`` is the former name of ``Counters``; it is kept for programs that use it."""
    if name == "Figures":
        return Counters
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
