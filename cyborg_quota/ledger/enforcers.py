# SPDX-License-Identifier: Apache-2.0
"""The interface of enforcers: each is a kind of rule that may refuse a charge.

The ledger changes reservations and usage rows, and compares the usage rows with their limits. An enforcer says in which
usage rows a reservation is counted, and may have further conditions for a claim. DbQuotaDriver lists the enforcers in
the order in which they lock rows. An enforcer with ``fields`` takes part in a reserve only if a claim sets one of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from cyborg_quota import exceptions
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.inventories import InventoryClaim, InventoryLocation
from cyborg_quota.db.path_state import PathState, ProjectPath
from cyborg_quota.db.reservations import NewReservation
from cyborg_quota.ledger import enforcement, transitions
from cyborg_quota.ledger.enforcement import Bundles, K
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.limit_source import LimitDriver, PathLimits
from cyborg_quota.ledger.transitions import CountersOf
from cyborg_quota.subject import Subject
from cyborg_quota.types import (
    ANY,
    RESERVED,
    Claim,
    Counters,
    Headroom,
    InventoryKey,
    Over,
    RecordedChange,
    ReserveRequest,
    ResizeRequest,
    ResourceKey,
    Row,
    UsageKey,
    UsageRecord,
    grouped,
)
from cyborg_quota.types.capacity import CapacityDrift, FreeInventories, ResourceUse
from cyborg_quota.types.limits import RowBound


class Rooms:
    """What is left of some resources.

    ``fits``: the headrooms, by resource. ``bundles``: how many bundles fit. ``provider`` and ``pod``: where the caller
    asks; None: nowhere in particular. ``is_open`` False: no claim is taken there.
    """

    def __init__(
        self,
        state: PathState,
        limits: PathLimits,
        resources: Collection[str],
        counters_of: CountersOf,
        *,
        provider: str | None = None,
        pod: str | None = None,
        bundle: Mapping[str, int] | None = None,
    ) -> None:
        self.state = state
        self.project_id = state.project_ids[0]
        self.limits = limits
        self.resources = resources
        self.provider = provider
        self.pod = pod
        self.bundle = bundle
        self.is_open = True
        self._counters_of = counters_of
        # (By key: a project may have limits in many pods.)
        self._constraints = grouped(limits.constraints, lambda constraint: constraint.key.resource_key)
        self.fits = self.in_pod(pod)
        self.bundles = Bundles(0, None) if bundle is None else self._how_many(bundle, pod)

    def in_pod(self, pod: str | None) -> dict[str, Headroom]:
        """What the limits leave in one pod, by resource; None: in no pod."""
        return self._left({resource: tuple(self._counters_of(resource, pod)) for resource in self.resources})

    def _left(self, keys: Mapping[K, Collection[ResourceKey]]) -> dict[K, Headroom]:
        counted = {key for resource_keys in keys.values() for key in resource_keys}
        constraints = [constraint for key in counted for constraint in self._constraints.get(key, ())]
        path, counters = self.state.project_ids, self.state.counters
        return enforcement.compute(path, keys, constraints, counters, missing=self.limits.missing)

    def _how_many(self, bundle: Mapping[str, int], pod: str | None) -> Bundles:
        """How many bundles the limits leave in one pod: resources may share a counter."""
        amounts = transitions.by_counter(bundle, self._counters_of, pod)
        return enforcement.how_many(amounts, self._left({key: (key,) for key in amounts}))

    def narrow_fits(self, provider: str, free: Mapping[str, Mapping[str | None, Sequence[FreeInventories]]]) -> None:
        """Consider also what is free, by resource and pod. ``provider``: its name, or ANY."""
        quotas = {pod: self.in_pod(pod) for by_pod in free.values() for pod in by_pod}
        for resource, quota in self.in_pod(self.pod).items():
            by_pod = [
                enforcement.at_provider(quotas[pod][resource], inventories, provider)
                for pod, inventories in free.get(resource, {}).items()
            ]
            nothing = enforcement.at_provider(quota, (), provider)
            best = max(by_pod, key=lambda headroom: headroom.fits or 0, default=nothing)
            self.fits[resource] = dataclasses.replace(
                best, free_total=sum(headroom.free_total or 0 for headroom in by_pod)
            )

    def narrow_bundles(self, at_providers: Mapping[str | None, int]) -> None:
        """Consider also how many bundles fit at providers, by pod."""
        bundle = self.bundle or {}
        number = sum(min(maximum, self._how_many(bundle, pod).number) for pod, maximum in at_providers.items())
        by_limits = self._how_many(bundle, self.pod)  # (not ``self.bundles``: the read may be a repetition)
        self.bundles = by_limits if by_limits.number <= number else Bundles(number, None)

    def records(self, resources: Collection[str], limits: Mapping[UsageKey, int]) -> list[UsageRecord]:
        """The usage there, the limits of the project, and what fits. A resource without headroom cannot be reserved."""
        records = []
        for resource in sorted(resources):
            key = UsageKey(self.project_id, resource, self.pod or "")
            now = self.state.counters.get(key, Counters())
            records.append(UsageRecord.of(key, limits, now, self.fits.get(resource, Headroom(0))))
        return records


_MAX_CACHED_COUNTERS: Final = 10_000


@dataclasses.dataclass(eq=False)
class Refused(Exception):
    """A rule refused a claim: roll back. ``inventory_id``: the inventory that did; None: nothing was found to take."""

    inventory_id: int | None = None


class PreparationChanged(Exception):
    """What an enforcer has prepared is out of date: roll back, and prepare again."""


@dataclasses.dataclass(slots=True, eq=False)
class PendingClaim:
    """A claim that is being charged. Its UUIDs are generated once, so that a retry finds the rows of earlier attempts.

    ``group``: that of the claim, or else that of the call. ``is_limited`` False: it is adopted. ``reserved``: the UUIDs
    of reservations of the same consumer that existed before and are not committed. What the enforcers have chosen in
    the present attempt: by resource the ids of the providers and the pods in which they are, the ids of the
    inventories, and what else changes with the claim (``changes``). ``blocked``: why it is refused, whatever is chosen.
    ``tried``: providers that ANY does not choose again. ``room``: after a limit per pod has refused a claim of
    the call (``refusal``), what the limits still permit in each pod, by resource and pod; unlimited if it is missing.
    """

    claim: Claim
    project_id: str
    group: str | None
    uuids: dict[str, str]
    is_limited: bool = True
    is_charged: bool = False
    blocked: exceptions.OverQuota | None = None
    reserved: tuple[str, ...] = ()
    provider_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    pods: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    inventory_ids: Mapping[InventoryKey, int] = dataclasses.field(default_factory=dict)
    changes: tuple[object, ...] = ()
    tried: set[int] = dataclasses.field(default_factory=set)
    room: Mapping[ResourceKey, int] = dataclasses.field(default_factory=dict)
    refusal: exceptions.OverQuota | None = None

    def choose(self, provider_ids: Mapping[str, int], locations: Mapping[InventoryKey, InventoryLocation]) -> None:
        """What the claim takes in this attempt, by resource; nothing yet, if there are no providers."""
        self.provider_ids, self.changes = provider_ids, ()
        self.pods = {key.resource: location.pod for key, location in locations.items()}
        self.inventory_ids = {key: location.inventory_id for key, location in locations.items()}

    @property
    def named(self) -> Mapping[str, str]:
        """The providers that the claim names, by resource: all, or (with ANY, or without a provider) none."""
        provider = self.claim.provider
        if provider is None or provider == ANY:
            return {}
        return dict.fromkeys(self.claim.deltas, provider) if isinstance(provider, str) else provider

    @property
    def is_complete(self) -> bool:
        """Whether the claim can be charged: it is not blocked, and there is what it takes, or the pod that it names."""
        chosen = self.pods if self.claim.provider is None else self.inventory_ids
        needs_none = self.claim.provider is None and self.claim.pod is None
        return (needs_none or len(chosen) == len(self.claim.deltas)) and self.blocked is None

    def use(self, held: Sequence[Row]) -> None:
        """Use the rows that the consumer already holds, which are what the claim asks for."""
        uuids = {row.resource: row.uuid for row in held}
        self.uuids = {resource: uuids[resource] for resource in self.claim.deltas}
        self.is_charged = True
        self.reserved = tuple(row.uuid for row in held if row.state == RESERVED)


class Enforcer:
    """A kind of rule. By default it permits everything. Shared by threads: what it chooses is in the pending claims."""

    fields: ClassVar[tuple[str, ...]] = ()
    """The fields of a Claim that the rule is about. (): the enforcer takes no part in the transaction of a claim."""

    def counters_of(self, resource: str, pod: str | None) -> Iterable[ResourceKey]:  # noqa: ARG002
        """The counters of its project in which a reservation of the resource is counted. ``pod`` None: it has none."""
        return ()

    def bounds(
        self,
        connection: Connection,  # noqa: ARG002
        project_ids: Collection[str],  # noqa: ARG002
        resources: Collection[str],  # noqa: ARG002
    ) -> tuple[Sequence[RowBound], int | None]:
        """What bounds the usage rows of these projects, and the second at which this changes (None: never).

        Asked for projects that have a row in a table of path_state.BOUNDED. At most one bound for a usage row.
        """
        return (), None

    def forget(self, connection: Connection, project_id: str) -> Sequence[RecordedChange]:  # noqa: ARG002
        """Delete what is stored of a project that is removed, besides limits. Returns the changes, for the history.

        In the transaction of the removal, before its usage rows are locked. The caller may roll back.
        """
        return ()

    def narrow(self, connection: Connection, rooms: Rooms) -> None:
        """Reduce ``rooms`` to what a claim at its provider would be granted. May be called again after an error."""

    def check(self, project_id: str, request: Mapping[str, int]) -> Sequence[Over]:  # noqa: ARG002
        """What would refuse these amounts, besides limits."""
        return ()

    def prepare(self, pending: Sequence[PendingClaim]) -> None:
        """Before the transaction: choose what the claims take. Raises the errors of unknown names."""

    def inventory_claims(self, pending: Sequence[PendingClaim]) -> Sequence[InventoryClaim] | None:  # noqa: ARG002
        """What ``charge`` takes from inventories. None: it does something else too."""
        return ()

    def charge(self, connection: Connection, pending: Sequence[PendingClaim]) -> None:
        """In the transaction, after the reservations are inserted: lock, and take what was chosen.

        Raises Refused or PreparationChanged; the caller rolls back.
        """

    def finish(self, pending: Sequence[PendingClaim]) -> None:
        """After the commit of an adoption: warn of what it exceeds."""

    def retries(self, pending: Sequence[PendingClaim], refusal: Exception) -> bool:  # noqa: ARG002
        """Whether the next attempt prepares something else, which may be granted. Raises an earlier refusal.

        ``refusal``: Refused or OverQuota.
        """
        return False

    def explain(self, request: ReserveRequest, pending: Sequence[PendingClaim]) -> None:
        """Raise the reason of the refusal, after a synced read. Returns if there is none any more: retry."""

    def confirm(self, item: PendingClaim, held: Sequence[Row]) -> None:
        """Raise ReservationConflict if what the consumer holds is not what this rule makes of the claim."""

    def resize(self, connection: Connection, rows: Sequence[Row], amounts: Mapping[str, int]) -> None:
        """In the transaction of a resize, after the reservations: take or give back. Raises Refused."""

    def explain_resize(self, request: ResizeRequest, rows: Sequence[Row]) -> None:
        """As ``explain``, for a resize."""

    def audit(self) -> list[CapacityDrift]:
        """The counters, besides usage rows, that differ from the reservations."""
        return []

    def heal(self, progress: Callable[[int], None] | None) -> list[CapacityDrift]:  # noqa: ARG002
        """Repair them, each in a transaction. Returns them before and after. ``progress``: called for each."""
        return []

    def measured(self, connection: Connection) -> tuple[dict[ResourceKey, ResourceUse], dict[str, float]]:  # noqa: ARG002
        """For the metrics: what there is and is used, by resource and pod; and the ages of measurements, by pod."""
        return {}, {}


class Parts(NamedTuple):
    """What the driver gives to the enforcer of a subject.

    ``thresholds``, ``least_capacity``: the percentages of a capacity that are reported, and the smallest capacity that
    has them. ``subjects``: the enforcers of the subjects before it, by name.
    """

    database: Database
    history: History
    limits: LimitDriver
    thresholds: Sequence[int]
    least_capacity: int
    subjects: Mapping[str, Enforcer]


class Enforcers(tuple[Enforcer, ...]):
    """The enforcers of a ledger, in the order in which they lock."""

    def __init__(self, _enforcers: Iterable[Enforcer]) -> None:
        self.counters_of: Final = functools.lru_cache(_MAX_CACHED_COUNTERS)(self._counters_of)

    def _counters_of(self, resource: str, pod: str | None) -> tuple[ResourceKey, ...]:
        """Each counter once, whichever enforcers name it."""
        return tuple(dict.fromkeys(key for enforcer in self for key in enforcer.counters_of(resource, pod)))

    def bounds(
        self, connection: Connection, project_ids: Collection[str], resources: Collection[str]
    ) -> tuple[list[RowBound], int | None]:
        """The bounds of all enforcers. See Enforcer.bounds."""
        answers = [enforcer.bounds(connection, project_ids, resources) for enforcer in self]
        until = min((until for _, until in answers if until is not None), default=None)
        bounds = [bound for of_enforcer, _ in answers for bound in of_enforcer]
        assert len({bound.key for bound in bounds}) == len(bounds), "a usage row has several bounds"
        return bounds, until

    def prepare(self, pending: Sequence[PendingClaim]) -> list[Enforcer]:
        """Choose what the claims take in this attempt. Returns the enforcers that decide on one of them."""
        deciding = [
            enforcer
            for enforcer in self
            if any(getattr(item.claim, field) is not None for field in enforcer.fields for item in pending)
        ]
        for item in pending if deciding else ():
            item.choose({}, {})
        for enforcer in deciding:
            enforcer.prepare(pending)
        return deciding

    def check(self, project_id: str, amounts: Mapping[str, int]) -> list[Over]:
        """What would refuse these amounts, by resource, besides limits; only amounts that grow are considered."""
        growing = {resource: amount for resource, amount in amounts.items() if amount > 0}
        return [over for enforcer in self for over in enforcer.check(project_id, growing)] if growing else []

    def amounts(self, pending: Sequence[PendingClaim], *, is_chosen: bool) -> dict[ResourceKey, int]:
        """What the claims add, by counter. ``is_chosen`` False: no pod is chosen yet, so none of its counters."""
        amounts: Counter[ResourceKey] = Counter()
        for item in pending:
            for resource, delta in item.claim.deltas.items():
                for key in self.counters_of(resource, item.pods.get(resource) if is_chosen else None):
                    amounts[key] += delta
        return amounts


def choose_in_read(database: Database, claims: Sequence[PendingClaim], choose: Callable[[Connection], object]) -> None:
    """Run ``choose`` in a read. If the read is retried, what it had chosen for these claims is forgotten first."""

    def work(connection: Connection) -> None:
        for item in claims:
            item.choose({}, {})
        choose(connection)

    database.read(work)


def new_rows(request: ReserveRequest, path: ProjectPath, pending: Sequence[PendingClaim]) -> list[NewReservation]:
    """The reservations to insert. ``path``: of the project."""
    return [
        NewReservation(
            uuid=item.uuids[resource],
            usage_id=path.charged[ResourceKey(resource)][0].usage_id,
            project_id=item.project_id,
            resource=resource,
            delta=delta,
            consumer_id=item.claim.consumer,
            group_id=item.group,
            state=request.state,
            ttl_microseconds=request.ttl_microseconds,
            claim_ordinal=None if item.claim.consumer is None else ordinals[resource],
            source=item.claim.source,
            provider_id=item.provider_ids.get(resource),
            pod=item.pods.get(resource),
        )
        for item in pending
        for ordinals in [{resource: number for number, resource in enumerate(sorted(item.claim.deltas), 1)}]
        for resource, delta in item.claim.deltas.items()
    ]


def conflict(claim: Claim, held: Sequence[Row]) -> exceptions.ReservationConflict:
    """The error of a consumer that holds something else."""
    deltas = {row.resource: row.delta for row in held}
    return exceptions.ReservationConflict(str(claim.consumer), deltas, claim.deltas)


Enforce = Callable[[str, Mapping[str, int]], None]
"""``enforce(project_id, deltas)``, as of oslo_limit.limit.Enforcer. A refusal is an exception that has the attribute
``over_limit_info_list``, as oslo_limit.exception.ProjectOverLimit.
"""


@dataclasses.dataclass(eq=False)
class OsloLimitHook(Enforcer):
    """Asks a function before each reserve, resize and transfer, and in each check. Limits apply as well."""

    fields: ClassVar[tuple[str, ...]] = ("deltas",)  # (each claim has them)

    _enforce: Enforce

    def check(self, project_id: str, request: Mapping[str, int]) -> Sequence[Over]:
        """What the function refuses."""
        try:
            self._enforce(project_id, dict(request))
        except Exception as error:
            if (infos := getattr(error, "over_limit_info_list", None)) is None:
                raise
            return [
                Over(project_id, info.resource_name, "project", info.limit, info.delta, info.current_usage, 0)
                for info in infos
            ]
        return ()

    def prepare(self, pending: Sequence[PendingClaim]) -> None:
        """Block the claims that the function refuses together; but none that is charged already."""
        amounts: Counter[str] = Counter()
        for item in pending:
            item.blocked = None
            amounts.update(item.claim.deltas)
        if pending[0].is_limited and (overs := self.check(pending[0].project_id, amounts)):
            pending[0].blocked = exceptions.OverQuota(overs)

    def explain(self, request: ReserveRequest, pending: Sequence[PendingClaim]) -> None:  # noqa: ARG002
        """Raise what the function has refused."""
        for item in pending:
            if item.blocked is not None:
                raise item.blocked from None


class EnforcedSubject(Subject):
    """The interface of a subject that has an enforcer."""

    def __init__(self, enforcer: Any, *common: Any) -> None:
        """``common``: the arguments of Subject."""
        super().__init__(*common)
        parts: Parts = enforcer.parts
        self._enforcer = enforcer
        self._database, self._untimed = parts.database, parts.database.untimed
        self._history = parts.history
