# SPDX-License-Identifier: Apache-2.0
"""Maintenance of the ledger: purge, fold, audit, and the sums that correct a counter."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects, usages
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.models import project_limits, projects, quota_usages, reservations
from cyborg_quota.db.prepared import ListStatement, any_of
from cyborg_quota.db.reservations import DELETE_CHANGES, new_uuid
from cyborg_quota.db.usages import COUNTS_WHOLE, Node
from cyborg_quota.types import COMMITTED, RESERVED, TOTAL, Counters, Drift, UsageKey, summed

RESERVATION: Final = reservations.c
USAGE: Final = quota_usages.c
_row, _usage = RESERVATION, USAGE
_AGE = sa.bindparam("b_age", type_=sa.BigInteger)
_LIMIT = sa.bindparam("b_limit", type_=sa.Integer)

# (In index order. With the id as a second key, PostgreSQL sorts all ended rows again for each batch.)
_OLD_ENDED = sa.select(_row.id).where(_row.deleted_at <= clock.utc_after(-_AGE)).order_by(_row.deleted_at).limit(_LIMIT)
_DELETE_ENDED = ListStatement(lambda size: sa.delete(reservations).where(any_of(_row.id, size), _row.live.is_(None)))


def purge_ended(connection: sa.Connection, age_microseconds: int, limit: int) -> tuple[int, dict[UsageKey, int]]:
    """Delete up to ``limit`` rows that ended longer ago than the age.

    Returns their number, and their device-seconds by usage row, which the caller adds to ``meter_base`` (charges.py).
    Raises ConcurrentChange if another purge deleted some of them, which would be counted twice.
    """
    ids = connection.execute(_OLD_ENDED, {"b_age": age_microseconds, "b_limit": limit}).scalars().all()
    rows = [row for index in range(len(KINDS)) for row in _metered(index).rows(connection, sorted(ids), {})]
    metered = summed((UsageKey(*row[:3]), int(row[3])) for row in rows)
    DELETE_CHANGES.changed(connection, sorted(ids), {})
    if _DELETE_ENDED.changed(connection, sorted(ids), {}) != len(ids):
        raise ConcurrentChange
    return len(ids), {key: amount for key, amount in metered.items() if amount}


@functools.cache
def _metered(index: int) -> ListStatement:
    """The sums of the meters of reservations, by their ids, of the usage rows of one of KINDS."""
    kind, key = KINDS[index], (_usage.project_id, _usage.resource, _usage.pod)
    query = sa.select(*key, sa.func.sum(_row.meter)).select_from(reservations.join(quota_usages, kind.counts))
    return ListStatement(lambda size: query.where(any_of(_row.id, size), kind.is_counted).group_by(*key))


# Keep the rows of a consumer or a group: a release by consumer or group must find them.
_LOOSE = sa.and_(
    _row.state == COMMITTED,
    _row.consumer_id.is_(None),
    _row.group_id.is_(None),
    sa.func.coalesce(_row.updated_at, _row.created_at) <= clock.utc_after(-_AGE),
)
_GROUP = (_row.usage_id, _row.provider_id, _row.pod)
_FOLDABLE = (
    sa.select(*_GROUP).where(_LOOSE).group_by(*_GROUP).having(sa.func.count() > 1).order_by(_row.usage_id).limit(_LIMIT)
)
_TO_FOLD = (
    sa.select(_row.id, _row.project_id, _row.resource, _row.delta, _row.meter)
    .where(
        _row.usage_id == sa.bindparam("b_usage_id"),
        _row.provider_id.is_not_distinct_from(sa.bindparam("b_provider_id", type_=_row.provider_id.type)),
        _row.pod.is_not_distinct_from(sa.bindparam("b_pod", type_=_row.pod.type)),
        _LOOSE,
    )
    .limit(_LIMIT)
)
_DELETE_LOOSE = ListStatement(
    lambda size: sa.delete(reservations).where(
        any_of(_row.id, size),
        _row.state == sa.literal_column(f"'{COMMITTED}'"),
        _row.consumer_id.is_(None),  # a commit with a name may have given it a consumer
    )
)


FoldGroup = tuple[int, int | None, str | None]
"""Rows that can be folded into one: the ids of their usage row and of their provider, and the pod that counts them."""


def foldable(connection: sa.Connection, age_microseconds: int, limit: int) -> list[FoldGroup]:
    """The first ``limit`` groups of several old committed reservations without consumer and group."""
    return [(*row,) for row in connection.execute(_FOLDABLE, {"b_age": age_microseconds, "b_limit": limit})]


def fold(connection: sa.Connection, group: FoldGroup, age_microseconds: int, limit: int) -> int:
    """Replace up to ``limit`` reservations of a group by one row with their sum, which preserves I2.

    Returns by how many rows the table shrank. Raises ConcurrentChange if one was released meanwhile.
    """
    usage_id, provider_id, pod = group
    parameters = {"b_usage_id": usage_id, "b_provider_id": provider_id, "b_pod": pod, "b_age": age_microseconds}
    # (Locked: a resize meanwhile would be lost.)
    query = dialects.of(connection).lock_in_order(_TO_FOLD, _row.id)
    rows = connection.execute(query, {**parameters, "b_limit": limit}).all()
    if len(rows) < 2:
        return 0
    ids = [row.id for row in rows]
    DELETE_CHANGES.changed(connection, sorted(ids), {})
    if _DELETE_LOOSE.changed(connection, ids, {}) != len(rows):
        raise ConcurrentChange
    values = {
        "uuid": new_uuid(),
        "created_at": clock.utc_now(),
        "deleted": sa.false(),
        "usage_id": usage_id,
        "project_id": rows[0].project_id,
        "resource": rows[0].resource,
        "delta": sum(row.delta for row in rows),
        "meter": sum(row.meter for row in rows),
        "state": COMMITTED,
        "live": 1,
        "provider_id": provider_id,
        "pod": pod,
    }
    connection.execute(sa.insert(reservations).values(values))
    return len(rows) - 1


SUM_RESERVED: Final = sa.func.sum(sa.case((_row.state == RESERVED, _row.delta), else_=0))
SUM_USED: Final = sa.func.sum(sa.case((_row.state == COMMITTED, _row.delta), else_=0))
_SUM_METER: Final = sa.func.sum(_row.meter)

ROW_ID: Final = sa.bindparam("b_id", type_=sa.BigInteger)
ROW_POD: Final = sa.bindparam("b_pod", type_=_usage.pod.type)
ROW_OF_PROJECT: Final = (
    sa.select(_usage.id)
    .where(_usage.project_id == sa.bindparam("b_project"), COUNTS_WHOLE, _usage.resource == sa.bindparam("b_resource"))
    .scalar_subquery()
)


_NEEDS_ROW: Final = usages.PASSED_ON[:-1]
"""A parent whose children have one of these must have a usage row."""
_NO_COUNTERS: Final = [sa.null() for _ in usages.COUNTERS]
"""The counters of a usage row that does not exist."""


class CountedRows(NamedTuple):
    """A kind of usage rows, by the columns of reservations and of quota_usages.

    ``includes``: whether the usage row with this key is of this kind. ``counts``: the join of a usage row with the
    reservations that it counts. ``key``: the resource and the pod of the usage row, from a reservation. ``is_counted``:
    whether a reservation has a usage row of this kind. ``is_of_row``: whether one given usage row counts a reservation;
    it compares the indexed column usage_id with ROW_ID (the row itself) or ROW_OF_PROJECT (that of the whole resource).
    ``usage_id``: where the id of the usage row is: in the reservation, or (by default) in the joined row.
    """

    includes: Callable[[UsageKey], bool]
    counts: sa.ColumnElement[bool]
    key: tuple[sa.ColumnElement[str], sa.ColumnElement[str]]
    is_counted: sa.ColumnElement[bool]
    is_of_row: sa.ColumnElement[bool]
    usage_id: sa.ColumnElement[int] = _usage.id

    @property
    def all_sums(self) -> sa.Select[Any]:
        """The id of each usage row that counts something, and the sums of what it counts."""
        source = reservations if self.usage_id is _row.usage_id else reservations.join(quota_usages, self.counts)
        sums: tuple[sa.Label[Any], ...] = (
            SUM_RESERVED.label("reserved"), SUM_USED.label("used"), _SUM_METER.label("metered")
        )  # fmt: skip
        return (
            sa.select(self.usage_id.label("usage_id"), *sums)
            .select_from(source)
            .where(self.is_counted)
            .group_by(self.usage_id)
        )

    @property
    def orphans(self) -> sa.Select[Any]:
        """The keys of the usage rows that are missing, and the sums that they must have."""
        sums = {"subtree": SUM_RESERVED + SUM_USED, "metered": _SUM_METER}
        below = [sums.get(name, sa.literal(0)) for name in usages.PASSED_ON]
        return (
            sa.select(_row.project_id, *self.key, *_NO_COUNTERS, SUM_USED, SUM_RESERVED, *below)
            .select_from(reservations.outerjoin(quota_usages, self.counts))
            .where(_row.live == 1, self.is_counted, _usage.id.is_(None))
            .group_by(_row.project_id, _row.resource, _row.pod)
        )


KINDS: Final = [
    CountedRows(
        includes=lambda key: key.is_whole,
        counts=_usage.id == _row.usage_id,
        key=(_row.resource, sa.literal_column("''")),
        is_counted=sa.true(),
        is_of_row=_row.usage_id == ROW_ID,
        usage_id=_row.usage_id,
    )
]
"""The kinds of usage rows: that of a project and a resource, and those that the SQL of enforcers adds when imported."""


_LIMITED = sa.select(project_limits.c.resource).where(project_limits.c.project_id == TOTAL)
"""The resources with a total limit. (The row of a total without a limit counts nothing yet: see charges.py.)"""


@functools.cache
def _audit_query() -> sa.CompoundSelect[Any]:
    """Compare counters with sums in one statement: two statements would read two snapshots, and report false drift.

    The first part checks the usage rows. The next ones find live reservations without a usage row of each kind, and the
    last finds projects without a usage row whose children have one.
    """
    sums = sa.union_all(*(kind.all_sums for kind in KINDS)).subquery("sums")
    children = _sums_of_children()
    reserved = sa.func.coalesce(sums.c.reserved, 0)
    used = sa.func.coalesce(sums.c.used, 0)
    own = {"subtree": used + reserved, "metered": sa.func.coalesce(sums.c.metered, 0) + _usage.meter_base}
    expected: dict[str, sa.ColumnElement[Any]] = {"used": used, "reserved": reserved}
    expected |= {name: own.get(name, 0) + sa.func.coalesce(children.c[name], 0) for name in usages.PASSED_ON}
    present = (
        sa.select(*usages.KEY, *usages.COUNTERS, *(value.label(f"true_{name}") for name, value in expected.items()))
        .select_from(
            sa.outerjoin(quota_usages, sums, sums.c.usage_id == _usage.id).outerjoin(
                children,
                sa.and_(
                    children.c.parent_id == _usage.project_id,
                    children.c.pod == _usage.pod,
                    children.c.resource == _usage.resource,
                ),
            )
        )
        .where(
            sa.or_(*(_usage[name] != value for name, value in expected.items())),
            sa.or_(_usage.project_id != TOTAL, _usage.resource.in_(_LIMITED)),
        )
    )
    return sa.union_all(present, *(kind.orphans for kind in KINDS), _rowless_parents(children))


def _sums_of_children() -> sa.Subquery:
    """What the rows of the children of each project make of its row; of a total, those of all roots."""
    child = quota_usages.alias("child")
    by_parent = (
        sa.select(projects.c.parent_id, child.c.resource, child.c.pod, *usages.sums_passed_on(child))
        .select_from(sa.join(projects, child, child.c.project_id == projects.c.project_id))
        .where(projects.c.parent_id.is_not(None))
        .group_by(projects.c.parent_id, child.c.resource, child.c.pod)
    )
    of_roots = (
        sa.select(sa.literal(TOTAL), child.c.resource, child.c.pod, *usages.sums_passed_on(child))
        .select_from(sa.outerjoin(child, projects, projects.c.project_id == child.c.project_id))
        .where(projects.c.parent_id.is_(None), child.c.project_id != TOTAL)
        .where(child.c.pod == "", child.c.resource.in_(_LIMITED))
        .group_by(child.c.resource, child.c.pod)
    )
    return by_parent.union_all(of_roots).subquery("children")


def _rowless_parents(children: sa.Subquery) -> sa.Select[Any]:
    return (
        sa.select(
            children.c.parent_id, children.c.resource, children.c.pod, *_NO_COUNTERS,
            sa.literal(0), sa.literal(0), *(children.c[name] for name in usages.PASSED_ON),
        )
        .select_from(
            sa.outerjoin(
                children,
                quota_usages,
                sa.and_(
                    _usage.project_id == children.c.parent_id,
                    _usage.pod == children.c.pod,
                    _usage.resource == children.c.resource,
                ),
            )
        )
        .where(
            _usage.id.is_(None),
            # The row of a total must exist wherever its limit is set: no charge inserts it.
            sa.or_(children.c.parent_id == TOTAL, *(children.c[name] != 0 for name in _NEEDS_ROW)),
        )
    )  # fmt: skip


def audit(connection: sa.Connection) -> list[Drift]:
    """Every usage row whose counters differ from its reservations, or whose subtree differs from its parts' sum."""
    drifts = []
    rowless = collections.defaultdict[UsageKey, collections.Counter[str]](collections.Counter)
    names, end = ("used", "reserved", *usages.PASSED_ON), len(usages.KEY) + len(usages.COUNTERS)
    for row in connection.execute(_audit_query()):
        key, expected = UsageKey(*row[:3]), {name: int(row._mapping[f"true_{name}"]) for name in names}
        if row.used is None:
            # The query returns a project's usage in each pod and its children's as several rows: add them to one Drift.
            rowless[key].update(expected)
            continue
        recorded = Counters(*row[3:end])
        drifts.append(Drift(key, recorded, dataclasses.replace(recorded, **expected)))
    drifts += [Drift(key, None, Counters(**expected)) for key, expected in rowless.items()]
    return sorted(drifts, key=lambda drift: drift.key)


