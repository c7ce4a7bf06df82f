# SPDX-License-Identifier: Apache-2.0
"""Reads the headroom of one project, or of many. The rule is in cyborg_quota/headroom.py.

With the limit driver ``database``, one statement reads the path, the counters and the limits, and so all of them at
one moment. Other limit drivers are asked before or after it.

What is free at the providers is read after that, by one more statement, and only if a provider is given.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from cyborg_quota import enforcement, exceptions, headroom
from cyborg_quota.db import free_capacity, path_state
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.project_path import PathState
from cyborg_quota.headroom import Bundles
from cyborg_quota.ledger import pod_claims
from cyborg_quota.ledger.capacity_claims import find_providers
from cyborg_quota.limits.base import LimitDriver, PathLimits
from cyborg_quota.metric_types import ProjectMetrics
from cyborg_quota.types import (
    ANY,
    UNLIMITED,
    Counters,
    Headroom,
    Over,
    ResourceKey,
    Usage,
    UsageKey,
    UsageRecord,
)

T = TypeVar("T")


class HeadroomReader:
    """Reads headrooms."""

    def __init__(self, database: Database, limits: LimitDriver) -> None:
        self._database = database
        self._limits = limits

    def read(
        self, project_id: str, resources: Collection[str], provider: str | None = None, pod: str | None = None
    ) -> dict[str, Headroom]:
        """The headroom of one project, by resource. ``pod``: within this pod.

        Raises ProviderNotFound.
        """
        quotas = self._read_quota(project_id, resources, provider, pod)
        if provider is None:
            return quotas.in_pod(pod)

        name, free = self._at_providers(
            provider, pod, lambda connection, provider_id: free_capacity.read(connection, resources, provider_id, pod)
        )
        free = free or {resource: {} for resource in resources}
        in_pods = {one: quotas.in_pod(one) for by_pod in free.values() for one in by_pod}
        return {
            resource: headroom.at_providers(
                [(in_pods[one][resource], inventories) for one, inventories in free[resource].items()], quota, name
            )
            for resource, quota in quotas.in_pod(pod).items()
        }

    def check(
        self, project_id: str, request: Mapping[str, int], *, sees_all: bool, pod: str | None = None
    ) -> list[Over]:
        """All that would refuse a reserve of these positive amounts, and what fits, as of one moment.

        ``pod``: considers the limits in this pod too.
        """
        state = self._state(project_id, pod)
        limits = self._bounds(state, sorted(request))
        quotas = _Quotas(state, limits, sorted(request))
        pods = ("", pod or "")
        amounts = {ResourceKey(resource, one): amount for resource, amount in request.items() for one in pods}
        found = enforcement.find_refusals(project_id, limits.constraints, state.counters, amounts, limits.missing)
        shown = found if sees_all else enforcement.redact(found, state.project_ids)
        headrooms = quotas.in_pod(pod) if shown else {}
        return [dataclasses.replace(over, fits=headrooms[over.resource].fits) for over in shown]

    def count_bundles(
        self, project_id: str, bundle: Mapping[str, int], provider: str | None, pod: str | None = None
    ) -> Bundles:
        """How many bundles fit; with a provider, each of them is a claim at one provider. ``pod``: within this pod.

        Raises ProviderNotFound.
        """
        quotas = self._read_quota(project_id, bundle, provider, pod)
        by_quota = headroom.how_many(bundle, quotas.in_pod(pod))
        if provider is None:
            return by_quota

        _, found = self._at_providers(
            provider,
            pod,
            lambda connection, provider_id: free_capacity.count_bundles(connection, bundle, provider_id, pod),
        )
        number = sum(
            min(at_providers, headroom.how_many(bundle, quotas.in_pod(one)).number)
            for one, at_providers in (found or {}).items()
        )
        return by_quota if by_quota.number <= number else Bundles(number, None)

    def _at_providers(
        self, provider: str, pod: str | None, read: Callable[[Connection, int | None], T]
    ) -> tuple[str, T | None]:
        """The name of the provider, and what ``read`` returns for its id (None: ANY). None: the pod takes no claims.

        Raises ProviderNotFound.
        """

        def work(connection: Connection) -> tuple[str, T | None]:
            provider_id, name = None, provider
            if provider != ANY:
                stored = find_providers(self._database, connection, {provider})[provider]
                provider_id, name = stored.id, stored.provider.name
            takes_claims = pod is None or pod_claims.is_available(connection, pod)
            return name, read(connection, provider_id) if takes_claims else None

        return self._database.read(work)

    def _read_quota(
        self, project_id: str, resources: Collection[str], provider: str | None, pod: str | None
    ) -> _Quotas:
        # The pod of a provider is read later: the limits and the usage in every pod may be needed.
        state = self._state(project_id, "" if pod is None and provider is not None else pod)
        return _Quotas(state, self._bounds(state, resources), resources)

    def read_detail(self, project_id: str, resources: Collection[str], pod: str | None = None) -> list[UsageRecord]:
        """The usage and the headroom of one project, both of the same moment, by resource. ``pod``: within this pod.

        A resource that is held, and is not among ``resources``, cannot be reserved.
        """
        quotas = self._read_quota(project_id, resources, None, pod)
        held = {key.resource for key in quotas.state.counters if key[::2] == (project_id, pod or "")}
        names = sorted(held.union(resources))
        limits = self._limits.limits([quotas.state], names) if pod is None else quotas.own_limits
        return quotas.records(pod or "", names, limits)

    def _bounds(self, state: PathState, resources: Collection[str]) -> PathLimits:
        """What limits a charge. Raises InvalidName for a project that the source of limits does not know."""
        (limits,) = self._limits.bounds([state], resources)
        if isinstance(limits.error, exceptions.InvalidName):
            raise limits.error
        return limits

    def _state(self, project_id: str, pod: str | None = None) -> PathState:
        """``pod``: as in path_state.read."""
        parent_id = self._limits.parent_of(project_id)

        def work(connection: Connection) -> PathState:
            """The state that a reserve would meet: it moves the project first, if the source of limits says so."""
            state = path_state.read(connection, project_id, pod=pod)
            if parent_id is None or _has_parent(state, parent_id):
                return state
            parent = path_state.read(connection, parent_id, pod=pod)
            counted_by = path_state.read_path(connection, project_id, []).project_ids
            return _moved(state, parent, counted_by)

        def single_statement(connection: Connection) -> PathState | None:
            state = path_state.read_in_single_statement(connection, project_id, pod)
            return state if state is None or parent_id is None or _has_parent(state, parent_id) else None

        return self._database.read(work, single_statement)

    def read_many(
        self, wanted: Mapping[str, Collection[str]], resources: Collection[str], pod: str | None = None
    ) -> Iterator[UsageRecord]:
        """The usage and the headroom of these resources of each project, both of the same moment.

        ``wanted``: resources by project; the projects have usage rows. One statement for a few hundred projects. As
        stored: a parent that the source of limits reports, and that no charge has recorded yet, is not considered. A
        resource that is not among ``resources`` cannot be reserved. ``pod``: within this pod.
        """
        names = sorted({name for some in wanted.values() for name in some})
        project_ids = sorted(wanted)
        for start in range(0, len(project_ids), path_state.MAX_PROJECTS):
            # A batch is bounded: it needs no connection without timeouts. (On those, PostgreSQL read whole tables and
            # compiled the statement, so that a batch took 2.8 times as long.)
            states = self._database.read(
                functools.partial(
                    path_state.read_many, project_ids=project_ids[start : start + path_state.MAX_PROJECTS], pod=pod
                )
            )
            limits = self._limits.limits(states, names) if pod is None else {}
            for state, bounds in zip(states, self._limits.bounds(states, resources), strict=True):
                own = wanted[state.project_ids[0]]
                quotas = _Quotas(state, bounds, [name for name in own if name in resources])
                yield from quotas.records(pod or "", own, limits if pod is None else quotas.own_limits)

    def metrics_of(self, states: Sequence[PathState], resources: Collection[str]) -> list[ProjectMetrics]:
        """The values of each resource that the projects of ``states`` hold or have a limit of.

        Does not read the ledger. The parents of ``states`` are those that are stored there.
        """
        if not states:
            return []
        held: dict[str, set[str]] = {}
        shared = {id(state.counters): state for state in states}.values()  # states share their mappings
        for key in (key for state in shared for key in (*state.counters, *state.project_limits)):
            held.setdefault(key.project_id, set()).add(key.resource)
        names = sorted(set(resources).union(*held.values()))
        limits = self._limits.limits(states, names)
        found = []
        for state, bounds in zip(states, self._limits.bounds(states, resources), strict=True):
            own = sorted(held.get(state.project_ids[0], ()))
            quotas = _Quotas(state, bounds, [name for name in own if name in resources])
            for record in quotas.records("", own, limits):
                usage, fitting = record.usage, record.headroom or Headroom(0)
                key = UsageKey(record.project_id, record.resource)
                subtree = state.counters.get(key, Counters()).subtree
                fits = None if fitting.scope == "counter" else fitting.fits
                bound = None if usage.limit == UNLIMITED else usage.limit
                found.append(ProjectMetrics(*key[:2], bound, usage.used, usage.reserved, subtree, fits))
        return found


class _Quotas(NamedTuple):
    """What bounds these resources of a project, over all pods and in pods."""

    state: PathState
    limits: PathLimits
    resources: Collection[str]

    @property
    def own_limits(self) -> dict[UsageKey, int]:
        return {one.key: one.limit for one in self.limits.constraints}

    def in_pod(self, pod: str | None) -> dict[str, Headroom]:
        """The headrooms in one pod, by resource; None: in no pod."""
        limits, state = self.limits, self.state
        path, counters = state.project_ids, state.counters
        return headroom.compute(path, self.resources, limits.constraints, counters, missing=limits.missing, pod=pod)

    def records(self, pod: str, resources: Collection[str], limits: Mapping[UsageKey, int]) -> list[UsageRecord]:
        """The usage in one pod ("": in all), the limits of the project there, and what fits.

        A resource without a headroom cannot be reserved.
        """
        project_id, headrooms = self.state.project_ids[0], self.in_pod(pod)
        records = []
        for resource in sorted(resources):
            key = UsageKey(project_id, resource, pod)
            now = self.state.counters.get(key, Counters())
            usage = Usage(limits.get(key, UNLIMITED), now.used, now.reserved)
            records.append(UsageRecord(project_id, resource, usage, headrooms.get(resource, Headroom(0)), pod or None))
        return records


def _has_parent(state: PathState, parent_id: str) -> bool:
    return list(state.project_ids[1:2]) == [parent_id]


def _moved(state: PathState, parent: PathState, counted_by: Sequence[str]) -> PathState:
    """The state after a move of the project, with what it holds, to another parent.

    ``counted_by``: the project and its present ancestors, whose counters include its own.
    """
    project_id = state.project_ids[0]
    counters: dict[UsageKey, Counters] = {**state.counters, **parent.counters}
    held = {key: now.subtree for key, now in state.counters.items() if key.project_id == project_id}
    for owner in parent.project_ids:
        if owner not in counted_by:
            for own, amount in held.items():
                key = own._replace(project_id=owner)
                now = counters.get(key, Counters())
                counters[key] = dataclasses.replace(now, subtree=now.subtree + amount)
    return dataclasses.replace(
        state,
        project_ids=[project_id, *parent.project_ids],
        counters=counters,
        project_limits={**state.project_limits, **parent.project_limits},
    )
