# SPDX-License-Identifier: Apache-2.0
"""Reads usage and limits (get_usages, list_usages), and the headroom of one project, or of many. Writes nothing.

The rule of the headroom is in enforcement.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import charges, clock, path_state, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger import enforcement, transitions
from cyborg_quota.ledger.enforcers import Enforcers, Rooms
from cyborg_quota.ledger.limit_source import LimitDriver, PathLimits
from cyborg_quota.types import (
    MAX_AMOUNT,
    Counters,
    Over,
    Page,
    TotalLimit,
    Usage,
    UsageKey,
    UsageRecord,
    grouped,
)
from cyborg_quota.types.limits import RowBound
from cyborg_quota.types.metrics import ProjectMetrics

LOG = logging.getLogger(__name__)

BoundsAt = tuple[Sequence[RowBound], int]
"""What bounds rows besides limits, and the second at which this is considered."""


@dataclasses.dataclass(eq=False)
class HeadroomReader:
    """Reads usage and headrooms."""

    _database: Database
    _limits: LimitDriver
    _enforcers: Enforcers

    def check(
        self, project_id: str, request: Mapping[str, int], *, sees_all: bool, pod: str | None = None
    ) -> list[Over]:
        """All that would refuse a reserve of these positive amounts, and what fits, as of one moment.

        ``pod``: considers the limits in this pod too.
        """
        state = self._state(project_id, pod)
        limits = self._bounds(state, sorted(request))
        amounts = transitions.by_counter(request, self._enforcers.counters_of, pod)
        path, counters = state.project_ids, state.counters
        overs = enforcement.find_refusals(path, limits.constraints, counters, amounts, limits.missing)
        overs += self._enforcers.check(project_id, request)
        fits: dict[str, int] = {}
        for over in overs:
            fits[over.resource] = min(over.room, fits.get(over.resource, MAX_AMOUNT))
        shown = overs if sees_all else enforcement.redact(overs, state.project_ids)
        return [dataclasses.replace(over, fits=fits[over.resource]) for over in shown]

    def rooms(
        self,
        project_id: str,
        resources: Collection[str],
        provider: str | None = None,
        pod: str | None = None,
        *,
        bundle: Mapping[str, int] | None = None,
    ) -> Rooms:
        """What is left for a project, after all enforcers. ``pod``: within this pod. Raises ProviderNotFound.

        ``bundle``: counts also how many of it fit; with a provider, each of them is a claim at one provider.
        """
        # The pod of a provider is read later: the limits and the usage in every pod may be needed.
        state = self._state(project_id, "" if pod is None and provider is not None else pod)
        limits, counters_of = self._bounds(state, resources), self._enforcers.counters_of
        rooms = Rooms(state, limits, resources, counters_of, provider=provider, pod=pod, bundle=bundle)

        def work(connection: Connection) -> None:
            for enforcer in self._enforcers:
                enforcer.narrow(connection, rooms)

        if provider is not None:
            self._database.read(work)
        return rooms

    def read_detail(self, project_id: str, resources: Collection[str], pod: str | None = None) -> list[UsageRecord]:
        """The usage and the headroom of one project, both of the same moment, by resource. ``pod``: within this pod.

        A resource that is held, and is not among ``resources``, cannot be reserved.
        """
        rooms = self.rooms(project_id, resources, pod=pod)
        held = {key.resource for key in rooms.state.counters if key[::2] == (project_id, pod or "")}
        names = sorted(held.union(resources))
        if pod is not None:
            return rooms.records(names, rooms.limits.by_key)
        own = self._limits.set_for(rooms.state)
        records = rooms.records(names, self._limits.limits([rooms.state], names))
        return [
            dataclasses.replace(record, override=own.get(record.resource), is_own=record.resource in own)
            for record in records
        ]

    def _bounds(self, state: PathState, resources: Collection[str]) -> PathLimits:
        """What limits a charge. Raises InvalidName for a project that the source of limits does not know."""
        (limits,) = self._bounds_of([state], resources)
        if isinstance(limits.error, exceptions.InvalidName):
            raise limits.error
        return limits

    def _bounds_of(
        self, states: Sequence[PathState], resources: Collection[str], row_bounds: BoundsAt | None = None
    ) -> Sequence[PathLimits]:
        """What limits charges of these resources, in all counters. ``row_bounds`` None: reads those on the paths."""
        counters_of = self._enforcers.counters_of
        counted = {key.resource for resource in resources for key in counters_of(resource, None)}
        bounds = self._limits.bounds(states, sorted(counted))
        if row_bounds is None:
            row_bounds = (), 0
            if any(state.bounded for state in states):
                row_bounds = self._database.read(lambda connection: self.read_bounds(connection, states, counted))
        found, at = row_bounds
        by_project = grouped((bound for bound in found if bound.refuses), lambda bound: bound.key.project_id)
        if not by_project:
            return bounds
        return [
            limits._replace(
                constraints=[
                    *limits.constraints,
                    *(
                        bound.constraint(state.counters, at)
                        for name in state.project_ids
                        for bound in by_project.get(name, ())
                    ),
                ]
            )
            for state, limits in zip(states, bounds, strict=True)
        ]

    def read_bounds(self, connection: Connection, states: Sequence[PathState], resources: Collection[str]) -> BoundsAt:
        """What bounds the rows on the paths of ``states`` besides limits, at the present second."""
        project_ids = {key.project_id for state in states[:1] for key in state.bounded}  # (states share their mappings)
        found = self._enforcers.bounds(connection, project_ids, resources)[0] if project_ids else ()
        return found, clock.read_second(connection)

    def _state(self, project_id: str, pod: str | None = None) -> PathState:
        """``pod``: as in path_state.read."""
        reported = self._limits.path_of(project_id)

        def work(connection: Connection) -> PathState:
            """The state that a reserve would meet: it changes the tree first, if the source of limits says so."""
            state = path_state.read(connection, project_id, pod=pod)
            if reported is None or state.project_ids == list(reported):
                return state
            at = clock.read_second(connection)
            return _moved(reported, path_state.read_states(connection, reported, pod)[1], at)

        return self._database.read(work)

    def read_many(
        self, wanted: Mapping[str, Collection[str]], resources: Collection[str], pod: str | None = None
    ) -> Iterator[UsageRecord]:
        """The usage and the headroom of these resources of each project, both of the same moment.

        ``wanted``: resources by project; the projects have usage rows. One statement for a few hundred projects. As
        stored: a parent that the source of limits reports, and that no charge has recorded yet, is not considered. A
        resource that is not among ``resources`` cannot be reserved. ``pod``: within this pod.
        """
        names = sorted({name for resource_names in wanted.values() for name in resource_names})
        project_ids = sorted(wanted)
        for start in range(0, len(project_ids), path_state.MAX_PROJECTS):
            # A batch is bounded: it needs no connection without timeouts. (On those, PostgreSQL read whole tables and
            # compiled the statement, so that a batch took 2.8 times as long.)
            batch = project_ids[start : start + path_state.MAX_PROJECTS]
            _, states = self._database.read(functools.partial(path_state.read_states, project_ids=batch, pod=pod))
            limits = self._limits.limits(states, names) if pod is None else {}
            for rooms in self._rooms_of(states, wanted, resources, pod):
                yield from rooms.records(wanted[rooms.project_id], limits if pod is None else rooms.limits.by_key)

    def metrics_of(
        self, shared: PathState, states: Sequence[PathState], resources: Collection[str], row_bounds: BoundsAt
    ) -> tuple[list[ProjectMetrics], list[TotalLimit]]:
        """The values of each resource that the projects of ``states`` hold or have a limit of; and the total limits in
        force, by resource.

        Does not read the ledger. The parents of ``states`` are those that are stored there. ``shared``: what they
        share. ``row_bounds``: those on their paths.
        """
        wanted: dict[str, set[str]] = {}
        by_key, at = {bound.key: bound for bound in row_bounds[0]}, row_bounds[1]
        for key in [*by_key, *shared.counters, *shared.project_limits]:
            wanted.setdefault(key.project_id, set()).add(key.resource)
        limits = self._limits.limits(states, sorted(set(resources).union(*wanted.values())))
        metrics = []
        for rooms in self._rooms_of(states, wanted, resources, row_bounds=row_bounds):
            for record in rooms.records(wanted.get(rooms.project_id, ()), limits):
                key = UsageKey(record.project_id, record.resource)
                row = rooms.state.counters.get(key, Counters())
                metric = ProjectMetrics.of(record, row, at)
                metrics.append(by_key[key].shown_in(metric, row, at) if key in by_key else metric)
        totals = sorted((total.resource, total.limit) for total in self._limits.totals(shared))
        return metrics, [TotalLimit.of(resource, limit, shared.counters) for resource, limit in totals]

    def get_usages(self, project_id: str, resources: Collection[str]) -> dict[str, Usage]:
        """The project's usage of each of ``resources``, and of all other resources that have a usage row."""
        state = self._database.read(lambda connection: path_state.read(connection, project_id))
        held = {key.resource for key in state.counters if key.project_id == project_id}
        names = sorted(held.union(resources))
        limits = self._limits.limits([state], names)
        keys = [UsageKey(project_id, name) for name in names]
        return {key.resource: UsageRecord.of(key, limits, state.counters.get(key, Counters())).usage for key in keys}

    def list_usages(self, project_id: str | None, page: Page, pod: str | None = None) -> list[UsageRecord]:
        """A page of the usage of all projects, or of one, as the database sorts them. Raises MarkerNotFound."""

        def read(connection: Connection) -> tuple[dict[UsageKey, Counters], list[PathState]]:
            rows = usages.read_page(connection, project_id, page, pod or "")
            return rows, path_state.read_states(connection, {key.project_id for key in rows}, pod)[1]

        rows, states = self._database.untimed.read(read)
        if pod is None:
            limits: Mapping[UsageKey, int] = self._limits.limits(states, {key.resource for key in rows})
        else:
            limits = dict(item for path in self._limits.bounds(states, ()) for item in path.by_key.items())
        return [UsageRecord.of(key, limits, counters) for key, counters in rows.items()]

    def _rooms_of(
        self,
        states: Sequence[PathState],
        wanted: Mapping[str, Collection[str]],
        resources: Collection[str],
        pod: str | None = None,
        row_bounds: BoundsAt | None = None,
    ) -> Iterator[Rooms]:
        """What the limits leave of the wanted resources, by project; not of one that is not among ``resources``."""
        counters_of = self._enforcers.counters_of
        for state, limits in zip(states, self._bounds_of(states, resources, row_bounds), strict=True):
            known = [name for name in wanted.get(state.project_ids[0], ()) if name in resources]
            yield Rooms(state, limits, known, counters_of, pod=pod)


def _moved(path: Sequence[str], stored: Sequence[PathState], at: int) -> PathState:
    """The state after each project of ``path`` was moved below the next one at the second ``at``, with what else lies
    below it.

    ``stored``: the present states of these projects, which share their counters.
    """
    before: dict[str, str | None] = {}
    for state in stored:
        before.update(zip(state.project_ids, [*state.project_ids[1:], None], strict=True))
    after = {**before, **dict(zip(path, [*path[1:], None], strict=True))}
    counters = {
        UsageKey(name, *counted): Counters()
        for name in path
        for counted in {key.resource_key for key in stored[0].counters}
    }
    counters.update(stored[0].counters)
    moving = [key for key in counters if before.get(key.project_id) != after.get(key.project_id)]
    return dataclasses.replace(
        stored[0], project_ids=list(path), counters=charges.moved(counters, moving, before, after, at)
    )
