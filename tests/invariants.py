# SPDX-License-Identifier: Apache-2.0
"""The invariants of the ledger, checked from the bare tables, with code that shares nothing with the ledger's."""

from __future__ import annotations

import collections

import sqlalchemy as sa

ENDED = ("rolled_back", "expired", "released")


def broken(connection: sa.Connection) -> list[str]:
    """What does not hold, in words; empty when all does. Reads one snapshot only when nobody writes."""
    usages = connection.execute(
        sa.text("SELECT id, project_id, resource, reserved, used, subtree FROM quota_usages")
    ).all()
    rows = connection.execute(
        sa.text(
            "SELECT id, usage_id, project_id, resource, delta, state, deleted, live, deleted_at, consumer_id"
            " FROM reservations"
        )
    ).all()
    parents = dict(connection.execute(sa.text("SELECT project_id, parent_id FROM projects")).all())
    faults = []
    reserved: collections.Counter[tuple[str, str]] = collections.Counter()
    used: collections.Counter[tuple[str, str]] = collections.Counter()
    by_id = {usage.id: usage for usage in usages}
    live = set()
    for row in rows:
        key = (row.project_id, row.resource)
        if row.state == "reserved" and row.delta > 0:
            reserved[key] += row.delta
        if row.state == "committed":
            used[key] += row.delta
        is_ended = row.state in ENDED
        if (bool(row.deleted), row.live, row.deleted_at is not None) != (is_ended, None if is_ended else 1, is_ended):
            faults.append(f"reservation {row.id}: deleted, live or deleted_at does not follow {row.state}")
        usage = by_id.get(row.usage_id)
        if not is_ended and (usage is None or (usage.project_id, usage.resource) != key):
            faults.append(f"reservation {row.id}: its usage row is not that of {key}")
        if not is_ended and row.consumer_id is not None:
            if (*key, row.consumer_id) in live:
                faults.append(f"two live reservations of consumer {row.consumer_id} in {key}")
            live.add((*key, row.consumer_id))
    subtree: collections.Counter[tuple[str, str]] = collections.Counter()
    for usage in usages:
        ancestor: str | None = usage.project_id
        for _ in range(100):
            if ancestor is None:
                break
            subtree[ancestor, usage.resource] += usage.used + usage.reserved
            ancestor = parents.get(ancestor)
        else:
            faults.append(f"the ancestors of {usage.project_id} have no end")
    for usage in usages:
        key = (usage.project_id, usage.resource)
        if usage.reserved != reserved[key]:
            faults.append(f"I1 {key}: reserved is {usage.reserved}, the reservations say {reserved[key]}")
        if usage.used != used[key]:
            faults.append(f"I2 {key}: used is {usage.used}, the reservations say {used[key]}")
        if usage.subtree != subtree[key]:
            faults.append(f"I9 {key}: subtree is {usage.subtree}, the tree says {subtree[key]}")
    known = {(usage.project_id, usage.resource) for usage in usages}
    faults += [f"{key} is charged but has no usage row" for key in (reserved | used | subtree) if key not in known]
    return faults


def assert_hold(connection: sa.Connection) -> None:
    """AssertionError with every invariant that does not hold."""
    faults = broken(connection)
    if faults:
        raise AssertionError("the ledger is wrong:\n" + "\n".join(faults))
