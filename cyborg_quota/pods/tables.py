# SPDX-License-Identifier: Apache-2.0
"""The tables pods, pod_usages and pod_bindings.

The state of a pod and the creation of its bindings are serialized by the pod's row::

    UPDATE pods SET generation = generation + 1 WHERE id = :id AND state = 'available'

A row count of 0 means that the pod is not available any more, or was removed. A transaction that creates a binding
runs this statement first, so that no binding is created after the switch to maintenance has been answered.

A binding says which pod serves a project, in each zone and for each set of tags. ``current`` is 1 for the current
binding and NULL for an ended one, which is kept, so that a unique key permits one current binding for each project,
zone of the pod and set of tags. Another unique key permits one first binding of all zones.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import clock, maintenance, paging, reservations
from cyborg_quota.db import pods as names
from cyborg_quota.db.models import pod_bindings, pod_usages, pods
from cyborg_quota.db.prepared import Statement
from cyborg_quota.types.capacity import Binding, Candidate, Pod, PodUsage, Reason, ResourceUse

_pod = pods.c
_usage = pod_usages.c
_binding = pod_bindings.c
COLUMNS: Final = (
    _pod.id.label("pod_id"), _pod.name, _pod.availability_zone, _pod.resource_affinity, _pod.state, _pod.weight,
    _pod.threshold, _pod.endpoint, _pod.region, _usage.usage,
)  # fmt: skip
_END_BINDINGS: Final = (
    sa.update(pod_bindings).where(_binding.current == 1).values(current=None, is_first=None, ends_at=clock.utc_now())
)
WITH_USAGE: Final = pods.outerjoin(pod_usages, _usage.pod_id == _pod.id)
_counted, _held = maintenance.USAGE, maintenance.RESERVATION
maintenance.KINDS.append(
    maintenance.CountedRows(
        includes=lambda key: not key.is_whole,
        counts=sa.and_(
            _counted.project_id == _held.project_id, _counted.pod == _held.pod, _counted.resource == _held.resource
        ),
        key=(_held.resource, _held.pod),
        is_counted=_held.pod.is_not(None),
        is_of_row=sa.and_(_held.usage_id == maintenance.ROW_OF_PROJECT, _held.pod == maintenance.ROW_POD),
    )
)


def stored(row: Any) -> Candidate:
    """The pod of a row with COLUMNS."""
    pod = Pod(
        name=row.name,
        availability_zone=row.availability_zone or None,
        resource_affinity=json.loads(row.resource_affinity),
        state=row.state,
        weight=row.weight,
        threshold=row.threshold,
        endpoint=row.endpoint,
        region=row.region,
    )
    return Candidate(row.pod_id, pod, usage_of(row.usage))


def pods_of_group(connection: sa.Connection, project_id: str, group: str) -> list[str]:
    """The pods in which a group of the project holds something, the one of its oldest live reservation first.

    SELECT pod FROM reservations WHERE <in_group> AND live = 1 AND pod IS NOT NULL GROUP BY pod ORDER BY min(id)
    """
    of_group = sa.or_(*reservations.in_group(group, project_id)), _held.pod.is_not(None)
    query = sa.select(_held.pod).where(*of_group, _held.live == 1)
    query = query.group_by(_held.pod).order_by(sa.func.min(_held.id))
    return list(connection.execute(query).scalars())


def affinity_text(affinity: Mapping[str, str]) -> str:
    """The tags as stored: equal tags have equal texts."""
    return json.dumps(dict(affinity), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def compared(connection: sa.Connection, requests: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The extra specs of each request whose key is that of a tag of some pod, whatever its state and value."""
    texts = connection.scalars(sa.select(_pod.resource_affinity).distinct()).all() if any(requests) else ()
    return [only_tags(texts, specs) for specs in requests]


def only_tags(texts: Iterable[str], specs: Mapping[str, str]) -> dict[str, str]:
    """Those of the extra specs whose key is in one of these stored texts of tags."""
    known = {key for text in texts for key in json.loads(text)}
    return {key: value for key, value in specs.items() if key in known}


