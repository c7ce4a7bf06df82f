# SPDX-License-Identifier: Apache-2.0
"""The table pod_bindings: which pod serves a project, for each zone and set of tags. Ended bindings are kept.

``current`` is 1 for the current binding and NULL for an ended one, so that a unique key permits one current binding for
each project, zone and set of tags. Callers lock the row of the new pod first (pods/tables.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects, paging
from cyborg_quota.db.models import pod_bindings, pod_usages
from cyborg_quota.db.models import pods as pods_table
from cyborg_quota.db.prepared import Statement
from cyborg_quota.pods import tables as pods
from cyborg_quota.pods.tables import PodsVersion
from cyborg_quota.pods.types import Binding, PodState, Reason
from cyborg_quota.types.capacity import ResourceUse

_binding = pod_bindings.c


class BindingKey(NamedTuple):
    """What a binding is for. ``zone`` is '' where there is none; ``affinity`` is the stored text of the tags."""

    project_id: str
    zone: str
    affinity: str

    @classmethod
    def of(cls, project_id: str, zone: str | None, affinity: Mapping[str, str]) -> BindingKey:
        return cls(project_id, zone or "", pods.affinity_text(affinity))

    @property
    def parameters(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.affinity.encode()).hexdigest()
        return {"b_project": self.project_id, "b_zone": self.zone, "b_hash": digest}


class StoredBinding(NamedTuple):
    """A current binding, with its id, and with the id, state, threshold and last measurement of its pod.

    ``usage`` None: the pod was never measured. ``version``: that of all pods; None: it was not read.
    """

    id: int
    binding: Binding
    pod_id: int
    state: PodState
    threshold: int
    usage: Mapping[str, ResourceUse] | None
    version: PodsVersion | None = None


_COLUMNS: Final = (
    _binding.id,
    _binding.pod,
    _binding.project_id,
    _binding.availability_zone.label("binding_zone"),
    _binding.resource_affinity.label("binding_affinity"),
    _binding.starts_at,
    _binding.ends_at,
    _binding.reason,
)
_IS_OF_KEY: Final = sa.and_(
    _binding.project_id == sa.bindparam("b_project"),
    _binding.availability_zone == sa.bindparam("b_zone"),
    _binding.affinity_hash == sa.bindparam("b_hash"),
    _binding.current == sa.literal_column("1"),
)
_CURRENT_COLUMNS: Final = (
    *_COLUMNS,
    pods_table.c.id.label("pod_id"),
    pods_table.c.state,
    pods_table.c.threshold,
    pod_usages.c.usage,
)
_WITH_POD: Final = pods.WITH_USAGE.join(pod_bindings, _binding.pod == pods_table.c.name)
_FIND_CURRENT: Final = {
    False: Statement(sa.select(*_CURRENT_COLUMNS).select_from(_WITH_POD).where(_IS_OF_KEY)),
    True: Statement(
        sa.select(*_CURRENT_COLUMNS, *pods.VERSION.c)
        .select_from(_WITH_POD.join(pods.VERSION, pods.VERSION.c.version_newest >= pods_table.c.id))  # (always true)
        .where(_IS_OF_KEY)
    ),
}


def find_current(connection: sa.Connection, key: BindingKey, *, with_version: bool = False) -> StoredBinding | None:
    """The current binding for this key, with its pod and, if wanted, the version of all pods."""
    row = _FIND_CURRENT[with_version](connection, key.parameters).first()
    return None if row is None else _stored(row, with_version=with_version)


def find_current_in_single_statement(
    connection: sa.Connection, key: BindingKey, *, with_version: bool
) -> StoredBinding | None:
    """As ``find_current``, but as a transaction of its own. Also returns None if the dialect does not support this."""
    query = _FIND_CURRENT[with_version]
    rows = dialects.of(connection).read_in_single_statement(connection, query, key.parameters)
    return _stored(rows[0], with_version=with_version) if rows else None


def _stored(row: Any, *, with_version: bool) -> StoredBinding:
    version = pods.version_of(row) if with_version else None
    usage = pods.usage_of(row.usage)
    return StoredBinding(row.id, _binding_of(row), row.pod_id, row.state, row.threshold, usage, version)


_END: Final = sa.update(pod_bindings).where(_binding.current == 1).values(current=None, ends_at=clock.utc_now())


def end(connection: sa.Connection, binding_id: int) -> bool:
    """End a current binding. False: it has ended already."""
    return connection.execute(_END.where(_binding.id == binding_id)).rowcount == 1


def end_each(connection: sa.Connection, ids: Sequence[int]) -> int:
    """End those of these bindings that are current. Returns their number."""
    return connection.execute(_END.where(_binding.id.in_(ids))).rowcount if ids else 0


def end_all(connection: sa.Connection, project_id: str) -> None:
    """End the current bindings of a project that is removed. Call this before its usage rows are locked."""
    connection.execute(_END.where(_binding.project_id == project_id))


def insert(connection: sa.Connection, key: BindingKey, pod: str, reason: Reason) -> None:
    """Insert the current binding of a key. Raises DBDuplicateEntry if there is one."""
    connection.execute(
        sa.insert(pod_bindings).values(
            project_id=key.project_id,
            availability_zone=key.zone,
            resource_affinity=key.affinity,
            affinity_hash=key.parameters["b_hash"],
            pod=pod,
            starts_at=clock.utc_now(),
            reason=reason,
            current=1,
        )
    )


BATCH = 1000
"""The most bindings that one transaction ends or deletes."""


def purge(connection: sa.Connection, age_microseconds: int) -> int:
    """Delete bindings that ended longer ago than this, at most BATCH of them. Returns their number."""
    begin = clock.utc_after(-sa.literal(age_microseconds, sa.BigInteger))
    ended = sa.and_(_binding.current.is_(None), _binding.ends_at < begin)
    ids = connection.scalars(sa.select(_binding.id).where(ended).order_by(_binding.id).limit(BATCH)).all()
    return connection.execute(sa.delete(pod_bindings).where(_binding.id.in_(ids))).rowcount if ids else 0


def is_bound(connection: sa.Connection, pod: str) -> bool:
    """Whether the pod has a current binding."""
    query = sa.select(sa.literal(1)).where(_binding.pod == pod, _binding.current == 1).limit(1)
    return connection.execute(query).first() is not None


def next_of_pod(connection: sa.Connection, pod: str, after: int) -> list[int]:
    """The ids of the current bindings to a pod that are higher than ``after``, in order: the first BATCH of them."""
    is_current = sa.and_(_binding.pod == pod, _binding.current == 1, _binding.id > after)
    return list(connection.scalars(sa.select(_binding.id).where(is_current).order_by(_binding.id).limit(BATCH)))


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
    query = sa.select(*_COLUMNS).where(_binding.id > after, *wanted).order_by(_binding.id).limit(limit)
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
