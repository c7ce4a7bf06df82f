# SPDX-License-Identifier: Apache-2.0
"""Pods, the public interface: several OpenStack deployments of one availability zone, and the pod of each project.

A selection returns the current binding if its pod is available and below its threshold; that takes one statement.
Otherwise it ranks the pods and changes the binding in one transaction, which locks the row of the new pod, then the
binding. If no other pod passes the filters, the binding stays. Concurrent calls for one project get the same pod: the
unique key of the current binding lets only one insert it, and only one transaction can end the former one.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from oslo_log import log as logging

from cyborg_quota import exceptions, validation
from cyborg_quota.capacity import tables as capacity_tables
from cyborg_quota.db import change_log, resource_providers
from cyborg_quota.db.database import Connection, DuplicateEntry
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.ledger.enforcers import EnforcedSubject
from cyborg_quota.pods import claims as pod_claims
from cyborg_quota.pods import measuring as measurement
from cyborg_quota.pods import tables
from cyborg_quota.pods.claims import PodEnforcer
from cyborg_quota.pods.selection import PodRequest, is_at_threshold
from cyborg_quota.pods.tables import BindingKey, StoredBinding
from cyborg_quota.policy import SEE_PODS
from cyborg_quota.subject import admin_call
from cyborg_quota.types import MAX_AMOUNT, RecordedChange, RecordedChanges, Value
from cyborg_quota.types.capacity import (
    POD_STATES,
    Binding,
    CollectedPod,
    Pod,
    PodNotice,
    PodState,
    PodUsage,
    ReadEndpoint,
    ResourceUse,
)
from cyborg_quota.validation import Context

LOG = logging.getLogger(__name__)

_UNCHANGED: Final[Any] = object()
_MAX_PASSING: Final = 1000
"""The maximum number of requests whose answers are remembered."""


class Pods(EnforcedSubject):
    """Pods, and which pod serves which project. All calls but ``select`` need an admin's context.

    A project is bound to one pod in each zone for each set of tags, until that pod is full, in maintenance or disabled.
    Tags are strings by name, such as {"purpose": "CAD"}. Shared by threads.
    """

    def __init__(self, enforcer: PodEnforcer, *common: Any) -> None:
        super().__init__(enforcer, *common)
        self._selection = enforcer.selection
        # By the version of all pods and the request: the ids of the pods that pass the filters.
        self._passing: dict[tuple[tables.PodsVersion | None, Hashable], frozenset[int]] = {}

    # --- pods ---

    @functools.partial(admin_call, action="add_pod")
    def add(
        self,
        context: Context,
        name: str,
        *,
        zone: str | None = None,
        affinity: Mapping[str, str] | None = None,
        weight: int = 0,
        threshold: int = 100,
        endpoint: str | None = None,
        region: str | None = None,
    ) -> Pod:
        """Add an available pod without measurement, and return it.

        ``weight``: pods with a higher weight are preferred. ``threshold``: the pod counts as full when this percentage
        of its capacity is in use. ``endpoint``: CLOUD or CLOUD/REGION of clouds.yaml, whose Placement measures it;
        None: its use is that of the inventories of its providers. ``region``: the name of its region in the service
        catalog. Raises PodExists, InvalidName, InvalidPod.
        """
        pod = Pod(
            name=validation.pod_name(name),
            availability_zone=validation.optional_name("availability_zone", zone),
            **_checked(
                resource_affinity=affinity, weight=weight, threshold=threshold, endpoint=endpoint, region=region
            ),
        )
        try:
            self._record(context, "add pod", lambda connection: (None, tables.insert(connection, pod)))
        except DuplicateEntry:
            if self.show(context, pod.name) != pod:  # equal: the answer to the COMMIT of an earlier attempt was lost
                raise exceptions.PodExists(pod.name) from None
        return pod

    def _record(
        self, context: Context, action: str, work: Callable[[Connection], tuple[Pod | None, Pod | None]]
    ) -> Pod | None:
        """Run ``work``, which changes a pod and returns it before and after, and record that. Returns the latter."""
        author = validation.author_of(context, None)

        def change(connection: Connection) -> tuple[Pod | None, RecordedChanges | None]:
            before, after = work(connection)
            pod = before or after
            if before == after or pod is None:
                return after, None
            recorded = RecordedChange(action, None, None, _values(before), _values(after), pod=pod.name)
            return after, change_log.record(connection, author, [recorded])

        return self._history.change(self._database, change)

    @admin_call
    def list_pods(self, context: Context, *, limit: int | None = None, after: str | None = None) -> list[Pod]:
        """All pods, in the order in which they were added.

        ``limit``: the maximum number. ``after``: the name of the last pod of the previous page. Raises MarkerNotFound.
        """
        page = validation.row_limit(limit), validation.optional_name("marker", after)
        return [
            candidate.pod
            for candidate in self._database.read_synced(lambda connection: tables.list_pods(connection, *page))
        ]

    @functools.partial(admin_call, action="show_pod")
    def show(self, context: Context, name: str) -> Pod:
        """One pod. Raises PodNotFound."""
        name = validation.check_name("pod", name)
        return self._database.read_synced(lambda connection: tables.find(connection, name)).pod

    @functools.partial(admin_call, action="change_pod")
    def change(
        self,
        context: Context,
        name: str,
        *,
        state: PodState = _UNCHANGED,
        affinity: Mapping[str, str] = _UNCHANGED,
        weight: int = _UNCHANGED,
        threshold: int = _UNCHANGED,
        endpoint: str | None = _UNCHANGED,
        region: str | None = _UNCHANGED,
    ) -> Pod:
        """Change the given values of a pod, and return it. Its zone and its name cannot change.

        ``endpoint``: a new one removes the last measurement, which is of the former endpoint. ``state``: "available",
        "maintenance" or "disabled". After this call has returned, no project is bound to a pod that is not available;
        its present bindings move when they are selected the next time. Raises PodNotFound, InvalidPod.
        """
        changes = _checked(
            state=state,
            resource_affinity=affinity,
            weight=weight,
            threshold=threshold,
            endpoint=endpoint,
            region=region,
        )
        if not changes:
            raise exceptions.InvalidRequest(
                "Nothing to change: give a state, tags, a weight, a threshold, an endpoint or a region."
            )
        name = validation.check_name("pod", name)

        def work(connection: Connection) -> tuple[Pod, Pod]:
            stored = tables.lock(connection, name)
            changed = dataclasses.replace(stored.pod, **changes)
            tables.update(connection, stored, changed)
            return stored.pod, changed

        changed = self._record(context, "set pod", work)
        assert changed is not None
        return changed

    @functools.partial(admin_call, action="remove_pod")
    def remove(self, context: Context, name: str) -> None:
        """Remove a pod. The history of its bindings stays. Raises PodNotFound, PodInUse (bindings or providers)."""
        name = validation.check_name("pod", name)

        def work(connection: Connection) -> tuple[Pod, None]:
            stored = tables.lock(connection, name)
            if tables.is_bound(connection, name):
                reason = "projects are bound to it (see `pod binding list --pod`; `pod binding delete --pod` ends all)"
                raise exceptions.PodInUse(name, reason)
            if resource_providers.any_with(connection, pod=name):
                raise exceptions.PodInUse(name, "providers belong to it (see `provider set NAME --pod OTHER`)")
            tables.delete(connection, stored.id)
            return stored.pod, None

        self._record(context, "remove pod", work)

    # --- the pod of a project ---

    def select(
        self,
        context: Context,
        zone: str | None = None,
        affinity: Mapping[str, str] | None = None,
        request: Mapping[str, int] | None = None,
        project_id: str | None = None,
    ) -> Binding:
        """The binding of the project for this zone and these tags. It is created or moved if needed.

        Without a zone, it is the oldest one of these tags, in whatever zone. ``affinity``: tags, or all extra specs of
        a flavor; keys that no pod has as a tag are ignored. The binding moves only if its pod is not available, or was
        full when it was measured last, and another pod passes the filters. ``request`` ({resource: amount}): only these
        resources decide whether a pod is full; None: all of its resources. Concurrent calls for one project return the
        same pod. Unless the policy rule cyborg_quota:pod:see allows the context to see it, the name, the endpoint and
        the region of the pod are None. Raises NoPodFits, InvalidName, InvalidPod, UnknownResource, InvalidDelta.
        """
        project_id = validation.project_of(context, project_id)
        wanted = PodRequest(
            validation.optional_name("availability_zone", zone),
            validation.check_extra_specs(affinity),
            None if request is None else validation.check_deltas(request, self._resources),
        )
        # (The version is read only where a pod was full before: it would make the usual selection slower.)
        key, version = BindingKey.of(project_id, {}), bool(self._passing)
        find = functools.partial(tables.find_current, key=key, specs=wanted.affinity, with_version=version)
        rows = self._database.read_synced(find)
        current = pod_claims.in_zone(rows, self._selection.zone(wanted.zone))
        binding = self._present(current, wanted) if current else None
        if binding is None:
            binding = self._bind(project_id, lambda connection: self._rebind(connection, project_id, wanted))
        if self._authority.allows(context, SEE_PODS, project_id):
            return binding
        return dataclasses.replace(binding, pod=None, endpoint=None, region=None)

    def _present(self, current: Sequence[StoredBinding], request: PodRequest) -> Binding | None:
        """The binding whose pod serves the request; or else, if no other pod passes the filters, the one that stays."""
        request = dataclasses.replace(request, affinity=current[0].binding.resource_affinity)
        reasons = [pod_claims.reason_to_move(row, request) for row in current]
        if None in reasons:
            return current[reasons.index(None)].binding
        if self._passing_ids(current[0].version, request) - {row.candidate.id for row in current}:
            return None
        return current[reasons.index("full") if "full" in reasons else 0].binding

    def _passing_ids(self, version: tables.PodsVersion | None, request: PodRequest) -> frozenset[int]:
        """The ids of the pods that pass the filters."""
        ids = self._passing.get((version, request.key))
        if ids is None:
            # (In this order: what changes between the two makes the version outdated.)
            version, candidates = self._database.read_synced(
                lambda connection: (tables.read_version(connection), tables.list_pods(connection))
            )
            ids = frozenset(candidate.id for candidate in candidates if self._selection.passes(candidate, request))
            if len(self._passing) >= _MAX_PASSING:
                self._passing.clear()
            self._passing[version, request.key] = ids
        return ids

    def _bind(self, project_id: str, work: Callable[[Connection], Binding]) -> Binding:
        def decide(connection: Connection) -> Binding:
            try:
                return work(connection)
            except DuplicateEntry:
                # Another call, or an earlier attempt of this call, has created the binding: decide again, with it.
                raise ConcurrentChange from None

        binding = self._database.write(decide)
        LOG.debug("Project %s is bound to pod %s (%s)", project_id, binding.pod, binding.reason)
        return binding

    def _rebind(self, connection: Connection, project_id: str, request: PodRequest) -> Binding:
        """Take the first option of a claim; if there is none, a present binding stays."""
        (tags,) = tables.compared(connection, [request.affinity])
        request = dataclasses.replace(request, affinity=tags)
        options = pod_claims.options_of_request(connection, project_id, request, self._selection)
        pod, changes = next(options, (None, ()))
        # Do not try the next option in this transaction: those that do not lock pods in the order of their ids may wait
        # for each other.
        if not pod_claims.change_bindings(connection, changes, self._selection):
            raise ConcurrentChange
        rows = tables.find_current(connection, BindingKey.of(project_id, tags))
        for row in pod_claims.in_zone(rows, self._selection.zone(request.zone)):
            if pod in (None, row.binding.pod):
                return row.binding
        raise exceptions.NoPodFits(request.zone, request.affinity) if pod is None else ConcurrentChange

    @admin_call
    def list_bindings(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        pod: str | None = None,
        history: bool = False,
        limit: int | None = None,
        after: int = 0,
    ) -> list[tuple[int, Binding]]:
        """Current bindings and their ids, the oldest first. ``history``: also those that ended.

        ``limit``: the maximum number. ``after``: the id of the last binding of the previous page.
        """
        project_id = validation.optional_name("project_id", project_id)
        pod = validation.optional_name("pod", pod)
        limit, after = validation.row_limit(limit), _check_integer("after", after, 0, MAX_AMOUNT)
        return self._untimed.read_synced(
            lambda connection: tables.list_bindings(
                connection, project_id=project_id, pod=pod, history=bool(history), limit=limit, after=after
            )
        )

    @admin_call
    def move_binding(
        self,
        context: Context,
        project_id: str,
        pod: str,
        zone: str | None = None,
        affinity: Mapping[str, str] | None = None,
    ) -> Binding:
        """Bind a project to this pod for tags, even if a filter would exclude the pod.

        ``zone``: that of the pod; its binding in other zones stays. None: it ends there. What the project holds stays
        where it is. Raises PodNotFound, PodNotAvailable, InvalidPod (it is in another zone).
        """
        pod = validation.check_name("pod", pod)
        project_id, zone, specs = _checked_key(project_id, zone, affinity)

        def work(connection: Connection) -> Binding:
            stored = tables.lock(connection, pod)
            if stored.pod.state != "available":
                raise exceptions.PodNotAvailable(pod, stored.pod.state)
            (tags,) = tables.compared(connection, [specs])
            if zone not in (None, stored.pod.availability_zone):
                raise exceptions.InvalidPod("zone", zone, f"the zone of {pod} is {stored.pod.availability_zone}")
            key, others = BindingKey.of(project_id, tags), () if zone is None else None
            current = pod_claims.in_zone(tables.find_current(connection, key), zone)
            if [row.binding.pod for row in current] != [pod]:
                if not tables.replace_bindings(connection, key, current, stored.pod, "operator", others=others):
                    raise ConcurrentChange
                current = pod_claims.in_zone(tables.find_current(connection, key), zone)
            return current[0].binding

        return self._bind(project_id, work)

    @admin_call
    def end_binding(
        self,
        context: Context,
        project_id: str,
        zone: str | None = None,
        affinity: Mapping[str, str] | None = None,
    ) -> None:
        """End the current binding of a project for these tags, in one zone or (None) in all that it has.

        Its next selection creates another. ``affinity``: as ``list_bindings`` has it. Raises BindingNotFound.
        """
        project_id, zone, tags = _checked_key(project_id, zone, affinity)

        def work(connection: Connection) -> None:
            current = pod_claims.in_zone(tables.find_current(connection, BindingKey.of(project_id, tags)), zone)
            if not current:
                raise exceptions.BindingNotFound(project_id)
            if not all(tables.end_binding(connection, row.id) for row in current):
                raise ConcurrentChange

        self._database.write(work)

    @admin_call
    def end_bindings(self, context: Context, pod: str) -> int:
        """End the current bindings to a pod, and return their number.

        The next selection of each project creates another. Drain the pod first: while it is available, projects can be
        bound to it again. Raises PodNotFound.
        """
        pod = self.show(context, pod).name

        def work(connection: Connection) -> int:
            self._database.sync_with_cluster(connection)
            return tables.end_bindings(connection, pod)

        return self._database.write(work)

    # --- measurements ---

    @functools.partial(admin_call, action="list_pod_usages")
    def list_usages(self, context: Context) -> list[PodUsage]:
        """The last measurement of each pod."""
        return self._database.read_synced(tables.list_usages)

    @functools.partial(admin_call, action="set_pod_usage")
    def set_usage(self, context: Context, name: str, usage: Mapping[str, ResourceUse]) -> None:
        """Store the measurement of a pod, made now. Raises PodNotFound, InvalidPod."""
        name, checked = validation.check_name("pod", name), _checked_usage(usage)
        self._database.write(lambda connection: tables.set_usage(connection, tables.lock(connection, name).id, checked))

    @functools.partial(admin_call, action="collect_pods")
    def collect(
        self,
        context: Context,
        names: Sequence[str] | None = None,
        *,
        read_endpoint: ReadEndpoint | None = None,
        timeout_seconds: float = 60.0,
        max_age_seconds: float | None = None,
        progress: Callable[[int], object] = lambda _count: None,
    ) -> list[CollectedPod]:
        """Measure these pods, or all that are not disabled, and store what they have and use.

        A pod without an endpoint is measured by its own inventories, the others in parallel by ``read_endpoint`` (see
        capacity/imports/plan.py), each for at most ``timeout_seconds``. One that cannot be measured
        keeps its last figures. A pod that never had an inventory, and has no endpoint, stays without measurement.

        ``max_age_seconds``: only pods whose measurement is older. ``progress``: called at least once a second, with the
        number of pods done. Raises PodNotFound.
        """
        known = {pod.name: pod for pod in self.list_pods(context)}
        if names is None:
            chosen = [pod for pod in known.values() if pod.state != "disabled"]
        else:
            wanted = dict.fromkeys(validation.check_names("pod", names))
            chosen = [known.get(name) or self.show(context, name) for name in wanted]
        if max_age_seconds is not None:
            ages = {usage.pod: usage.age for usage in self.list_usages(context)}
            max_age = datetime.timedelta(seconds=max_age_seconds)
            # (A time in the future was written before a clock was set back.)
            chosen = [pod for pod in chosen if abs(ages.get(pod.name) or max_age) >= max_age]
        errors: dict[str, str] = {}
        pods = {pod.name: pod for pod in chosen}
        for name, answer in self._measured(context, chosen, read_endpoint, timeout_seconds, progress):
            if isinstance(answer, str):
                errors[name] = answer
            else:
                try:
                    self._database.write(functools.partial(_store, pod=pods[name], usage=_checked_usage(answer)))
                except exceptions.PodNotFound:  # removed in the meantime
                    pass
                except exceptions.InvalidRequest as error:
                    errors[name] = str(error)
            progress(1)
        usages = {usage.pod: usage for usage in self.list_usages(context)} if chosen else {}
        return [CollectedPod(usages[pod.name], errors.get(pod.name)) for pod in chosen if pod.name in usages]

    def _measured(
        self,
        context: Context,
        pods: Sequence[Pod],
        read_endpoint: ReadEndpoint | None,
        timeout_seconds: float,
        progress: Callable[[int], object],
    ) -> Iterator[tuple[str, Mapping[str, ResourceUse] | str]]:
        endpoints = {pod.name: pod.endpoint for pod in pods if pod.endpoint is not None}
        own: dict[str, dict[str, ResourceUse]] = {pod.name: {} for pod in pods if pod.endpoint is None}
        if own:
            was_measured = {usage.pod for usage in self.list_usages(context) if usage.usage is not None}
            for key, use in self._untimed.read(lambda connection: capacity_tables.sums(connection, own)).items():
                own[key.pod][key.resource] = use
            yield from ((name, usage) for name, usage in own.items() if usage or name in was_measured)
        if read_endpoint is None:
            yield from ((name, "The pod has an endpoint, but no read_endpoint was given.") for name in endpoints)
        else:
            yield from measurement.measure(
                endpoints, read_endpoint, timeout_seconds=timeout_seconds, tick=lambda: progress(0)
            )

    @functools.partial(admin_call, action="list_pod_notices")
    def notices(self, context: Context) -> list[PodNotice]:
        """The resources of pods whose last measurement crossed the threshold of the pod, in either direction.

        Each crossing is returned once, to one caller on one host.
        """
        notices = []
        for stored, notified in self._database.read(tables.read_notified):
            reached = {
                resource
                for resource, use in (stored.usage or {}).items()
                if (use.used or use.capacity) and is_at_threshold(stored.pod.threshold, use)
            }
            claim = functools.partial(tables.claim_notified, pod_id=stored.id)
            if reached != notified and self._database.claim(claim, notified, reached):
                for resource in sorted(reached ^ notified):
                    use = (stored.usage or {}).get(resource, ResourceUse(0, 0))
                    threshold = stored.pod.threshold
                    levels = (0, threshold) if resource in reached else (threshold, 0)
                    notices.append(PodNotice(stored.pod.name, resource, use.capacity, use.used, *levels))
        return notices


def _store(connection: Connection, pod: Pod, usage: Mapping[str, ResourceUse]) -> None:
    """Store the measurement of a pod, unless it has another endpoint by now. Raises PodNotFound."""
    stored = tables.lock(connection, pod.name)
    if stored.pod.endpoint == pod.endpoint:
        tables.set_usage(connection, stored.id, usage)


def _checked_usage(usage: Mapping[str, ResourceUse]) -> dict[str, ResourceUse]:
    """A measurement. Raises InvalidName, InvalidPod."""
    if not isinstance(usage, Mapping) or not all(isinstance(use, tuple) and len(use) == 2 for use in usage.values()):
        raise exceptions.InvalidPod("usage", usage, "it must map resources to their capacity and what is used of it")
    return {
        validation.check_name("resource", resource): ResourceUse(
            _check_integer(f"capacity of {resource}", use[0], 0, 2**63 - 1),
            _check_integer(f"use of {resource}", use[1], 0, 2**63 - 1),
        )
        for resource, use in usage.items()
    }


def _check_endpoint(endpoint: str | None) -> str | None:
    """CLOUD or CLOUD/REGION. Raises InvalidName, InvalidPod."""
    checked = validation.optional_name("endpoint", endpoint)
    if checked is not None and not all(checked.split("/", 1)):
        raise exceptions.InvalidPod("endpoint", endpoint, "it must be CLOUD or CLOUD/REGION of clouds.yaml")
    return checked


def _check_state(state: object) -> object:
    if state not in POD_STATES:
        raise exceptions.InvalidPod("state", state, f"the states are {', '.join(POD_STATES)}")
    return state


def _check_integer(field: str, value: object, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise exceptions.InvalidPod(field, value, f"it must be an integer between {minimum} and {maximum}")
    return int(value)


_CHECKS: Final[dict[str, Callable[[Any], object]]] = {
    "state": _check_state,
    "resource_affinity": validation.check_affinity,
    "weight": lambda value: _check_integer("weight", value, -MAX_AMOUNT, MAX_AMOUNT),
    "threshold": lambda value: _check_integer("threshold", value, 1, 100),
    "endpoint": _check_endpoint,
    "region": functools.partial(validation.optional_name, "region"),
}


def _checked(**given: Any) -> dict[str, Any]:
    """The values of a pod that are given. Raises InvalidName, InvalidPod."""
    return {field: _CHECKS[field](value) for field, value in given.items() if value is not _UNCHANGED}


def _values(pod: Pod | None) -> Value:
    """What the history has of a pod. None: it does not exist."""
    if pod is None:
        return None
    return {
        "availability_zone": pod.availability_zone,
        "resource_affinity": dict(pod.resource_affinity),
        "state": pod.state,
        "weight": pod.weight,
        "threshold": pod.threshold,
        "endpoint": pod.endpoint,
        "region": pod.region,
    }


def _checked_key(
    project_id: str, zone: str | None, affinity: Mapping[str, str] | None
) -> tuple[str, str | None, dict[str, str]]:
    return (
        validation.check_name("project_id", project_id),
        validation.optional_name("availability_zone", zone),
        validation.check_extra_specs(affinity),
    )