def insert(connection: sa.Connection, pod: Pod) -> Pod:
    """Insert a pod, and return it. Raises DBDuplicateEntry if its name exists."""
    connection.execute(sa.insert(pods).values(created_at=clock.utc_now(), generation=0, name=pod.name, **_values(pod)))
    return pod


def _values(pod: Pod) -> dict[str, Any]:
    return {
        "availability_zone": pod.availability_zone or "",
        "resource_affinity": affinity_text(pod.resource_affinity),
        "state": pod.state,
        "weight": pod.weight,
        "threshold": pod.threshold,
        "endpoint": pod.endpoint,
        "region": pod.region,
    }


def lock(connection: sa.Connection, name: str) -> Candidate:
    """Lock a pod against new bindings and other changes, and return it as it is now. Raises PodNotFound."""
    names.lock(connection, name)
    return find(connection, name)


def update(connection: sa.Connection, stored: Candidate, pod: Pod) -> None:
    """Store the values of a locked pod. One that has a new endpoint is measured again soon."""
    connection.execute(sa.update(pods).where(_pod.id == stored.id).values(_values(pod)))
    if pod.endpoint != stored.pod.endpoint:
        connection.execute(sa.delete(pod_usages).where(_usage.pod_id == stored.id))


def delete(connection: sa.Connection, pod_id: int) -> None:
    """Delete a locked pod and its measurement."""
    connection.execute(sa.delete(pod_usages).where(_usage.pod_id == pod_id))
    connection.execute(sa.delete(pods).where(_pod.id == pod_id))


def find(connection: sa.Connection, name: str) -> Candidate:
    """The pod with this name. Raises PodNotFound."""
    for row in connection.execute(_LIST.where(_pod.name == name)):
        return stored(row)
    raise exceptions.PodNotFound(name)


PodsVersion = tuple[int, "int | None", "int | None"]
"""Changes whenever a pod is added, changed, measured, bound or removed. (Ids are not used again.)"""

_any_pod = pods.alias("any_pod")
VERSION: Final = sa.select(
    sa.func.count().label("version_pods"),
    sa.func.max(_any_pod.c.id).label("version_newest"),
    sa.func.sum(_any_pod.c.generation).label("version_changes"),
).subquery("version")


def read_version(connection: sa.Connection) -> PodsVersion:
    """The present version of all pods."""
    number, newest, changes = connection.execute(sa.select(VERSION)).one()
    return number, newest, changes


def list_pods(connection: sa.Connection, limit: int | None = None, after: str | None = None) -> list[Candidate]:
    """At most ``limit`` pods after the one named ``after``, in the order in which they were added.

    Raises MarkerNotFound.
    """
    query = _LIST.limit(limit)
    if after is not None:
        paging.require(connection, pods, _pod.name == after, (after,))
        query = query.where(_pod.id > sa.select(_pod.id).where(_pod.name == after).scalar_subquery())
    return [stored(row) for row in connection.execute(query)]


_LIST = sa.select(*COLUMNS).select_from(WITH_USAGE).order_by(_pod.id)


def hold_available(connection: sa.Connection, pod_id: int) -> Candidate | None:
    """Lock a pod for a new binding, and return it as it is now. None: it is not available any more."""
    is_available = _pod.id == pod_id, _pod.state == "available"
    held = connection.execute(sa.update(pods).where(*is_available).values(generation=_pod.generation + 1))
    return stored(connection.execute(_LIST.where(_pod.id == pod_id)).one()) if held.rowcount == 1 else None


# --- measurements ---


def set_usage(connection: sa.Connection, pod_id: int, usage: Mapping[str, ResourceUse]) -> None:
    """Replace the measurement of a locked pod by one of now."""
    text = json.dumps({resource: use._asdict() for resource, use in sorted(usage.items())})
    values = {"usage": text, "measured_at": clock.utc_now()}
    changed = connection.execute(sa.update(pod_usages).where(_usage.pod_id == pod_id).values(values))
    if changed.rowcount == 0:
        connection.execute(sa.insert(pod_usages).values(pod_id=pod_id, **values))


