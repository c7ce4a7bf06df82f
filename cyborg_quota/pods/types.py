# SPDX-License-Identifier: Apache-2.0
"""The data types of pods: immutable, typed, without I/O."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from cyborg_quota.types.capacity import ResourceUse

PodState = Literal["available", "maintenance", "disabled"]
POD_STATES: Final[tuple[PodState, ...]] = ("available", "maintenance", "disabled")

COLLECT_SECONDS: Final = 60
"""The time limit for the measurement of one pod."""

RETRY_SECONDS: Final = 600
"""How long a pod is left to the process that began to measure it, and the time until a failure is tried again."""

Reason = Literal["first", "full", "maintenance", "disabled", "claim", "operator"]
"""Why a binding began: the project had none; the former pod was full, in maintenance or disabled; a claim did not fit
into the former pod; or an operator moved it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """One OpenStack deployment of an availability zone, with its own providers.

    ``resource_affinity``: its tags, such as {"purpose": "CAD"}. ``weight``: pods with a higher weight are preferred.
    ``threshold``: the pod counts as full when this percentage of its capacity is in use. ``endpoint``: where the pod is
    measured, CLOUD or CLOUD/REGION of clouds.yaml; None: its capacity and use are those of its providers' inventories.
    """

    name: str
    availability_zone: str | None = None
    resource_affinity: Mapping[str, str] = dataclasses.field(default_factory=dict)
    state: PodState = "available"
    weight: int = 0
    threshold: int = 100
    endpoint: str | None = None


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
    """The pod of a project for one zone and one set of tags.

    ``ends_at`` None: it is the current one. ``pod`` None: the context may not see names of pods. Times are in UTC,
    without zone.
    """

    project_id: str
    pod: str | None
    availability_zone: str | None
    resource_affinity: Mapping[str, str]
    starts_at: datetime.datetime
    ends_at: datetime.datetime | None
    reason: Reason
