# SPDX-License-Identifier: Apache-2.0
"""The data types of capacity and of pods: immutable, typed, without I/O."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from cyborg_quota.types import UNLIMITED, Notice


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """A provider of resources: a node, a device of a node, or a shared pool.

    ``generation`` changes with each change of the provider or of its inventories, and not with claims. ``can_host``
    False: a shared pool, which ANY does not choose for itself. ``parent`` is the name of the provider that contains
    this one, ``served_by`` that of the shared pool from which claims with ANY take what this one has no inventory of.
    """

    uuid: str
    name: str
    generation: int
    can_host: bool = True
    parent: str | None = None
    pod: str | None = None
    served_by: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    """How many of one resource a provider has, and in which units.

    ``reserved`` of ``total`` are set aside. A claim takes ``min_unit``, or a multiple of ``step_size`` above it up to
    ``max_unit`` (None: the total). The capacity is (total - reserved) * allocation_ratio, rounded down.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: decimal.Decimal = decimal.Decimal(1)


@dataclasses.dataclass(frozen=True, slots=True)
class InventoryRecord:
    """A stored inventory. ``free`` is negative if the inventory was lowered below its use.

    ``generation`` is that of the provider, for the next ``set_inventories``. ``used_elsewhere``: what Placement reports
    as used by consumers that hold no reservation here.
    """

    provider: str
    resource: str
    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: decimal.Decimal
    capacity: int
    used: int
    generation: int
    used_elsewhere: int = 0

    @property
    def free(self) -> int:
        return self.capacity - self.used - self.used_elsewhere


class FreeInventories(NamedTuple):
    """``number`` inventories of one resource that have the same units, and the same amount ``free``."""

    free: int
    min_unit: int
    max_unit: int
    step_size: int
    number: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """The amount of a resource that a consumer of a project takes from a provider. ``reservation``: its UUID."""

    provider: str
    project_id: str
    consumer: str | None
    resource: str
    used: int
    group: str | None = None
    reservation: str | None = None


