# SPDX-License-Identifier: Apache-2.0
"""Pods, their measurements, and the bindings of projects to pods.

A selection returns the current binding if its pod is available and below its threshold; that takes one statement. If
no other pod passes the filters, the binding stays too; which pods pass is remembered until a pod changes or is
measured. Otherwise it ranks the pods and changes the binding in one transaction, which locks the row of the new pod,
then the binding. Concurrent calls for one project get the same pod: the unique key of the current binding lets only one
insert it, and only one transaction can end the former one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import change_log, free_capacity, overrides, pod_bindings, pods, resource_providers
from cyborg_quota.db.database import Connection, Database, DuplicateEntry
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.pod_bindings import BindingKey, StoredBinding
from cyborg_quota.db.pods import StoredPod
from cyborg_quota.ledger import pod_claims
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.pod_selection import Candidate, PodRequest, PodSelection, is_at_threshold
from cyborg_quota.pod_types import Binding, Pod, PodNotice, PodUsage, Reason, ResourceUse
from cyborg_quota.types import Author, RecordedChange, RecordedChanges, Value

LOG = logging.getLogger(__name__)


class PodManager:
    """Adds, changes, measures and removes pods; selects the pod of a project. Shared by threads."""

    def __init__(self, database: Database, history: History, selection: PodSelection) -> None:
        self._database = database
        self._untimed = database.untimed
        self._history = history
        self._selection = selection

    # --- pods ---

    def add(self, pod: Pod, author: Author) -> None:
        """Add a pod. Raises PodExists."""

        def work(connection: Connection) -> RecordedChanges | None:
            change_log.serialize(connection)
            pods.insert(connection, pod)
            return _record(connection, author, "add pod", None, pod)

        try:
            self._history.announce(self._database.write(work))
        except DuplicateEntry:
            if self.show(pod.name) != pod:  # equal: the answer to the COMMIT of an earlier attempt was lost
                raise exceptions.PodExists(pod.name) from None

    def list_pods(self, limit: int | None = None, after: str | None = None) -> list[Pod]:
        """At most ``limit`` pods after the one named ``after``, in the order in which they were added.

        Raises MarkerNotFound.
        """
        found = self._database.read_synced(lambda connection: pods.list_pods(connection, limit, after))
        return [stored.pod for stored in found]

    def show(self, name: str) -> Pod:
        """The pod with this name. Raises PodNotFound."""
        stored = self._database.read_synced(lambda connection: pods.find(connection, name))
        if stored is None:
            raise exceptions.PodNotFound(name)
        return stored.pod

    def change(self, name: str, change: Callable[[Pod], Pod], author: Author) -> Pod:
        """Replace a pod by ``change(pod)``, and return it. Raises PodNotFound.

        After this has returned, no project is bound to the pod unless it is available. If its endpoint changes, its
        measurement is forgotten: it is that of another deployment.
        """

        def work(connection: Connection) -> tuple[Pod, RecordedChanges | None]:
            change_log.serialize(connection)
            stored = self._lock(connection, name)
            changed = change(stored.pod)
            pods.update(connection, stored.id, changed)
            if changed.endpoint != stored.pod.endpoint:
                pods.forget_usage(connection, stored.id)
            return changed, _record(connection, author, "set pod", stored.pod, changed)

        changed, recorded = self._database.write(work)
        self._history.announce(recorded)
        return changed

    def remove(self, name: str, author: Author) -> None:
        """Remove a pod. Raises PodNotFound, PodInUse."""

        def work(connection: Connection) -> RecordedChanges | None:
            change_log.serialize(connection)
            stored = self._lock(connection, name)
            if pod_bindings.is_bound(connection, name):
                reason = "projects are bound to it (see `pod binding list --pod`; `pod binding end --pod` ends all)"
                raise exceptions.PodInUse(name, reason)
            if resource_providers.is_any_of_pod(connection, name):
                raise exceptions.PodInUse(name, "providers belong to it (see `capacity provider set NAME --pod OTHER`)")
            pods.delete(connection, stored.id)
            return _record(connection, author, "remove pod", stored.pod, None)

        self._history.announce(self._database.write(work))

    @staticmethod
    def _lock(connection: Connection, name: str) -> StoredPod:
        stored = pods.lock(connection, name)
        if stored is None:
            raise exceptions.PodNotFound(name)
        return stored

    # --- bindings ---

    def select(self, project_id: str, request: PodRequest) -> Binding:
        """The binding of the project for this zone and these tags, created or moved if needed. Raises NoPodFits."""
        key = BindingKey.of(project_id, request.zone, request.affinity)
        # (The version is read only where a pod was full before: it would make the usual selection slower.)
        with_version = not self._selection.passing.is_empty
        current = self._database.read_synced(
            lambda connection: pod_bindings.find_current(connection, key, with_version=with_version),
            lambda connection: pod_bindings.find_current_in_single_statement(
                connection, key, with_version=with_version
            ),
        )
        if current is not None and not self._must_move(current, request):
            return current.binding
        return self._write(key, lambda connection: self._rebind(connection, key, request))

    def _must_move(self, current: StoredBinding, request: PodRequest) -> bool:
        """Whether its pod does not serve the request, and another one passes the filters."""
        if pod_claims.reason_to_move(current, request) is None:
            return False
        passing = self._selection.passing
        ids = None if current.version is None else passing.find(current.version, request)
        if ids is None:
            # (In this order: what changes between the two makes the version outdated.)
            version, stored = self._database.read_synced(
                lambda connection: (pods.read_version(connection), pods.list_pods(connection))
            )
            ids = frozenset(one.id for one in stored if self._selection.passes(Candidate(*one), request))
            passing.remember(version, request, ids)
        return bool(ids - {current.pod_id})

    def _write(self, key: BindingKey, work: Callable[[Connection], Binding]) -> Binding:
        def decide(connection: Connection) -> Binding:
            try:
                return work(connection)
            except DuplicateEntry:
                # Another call has created the binding, or an earlier attempt of this one: decide again, with that one.
                raise ConcurrentChange from None

        binding = self._database.write(decide)
        LOG.debug("Project %s is bound to pod %s (%s)", key.project_id, binding.pod, binding.reason)
        return binding

    def _rebind(self, connection: Connection, key: BindingKey, request: PodRequest) -> Binding:
        current = pod_bindings.find_current(connection, key)
        reason: Reason | None = "first" if current is None else pod_claims.reason_to_move(current, request)
        if current is not None and reason is None:
            return current.binding  # another call has moved it
        candidates = [Candidate(*stored) for stored in pods.list_pods(connection)]
        others = (
            candidate
            for candidate in self._selection.ranked(candidates, request)
            if current is None or candidate.id != current.pod_id
        )
        best = next(others, None)
        if best is not None:
            if not pod_claims.hold(connection, best.id, [request], self._selection):
                # It has changed since it was read. Do not lock the next one in this transaction: transactions that do
                # not lock pods in the order of their ids may wait for each other.
                raise ConcurrentChange
            return _bind(connection, key, current, best.pod.name, reason or "first")
        if current is None:
            raise exceptions.NoPodFits(request.zone, request.affinity)
        return current.binding

    def move(self, project_id: str, zone: str | None, affinity: Mapping[str, str], pod: str) -> Binding:
        """Bind a project to this pod, whatever the filters say. Raises PodNotFound, PodNotAvailable."""
        key = BindingKey.of(project_id, zone, affinity)

        def work(connection: Connection) -> Binding:
            stored = self._lock(connection, pod)
            if stored.pod.state != "available":
                raise exceptions.PodNotAvailable(pod, stored.pod.state)
            current = pod_bindings.find_current(connection, key)
            if current is not None and current.binding.pod == pod:
                return current.binding
            return _bind(connection, key, current, pod, "operator")

        return self._write(key, work)

    def end(self, project_id: str, zone: str | None, affinity: Mapping[str, str]) -> None:
        """End the current binding; the next selection creates another. Raises BindingNotFound."""
        key = BindingKey.of(project_id, zone, affinity)

        def work(connection: Connection) -> None:
            current = pod_bindings.find_current(connection, key)
            if current is None:
                raise exceptions.BindingNotFound(project_id)
            if not pod_bindings.end(connection, current.id):
                raise ConcurrentChange

        self._database.write(work)

    def end_bindings(self, pod: str) -> int:
        """End the current bindings to a pod, in batches. Returns their number. Raises PodNotFound.

        The first batch that is not full is the last one, so that the call also ends if selections bind projects again.
        """
        self.show(pod)
        ended, ids = 0, [0] * pod_bindings.BATCH
        while len(ids) == pod_bindings.BATCH:
            after = ids[-1]
            ids = self._untimed.read_synced(lambda connection: pod_bindings.next_of_pod(connection, pod, after))  # noqa: B023
            ended += self._database.write(lambda connection: pod_bindings.end_each(connection, ids))  # noqa: B023
        return ended

    def list_bindings(
        self, *, project_id: str | None, pod: str | None, history: bool, limit: int | None, after: int
    ) -> list[tuple[int, Binding]]:
        """Bindings and their ids, the oldest first."""
        return self._untimed.read_synced(
            lambda connection: pod_bindings.list_bindings(
                connection, project_id=project_id, pod=pod, history=history, limit=limit, after=after
            )
        )

    def purge_bindings(self, age_microseconds: int) -> int:
        """Delete, in batches, the bindings that ended longer ago than this. Returns their number."""
        purged = 0
        while deleted := self._database.write(lambda connection: pod_bindings.purge(connection, age_microseconds)):
            purged += deleted
        return purged

    # --- measurements ---

    def measure(self, names: list[str]) -> dict[str, dict[str, ResourceUse]]:
        """What the inventories of these pods have and use now. A pod without inventories has an empty measurement."""
        measured = self._untimed.read(lambda connection: free_capacity.sums_of_pods(connection, names))
        return {name: measured.get(name, {}) for name in names}

    def set_usage(self, name: str, usage: Mapping[str, ResourceUse]) -> None:
        """Store a measurement, made now. Raises PodNotFound."""

        def work(connection: Connection) -> None:
            pods.set_usage(connection, self._lock(connection, name).id, usage)

        self._database.write(work)

    def now(self) -> datetime.datetime:
        """The time of the database."""
        return self._database.read(overrides.now)

    def store_measurement(self, pod: Pod, usage: Mapping[str, ResourceUse], began: datetime.datetime) -> None:
        """Store a measurement that began at this time of the database. Raises PodNotFound.

        It is ignored if another one that began later is stored, or if the pod has another endpoint by now.
        """

        def work(connection: Connection) -> None:
            stored = self._lock(connection, pod.name)
            if stored.pod.endpoint == pod.endpoint:
                pods.set_usage(connection, stored.id, usage, began)

        self._database.write(work)

    def list_usages(self, name: str | None) -> list[PodUsage]:
        """The last measurements of all pods, or of one. Raises PodNotFound."""
        usages = self._database.read_synced(lambda connection: pods.list_usages(connection, name))
        if name is not None and not usages:
            raise exceptions.PodNotFound(name)
        return usages

    def claim_due(self, name: str, age_microseconds: int, retry_microseconds: int) -> bool:
        """Whether this process measures the pod: its measurement is older than the age, and no other process began."""
        return self._database.write(
            lambda connection: pods.claim_measurement(connection, name, age_microseconds, retry_microseconds)
        )

    def notices(self) -> list[PodNotice]:
        """The thresholds that the last measurements crossed since the last call on any host.

        Each crossing is returned on one host only.
        """
        notices = []
        for stored, notified in self._database.read(pods.read_notified):
            reached = {
                resource
                for resource, use in (stored.usage or {}).items()
                if (use.used or use.capacity) and is_at_threshold(stored.pod.threshold, use)
            }
            if reached != notified and self._claim_notified(stored.id, notified, reached):
                notices += [_notice(stored, resource, resource in reached) for resource in sorted(reached ^ notified)]
        return notices

    def _claim_notified(self, pod_id: int, before: Collection[str], now: Collection[str]) -> bool:
        return self._database.write(lambda connection: pods.claim_notified(connection, pod_id, before, now))


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
    }


def _record(
    connection: Connection, author: Author, action: str, before: Pod | None, after: Pod | None
) -> RecordedChanges | None:
    pod = before or after
    if before == after or pod is None:
        return None
    change = RecordedChange(action, None, None, _values(before), _values(after), pod=pod.name)
    return change_log.record(connection, author, [change])


def _notice(stored: StoredPod, resource: str, is_reached: bool) -> PodNotice:
    use = (stored.usage or {}).get(resource, ResourceUse(0, 0))
    levels = (0, stored.pod.threshold) if is_reached else (stored.pod.threshold, 0)
    return PodNotice(stored.pod.name, resource, use.capacity, use.used, *levels)


def _bind(connection: Connection, key: BindingKey, current: StoredBinding | None, pod: str, reason: Reason) -> Binding:
    """End the current binding and insert the next one. The row of the pod is locked."""
    if current is not None and not pod_bindings.end(connection, current.id):
        raise ConcurrentChange
    pod_bindings.insert(connection, key, pod, reason)
    stored = pod_bindings.find_current(connection, key)
    assert stored is not None, "inserted in this transaction"
    return stored.binding