def list_usages(connection: sa.Connection) -> list[PodUsage]:
    """The last measurements of all pods, in the order in which they were added."""
    since = sa.case(
        (_pod.state == "disabled", None),
        (_usage.measured_at.is_not(None), _usage.measured_at),
        (_pod.endpoint.is_not(None), _pod.created_at),
    ).label("since")
    query = sa.select(_pod.name, _usage.usage, _usage.measured_at, since, clock.utc_now().label("now"))
    query = query.select_from(WITH_USAGE).order_by(_pod.id)
    return [
        PodUsage(
            row.name,
            usage_of(row.usage),
            row.measured_at,
            None if row.measured_at is None else row.now - row.measured_at,
            None if row.since is None else (row.now - row.since).total_seconds(),
        )
        for row in connection.execute(query)
    ]


def read_notified(connection: sa.Connection) -> list[tuple[Candidate, frozenset[str]]]:
    """Every pod that was measured, and the resources whose threshold was reached when it was reported last."""
    query = sa.select(*COLUMNS, _pod.notified_resources).select_from(WITH_USAGE).where(_usage.usage.is_not(None))
    rows = connection.execute(query.order_by(_pod.id))
    return [(stored(row), frozenset(json.loads(row.notified_resources or "[]"))) for row in rows]


def claim_notified(connection: sa.Connection, pod_id: int, before: Collection[str], now: Collection[str]) -> bool:
    """Record what is reported ``now``. False: another host changed it first, and sends the notices."""
    is_same = sa.func.coalesce(_pod.notified_resources, "[]") == json.dumps(sorted(before))
    update = sa.update(pods).where(_pod.id == pod_id, is_same).values(notified_resources=json.dumps(sorted(now)))
    return connection.execute(update).rowcount == 1


def usage_of(text: str | None) -> dict[str, ResourceUse] | None:
    """The measurement of a stored text."""
    if text is None:
        return None
    return {resource: ResourceUse(use["capacity"], use["used"]) for resource, use in json.loads(text).items()}


# --- bindings ---


class BindingKey(NamedTuple):
    """Whose bindings, and for which tags (their stored text). There is one in each zone of pods, at the most."""

    project_id: str
    affinity: str

    @classmethod
    def of(cls, project_id: str, affinity: Mapping[str, str]) -> BindingKey:
        return cls(project_id, affinity_text(affinity))

    @property
    def parameters(self) -> dict[str, Any]:
        return {"b_project": self.project_id, "b_hash": hashlib.sha256(self.affinity.encode()).hexdigest()}


class StoredBinding(NamedTuple):
    """A current binding, with its id and its pod.

    ``is_first``: see the table. ``version``: that of all pods; None: it was not read.
    """

    id: int
    binding: Binding
    candidate: Candidate
    is_first: int | None = None
    version: PodsVersion | None = None


_BINDING_COLUMNS: Final = (
    _binding.id,
    _binding.pod,
    _binding.project_id,
    _binding.availability_zone.label("binding_zone"),
    _binding.resource_affinity.label("binding_affinity"),
    _binding.starts_at,
    _binding.ends_at,
    _binding.reason,
)
_IS_CURRENT: Final = sa.and_(
    _binding.project_id == sa.bindparam("b_project"), _binding.current == sa.literal_column("1")
)
_CURRENT_COLUMNS: Final = (*_BINDING_COLUMNS, *COLUMNS, _binding.is_first)
_WITH_POD: Final = WITH_USAGE.join(pod_bindings, _binding.pod == _pod.name)


_TAGS: Final = sa.select(_any_pod.c.resource_affinity.label("known_tags")).distinct().subquery("tags")


@functools.cache
def _find_current(*, with_tags: bool, with_version: bool) -> Statement:
    """The current bindings of a project. ``with_tags``: whatever their tags are, each with those of all pods."""
    columns, source, is_wanted = _CURRENT_COLUMNS, _WITH_POD, _IS_CURRENT
    if with_tags:
        columns, source = (*columns, *_TAGS.c), source.join(_TAGS, _TAGS.c.known_tags.is_not(None))  # (always true)
    else:
        is_wanted = sa.and_(is_wanted, _binding.affinity_hash == sa.bindparam("b_hash"))
    if with_version:
        columns, source = (*columns, *VERSION.c), source.join(VERSION, VERSION.c.version_newest >= _pod.id)  # (as well)
    return Statement(sa.select(*columns).select_from(source).where(is_wanted).order_by(_binding.id))


