# SPDX-License-Identifier: Apache-2.0
"""Applies postings to usage rows; locks many of them in the order of charges; renews their generations; sets totals.

A row that its charge would make negative has drifted: it is set to the sums of its reservations and of its children,
and so are all rows above it. The lock of a row makes its sums exact: transactions that changed the row before have
ended, later ones wait.

Where a row of a path has a minimum, all rows of the charge are locked first: what each of them passes on to the row
above depends on its counters (minimums.py).

Paths are cached with their limits. Whoever changes a limit therefore renews the generation of the usage row that it
bounds, as the last statement before COMMIT: a charge by the limits that were read before matches no row, and reads them
again (rule 1 in projects.py). The project's row in ``projects`` is locked first, so that no usage row is inserted
between the renewal and the COMMIT; it would be read together with the earlier limit. A default bounds a row at the root
of every path. These rows are renewed in batches, after the COMMIT: what is inserted after it is read with the new
default.

The total of a resource over all projects is the usage row of the project id TOTAL, which is above all roots::

    subtree of the total = the sum of subtree over the usage rows of all roots

From the moment at which this row exists, it is in every path that is read (path_state.py): it is charged last, like any
other row. Its limit is a row of project_limits. To set a total limit takes three steps (limits/totals.py):

1. Insert the row, in a transaction of its own.
2. Renew the generations of the rows of all roots: a charge with a path that was read before step 1, without the total,
   then matches no row. (A root that step 2 does not see was inserted after step 1, and its path was read with the
   total.) From now on, each charge of the resource writes the row of the total.
3. In one transaction: lock the row of the total, set it to the sum of the roots, and write the limit. The lock makes
   the sum exact: a charge that has changed a root is committed, or waits for the total.

After a crash before step 3 there is no limit, and the same call begins again.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import dialects, maintenance, meters, minimums, path_state, projects, usages
from cyborg_quota.db.errors import ConcurrentChange
from cyborg_quota.db.prepared import ListStatement, Statement, any_of, chunks
from cyborg_quota.db.usages import Posting
from cyborg_quota.types import MAX_AMOUNT, TOTAL, Counters, ResourceKey, UsageKey, grouped

_MIN_TOGETHER: Final = 8
"""From this number of rows on, a few statements for all of them are faster than one for each."""


_MAX_LOCKED: Final = 16
"""The most rows that one statement locks or charges by a list in its text."""


class Refused(Exception):
    """A limit refused an addition, or the path to charge has changed: roll back, and read both again."""


def apply(
    connection: sa.Connection,
    postings: Sequence[Posting],
    at: int,
    kept: Mapping[int, int] = types.MappingProxyType({}),
) -> None:
    """Apply the result of usages.merge: all rows together or, if one is refused, each row and then those that have
    drifted. ``at``: the second of the call (reservations.time_of). ``kept``: what is added to ``meter_base``, by the
    ids of the rows. Raises Refused, ConcurrentChange, UsageOverflow.
    """
    drifted = _charge(connection, postings, at)
    usages.add_to_many(connection, "meter_base", kept)
    recount_upwards(connection, drifted)


def _charge(connection: sa.Connection, postings: Sequence[Posting], at: int) -> list[UsageKey]:
    """Charge the rows. Returns those that have drifted, which are locked."""
    if any(posting.has_minimum for posting in postings):
        rows = lock_rows(connection, [posting.node for posting in postings])
        meters.close_months(connection, [posting.node.usage_id for posting in postings], at)
        postings = _with_promises(postings, rows)
        has_drifted = any(
            getattr(row, name) + getattr(posting, name) < 0
            for posting, row in zip(postings, rows, strict=True)
            for name in usages.COUNTED
        )
        if len(postings) <= _MAX_LOCKED and not has_drifted:
            # (The rows are locked: the order in which one statement changes them does not matter.)
            if not usages.charge_locked(connection, postings, at):
                raise Refused
            return []
    elif len(postings) >= _MIN_TOGETHER:
        # (By hand: SQLAlchemy would roll back to a savepoint that an error of the server has removed already.)
        connection.exec_driver_sql("SAVEPOINT together")
        if dialects.of(connection).charge_together(connection, postings, at):
            return []
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT together")
    drifted = []
    for posting in postings:
        if charge_row(connection, posting, at):
            continue
        if posting.grows or not usages.lock_usage_row(connection, posting.node):
            raise Refused
        drifted.append(posting.node.key)
    return drifted


def charge_row(connection: sa.Connection, posting: Posting, at: int) -> bool:
    """Apply one posting; if it is refused, after the months of its row that have ended are closed. False: refused."""
    is_charged = usages.charge(connection, posting, at)
    if not is_charged and meters.close_months(connection, [posting.node.usage_id], at):
        is_charged = usages.charge(connection, posting, at)
    return is_charged


def lock_rows(connection: sa.Connection, nodes: Iterable[usages.Node]) -> list[Counters]:
    """Lock these rows in lock order. Returns their counters, in the given order. Raises Refused if one is missing."""
    given, counters = list(nodes), dict[int, Counters]()
    dialect = dialects.of(connection)
    for chunk in chunks(sorted(given, key=dialect.lock_order), _MAX_LOCKED):
        parameters = {f"b_id_{index}": node.usage_id for index, node in enumerate(chunk)}
        counters.update((row[0], Counters(*row[1:])) for row in _lock_few(dialect, len(chunk))(connection, parameters))
    if len(counters) < len(given):
        raise Refused
    return [counters[node.usage_id] for node in given]


@functools.cache
def _lock_few(dialect: dialects.Dialect, size: int) -> Statement:
    """Locks the rows :b_id_0, :b_id_1 ... in this order, and reads their ids and their counters."""
    ids = [sa.bindparam(f"b_id_{index}", type_=sa.BigInteger) for index in range(size)]
    order = sa.case({row_id: sa.literal_column(str(index)) for index, row_id in enumerate(ids)}, value=usages.ID)
    return Statement(dialect.lock_in_order(usages.ROWS.where(usages.ID.in_(ids)), order))


def _with_promises(postings: Sequence[Posting], rows: Sequence[Counters]) -> list[Posting]:
    """The postings with what they add to ``promised``. ``rows``: the counters of their rows, which are locked."""
    grown = {posting.node.usage_id: posting.reserved + posting.used for posting in postings}
    upwards = sorted(postings, key=lambda posting: usages.deepest_first(posting.node))
    counters = {posting.node.usage_id: row for posting, row in zip(postings, rows, strict=True)}
    counted = minimums.spread(grown, counters, ((posting.node.usage_id, posting.above) for posting in upwards))
    added = []
    for posting, row in zip(postings, rows, strict=True):
        grown_by = counted[posting.node.usage_id]
        promised = grown_by - posting.subtree
        if grown_by > 0 or posting.node.project_id == TOTAL:
            # (A total that is not counted yet, or a row that has drifted: the audit finds it.)
            promised = max(promised, -row.promised)
        added.append(dataclasses.replace(posting, promised=promised))
    return added


def recount(connection: sa.Connection, node: usages.Node) -> tuple[Counters, Counters]:
    """Recount one row, which the transaction must have locked. Returns the counters before and after.

    Raises UsageOverflow if the sums exceed MAX_AMOUNT. (They do only if a counter was too low, for example after a
    change by hand.)
    """
    before = Counters(*connection.execute(usages.ROWS.where(node.usage_id == usages.ID)).one()[1:])
    reserved, used, meter = maintenance.sums_of_reservations(connection, node)
    if used + reserved > MAX_AMOUNT:
        added = used + reserved - before.used - before.reserved
        raise exceptions.UsageOverflow(node.project_id, node.resource, added)
    below = maintenance.children_total(connection, node)
    metered = meter + below.metered + before.meter_base
    subtree = used + reserved + below.subtree
    after = Counters(used, reserved, subtree, below.promised, before.minimum, metered, before.meter_base)
    if not after.is_same(before):
        usages.set_counters(connection, node.usage_id, after)
    return before, after


def recount_upwards(connection: sa.Connection, keys: Iterable[UsageKey]) -> None:
    """Recount these rows, and then all above them, because their sums have changed.

    The transaction must have made its other changes. Raises ConcurrentChange, UsageOverflow.
    """
    nodes: set[usages.Node] = set()
    for key in keys:
        path = path_state.read_nodes(connection, key)
        if path is None:
            raise ConcurrentChange
        nodes.update(path)
    for node in sorted(nodes, key=dialects.of(connection).lock_order):
        if not usages.lock_usage_row(connection, node):
            raise ConcurrentChange
    for node in sorted(nodes, key=usages.deepest_first):
        recount(connection, node)


def in_lock_order(
    connection: sa.Connection, rows: Mapping[UsageKey, int], edges: projects.Edges
) -> list[Sequence[int]]:
    """The ids of these rows, in lists that ``lock`` locks one after the other. ``edges``: of the projects and above."""
    if dialects.of(connection).update_locks_in_order:
        return list(chunks(sorted(rows.values())))
    levels = sorted(grouped(rows, lambda key: -projects.depth(key.project_id, edges)).items())
    return [[rows[key] for key in part] for _, level in levels for part in chunks(sorted(level))]


@functools.cache
def _lock(dialect: dialects.Dialect) -> ListStatement:
    columns: Sequence[sa.ColumnElement[Any]] = (usages.ID,) if dialect.update_locks_in_order else usages.KEY
    return ListStatement(lambda size: dialect.lock_in_order(usages.ROWS.where(any_of(usages.ID, size)), *columns))


def lock(connection: sa.Connection, order: Iterable[Sequence[int]]) -> dict[int, Counters]:
    """Lock the usage rows with these ids, list by list; each list in the order of the ids or of the names.

    Returns the counters of each row, by id, as read under the lock.
    """
    statement = _lock(dialects.of(connection))
    rows: dict[int, Counters] = {}
    for chunk in order:
        rows.update((row[0], Counters(*row[1:])) for row in statement.rows(connection, chunk, {}))
    return rows


def freed(
    sender: Sequence[str], counters: Mapping[UsageKey, Counters], amounts: Mapping[ResourceKey, int]
) -> dict[UsageKey, int]:
    """By how much less each row counts when these amounts have left a project. ``sender``: it and its ancestors."""
    pairs = itertools.pairwise((*sender, TOTAL))
    upwards = [(UsageKey(name, *key), UsageKey(above, *key)) for name, above in pairs for key in amounts]
    left = {UsageKey(name, *key): -amount for name in sender[:1] for key, amount in amounts.items()}
    changes = minimums.spread(left, collections.defaultdict(Counters, counters), upwards)
    return {key: -change for key, change in changes.items()}


def moved(
    now: Mapping[UsageKey, Counters],
    moving: Collection[UsageKey],
    before: projects.Edges,
    after: projects.Edges,
    at: int,
) -> dict[UsageKey, Counters]:
    """The counters after the rows ``moving`` are moved from their parents in ``before`` to those in ``after``.

    ``now``: their counters, with those of the parents before and after. ``before``, ``after``: the tree. ``at``: the
    second of the move. What the old parents have metered until then stays there (meters.py). Counters that have drifted
    may become negative.
    """
    then = minimums.moved(now, moving, before, after)
    metered = {key: (row.subtree - then[key].subtree) * at for key, row in now.items()}
    base = dict(metered)
    for key, row in now.items():
        for edges, entered in ((before, -row.metered), (after, row.metered + metered[key])):
            above = key._replace(project_id=edges.get(key.project_id) or TOTAL)
            if above in base and above != key:
                base[above] -= entered
    return {
        key: dataclasses.replace(row, metered=row.metered + metered[key], meter_base=row.meter_base + base[key])
        for key, row in then.items()
    }


def write_moved(
    connection: sa.Connection,
    rows: Mapping[UsageKey, int],
    now: Mapping[UsageKey, Counters],
    then: Mapping[UsageKey, Counters],
    at: int,
) -> set[UsageKey]:
    """Write what ``moved`` returns into the rows, which are locked. Returns those that have drifted: recount them."""
    for chunk in chunks([rows[key] for key, row in then.items() if row.metered != now[key].metered]):
        meters.close_months(connection, chunk, at)
    drifted = {key for key, counters in then.items() if counters.subtree < 0 or counters.promised < 0}
    for column in ("subtree", "promised", "metered", "meter_base"):
        # (A row that has drifted is recounted; only its base is changed here.)
        changed = then.keys() if column == "meter_base" else then.keys() - drifted
        added = {rows[key]: getattr(then[key], column) - getattr(now[key], column) for key in changed}
        usages.add_to_many(connection, column, {row_id: amount for row_id, amount in added.items() if amount})
    return drifted


def purge_ended(connection: sa.Connection, age_microseconds: int, limit: int) -> int:
    """Delete up to ``limit`` reservations that ended longer ago than the age. Returns their number.

    Their device-seconds stay in the meters of their usage rows (meters.py). Raises ConcurrentChange: see
    maintenance.purge_ended.
    """
    number, metered = maintenance.purge_ended(connection, age_microseconds, limit)
    ids = usages.row_ids(connection, {key.project_id for key in metered})
    rows = {key: ids[key] for key in metered}
    if len(rows) > 1 and not dialects.of(connection).update_locks_in_order:
        lock(connection, in_lock_order(connection, rows, projects.edges_above(connection, {key[0] for key in rows})))
    usages.add_to_many(connection, "meter_base", {rows[key]: amount for key, amount in metered.items()})
    return number


def renew_rows(connection: sa.Connection, rows: Mapping[UsageKey, int], edges: projects.Edges) -> None:
    """Lock these rows in lock order, and renew their generations. ``edges``: of the projects and above."""
    if len(rows) > 1 and not dialects.of(connection).update_locks_in_order:
        lock(connection, in_lock_order(connection, rows, edges))
    usages.renew_generations(connection, list(rows.values()))


def renew(connection: sa.Connection, keys: Collection[UsageKey]) -> None:
    """Renew the generations of those of these usage rows that exist. Adds the projects that are not known, as roots.

    (The rows of totals are inserted and removed only in transactions that are serialized with all changes of limits.)
    """
    projects.lock_and_add(connection, {key.project_id for key in keys} - {TOTAL})
    ids = usages.row_ids(connection, {key.project_id for key in keys})
    rows = {key: ids[key] for key in keys if key in ids}
    if not rows:
        return
    edges = projects.edges_above(connection, {key.project_id for key in rows}) if len(rows) > 1 else {}
    renew_rows(connection, rows, edges)


def renew_roots(connection: sa.Connection, resource: str) -> None:
    """Renew the rows of a resource of all roots."""
    renew_rows(connection, path_state.rows_of_roots(connection, resource), {})


def count_totals(connection: sa.Connection, resources: Collection[str]) -> None:
    """Set these totals, whose rows exist, to what all projects hold.

    The transaction must be serialized with changes of the tree. Charges of these resources wait until it ends.
    """
    if not resources:
        return
    rows = {key: row_id for key, row_id in usages.row_ids(connection, [TOTAL]).items() if key.resource in resources}
    renew_rows(connection, rows, {})
    before = usages.read(connection, [TOTAL], [key.resource_key for key in rows])
    for key, row_id in rows.items():
        node = usages.Node(row_id, key.project_id, key.resource, 0, 0)
        counted, base = maintenance.children_total(connection, node), before[key].meter_base
        after = dataclasses.replace(counted, metered=counted.metered + base, meter_base=base)
        usages.set_counters(connection, row_id, after)
