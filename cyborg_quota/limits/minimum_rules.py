# SPDX-License-Identifier: Apache-2.0
"""Checks whether limits can keep minimums. db/minimums.py says what a minimum is, and how it is counted.

A minimum is refused if a limit above could not keep it beside what is used and promised there; so is a move of it. A
limit that is lowered below what is promised is refused, unless the caller forces it.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.db import charges, clock, minimums, path_state, projects, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.db.path_state import PathState, ProjectPath
from cyborg_quota.db.projects import Edges
from cyborg_quota.ledger.limit_source import LimitDriver, PathLimits
from cyborg_quota.limits import document, tables
from cyborg_quota.limits.document import Document
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.types import (
    MAX_COUNTED,
    TOTAL,
    UNLIMITED,
    Counters,
    RecordedChange,
    ResourceKey,
    UsageKey,
)
from cyborg_quota.types.limits import Violation

_ABOVE_LIMIT: Final = "the minimum of {child} in {key} would be {minimum}; its limit is {limit}"
_NOT_KEPT: Final = (
    "{parent} can keep {room} more {key}: limit {limit}, used {used}, promised {promised}, needed {needed}"
)
_NOT_KEPT_HIDDEN: Final = "{parent} cannot keep {needed} more {key}"
_BELOW_MINIMUM: Final = "the limit of {child} in {key} would be {limit}; its minimum is {minimum}"
_BELOW_PROMISED: Final = (
    "the limit of {child} in {key} would be {limit}; {used} are used there, "
    "and {promised} more are promised to minimums"
)

Limits = Mapping[UsageKey, int]
"""The limits of usage rows. A row that is missing is unlimited."""


def plan(
    path: Sequence[str], rows: Mapping[UsageKey, Counters], limits: Limits, wanted: Mapping[str, int]
) -> tuple[list[RecordedChange], dict[UsageKey, int], list[Violation]]:
    """Plan to set the minimums ``wanted`` (by resource) of the project ``path[0]``. Writes nothing.

    ``rows``: those of the project and above. Returns the changes, what is added to what each row counts, and what
    refuses it.
    """
    changes: list[RecordedChange] = []
    growth: dict[UsageKey, int] = {}
    problems: list[Violation] = []
    for resource, minimum in sorted(wanted.items()):
        keys = [UsageKey(project_id, resource) for project_id in path]
        keys += [key for key in [UsageKey(TOTAL, resource)] if key in rows]
        leaf, row = keys[0], rows.get(keys[0], Counters())
        if row.minimum != minimum:
            changes.append(RecordedChange("set minimum", leaf.project_id, resource, row.minimum, minimum))
        counters = {key: rows.get(key, Counters()) for key in keys}
        added = max(row.counted, minimum) - row.passed_on
        upwards = [*itertools.pairwise(keys[1:]), *((key, None) for key in keys[-1:])]
        growth |= minimums.spread({keys[1]: added} if keys[1:] else {}, counters, upwards)
        if row.minimum < minimum and minimum > limits.get(leaf, minimum):
            figures = {"key": leaf.resource_key, "minimum": minimum, "limit": limits[leaf]}
            problems.append(Violation(_ABOVE_LIMIT, path[1] if path[1:] else None, leaf.project_id, figures))
    problems += not_kept({key: (rows.get(key, Counters()), added) for key, added in growth.items()}, limits, path)
    return changes, growth, problems


def not_kept(growth: minimums.Growth, limits: Limits, path: Sequence[str]) -> list[Violation]:
    """The rows that would exceed their limits, as violations."""
    parents = dict(itertools.pairwise(path))
    violations = []
    for key, (row, needed) in sorted(growth.items()):
        limit = min(limits.get(key, MAX_COUNTED), MAX_COUNTED)
        if needed <= 0 or row.counted + needed <= limit:
            continue
        figures = {"key": key.resource_key, "limit": limit, "used": row.subtree, "promised": row.promised}
        figures |= {"room": max(0, limit - row.counted), "needed": needed}
        kind, hidden = _NOT_KEPT, _NOT_KEPT_HIDDEN
        if key.project_id == TOTAL:
            kind, hidden = (text.replace("{parent}", "all projects together") for text in (kind, hidden))
        above = parents.get(key.project_id)
        violations.append(Violation(kind, key.project_id, None, figures, above=above, hidden=hidden))
    return violations


def limits_of(bounds: Iterable[PathLimits]) -> dict[UsageKey, int]:
    """The lowest limit of each usage row, from what limits charges."""
    limited = [constraint for limits in bounds for constraint in limits.constraints if constraint.limit != UNLIMITED]
    return {
        constraint.key: constraint.limit for constraint in sorted(limited, key=lambda constraint: -constraint.limit)
    }


def limits_of_path(source: LimitDriver, state: PathState, wanted: Mapping[str, int]) -> dict[UsageKey, int]:
    """The limits on the path of a project whose minimums are to be ``wanted``.

    Raises LimitNotSet and LimitsUnavailable, unless all of them are 0.
    """
    (bounds,) = source.bounds([state], sorted(wanted))
    if bounds.error is not None and any(wanted.values()):
        raise bounds.error
    return limits_of([bounds])


def refuse_move(source: LimitDriver, connection: Connection, growth: minimums.Growth) -> None:
    """Raise LimitRefused if these rows would exceed their limits after a move: see tree/tables.py.

    The transaction has moved the projects, and sees their new parents.
    """
    shared, states = path_state.read_states(connection, {key.project_id for key in growth} - {TOTAL})
    refuse(_not_kept_after_move(source, growth, states, shared), ())


def _not_kept_after_move(
    source: LimitDriver, growth: minimums.Growth, states: Sequence[PathState], shared: PathState
) -> list[Violation]:
    """``states``: those of the projects whose rows grow, at their new places. ``shared``: has the total limits."""
    limits = limits_of(source.bounds(states, {key.resource for key in growth}))
    limits.update((constraint.key, constraint.limit) for constraint in source.totals(shared))
    return not_kept(growth, limits, ())


def plan_import(
    connection: Connection,
    parents: Edges,
    planned: Timeline,
    wanted: Document,
    source: LimitDriver,
    *,
    force: bool = False,
) -> tuple[list[RecordedChange], list[Violation]]:
    """Plan what an import does after it has set limits: it moves projects, sets total limits, and then minimums.

    Minimums that become lower are set first. ``parents``: the tree before. ``planned``: the limits and the tree after.
    ``force``: total limits may be below what is promised. Writes nothing. Returns the changes of total limits and of
    minimums, in order, and what refuses any of these steps. Raises LimitNotSet.
    """
    tree = planned.tree
    resources = sorted({key.resource for key in usages.keeping(connection)}.union(*wanted.minimums.values()))
    if not (wanted.totals or (wanted.parents and resources)):
        return [], []
    keys = [ResourceKey(resource) for resource in resources]
    present = usages.read(connection, None, keys)
    moving = [key for key in present if parents.get(key.project_id) != tree.parents.get(key.project_id)]
    counted = [*present, *(UsageKey(name, resource) for name, given in wanted.minimums.items() for resource in given)]
    zeros = {key._replace(project_id=name): Counters() for key in counted for name in tree.path(key.project_id)}
    rows = zeros | present | usages.read(connection, [TOTAL], keys)
    totals = {total.resource: total.limit for total in tables.read_totals(connection)}
    in_force = planned.at(planned.now or datetime.datetime.max).project_limits

    def state(path: Sequence[str]) -> PathState:
        on_path = {UsageKey(name, resource) for name in path for resource in resources} & in_force.keys()
        return PathState(path, {}, {key: in_force[key] for key in on_path}, tree.defaults, totals)

    then = minimums.moved(rows, moving, parents, tree.parents)
    growth = minimums.growth_of_move(rows, then, moving)
    states = [state(tree.path(name)) for name in {key.project_id for key in growth} - {TOTAL}]
    problems = _not_kept_after_move(source, growth, states, state(()))
    changes = document.total_changes(totals, wanted.totals)
    for key in (change.key for change in changes if change.before is None):  # (what a new total counts)
        roots = [row for root, row in then.items() if root[1:] == key[1:] and tree.parents.get(root[0]) is None]
        in_use = sum(row.subtree for row in roots)
        then[key] = Counters(subtree=in_use, promised=sum(row.passed_on for row in roots) - in_use)
    totals = {name: limit for name, limit in {**totals, **wanted.totals}.items() if limit is not None}
    problems += [] if force else problems_of_totals(then, changes)
    for sign in (-1, 1):
        for project_id, given in wanted.minimums.items():
            path = tree.path(project_id)
            now = {
                name: minimum
                for name, minimum in given.items()
                if sign * (minimum - then[UsageKey(project_id, name)].minimum) > 0
            }
            made, added, refused = plan(path, then, limits_of_path(source, state(path), now), now)
            changes += made
            problems += refused
            for change in made if not refused else ():
                then[change.key] = dataclasses.replace(then[change.key], minimum=now[change.key.resource])
            for key, amount in added.items() if not refused else ():
                then[key] = dataclasses.replace(then[key], promised=then[key].promised + amount)
    return changes, problems


def problems_of_limits(
    connection: Connection, before: Timeline, after: Timeline, changes: Sequence[RecordedChange], source: LimitDriver
) -> list[Violation]:
    """The limits that are lowered below a minimum, or below what is used and promised, now or during an override.

    ``changes``: what leads from ``before`` to ``after``. ``source``: the driver whose limits they are.
    """

    def at(limits: Timeline, key: UsageKey, moment: datetime.datetime) -> float:
        limit = limits.at(moment).limit(*key)
        limit = source.limit_if_missing or 0 if limit is None else limit
        return math.inf if limit == UNLIMITED else limit

    owners = {change.project_id for change in changes}
    rows = usages.keeping(connection, None if None in owners else [str(project_id) for project_id in owners])
    violations = []
    for key, row in sorted(rows.items()):
        needed = max(row.minimum, row.counted if source.bounds_subtree and row.promised else 0)
        was, now = before.of(key), after.of(key)
        moments = (datetime.datetime.max, *was.by_boundary(), *now.by_boundary())  # (max: without overrides)
        limits = [(at(was, key, moment), at(now, key, moment)) for moment in moments]
        limit = min((then for earlier, then in limits if then < earlier), default=math.inf)
        if limit < needed and key.project_id != TOTAL:  # (an import sets totals later)
            figures = {"key": key.resource_key, "limit": limit, "minimum": row.minimum}
            figures |= {"used": row.subtree, "promised": row.promised}
            kind = _BELOW_MINIMUM if limit < row.minimum else _BELOW_PROMISED
            violations.append(Violation(kind, after.tree.parents.get(key.project_id), key.project_id, figures))
    return violations


def problems_of_totals(rows: Mapping[UsageKey, Counters], changes: Iterable[RecordedChange]) -> list[Violation]:
    """The total limits that these changes lower below what is used and promised. ``rows``: what the totals count."""
    violations = []
    for change in changes:
        row = rows.get(change.key, Counters())
        before, after = (limit if isinstance(limit, int) else math.inf for limit in (change.before, change.after))
        if row.promised and after < min(before, row.counted):
            figures = {"key": change.resource, "limit": after, "used": row.subtree, "promised": row.promised}
            violations.append(Violation(_BELOW_PROMISED.replace("{child}", "all projects"), None, None, figures))
    return violations


def clear(connection: Connection, project_id: str) -> list[RecordedChange]:
    """Set all minimums of a project without children to 0, before it is removed. Returns the changes."""
    rows = usages.keeping(connection, [project_id])
    if not rows:
        return []
    projects.lock_many(connection, [project_id])
    path = path_state.read_path(connection, project_id, [key.resource_key for key in rows])
    return write(connection, path, {}, {key.resource: 0 for key in rows})


def write(connection: Connection, path: ProjectPath, limits: Limits, wanted: Mapping[str, int]) -> list[RecordedChange]:
    """Set minimums of the first project of ``path``, whose limits these are. Returns the changes.

    The project must be locked. Raises LimitRefused, and charges.Refused if the path or its limits are out of date.
    """
    nodes = [node for resource in sorted(wanted) for node in path.charged[ResourceKey(resource)]]
    rows = {node.key: row for node, row in zip(nodes, charges.lock_rows(connection, nodes), strict=True)}
    changes, growth, problems = plan(path.project_ids, rows, limits, wanted)
    # (A charge refuses what cannot be counted, as it does if the path is out of date.)
    refuse(not_kept({key: (rows[key], added) for key, added in growth.items()}, {}, path.project_ids), changes)
    at = clock.read_second(connection)
    for node in nodes:
        promised = max(growth.get(node.key, 0), -rows[node.key].promised)
        if not charges.charge_row(connection, usages.Posting(node, promised=promised, until=path.until), at):
            raise charges.Refused
        if node.project_id == path.project_ids[0]:
            added = wanted[node.resource] - rows[node.key].minimum  # (the caller renews the generation)
            usages.add_to_many(connection, "minimum", {node.usage_id: added})
    refuse(problems, changes)
    return changes


def refuse(problems: Sequence[Violation], changes: Sequence[RecordedChange]) -> None:
    if problems:
        raise exceptions.LimitRefused(problems, changes)
