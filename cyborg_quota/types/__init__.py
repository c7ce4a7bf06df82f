# SPDX-License-Identifier: Apache-2.0
"""The data types of cyborg_quota: immutable, typed, without I/O."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeVar, get_args

if TYPE_CHECKING:
    from cyborg_quota.types.hours import BudgetUse

K = TypeVar("K")
T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by their key, in order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def summed(amounts: Iterable[tuple[K, int]]) -> dict[K, int]:
    """The sum of the amounts of each key."""
    sums: dict[K, int] = {}
    for key, amount in amounts:
        sums[key] = sums.get(key, 0) + amount
    return sums


def in_pages(read: Callable[[K | None], Sequence[T]], rows: int, marker_of: Callable[[T], K]) -> Iterator[T]:
    """All rows of a list that is read in pages of ``rows`` rows. ``read``: the page after a marker; None: the first."""
    after: K | None = None
    while True:
        page = read(after)
        yield from page
        if len(page) < rows:
            return
        after = marker_of(page[-1])


UNLIMITED: Final = -1
"""The value of a limit that permits any amount. 0 permits nothing: compare limits with ``is None``, not as booleans."""

MAX_AMOUNT: Final = 2**31 - 1
"""The maximum of a counter and of a delta (an SQL INTEGER)."""

MAX_COUNTED: Final = 2**33 - 1
"""The maximum of ``subtree``, so that no meter leaves 64 bits before the year 2050: 2**33 devices * 2**30 seconds."""

MAX_NAME_CHARS: Final = 255
"""The maximum length of the name of a project, resource, consumer or group, in Unicode code points."""

MAX_NAME_BYTES: Final = 765
"""The maximum length of a name in bytes of UTF-8: an index has three names, and a PostgreSQL index entry 2704 bytes."""

MAX_REASON_CHARS: Final = 1000
"""The maximum length of the reason of a change of limits, in Unicode code points."""

MAX_LIMIT: Final = 2**62
"""The maximum value of a limit."""

MICROSECONDS: Final = 1_000_000
"""Microseconds in a second."""

ANY: Final = "any"
"""As the provider of a claim: any one provider that can host and fits the whole claim."""

SELECT_TEXT: Final = "select"
"""SELECT as a text, for the command line. No pod has this name."""

State = Literal["reserved", "committed", "rolled_back", "expired", "released"]
RESERVED: Final = "reserved"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"
EXPIRED: Final = "expired"
RELEASED: Final = "released"
STATES: Final[tuple[State, ...]] = (RESERVED, COMMITTED, ROLLED_BACK, EXPIRED, RELEASED)
LIVE_STATES: Final[frozenset[str]] = frozenset({RESERVED, COMMITTED})
"""The states that count towards usage. An overdue reservation counts until it is expired."""

Scope = Literal["project", "subtree", "total", "counter", "budget"]

TOTAL: Final = " total"
"""In place of a project: the total over all projects. (The name of a project does not begin with a blank.)"""

Marker = tuple["str | None", "str | None"]
"""A row of a list: its project (None: the default limits) and its resource (None: the last row of the project)."""


class ResourceKey(NamedTuple):
    """What a counter or a limit is for: a resource, in one pod or ("") in all pods."""

    resource: str
    pod: str = ""

    def __str__(self) -> str:
        """For a message: ``gpu``, or ``gpu in pod p1``."""
        return f"{self.resource} in pod {self.pod}" if self.pod else self.resource

    @property
    def is_whole(self) -> bool:
        """Whether it counts the whole resource, not what is in one pod."""
        return not self.pod


class UsageKey(NamedTuple):
    """The key of a usage row and of a limit of a project: the project and the parts of a ResourceKey."""

    project_id: str
    resource: str
    pod: str = ""

    @property
    def resource_key(self) -> ResourceKey:
        return ResourceKey(self.resource, self.pod)

    @property
    def is_whole(self) -> bool:
        """As that of a ResourceKey."""
        return not self.pod


class InventoryKey(NamedTuple):
    """The key of an inventory: the id of a provider, and a resource."""

    provider_id: int
    resource: str


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """A countable resource, identified by its name: ``fpga``, ``gpu``, ``gpu.A100``.

    ``description``: what it is; ``unit``: what an amount of 1 is, as in GB. None: not known.
    """

    name: str
    description: str | None = None
    unit: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PodChoice:
    """As the pod of a claim: the pod of the project for this zone (None: any) and these tags.

    That is the pod in which the group of the claim holds something; else the pod to which the project is bound; else
    the best one that fits the claim, to which the project is then bound.
    """

    zone: str | None = None
    affinity: Mapping[str, str] = dataclasses.field(default_factory=dict)


SELECT: Final = PodChoice()
"""As the pod of a claim: the pod of the project in any zone, without tags."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The request of one consumer.

    ``consumer`` is a name that the caller chooses (the UUID of an ARQ). With None, the reservations can be addressed
    only by their UUIDs. ``deltas`` maps resources to amounts, integers of 1 and more. With ``group`` None, the group of
    the call applies.

    ``source`` names the program that makes the reservations, where several programs share a database (two Cyborgs).
    It is stored with the reservations and does not affect the counters. None: no source is stored.

    ``provider`` is the UUID or the name of the provider whose capacity the claim takes, or one for each resource, by
    resource, or ANY: one provider that fits the whole claim, or one and the shared pool that serves it. None: the claim
    takes quota only.

    ``pod``, only with the provider ANY: a provider of this pod. SELECT or another PodChoice: of the pod of the project.
    None: of any pod or none. The name of a pod without a provider: the quota is counted in the pod.
    """

    consumer: str | None
    deltas: Mapping[str, int]
    group: str | None = None
    source: str | None = None
    provider: str | Mapping[str, str] | None = None
    pod: str | PodChoice | None = None


class ReserveRequest(NamedTuple):
    """The arguments of a reserve; of an adoption, which is committed without checking limits: without a lifetime."""

    project_id: str
    claims: Sequence[Claim]
    group: str | None
    ttl_microseconds: int | None
    sees_all: bool
    """Whether the caller may see the usage of ancestors."""
    state: State = RESERVED


class ResizeRequest(NamedTuple):
    """The arguments of a resize. ``expected``: the amounts that must be held, by resource; may be empty."""

    selection: Selection
    amounts: Mapping[str, int]
    expected: Mapping[str, int]
    sees_all: bool


class TransferRequest(NamedTuple):
    """The arguments of a transfer: two different projects, and the consumer whose live reservations it moves."""

    sender: str
    receiver: str
    consumer: str


@dataclasses.dataclass(frozen=True, slots=True)
class Constraint:
    """A condition that a reserve must satisfy.

    With scope ``project``, used + reserved of the project must not exceed ``limit``. With scope ``subtree``, the sum
    of used + reserved over the project and its descendants must not exceed it. With scope ``total`` (project_id TOTAL),
    the sum over all projects must not exceed it. Scope ``counter``, which no limit driver returns, is as ``project``:
    the width of the counter. With scope ``budget``, the sum of the subtree must not exceed it at this moment, because
    the hours of ``budget`` do not last longer. ``pod``: what they hold in this pod; "": in all.
    """

    project_id: str
    resource: str
    limit: int
    scope: Scope = "project"
    pod: str = ""
    budget: BudgetUse | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def of(cls, key: UsageKey, limit: int, scope: Scope = "project") -> Constraint:
        """The constraint of this usage row."""
        return cls(key.project_id, key.resource, limit, scope, key.pod)

    @property
    def key(self) -> UsageKey:
        """The usage row that it limits."""
        return UsageKey(self.project_id, self.resource, self.pod)


@dataclasses.dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a usage row. ``subtree``: used + reserved, summed over the project and its descendants.

    ``promised``: what the minimums of descendants keep beyond that. ``minimum``: that of the project itself.
    ``metered``, ``meter_base``: the device-seconds, see db/meters.py; not compared.
    """

    used: int = 0
    reserved: int = 0
    subtree: int = 0
    promised: int = 0
    minimum: int = 0
    metered: int = dataclasses.field(default=0, compare=False)
    meter_base: int = dataclasses.field(default=0, compare=False)

    def used_until(self, at: int) -> int:
        """The device-seconds that were used until this second (db/clock.py)."""
        return self.metered + self.subtree * at

    def is_same(self, other: Counters) -> bool:
        """Whether the meters are equal, too."""
        return self == other and (self.metered, self.meter_base) == (other.metered, other.meter_base)

    @property
    def counted(self) -> int:
        """What a limit of the subtree bounds: see db/minimums.py."""
        return self.subtree + self.promised

    @property
    def passed_on(self) -> int:
        """What it adds to ``counted`` of the row above."""
        return max(self.counted, self.minimum)

    def kept(self, freed: int) -> int:
        """The amount that the row's minimum absorbs once ``freed`` has left it: the row above does not grow by it."""
        return max(0, self.minimum - self.counted + freed)

    def __str__(self) -> str:
        promised = f", promised {self.promised}" if self.promised else ""
        return f"used {self.used}, reserved {self.reserved}, subtree {self.subtree}{promised}"


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one resource by a project.

    If no limit is set and reserves are therefore refused, ``limit`` is 0. ``available`` is limit - (used + reserved):
    negative if the limit was lowered below the usage, and None if the limit is unlimited.
    """

    limit: int
    used: int
    reserved: int

    @property
    def available(self) -> int | None:
        return None if self.limit == UNLIMITED else self.limit - (self.used + self.reserved)


Bound = Literal["project", "subtree", "total", "counter", "provider", "budget"]
"""What limits a headroom: a constraint of that scope, the width of the counter, or what a provider has and permits."""
HIDDEN_LIMITS: Final = ("budget",)
"""The scopes whose limit is hidden: the devices that a budget permits would reveal how much of it is spent."""


@dataclasses.dataclass(frozen=True, slots=True)
class Headroom:
    """``fits``: the largest amount of a resource that a reserve made now would be granted.

    None: unlimited, that is, every amount of a valid request (up to MAX_AMOUNT) would be granted. A project without a
    limit that holds something has the ``fits`` that is left in its 32-bit counter, with the scope ``counter``.
    ``bound_by``: the project whose limit determines it (or the project itself); None if there is no such project.
    ``limit``: that limit, or MAX_AMOUNT. With ``bound_by``, a ``limit`` of None means that this project has no limit,
    so that nothing fits; with the scope ``budget``, ``limit`` is always None. If the total limit over all projects
    determines it, ``scope`` is ``total`` and ``bound_by`` None.

    If the capacity of a provider was considered, ``fits`` is also an amount that the units of a provider permit (or 0),
    and ``free_total`` is what is free at the provider, or with ANY at all providers that can host. If the provider
    permits less than the quota, ``scope`` is ``provider``, ``bound_by`` is its name (or ANY), and ``limit`` is None.
    ``pod``: that of the limit that determines it; "" if the context may not see its name; None: it is of no pod.
    """

    fits: int | None
    bound_by: str | None = None
    scope: Bound | None = None
    limit: int | None = None
    free_total: int | None = None
    pod: str | None = None


class ActiveOverride(NamedTuple):
    """An override that applies now: its end (naive UTC), and the limit without it. None: none is set."""

    until: datetime.datetime
    otherwise: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class UsageRecord:
    """An entry of the usage list: a project, a resource and its usage.

    ``headroom`` is None if the list was read without it. ``pod``: the usage in this pod,
    and the limit there; None: in all. ``override``: the one that determines the limit. ``is_own``: it, or a limit, is
    set for the project. Only get_detail reads these. ``minimum``, ``promised``: as of Counters.
    """

    project_id: str
    resource: str
    usage: Usage
    headroom: Headroom | None = None
    pod: str | None = None
    override: ActiveOverride | None = None
    is_own: bool = False
    minimum: int = 0
    promised: int = 0

    @classmethod
    def of(
        cls, key: UsageKey, limits: Mapping[UsageKey, int], now: Counters, headroom: Headroom | None = None
    ) -> UsageRecord:
        """The record of a usage row. ``limits``: those that are set (in a pod, there need not be one)."""
        usage = Usage(limits.get(key, UNLIMITED), now.used, now.reserved)
        return cls(*key[:2], usage, headroom, key.pod or None, minimum=now.minimum, promised=now.promised)

    def without_others(self) -> UsageRecord:
        """The record without what other projects have (I8): those below it, which its own users may not see."""
        return dataclasses.replace(self, promised=0)

    @property
    def lacks_limit(self) -> bool:
        """Whether nothing can be reserved because the project has no limit. A limit in a pod does not replace it."""
        bound = self.headroom or Headroom(0)
        is_own = bound.scope == "project" and bound.bound_by == self.project_id
        return self.pod is None and is_own and bound.limit is None


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Over:
    """A constraint that a request would violate, or (found by ``check`` only) another bound that would refuse it.

    ``used`` and ``reserved`` are the counters of the project of the constraint. ``subtree`` is the total that a
    constraint of scope ``subtree`` or ``total`` limits, and None for scope ``project``. With scope ``total``, the
    project is TOTAL, and ``used`` and ``reserved`` are 0. All three are None if the context may not see them: only an
    admin sees the usage of an ancestor. ``requested``: the amount, summed over the claims of the call. ``pod``: of a
    limit per pod; "" if the context may not see its name; None: the limit applies over all pods. ``fits``: in the
    result of ``check``, the largest amount of the resource that would be granted at the same moment; otherwise None.
    ``is_ancestor``: the limit of an ancestor of the project that asks. ``promised``: what minimums of projects below
    keep there beyond ``subtree``. ``kept``: how much of that the project that asks can take.

    The other bounds have the scope ``counter`` (``limit`` is MAX_AMOUNT), or ``project`` and the limit None: this
    project has no limit, so that nothing can be reserved. With scope ``budget``, ``limit`` is what may be held at this
    moment (None if the context may not see it), and ``budget`` has the hours.
    """

    project_id: str
    resource: str
    scope: Bound
    limit: int | None
    requested: int
    used: int | None = dataclasses.field(compare=False)
    reserved: int | None = dataclasses.field(compare=False)
    subtree: int | None = dataclasses.field(default=None, compare=False)
    pod: str | None = dataclasses.field(default=None, compare=False)
    fits: int | None = dataclasses.field(default=None, compare=False)
    is_ancestor: bool = dataclasses.field(default=False, compare=False)
    promised: int = dataclasses.field(default=0, compare=False)
    kept: int = dataclasses.field(default=0, compare=False)
    budget: BudgetUse | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def of(cls, constraint: Constraint, requested: int, now: Counters, project_id: str, kept: int) -> Over:
        """What exceeds this constraint. ``project_id``: the project that asks."""
        key, is_own = constraint.key, constraint.scope in ("project", "counter")
        return cls(
            *key[:2],
            constraint.scope,
            constraint.limit,
            requested,
            now.used,
            now.reserved,
            None if is_own else now.subtree,
            key.pod or None,
            is_ancestor=key.project_id != project_id,
            promised=now.promised if constraint.scope in ("subtree", "total") else 0,
            kept=kept,
            budget=constraint.budget,
        )

    @property
    def key(self) -> UsageKey:
        """The usage row that the constraint limits."""
        return UsageKey(self.project_id, self.resource, self.pod or "")

    @property
    def room(self) -> int:
        """The largest amount that the constraint would permit. (Not after ``seen_by``, which hides what it needs.)"""
        usage = (self.used or 0) + (self.reserved or 0) if self.subtree is None else self.subtree
        return max(0, (self.limit or 0) - usage - self.promised) + self.kept

    def seen_by(self, project_id: str) -> Over:
        """What the users of a project may see (I8): of other projects no counters, and of a budget no limit either; of
        their own violation not what its descendants hold, unless it is of a budget.
        """
        changes: dict[str, Any] = {"used": None, "reserved": None, "subtree": None}
        if self.project_id == project_id:
            changes = {"subtree": self.subtree if self.budget else None, "promised": 0}
        elif self.budget is not None:
            changes |= {"limit": None, "budget": self.budget.hidden}
        return dataclasses.replace(self, **changes)

    @property
    def counts_descendants(self) -> bool:
        """Whether the figures of the project alone do not explain the refusal: its descendants ask or hold something.

        Where ``subtree`` is hidden, they hold something if the request would fit beside ``used`` and ``reserved``.
        """
        if self.scope != "subtree" or self.limit is None:
            return False
        if self.is_ancestor or self.used is None or self.reserved is None:
            return True
        held = self.used + self.reserved
        return held + self.requested <= self.limit if self.subtree is None else held != self.subtree

    def __str__(self) -> str:
        if self.budget is not None:
            return f"{self.resource}: project {self.project_id}, {self.budget.describe(self.requested)}"
        counts_descendants = self.counts_descendants
        limit = f"limit {'not set' if self.limit is None else self.limit}"
        owner, figures = "all projects", {"held": self.subtree}
        if self.scope != "total":
            owner, subtree = f"project {self.project_id}", self.subtree if counts_descendants else None
            figures = {"used": self.used, "reserved": self.reserved, "subtree": subtree}
        figures |= {"promised": self.promised or None, "requested": self.requested, "fits": self.fits}
        pod = "" if self.pod is None else f" in pod {self.pod}" if self.pod else " in one pod"
        shown = [f"{name} {figure}" for name, figure in figures.items() if figure is not None]
        words = " (project and its descendants)" if counts_descendants else ""
        return f"{owner}, resource {self.resource}{pod}: {', '.join([limit + words, *shown])}"


@dataclasses.dataclass(frozen=True, slots=True)
class Reservation:
    """A stored reservation. Times are naive UTC with microseconds.

    ``provider`` is the name of the provider whose capacity it takes or took. None: it took quota only, or the provider
    was removed after it had ended.
    """

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
    provider: str | None = None


class Row(NamedTuple):
    """The columns of a stored reservation that its transitions need. ``overdue`` was computed by the database's clock.

    ``generation`` counts its resizes and transfers. ``pod``: the pod in which it is counted, besides all pods.
    ``meter``: what it has added to the meter of its usage row (db/meters.py).

    ``ended_after`` is the highest reservation id at the time this one ended: ids, not times, define the
    order, because clocks can run backwards.
    """

    id: int
    uuid: str
    usage_id: int
    project_id: str
    resource: str
    delta: int
    state: State
    overdue: bool
    consumer: str | None = None
    provider_id: int | None = None
    generation: int = 0
    pod: str | None = None
    meter: int = 0
    ended_after: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """A usage row whose counters differ from the sums of the reservations and of the children.

    ``recorded`` is None if there are live reservations but no usage row.
    """

    key: UsageKey
    recorded: Counters | None
    expected: Counters

    def __str__(self) -> str:
        recorded, expected = "no row" if self.recorded is None else str(self.recorded), str(self.expected)
        if self.recorded is not None and self.recorded.metered != self.expected.metered:
            recorded += f", metered {self.recorded.metered}"
            expected += f", metered {self.expected.metered}"
        owner = "all projects" if self.key.project_id == TOTAL else f"project {self.key.project_id}"
        return f"{owner}, resource {self.key.resource_key}: {recorded}, should be {expected}"


@dataclasses.dataclass(frozen=True, slots=True)
class LimitRecord:
    """A limit. ``project_id`` None: the default of the resource. ``is_own``: a limit is set here; it is not inherited.

    ``override``: the override that determines ``limit`` now, also if the project has a limit of its own. ``pod``: it
    applies in this pod only; None: over all pods.
    """

    project_id: str | None
    resource: str
    limit: int
    is_own: bool = True
    override: LimitOverride | None = None
    pod: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TotalLimit:
    """The limit of a resource over all projects. ``held``: used + reserved; ``promised``: what minimums keep beyond."""

    resource: str
    limit: int
    held: int
    promised: int = 0

    @classmethod
    def of(cls, resource: str, limit: int, counters: Mapping[UsageKey, Counters]) -> TotalLimit:
        """The limit, with what the row of the total counts."""
        now = counters.get(UsageKey(TOTAL, resource), Counters())
        return cls(resource, limit, now.subtree, now.promised)


@dataclasses.dataclass(frozen=True)
class Notice:
    """The use of a project has crossed a threshold of its limit. Each subclass is about another kind of limit.

    ``owner`` None: all projects together, or all providers. ``used``: of a project, also what it has reserved.
    ``before`` and ``now`` are the highest thresholds reached, in percent. 0: none. 101: more than the limit.
    """

    OWNER: ClassVar[str] = "project"
    BOUND: ClassVar[str] = "limit"
    EVENT: ClassVar[str] = "cyborg_quota.threshold"
    SHOWN_BY: ClassVar[str] = "`cyborg-quota list --over` and `list --usage` show"

    owner: str | None
    resource: str
    limit: float
    used: float
    before: int
    now: int

    def __str__(self) -> str:
        owner = f"all {self.OWNER}s" if self.owner is None else f"{self.OWNER} {self.owner}"
        return f"{owner}, resource {self.resource}: {self.where} (used {self.used}, {self.BOUND} {self.limit})"

    @property
    def where(self) -> str:
        """The level that was reached, in words."""
        if self.now in (0, 101):
            return f"over the {self.BOUND}" if self.now else "below every threshold"
        return f"at the {self.BOUND}" if self.used == self.limit else f"at {self.now} % of the {self.BOUND}"


@dataclasses.dataclass(frozen=True, slots=True)
class LimitOverride:
    """A limit that applies from ``starts_at`` until (and not at) ``until``. Times are naive UTC, of the database.

    ``made``: the generation and the number of its entry in the history. Where overrides of one limit overlap, the one
    with the highest ``made`` applies.
    """

    made: tuple[int, int]
    project_id: str
    resource: str
    limit: int
    starts_at: datetime.datetime
    until: datetime.datetime
    reason: str | None = None

    @property
    def id(self) -> str:
        """The name by which it is cancelled: the id of its entry in the history."""
        return f"{self.made[0]}-{self.made[1]}"


Value = str | int | Mapping[str, Any] | None
"""What the history has before or after a change; None: it did not exist, or does not any more."""

Subject = Literal["limit", "minimum", "budget", "override", "project", "provider", "inventory", "pod"]
SUBJECTS: Final[tuple[Subject, ...]] = get_args(Subject)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedChange:
    """One change of a limit, a minimum, an override, the parent of a project, a provider, an inventory or a pod.

    ``action`` is a verb and the subject: set limit, unset limit; set minimum; set override, cancel override; add
    project, move project, remove project; the same verbs with provider, inventory and pod.

    For a limit, ``before`` and ``after`` are its values (None: not set), and ``project_id`` None means the default of
    the resource. For an override, they are its limit, None before it was made and after it was cancelled. For a parent,
    ``resource`` is None, and ``before`` and ``after`` are the parents (None: a root). For all others they are the
    values by name. ``pod``: the pod, or that of a limit per pod. ``provider``: its name.
    """

    action: str
    project_id: str | None
    resource: str | None
    before: Value
    after: Value
    override: LimitOverride | None = None
    pod: str | None = None
    provider: str | None = None
    provider_uuid: str | None = None

    @classmethod
    def of_limit(
        cls, project_id: str | None, key: ResourceKey, before: int | None, after: int | None
    ) -> RecordedChange:
        """The change of a limit of a project, or of a default (None)."""
        action = "unset limit" if after is None else "set limit"
        return cls(action, project_id, key.resource, before, after, pod=key.pod or None)

    @classmethod
    def of_override(cls, override: LimitOverride, *, is_cancelled: bool = False) -> RecordedChange:
        """An override was set. ``is_cancelled``: it was cancelled, or its project was removed."""
        action = "cancel override" if is_cancelled else "set override"
        before, after = (override.limit, None) if is_cancelled else (None, override.limit)
        return cls(action, override.project_id, override.resource, before, after, override)

    @classmethod
    def of_parent(cls, project_id: str, parents: Mapping[str, str | None], parent_id: str | None) -> RecordedChange:
        """The project is moved below ``parent_id``, or added if it is not in ``parents``, the tree before."""
        action = "move project" if project_id in parents else "add project"
        return cls(action, project_id, None, parents.get(project_id), parent_id)

    @property
    def key(self) -> UsageKey:
        """Of a limit or an override of a project: the usage row that it bounds."""
        return UsageKey(str(self.project_id), str(self.resource), self.pod or "")

    @property
    def names(self) -> dict[str, str | None]:
        """The project and the resource; and the pod, if there is one."""
        names = {"project_id": self.project_id, "resource": self.resource}
        return names if self.pod is None else {**names, "pod": self.pod}


@dataclasses.dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change, and why; recorded in the history. None: not known.

    ``user_id``, ``project_id`` and ``request_id`` are those of the context. The command line: the system's user.
    """

    user_id: str | None = None
    project_id: str | None = None
    request_id: str | None = None
    reason: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedChanges:
    """The changes of one transaction, as the history has them. ``operation``: see HistoryEntry."""

    generation: int
    author: Author
    operation: str | None
    changes: Sequence[RecordedChange]