def find_current(
    connection: sa.Connection,
    key: BindingKey,
    specs: Mapping[str, str] | None = None,
    *,
    with_version: bool = False,
) -> list[StoredBinding]:
    """The current bindings for this key, the oldest first, with their pods and, if wanted, the version of all.

    ``specs``: the extra specs of a request, instead of the tags of the key.
    """
    statement = _find_current(with_tags=bool(specs), with_version=with_version)
    rows = statement(connection, key.parameters).all()
    if specs:
        wanted = affinity_text(only_tags({row.known_tags for row in rows}, specs))
        rows = list({row.id: row for row in rows if row.binding_affinity == wanted}.values())
    return [
        StoredBinding(
            row.id,
            dataclasses.replace(_binding_of(row), endpoint=row.endpoint, region=row.region),
            stored(row),
            row.is_first,
            (row.version_pods, row.version_newest, row.version_changes) if with_version else None,
        )
        for row in rows
    ]


def end_binding(connection: sa.Connection, binding_id: int) -> bool:
    """End a current binding. False: it has ended already."""
    return connection.execute(_END_BINDINGS.where(_binding.id == binding_id)).rowcount == 1


def insert_binding(connection: sa.Connection, key: BindingKey, pod: Pod, reason: Reason, *, is_first: bool) -> None:
    """Insert the current binding of a key in the zone of the pod. Raises DBDuplicateEntry if there is one."""
    connection.execute(
        sa.insert(pod_bindings).values(
            project_id=key.project_id,
            availability_zone=pod.availability_zone or "",
            resource_affinity=key.affinity,
            affinity_hash=key.parameters["b_hash"],
            pod=pod.name,
            starts_at=clock.utc_now(),
            reason=reason,
            current=1,
            is_first=1 if is_first else None,
        )
    )


def replace_bindings(
    connection: sa.Connection,
    key: BindingKey,
    ended: Sequence[StoredBinding],
    pod: Pod,
    reason: Reason,
    *,
    others: Collection[int] | None,
) -> bool:
    """End these bindings of a key, and insert the next one. Raises DBDuplicateEntry if there is one.

    ``others``: the ids of those in other zones, which a request without a zone would join; None: it names its zone.
    False: there are others, or one of ``ended`` has ended already; roll back.
    """
    if not all(end_binding(connection, row.id) for row in ended):
        return False
    rest = {row.id for row in find_current(connection, key)}
    if others is not None and rest != set(others):
        return False
    insert_binding(connection, key, pod, reason, is_first=not rest or any(row.is_first for row in ended))
    return True


def is_bound(connection: sa.Connection, pod: str) -> bool:
    """Whether the pod has a current binding."""
    return paging.exists(connection, _binding.pod == pod, _binding.current == 1)


def end_bindings(connection: sa.Connection, pod: str) -> int:
    """End the current bindings to a pod, and return their number."""
    return connection.execute(_END_BINDINGS.where(_binding.pod == pod)).rowcount


def end_bindings_of(connection: sa.Connection, project_id: str) -> None:
    """End the current bindings of a project."""
    connection.execute(_END_BINDINGS.where(_binding.project_id == project_id))


def list_bindings(
    connection: sa.Connection,
    *,
    project_id: str | None,
    pod: str | None,
    history: bool,
    limit: int | None,
    after: int,
) -> list[tuple[int, Binding]]:
    """The bindings and their ids, the oldest first. ``history``: also those that ended."""
    current = None if history else 1
    wanted = paging.given((_binding.project_id, project_id), (_binding.pod, pod), (_binding.current, current))
    query = sa.select(*_BINDING_COLUMNS).where(_binding.id > after, *wanted).order_by(_binding.id).limit(limit)
    return [(row.id, _binding_of(row)) for row in connection.execute(query)]


def _binding_of(row: Any) -> Binding:
    return Binding(
        project_id=row.project_id,
        pod=row.pod,
        availability_zone=row.binding_zone or None,
        resource_affinity=json.loads(row.binding_affinity),
        starts_at=clock.moment_of(row.starts_at),
        ends_at=None if row.ends_at is None else clock.moment_of(row.ends_at),
        reason=row.reason,
    )