ResourceProvider, InventoryItem, AllocationItem = Provider, InventoryRecord, Allocation
"""The names in the specification "Resource Providers - Base Models"."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class CapacityOver:
    """The reason why a provider cannot take a claim.

    ``provider`` None: no single provider that can host can take the claim; the rule then names all its amounts.
    ``rule`` is the violated rule, as a sentence without a full stop. ``capacity`` and ``used`` are None if the context
    may not see them.
    """

    provider: str | None
    resource: str
    requested: int
    rule: str
    capacity: int | None = dataclasses.field(default=None, compare=False)
    used: int | None = dataclasses.field(default=None, compare=False)
    used_elsewhere: int = dataclasses.field(default=0, compare=False)

    def __str__(self) -> str:
        if self.provider is None:
            return self.rule
        counters = "" if self.capacity is None else f", capacity {self.capacity}, used {self.used}"
        if self.used_elsewhere:
            counters += f", used elsewhere {self.used_elsewhere}"
        return f"provider {self.provider}, resource {self.resource}: requested {self.requested}{counters}: {self.rule}"


class ResourceUse(NamedTuple):
    """How much there is of one resource, and how much of it is used."""

    capacity: int
    used: int


class CapacityNotice(Notice):
    """The use of an inventory, or of a resource at all providers together (``owner`` None), has crossed a threshold.

    ``used``: what is in use, here and elsewhere. Of all providers together, one whose use exceeds its capacity counts
    as full.
    """

    OWNER, BOUND = "provider", "capacity"
    EVENT = "cyborg_quota.capacity_threshold"
    SHOWN_BY = "`cyborg-quota inventory list` shows"


class PodNotice(Notice):
    """The use of a resource of a pod has crossed the threshold of the pod."""

    OWNER, BOUND = "pod", "capacity"
    EVENT = "cyborg_quota.pod_threshold"
    SHOWN_BY = "`cyborg-quota pod list` shows"


@dataclasses.dataclass(frozen=True, slots=True)
class CapacityDrift:
    """An inventory whose counter differs from the sum of the reservations (C1).

    ``recorded`` None: reservations name a provider that has no inventory of the resource. ``provider`` is the name, or
    the id of a provider that does not exist.
    """

    provider: str
    resource: str
    recorded: int | None
    expected: int

    def __str__(self) -> str:
        recorded = "no inventory" if self.recorded is None else f"used {self.recorded}"
        return f"provider {self.provider}, resource {self.resource}: {recorded}, should be {self.expected}"


@dataclasses.dataclass(frozen=True, slots=True)
class NotServed:
    """A project at the top of the tree that cannot be given all that its limit still permits.

    ``remaining`` is limit - held, of which ``missing`` exceed what is free at all providers together.
    """

    resource: str
    project_id: str
    limit: int
    held: int
    remaining: int
    missing: int


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceReport:
    """What exists of a resource at all providers, what of it is in use, and what is promised.

    ``capacity`` and ``used`` are sums over the providers. ``free`` counts a provider whose use exceeds its capacity as
    0. ``largest_free`` is the largest amount that is free at one provider. ``promised`` is the sum of the limits at the
    top of the tree, but at most a total limit; or UNLIMITED. ``not_served``: the project with the largest missing
    amount comes first.
    """

    resource: str
    providers: int
    total: int
    reserved: int
    capacity: int
    used: int
    used_elsewhere: int
    free: int
    largest_free: int
    promised: int
    not_served: tuple[NotServed, ...] = ()

    @property
    def oversubscription(self) -> float | None:
        """promised / capacity, to two decimal places; None without a capacity, or if unlimited amounts are promised."""
        if self.promised == UNLIMITED or self.capacity == 0:
            return None
        return round(self.promised / self.capacity, 2)


# --- pods ---

PodState = Literal["available", "maintenance", "disabled"]
POD_STATES: Final[tuple[PodState, ...]] = ("available", "maintenance", "disabled")

COLLECT_SECONDS: Final = 60
"""The time limit for the measurement of one pod."""

Reason = Literal["first", "full", "maintenance", "disabled", "claim", "operator"]
"""Why a binding began: the project had none; the former pod was full, in maintenance or disabled; a claim did not fit
into the former pod; or an operator moved it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """One OpenStack deployment of an availability zone, with its own providers.

    ``resource_affinity``: its tags, such as {"purpose": "CAD"}. ``weight``: pods with a higher weight are preferred.
    ``threshold``: the pod counts as full when this percentage of its capacity is in use. ``endpoint``: where the pod is
    measured, CLOUD or CLOUD/REGION of clouds.yaml; None: its capacity and use are those of its providers' inventories.
    ``region``: the name of its region in the service catalog.
    """

    name: str
    availability_zone: str | None = None
    resource_affinity: Mapping[str, str] = dataclasses.field(default_factory=dict)
    state: PodState = "available"
    weight: int = 0
    threshold: int = 100
    endpoint: str | None = None
    region: str | None = None

    @property
    def resource_affinity_tag(self) -> Mapping[str, str]:
        """The tags, by their name in the specification "Dynamic Pod Binding"."""
        return self.resource_affinity


class Candidate(NamedTuple):
    """A pod and its last measurement (None: never measured). ``id`` is lower for a pod that was added earlier."""

    id: int
    pod: Pod
    usage: Mapping[str, ResourceUse] | None


@dataclasses.dataclass(frozen=True, slots=True)
class PodUsage:
    """The last measurement of a pod, by resource.

    ``usage`` None: the pod was never measured, and does not count as full. ``measured_at`` is in UTC, without zone.
    ``age``: how long ago that was, by the clock of the database. ``unmeasured_seconds``: the same, or, if a pod with an
    endpoint was never measured, the time since it was added; None: nothing measures the pod, because it is disabled, or
    it has neither an endpoint nor a measurement.
    """

    pod: str
    usage: Mapping[str, ResourceUse] | None = None
    measured_at: datetime.datetime | None = None
    age: datetime.timedelta | None = None
    unmeasured_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CollectedPod:
    """The outcome of measuring a pod. ``error`` None: it was measured, or has nothing that could be measured.

    With an error, ``usage`` is the last measurement before.
    """

    usage: PodUsage
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """The pod of a project in one zone, for one set of tags.

    ``availability_zone``: that of the pod. ``ends_at`` None: it is the current one. ``pod`` None: the context may not
    see names of pods. ``endpoint`` and ``region``: those of the pod, of a binding that was selected or set; None in a
    list. Times are in UTC, without zone.
    """

    project_id: str
    pod: str | None
    availability_zone: str | None
    resource_affinity: Mapping[str, str]
    starts_at: datetime.datetime
    ends_at: datetime.datetime | None
    reason: Reason
    endpoint: str | None = None
    region: str | None = None


ReadEndpoint = Callable[[str], Mapping[str, ResourceUse]]
"""Reads the capacity and the use of each resource of the pod with this endpoint."""