@dataclasses.dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of the history.

    ``id`` is "<generation>-<number>"; the generation is that of the transaction. ``at`` is naive UTC, by the clock of
    the database. ``user_id``, ``user_project_id`` and ``request_id`` identify the caller. ``operation`` names the call
    that made several changes at once, or the limit driver that made the change: import, keystone. The other fields are
    as in RecordedChange; ``override_id``, ``starts_at`` and ``until`` are those of an override.
    """

    id: str
    at: datetime.datetime | None
    user_id: str | None
    user_project_id: str | None
    request_id: str | None
    action: str
    operation: str | None
    project_id: str | None
    resource: str | None
    pod: str | None
    provider: str | None
    provider_uuid: str | None
    override_id: str | None
    starts_at: datetime.datetime | None
    until: datetime.datetime | None
    before: Any
    after: Any
    reason: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Selects the reservations of a commit, rollback, release or extend, by exactly one of the last three fields.

    With ``project_id`` None, the UUIDs may belong to any project. Only an admin's context may do that.
    """

    project_id: str | None
    uuids: Sequence[str] | None = None
    consumer: str | None = None
    group: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ReservationFilter:
    """Selects reservations that have all given values: at most ``limit``, after the one with the UUID ``after``."""

    project_id: str | None = None
    state: State | None = None
    uuids: Collection[str] | None = None
    consumer: str | None = None
    group: str | None = None
    resource: str | None = None
    limit: int | None = None
    after: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """The part of a list to read: the first ``limit`` rows (None: all) after ``after``, of one resource or of all."""

    limit: int | None = None
    after: Marker | None = None
    resource: str | None = None


def is_unbounded(fits: int | None, scope: str | None) -> bool:
    """Whether no limit bounds what fits. ``scope``: that of the limit that bounds it, if there is one.

    (The width of a counter does not count as a limit until half of it is in use.)
    """
    return fits is None or fits == UNLIMITED or (scope == "counter" and fits > MAX_AMOUNT // 2)