def sums_of_reservations(connection: sa.Connection, node: Node) -> tuple[int, int, int]:
    """(reserved, used) of the live reservations of the row, and the sum of the meters of all, also of ended ones."""
    kind = next(kind for kind in reversed(KINDS) if kind.includes(node.key))
    query = sa.select(SUM_RESERVED, SUM_USED).where(_row.state.in_((RESERVED, COMMITTED)), kind.is_of_row)
    names = {"b_id": node.usage_id, "b_project": node.project_id, "b_resource": node.resource, "b_pod": node.pod}
    reserved, used = connection.execute(query, names).one()
    metered = connection.execute(sa.select(_SUM_METER).where(kind.is_of_row), names).scalar_one()
    return int(reserved or 0), int(used or 0), int(metered or 0)


def children_total(connection: sa.Connection, node: Node) -> Counters:
    """What the rows of the direct children make of this row, with their meters; of a total, those of all roots."""
    is_total, child = node.project_id == TOTAL, quota_usages.alias("child")
    is_child = projects.c.parent_id == node.project_id
    if is_total:
        is_child = sa.and_(projects.c.parent_id.is_(None), child.c.project_id != TOTAL)
    query = (
        sa.select(*usages.sums_passed_on(child))
        .select_from(sa.join(child, projects, projects.c.project_id == child.c.project_id, isouter=is_total))
        .where(child.c.pod == node.pod, child.c.resource == node.resource, is_child)
    )
    sums = zip(usages.PASSED_ON, connection.execute(query).one(), strict=True)
    return Counters(**{name: int(amount or 0) for name, amount in sums})


def link(connection: sa.Connection, usage_id: int, project_id: str, resource: str) -> None:
    """Link a project's reservations to their usage row after that row was recreated."""
    is_linked = (_row.project_id == project_id, _row.resource == resource)
    connection.execute(sa.update(reservations).where(*is_linked).values(usage_id=usage_id))
