# SPDX-License-Identifier: Apache-2.0
"""The invariants of the ledger, checked on the bare tables by code that shares nothing with the ledger."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

ENDED = ("rolled_back", "expired", "released")
TOTAL = " total"
MAX_AMOUNT = 2**31 - 1
MULTI_STATEMENTS = 1 << 16
"""The flag of a connection to MariaDB that may send several statements at once."""


Key = tuple[str, str, str]
"""Of a usage row: project_id, resource, pod."""


QUERIES = {
    "usages": (
        "quota_usages",
        "id, project_id, resource, pod, reserved, used, subtree, promised, minimum, metered, meter_base",
    ),
    "limits": (f"project_limits WHERE project_id = '{TOTAL}'", "resource"),
    "rows": (
        "reservations",
        "id, usage_id, project_id, resource, delta, state, deleted, live, deleted_at, consumer_id, provider_id, pod,"
        " meter",
    ),
    "inventories": ("inventories", "provider_id, resource, capacity, used, free, used_elsewhere"),
    "allocations": ("allocations", "resource_provider_id, resource_class, used"),
    "providers": ("resource_providers WHERE pod IS NOT NULL", "id, pod"),
    "edges": ("projects", "project_id, parent_id"),
}
"""What is read: the table with its condition, and the columns."""


def find_violations(connection: sa.Connection) -> list[str]:
    """Return the violations, as sentences. The result is consistent only while no other process writes."""
    found = _read(connection)
    usages, rows = found["usages"], found["rows"]
    enforced = {limit.resource for limit in found["limits"]}
    totals = [usage for usage in usages if usage.project_id == TOTAL]
    usages = [usage for usage in usages if usage.project_id != TOTAL]
    pods = {provider.id: provider.pod for provider in found["providers"]}
    parents = {edge.project_id: edge.parent_id for edge in found["edges"]}
    names = {usage.id: (usage.project_id, usage.resource, usage.pod) for usage in usages}
    return (
        _check_rows(rows, names)
        + _check_counters(usages, rows, parents, pods)
        + _check_totals(totals, usages, enforced)
        + _check_minimums([*usages, *(total for total in totals if total.resource in enforced)], parents)
        + _check_meters([*usages, *(total for total in totals if total.resource in enforced)], rows, parents)
        + _check_capacity(found["inventories"], rows, found["allocations"])
    )


def _read(connection: sa.Connection) -> dict[str, list[Any]]:
    """Return the rows of each query, in one round trip if possible.

    By SQLAlchemy, which replaces a connection that the server has closed, but without its rows and types: they take a
    fifth of the processor time of a test.
    """
    read = _read_as_json if connection.dialect.name == "postgresql" else _read_by_driver
    return {
        name: list(map(_row_type(columns)._make, rows))
        for (name, (_, columns)), rows in zip(QUERIES.items(), read(connection), strict=True)
    }


def _read_as_json(connection: sa.Connection) -> Any:
    return connection.exec_driver_sql(_json_query()).scalar_one()


def _read_by_driver(connection: sa.Connection) -> Any:
    driver: Any = connection.connection.dbapi_connection
    is_one_trip = getattr(driver, "client_flag", 0) & MULTI_STATEMENTS
    texts = [f"SELECT {columns} FROM {table}" for table, columns in QUERIES.values()]
    cursor: Any = connection.exec_driver_sql(";".join(texts) if is_one_trip else texts[0]).cursor
    found = [cursor.fetchall()]
    for text in texts[1:]:
        if is_one_trip:
            cursor.nextset()
        else:
            cursor.execute(text)
        found.append(cursor.fetchall())
    cursor.close()
    return found


@functools.cache
def _json_query() -> str:
    """One value: a list of the rows of each query, each row a list."""
    lists = (
        f"(SELECT coalesce(json_agg(json_build_array({columns})), '[]') FROM {table})"
        for table, columns in QUERIES.values()
    )
    return f"SELECT json_build_array({', '.join(lists)})"


@functools.cache
def _row_type(columns: str) -> Any:
    return collections.namedtuple("Row", columns.split(", "))


def _check_rows(rows: Sequence[Any], names: Mapping[int, Key]) -> list[str]:
    """Check each reservation separately, and against the others of its consumer."""
    faults = []
    live = set()
    for row in rows:
        key = (row.project_id, row.resource)
        is_ended = row.state in ENDED
        if (bool(row.deleted), row.live, row.deleted_at is not None) != (is_ended, None if is_ended else 1, is_ended):
            faults.append(f"reservation {row.id}: deleted, live or deleted_at does not follow {row.state}")
        if is_ended:
            continue
        if names.get(row.usage_id) != (*key, ""):
            faults.append(f"reservation {row.id}: its usage row is not that of {key}")
        if row.consumer_id is not None:
            if (*key, row.consumer_id) in live:
                faults.append(f"two live reservations of consumer {row.consumer_id} in {key}")
            live.add((*key, row.consumer_id))
    return faults


def _check_counters(
    usages: Sequence[Any], rows: Sequence[Any], parents: Mapping[str, str | None], pods: Mapping[int, str]
) -> list[str]:
    """Check I1, I2 and I9: each counter against a sum computed here, also those of each pod.

    ``pods``: the pods of providers. A claim without a provider may name its pod.
    """
    reserved: collections.Counter[Key] = collections.Counter()
    used: collections.Counter[Key] = collections.Counter()
    subtree: collections.Counter[Key] = collections.Counter()
    for row in rows:
        own = row.pod or "" if row.provider_id is None else pods.get(row.provider_id, "")
        for pod in {"", own}:
            key = (row.project_id, row.resource, pod)
            if row.state == "reserved":
                reserved[key] += row.delta
            if row.state == "committed":
                used[key] += row.delta
    for usage in usages:
        for ancestor in _path_to_root(usage.project_id, parents):
            subtree[ancestor, usage.resource, usage.pod] += usage.used + usage.reserved
    faults = []
    for usage in usages:
        key = (usage.project_id, usage.resource, usage.pod)
        for rule, recorded, expected in (
            ("I1 reserved", usage.reserved, reserved.pop(key, 0)),
            ("I2 used", usage.used, used.pop(key, 0)),
            ("I9 subtree", usage.subtree, subtree.pop(key, 0)),
        ):
            if recorded != expected:
                faults.append(f"{rule} of {key} is {recorded}, should be {expected}")
    faults += [
        f"{usage.project_id} holds something and is not in the tree"
        for usage in usages
        if usage.subtree and usage.project_id not in parents
    ]
    unmatched = {key for counter in (reserved, used, subtree) for key, amount in counter.items() if amount}
    return faults + [f"{key} is charged but has no usage row" for key in sorted(unmatched)]


def _check_minimums(usages: Sequence[Any], parents: Mapping[str, str | None]) -> list[str]:
    """G1: what each row counts is its own use and the sum over its children of max(what they count, their minimum)."""
    children: collections.defaultdict[Key, list[Any]] = collections.defaultdict(list)
    for usage in usages:
        if usage.project_id != TOTAL:
            children[parents.get(usage.project_id) or TOTAL, usage.resource, usage.pod].append(usage)

    def counted(usage: Any) -> int:
        below = children[usage.project_id, usage.resource, usage.pod]
        own: int = usage.reserved + usage.used
        return own + sum(max(counted(child), child.minimum) for child in below)

    return [
        f"G1 {usage.project_id} of {usage.resource} counts {usage.subtree + usage.promised}, should be {counted(usage)}"
        for usage in usages
        if usage.subtree + usage.promised != counted(usage)
    ]


def _check_meters(usages: Sequence[Any], rows: Sequence[Any], parents: Mapping[str, str | None]) -> list[str]:
    """B3: each meter is the sum of those of its reservations and of its children, and of what was left behind."""
    sums: collections.Counter[Key] = collections.Counter()
    owners = {usage.id: usage.project_id for usage in usages}
    for row in rows:
        # (Where the usage row was deleted by hand, what has ended is lost with it.)
        for pod in {"", row.pod or ""} if row.usage_id in owners else ():
            sums[owners[row.usage_id], row.resource, pod] += row.meter
    for usage in usages:
        sums[usage.project_id, usage.resource, usage.pod] += usage.meter_base
        if usage.project_id != TOTAL:
            sums[parents.get(usage.project_id) or TOTAL, usage.resource, usage.pod] += usage.metered
    return [
        f"B3 the meter of {usage.project_id} of {usage.resource} is {usage.metered}, should be {expected}"
        for usage in usages
        if usage.metered != (expected := sums[usage.project_id, usage.resource, usage.pod])
    ]


def _check_totals(totals: Sequence[Any], usages: Sequence[Any], limited: set[str]) -> list[str]:
    """The total is the sum of all usage, from the moment at which it has a limit."""
    faults = []
    for total in totals:
        of_resource = [usage for usage in usages if (usage.resource, usage.pod) == (total.resource, "")]
        if total.resource in limited and total.subtree != sum(one.used + one.reserved for one in of_resource):
            faults.append(f"the total of {total.resource} is {total.subtree}, not the sum of all usage")
    missing = limited - {total.resource for total in totals}
    return faults + [f"the total limit of {resource} has no row" for resource in sorted(missing)]


def _check_capacity(inventories: Sequence[Any], rows: Sequence[Any], allocations: Sequence[Any]) -> list[str]:
    """C1, from the table and from the view; no claim without an inventory (C5); free is the rest."""
    sums: collections.Counter[tuple[int, str]] = collections.Counter()
    for row in rows:
        if row.provider_id is not None and row.state not in ENDED:
            sums[row.provider_id, row.resource] += row.delta
    allocated: collections.Counter[tuple[int, str]] = collections.Counter()
    for row in allocations:
        allocated[row.resource_provider_id, row.resource_class] += row.used
    faults = [] if allocated == sums else [f"the view allocations has {allocated}, should have {sums}"]
    for inventory in inventories:
        key = (inventory.provider_id, inventory.resource)
        expected = sums.pop(key, 0)
        if inventory.used != expected:
            faults.append(f"C1 used of {key} is {inventory.used}, should be {expected}")
        free = inventory.capacity - inventory.used - (inventory.used_elsewhere or 0)
        if inventory.free != free:
            faults.append(f"free of {key} is {inventory.free}, should be {free}")
    return faults + [f"C5 {key} has claims of {amount} but no inventory" for key, amount in sums.items() if amount]


def _path_to_root(project_id: str, parents: Mapping[str, str | None]) -> Iterable[str]:
    seen = set()
    current: str | None = project_id
    while current is not None:
        if current in seen:
            raise AssertionError(f"the tree has a cycle through {current}")
        seen.add(current)
        yield current
        current = parents.get(current)


def assert_hold(connection: sa.Connection) -> None:
    """Raise AssertionError with every invariant that is violated."""
    faults = find_violations(connection)
    if faults:
        raise AssertionError("the ledger is wrong:\n" + "\n".join(faults))
