# SPDX-License-Identifier: Apache-2.0
"""The SQL of capacity, on the tables inventories, resource_providers and resource_notices.

It finds the providers that can host and fit all amounts of a claim with ANY, counts what is free for headrooms, checks
that what is in use is counted correctly (C1), and records which thresholds of resources at all providers were reported.

Each headroom is one statement, which the index ix_inventories_free serves. Equal inventories are counted by the
database: the nodes of a cloud have few different sizes and units.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import clock, dialects, paging, reservations
from cyborg_quota.db import resource_providers as providers
from cyborg_quota.db.inventories import ELSEWHERE, fits_units
from cyborg_quota.db.models import inventories, provider_associations, resource_notices, resource_providers
from cyborg_quota.db.prepared import Statement
from cyborg_quota.types import InventoryKey, ResourceKey
from cyborg_quota.types.capacity import CapacityDrift, CapacityNotice, FreeInventories, ResourceUse

_row = inventories.c
_provider = resource_providers.c
_notice = resource_notices.c
_association = provider_associations.c
_COUNT = sa.func.count().label("number")

_INDEXES: Final = ("ix_inventories_free", "ix_inventories_provider")
"""The indexes that MariaDB must use. Otherwise it sorts a small table, reads all equally good inventories, or finds the
other resource of a provider by the unique key, which does not have what is free: it then reads each row.
"""

Order = Literal["least free", "most free", "provider"]
"""The order in which ``find_candidates`` searches."""

_STARTS: Final = 2**20
"""The number of different starts among the providers."""


class Candidate(NamedTuple):
    """A provider that fits a claim: its id, by resource the id of the inventory and what is free there, its pod.

    ``pool_id``: the shared pool from which the resources of ``shared`` are taken. A *share* is a candidate that is a
    shared pool, with the resources that it gives to those providers that it serves and that have no inventory of them.
    """

    provider_id: int
    inventory_ids: dict[str, int]
    free: dict[str, int]
    pod: str | None = None
    pool_id: int = 0
    shared: Collection[str] = ()

    def key(self, resource: str) -> InventoryKey:
        """The inventory from which a resource is taken."""
        return InventoryKey(self.pool_id if resource in self.shared else self.provider_id, resource)


def _largest_first(amounts: Mapping[str, int]) -> list[str]:
    """The resources; the first one is that by which candidates are ordered."""
    return sorted(amounts, key=lambda resource: (-amounts[resource], resource))


_MAX_JOINED: Final = 2
"""The maximum number of inventories that are joined: the server then begins with the rarer resource. More are counted,
because the time to plan a join grows exponentially, and MariaDB joins 61 tables at most."""


def wanted(size: int) -> sa.Subquery:
    """The table of this number of claimed amounts: ``resource``, ``amount``. ``amount_arguments``: its parameters.

    SELECT :b_resource_0 AS resource, :b_amount_0 AS amount UNION ALL VALUES (:b_resource_1, :b_amount_1), ...

    (UNION ALL SELECT ... for each of them: 1,000 take PostgreSQL more than a second to plan, and SQLite permits 500.)
    """
    rows = ", ".join([f"(:b_resource_{index}, :b_amount_{index})" for index in range(1, size)])
    text = "SELECT :b_resource_0 AS resource, :b_amount_0 AS amount" + (f" UNION ALL VALUES {rows}" if rows else "")
    columns = (sa.column("resource", sa.String), sa.column("amount", sa.BigInteger))
    return sa.text(text).columns(*columns).subquery("wanted")


def fits_wanted(row: Any, amounts: sa.Subquery) -> sa.ColumnElement[bool]:
    """Whether an inventory is of a wanted resource, and fits its amount."""
    amount = amounts.c.amount
    return sa.and_(row.resource == amounts.c.resource, row.free >= amount, fits_units(amount, row))


def fitting(size: int) -> tuple[list[Any], Any, list[sa.ColumnElement[bool]]]:
    """The inventories of this number of resources of one provider: the tables, their join, and that they all fit.

    The tables are those of the first resources: at most _MAX_JOINED.
    """
    tables = [inventories.alias(f"inventory_{index}") for index in range(min(size, _MAX_JOINED))]
    first = tables[0]
    source: Any = first
    conditions = []
    for index, table in enumerate(tables):
        amount = sa.bindparam(f"b_amount_{index}", type_=_row.total.type)
        if index:
            source = source.join(table, table.c.provider_id == first.c.provider_id)
        is_resource = table.c.resource == sa.bindparam(f"b_resource_{index}", type_=_row.resource.type)
        # (The CASE keeps PostgreSQL from searching the index by units: it would then sort all rows that it finds.)
        fits = sa.case((fits_units(amount, table.c), sa.literal_column("1")), else_=sa.literal_column("0"))
        conditions += [is_resource, table.c.free >= amount, fits != sa.literal_column("0")]
    if size > _MAX_JOINED:
        amounts, other = wanted(size), inventories.alias("other")
        of_provider = sa.and_(other.c.provider_id == first.c.provider_id, fits_wanted(other.c, amounts))
        number = sa.select(sa.func.count()).select_from(amounts.join(other, of_provider)).correlate(first)
        conditions.append(number.scalar_subquery() == sa.literal_column(str(size)))
    return tables, source, conditions


@functools.lru_cache(maxsize=64)
def _statement(
    dialect: dialects.Dialect, size: int, order: Order, *, in_pod: bool, avoided: int, is_equal: bool, lacking: int
) -> Statement:
    """The query of ``find_candidates`` for this number of resources.

    ``in_pod``: only providers of the pod with the name ``b_pod``. ``avoided``: none of the pods with the names
    ``b_avoided_0``, ``b_avoided_1``, ... ``is_equal``: only those with ``b_free`` units, from a random provider on.
    ``lacking`` not 0: only those that the pool ``b_pool`` serves, without this number of resources.
    """
    tables, source, conditions = fitting(size)
    first = tables[0]
    # The last table: most providers may lack the second resource.
    conditions.append(providers.hosts(tables[-1].c.provider_id, in_pod=in_pod, avoided=avoided))
    conditions += _is_served(first.c.provider_id, lacking) if lacking else []
    indexes = _INDEXES[:1] if size == 1 and order != "provider" else _INDEXES
    if is_equal:
        least, greatest = (sa.select(of(_row.provider_id)).scalar_subquery() for of in (sa.func.min, sa.func.max))
        part = sa.bindparam("b_start", type_=sa.BigInteger) / sa.literal_column(f"{_STARTS}.0")
        start = sa.cast(least + (greatest - least) * part, sa.BigInteger)
        free = sa.bindparam("b_free", type_=_row.free.type)
        # (They replace ``free >= amount``: without statistics, SQLite would read that range of the index.)
        conditions[1:2] = [first.c.free == free, first.c.provider_id >= start]
        order = "provider"
    keys = {"least free": first.c.free, "most free": first.c.free.desc(), "provider": first.c.provider_id}
    pod: sa.Label[str | None] = (
        sa.select(_provider.pod).where(_provider.id == first.c.provider_id).scalar_subquery().label("pod")
    )
    columns = first.c.provider_id, pod, first.c.resource, first.c.id, first.c.free
    query = sa.select(*columns).select_from(source).where(*conditions).order_by(keys[order])
    query = query.limit(sa.bindparam("b_limit", type_=sa.Integer))
    for table in tables:
        query = dialect.with_indexes(query, table, *indexes)
    if size == 1:
        return Statement(query)
    candidates = query.subquery("found")
    names = [sa.bindparam(f"b_resource_{index}", type_=_row.resource.type) for index in range(size)]
    of_candidates = sa.and_(_row.provider_id == candidates.c.provider_id, _row.resource.in_(names))
    inventory = candidates.c.provider_id, candidates.c.pod, _row.resource, _row.id, _row.free
    return Statement(sa.select(*inventory).select_from(candidates.join(inventories, of_candidates)))


def amount_arguments(amounts: Mapping[str, int]) -> dict[str, Any]:
    """The parameters of ``fitting`` and ``wanted``."""
    resources = _largest_first(amounts)
    parameters: dict[str, Any] = {f"b_resource_{index}": resource for index, resource in enumerate(resources)}
    return {**parameters, **{f"b_amount_{index}": amounts[resource] for index, resource in enumerate(resources)}}


def find_candidates(
    connection: sa.Connection,
    amounts: Mapping[str, int],
    order: Order,
    limit: int,
    pod: str | None = None,
    *,
    avoided: Collection[str] = (),
    share: Candidate | None = None,
) -> list[Candidate]:
    """Up to ``limit`` providers that can host and fit all ``amounts``, in ``order`` of the first resource.

    Where more providers have as much free as the first, a second query returns some of them at random. ``pod``: only
    those of this pod; None: all. ``avoided``: none of these pods. The index on (resource, free) serves the first
    resource, and the unique key of the inventories the others. ``share``: only providers that take the rest from there.
    """
    if share is not None:
        amounts = {resource: amount for resource, amount in amounts.items() if resource not in share.free}
        if not amounts:
            return [share]
    parameters = {"b_limit": limit, "b_pod": pod, **amount_arguments(amounts), **_share_arguments(share)}
    parameters.update({f"b_avoided_{index}": name for index, name in enumerate(sorted(avoided))})

    def read(bounds: Mapping[str, int]) -> dict[int, Candidate]:
        how = {"in_pod": pod is not None, "is_equal": bool(bounds), "lacking": 0 if share is None else len(share.free)}
        statement = _statement(dialects.of(connection), len(amounts), order, avoided=len(avoided), **how)
        candidates: dict[int, Candidate] = {}
        for row in statement(connection, {**parameters, **bounds}):
            candidate = candidates.setdefault(row.provider_id, Candidate(row.provider_id, {}, {}, row.pod))
            candidate.inventory_ids[row.resource], candidate.free[row.resource] = row.id, row.free
        return candidates

    candidates = read({})
    free = {candidate.free[_largest_first(amounts)[0]] for candidate in candidates.values()}
    if order != "provider" and len(candidates) == limit and len(free) == 1:
        candidates = {**read({"b_free": free.pop(), "b_start": random.randrange(_STARTS)}), **candidates}
    chosen = list(candidates.values())[:limit]
    if share is None:
        return chosen
    return [
        candidate._replace(
            inventory_ids=candidate.inventory_ids | share.inventory_ids,
            free=candidate.free | share.free,
            pool_id=share.provider_id,
            shared=share.free.keys(),
        )
        for candidate in chosen
    ]


# --- Shared pools ---


def _is_served(provider_id: Any, lacking: int) -> list[sa.ColumnElement[bool]]:
    """Whether the pool ``b_pool`` serves a provider, which has no inventory of ``b_lacking_0``, ``b_lacking_1``, ..."""
    other = inventories.alias("lacking")
    names = [sa.bindparam(f"b_lacking_{index}", type_=_row.resource.type) for index in range(lacking)]
    return [
        sa.exists().where(
            _association.served_id == provider_id, _association.provider_id == sa.bindparam("b_pool", type_=sa.Integer)
        ),
        ~sa.exists().where(other.c.provider_id == provider_id, other.c.resource.in_(names)),
    ]


def _share_arguments(share: Candidate | None) -> dict[str, Any]:
    """The parameters of ``_is_served``."""
    if share is None:
        return {}
    lacking = {f"b_lacking_{index}": name for index, name in enumerate(sorted(share.free))}
    return {"b_pool": share.provider_id, **lacking}


_MAX_SHARED: Final = 30
"""The maximum number of resources of one claim that pools may have."""


def find_shares(connection: sa.Connection, amounts: Mapping[str, int], pod: str | None = None) -> list[Candidate]:
    """What shared pools give to a claim: for each pool, a share for each set of resources that some of its providers
    lack.

    The smallest sets first, so that providers take from a pool what they must. ``pod``: only in this pod.
    """
    serving = connection.scalars(sa.select(_association.provider_id).distinct()).all()
    if not serving:
        return []
    fitting = wanted(len(amounts))
    of_pool = sa.select(_row.provider_id, _provider.pod, _row.resource, _row.id, _row.free)
    of_pool = of_pool.select_from(
        fitting.join(inventories, fits_wanted(_row, fitting)).join(resource_providers, _provider.id == _row.provider_id)
    ).where(_row.provider_id.in_(serving))
    pools: dict[int, Candidate] = {}
    for row in connection.execute(of_pool.where(*paging.given((_provider.pod, pod))), amount_arguments(amounts)):
        share = pools.setdefault(row.provider_id, Candidate(row.provider_id, {}, {}, row.pod))
        share.inventory_ids[row.resource], share.free[row.resource] = row.id, row.free
    if not pools:
        return []
    # Of each provider that is served, the resources that it has, as the sum of powers of two.
    names = sorted({name for share in pools.values() for name in share.free})[:_MAX_SHARED]
    bits = sa.case(
        *((_row.resource == name, sa.literal_column(str(2**bit))) for bit, name in enumerate(names)), else_=0
    )
    its_own = sa.and_(_row.provider_id == _association.served_id, _row.resource.in_(names))
    of_served = (
        sa.select(_association.provider_id, sa.func.sum(bits).label("own"))
        .select_from(
            provider_associations.join(resource_providers, _provider.id == _association.served_id).outerjoin(
                inventories, its_own
            )
        )
        .where(_provider.can_host == 1, _association.provider_id.in_(sorted(pools)))
        .group_by(_association.provider_id, _association.served_id)
        .subquery("of_served")
    )
    shares = []
    for pool_id, own in connection.execute(sa.select(of_served.c.provider_id, of_served.c.own).distinct()):
        pool = pools[pool_id]
        lacking = [name for bit, name in enumerate(names) if not int(own) >> bit & 1]
        if lacking and pool.free.keys() >= set(lacking):
            ids, free = ({name: of[name] for name in lacking} for of in (pool.inventory_ids, pool.free))
            shares.append(pool._replace(inventory_ids=ids, free=free))
    return sorted(shares, key=lambda share: (len(share.free), sorted(share.free), share.provider_id))


# --- What is free ---


def read_free(
    connection: sa.Connection, resources: Collection[str], provider_id: int | None, pod: str | None = None
) -> dict[str, dict[str | None, list[FreeInventories]]]:
    """The inventories that have something free, by resource and pod (None: in none).

    Of one provider, or (None) of all that can host, and of the pools that serve one of these, if it has no inventory of
    the resource. ``pod``: only those of this pod.

    SELECT resource, pod, free, min_unit, max_unit, step_size, count(*) FROM inventories JOIN resource_providers
    WHERE resource IN (...) AND free > 0 AND (can_host = 1 OR EXISTS (...))
    GROUP BY resource, pod, free, min_unit, max_unit, step_size
    """
    served, its_own = resource_providers.alias("served"), inventories.alias("its_own")
    has_own = sa.exists().where(its_own.c.provider_id == served.c.id, its_own.c.resource == _row.resource)
    is_shared = sa.exists().where(
        _association.provider_id == _row.provider_id,
        served.c.id == _association.served_id,
        served.c.can_host == 1,
        ~has_own.correlate(served, inventories),
    )
    which = sa.or_(_provider.can_host == 1, is_shared) if provider_id is None else _row.provider_id == provider_id
    columns = (_row.resource, _provider.pod, _row.free, _row.min_unit, _row.max_unit, _row.step_size)
    conditions = [_row.resource.in_(sorted(resources)), _row.free > 0, which, *paging.given((_provider.pod, pod))]
    source = inventories.join(resource_providers, _provider.id == _row.provider_id)
    query = sa.select(*columns, _COUNT).select_from(source).where(*conditions).group_by(*columns)
    free: dict[str, dict[str | None, list[FreeInventories]]] = {resource: {} for resource in resources}
    for resource, in_pod, *values in connection.execute(query):
        free[resource].setdefault(in_pod, []).append(FreeInventories(*values))
    return free


def count_bundles(
    connection: sa.Connection, bundle: Mapping[str, int], provider_id: int | None, pod: str | None = None
) -> dict[str | None, int]:
    """How many bundles fit, each of them at one provider, by pod. ``provider_id``, ``pod``: as in ``read_free``.

    Those that fit at a provider and the pool that serves it are counted in the order in which ANY chooses them.
    """
    counts = _count_own(connection, bundle, provider_id, pod)
    left: dict[InventoryKey, int] = {}
    for share in find_shares(connection, bundle, pod) if provider_id is None else ():
        keys = {InventoryKey(share.provider_id, resource): bundle[resource] for resource in share.free}
        left = {**{key: share.free[key.resource] for key in keys}, **left}
        number = min(left[key] // amount for key, amount in keys.items())
        if rest := {resource: amount for resource, amount in bundle.items() if resource not in share.free}:
            number = min(number, sum(_count_own(connection, rest, None, pod, share).values()))
        left.update({key: left[key] - number * amount for key, amount in keys.items()})
        counts[share.pod] = counts.get(share.pod, 0) + number
    return counts


def _count_own(
    connection: sa.Connection,
    bundle: Mapping[str, int],
    provider_id: int | None,
    pod: str | None,
    share: Candidate | None = None,
) -> dict[str | None, int]:
    """How many bundles fit at providers by their own inventories, by pod.

    SELECT pod, sum(bundles) FROM (
        SELECT provider_id, min(free / amount) AS bundles FROM wanted JOIN inventories ON <it fits the amount>
        GROUP BY provider_id HAVING count(*) = <size of the bundle>
    ) AS at_provider JOIN resource_providers GROUP BY pod
    """
    amounts = wanted(len(bundle))
    amount = amounts.c.amount
    # (MariaDB divides decimals: the dividend is a multiple, so that no quotient is rounded up.)
    bundles = sa.func.min((_row.free - _row.free % amount) // amount).label("bundles")
    query = sa.select(_row.provider_id, bundles).select_from(amounts.join(inventories, fits_wanted(_row, amounts)))
    query = query.where(*paging.given((_row.provider_id, provider_id)))
    query = query.where(*([] if share is None else _is_served(_row.provider_id, len(share.free))))
    at_provider = query.group_by(_row.provider_id).having(sa.func.count() == len(bundle)).subquery("at_provider")
    by_pod = (
        sa.select(_provider.pod, sa.func.sum(at_provider.c.bundles))
        .select_from(at_provider.join(resource_providers, _provider.id == at_provider.c.provider_id))
        .where(*paging.given((_provider.can_host, 1 if provider_id is None else None), (_provider.pod, pod)))
        .group_by(_provider.pod)
    )
    parameters = {**amount_arguments(bundle), **_share_arguments(share)}
    return {in_pod: int(number) for in_pod, number in connection.execute(by_pod, parameters)}


def sums(connection: sa.Connection, names: Iterable[str] | None = None) -> dict[ResourceKey, ResourceUse]:
    """What the inventories of the providers of these pods have and use. None: of all; "" is that without a pod."""
    pod = sa.func.coalesce(_provider.pod, "")
    query = (
        sa.select(_row.resource, pod, sa.func.sum(_row.capacity), sa.func.sum(_row.capacity - _row.free))
        .select_from(inventories.join(resource_providers, _provider.id == _row.provider_id))
        .where(*paging.among((_provider.pod, names)))
        .group_by(_row.resource, pod)
    )
    return {
        ResourceKey(resource, name): ResourceUse(int(capacity), int(used))
        for resource, name, capacity, used in connection.execute(query)
    }


# --- Audit and repair ---


def audit(connection: sa.Connection) -> dict[InventoryKey, CapacityDrift]:
    """Every inventory whose counters differ from its reservations (C1).

    One statement compares counters with sums, and finds reservations whose inventory does not exist.
    """
    sums = reservations.claimed_sums()
    is_same = sa.and_(sums.c.provider_id == _row.provider_id, sums.c.resource == _row.resource)
    expected = sa.func.coalesce(sums.c.expected, 0)
    drifted = (
        sa.select(_row.provider_id, _row.resource, _row.used.label("used"), expected.label("expected"))
        .select_from(sa.outerjoin(inventories, sums, is_same))
        .where(sa.or_(_row.used != expected, _row.free != _row.capacity - _row.used - ELSEWHERE))
    )
    missing = (
        sa.select(sums.c.provider_id, sums.c.resource, sa.null(), sums.c.expected)
        .select_from(sa.outerjoin(sums, inventories, is_same))
        .where(_row.id.is_(None))
    )
    rows = connection.execute(sa.union_all(drifted, missing)).all()
    names = providers.names(connection, [row.provider_id for row in rows])
    return {
        InventoryKey(row.provider_id, row.resource): CapacityDrift(
            provider=names.get(row.provider_id, str(row.provider_id)),
            resource=row.resource,
            recorded=row.used,
            expected=int(row.expected),
        )
        for row in sorted(rows, key=lambda row: (row.provider_id, row.resource))
    }


def drifted(connection: sa.Connection, provider_ids: Collection[int]) -> set[InventoryKey]:
    """The inventories of these providers whose column ``free`` does not follow from their other counters."""
    is_wrong = _row.free != _row.capacity - _row.used - ELSEWHERE
    query = sa.select(_row.provider_id, _row.resource).where(_row.provider_id.in_(sorted(provider_ids)), is_wrong)
    return {InventoryKey(*row) for row in connection.execute(query)}


def recount(connection: sa.Connection, key: InventoryKey) -> tuple[int, int] | None:
    """Set the counters of one inventory to the sum of its reservations. Returns ``used`` before and after.

    The first statement locks the row; the second one then sees all that the transactions which held it have committed.
    None: there is no such inventory.
    """
    provider_id, resource = key
    is_row = sa.and_(_row.provider_id == provider_id, _row.resource == resource)
    if connection.execute(sa.update(inventories).where(is_row).values(used=_row.used)).rowcount == 0:
        return None
    used = int(connection.execute(reservations.claimed_query(provider_id, resource)).scalar_one())
    before = int(connection.execute(sa.select(_row.used).where(is_row)).scalar_one())
    connection.execute(
        sa.update(inventories)
        .where(is_row)
        .values(used=used, free=_row.capacity - used - ELSEWHERE, updated_at=clock.utc_now())
    )
    return before, used


def pods_that_fit(connection: sa.Connection, amounts: Mapping[str, int]) -> set[str]:
    """The pods with a provider that can host and fits all ``amounts``, or with a pool that may add what it lacks."""
    tables, source, conditions = fitting(len(amounts))
    joined = source.join(resource_providers, _provider.id == tables[0].c.provider_id)
    query = sa.select(_provider.pod).distinct().select_from(joined).where(*conditions, _provider.can_host == 1)
    rows = [*connection.execute(query, amount_arguments(amounts)), *find_shares(connection, amounts)]
    return {row.pod for row in rows if row.pod is not None}


# --- Notices of resources at all providers ---

_CLAIM_NOTICE = (
    sa.update(resource_notices)
    .where(_notice.resource == sa.bindparam("b_resource"), _notice.notified_level == sa.bindparam("b_before"))
    .values(notified_level=sa.bindparam("b_now"))
)


def read_notices(connection: sa.Connection) -> list[CapacityNotice]:
    """The use of each resource at all providers together, and the level that was last reported. Sorted by resource."""
    levels = {row.resource: row.notified_level for row in connection.execute(sa.select(resource_notices))}
    # (A provider whose use exceeds its capacity has nothing free.)
    free = sa.case((_row.free > 0, _row.free), else_=sa.literal_column("0"))
    query = sa.select(_row.resource, sa.func.sum(_row.capacity), sa.func.sum(free)).group_by(_row.resource)
    sums = {resource: (int(capacity), int(left)) for resource, capacity, left in connection.execute(query)}
    return [
        CapacityNotice(None, name, capacity, capacity - left, levels.get(name, 0), levels.get(name, 0))
        for name in sorted(sums.keys() | levels.keys())
        for capacity, left in (sums.get(name, (0, 0)),)
    ]


def claim_notice_level(connection: sa.Connection, resource: str, before: int, now: int) -> bool:
    """Record ``now`` as the notified level. False: another host changed it first, and sends the notification."""
    if before == 0:
        values = {"resource": sa.bindparam("b_resource"), "notified_level": 0}
        dialects.of(connection).insert_or_ignore(connection, resource_notices, values, {"b_resource": resource})
    return connection.execute(_CLAIM_NOTICE, {"b_resource": resource, "b_before": before, "b_now": now}).rowcount == 1
