# SPDX-License-Identifier: Apache-2.0
"""Changes limits: serialize all such changes, read the limit tree, change the copy, check the enforcement model, write.

Such changes are rare and run one at a time. Thus two administrators who set limits of two siblings at the same time
cannot exceed the limit of their parent.

An import (a document of limits and projects) is one transaction. It is not split into batches: between two batches,
charges would be checked against a tree that is neither the old nor the new one (see decision record 0028).
MOST_MOVED_ROWS limits the time for which charges wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from cyborg_quota import exceptions
from cyborg_quota.db import change_log, dialects, overrides, path_state, projects, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.prepared import chunks
from cyborg_quota.db.project_path import PathState
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.paths import Tree, until_stable
from cyborg_quota.limits import document, limit_tree, tables, timeline
from cyborg_quota.limits import overrides as override_changes
from cyborg_quota.limits import reading as limit_reading
from cyborg_quota.limits.document import Document
from cyborg_quota.limits.limit_tree import MAX_DEPTH, LimitTree
from cyborg_quota.limits.overrides import LimitChanger, Overrides
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.limits.totals import TotalLimits
from cyborg_quota.pods import tables as pods
from cyborg_quota.tree import tables as moves
from cyborg_quota.types import (
    Author,
    Counters,
    LimitOverride,
    LimitRecord,
    Page,
    RecordedChange,
    RecordedChanges,
    ResourceKey,
    TotalLimit,
    UsageKey,
)

MOST_MOVED_ROWS: Final = 40_000
"""The maximum number of usage rows that one import moves. Charges of these projects wait while they are locked: a third
of [quota] retry_seconds (record 0028)."""

MOST_MOVED_ROWS_OF_ONE_WRITER: Final = 20_000
"""The same on SQLite, where charges wait for the whole import."""


class TreePage(NamedTuple):
    """Limits and counters, and projects as (depth, project_id), parents before their children."""

    tree: LimitTree
    counters: Mapping[UsageKey, Counters]
    nodes: list[tuple[int, str]]


class LimitKeeper(LimitChanger):
    """Sets limits, and adds and moves projects, as the enforcement model allows."""

    def __init__(
        self,
        database: Database,
        tree: Tree,
        limits: DatabaseLimitDriver,
        history: History,
        total_limits: TotalLimits,
    ) -> None:
        super().__init__(database, limits, history)
        self._tree = tree
        self._total_limits = total_limits
        self.overrides: Final = Overrides(database, limits, history)
        """Sets, lists and cancels overrides."""

    def documented(self) -> tuple[LimitTree, list[LimitOverride], list[TotalLimit]]:
        """All limits and projects, the overrides that have not ended, and the total limits; for an export."""
        stored = limit_reading.read_all(self._database, self._limits.initial_limits)
        return stored.tree, stored.overrides, stored.totals

    def whole_tree(self) -> tuple[TreePage, PathState]:
        """The whole tree, with the limits and counters of one moment; and the state that also has the totals."""
        parents, state = self._database.read(path_state.read_tree)
        tree = LimitTree(dict(state.defaults), dict(state.project_limits), parents, self._limits.initial_limits)
        return TreePage(tree, state.counters, list(limit_tree.walk(tree.roots, tree.children_of))), state

    def tree_page(self, project_id: str | None, limit: int | None, after: str | None) -> TreePage:
        """At most ``limit`` projects of the tree, or of a subtree, after ``after``. Raises MarkerNotFound.

        The cost of a subtree does not depend on the projects outside of it.
        """
        if project_id is None:
            whole, _ = self.whole_tree()
            return whole._replace(nodes=_page(whole.nodes, limit, after))

        def work(connection: Connection) -> TreePage:
            edges = projects.subtree_edges(connection, project_id)
            tree = LimitTree({}, {}, edges, self._limits.initial_limits)
            counters: dict[UsageKey, Counters] = {}
            nodes = _page(list(limit_tree.walk([project_id], tree.children_of)), limit, after)
            for some in chunks([name for _, name in nodes]):
                tree.defaults, limits, _ = tables.read_limits(connection, some)
                tree.project_limits.update({**limits, **overrides.active(connection, some)})
                counters.update(usages.read(connection, some))
            return TreePage(tree, counters, nodes)

        return self._database.read(work)

    def list_limits(self, page: Page) -> list[tuple[str | None, str, int]]:
        """A page of the limits, without overrides: (project_id, resource, limit). Raises MarkerNotFound."""
        return self._database.read(lambda connection: tables.read_page(connection, page))

    def list_defaults(self) -> dict[str, int]:
        """The default limits, by resource."""
        defaults, _, _ = self._database.read(lambda connection: tables.read_limits(connection, ()))
        return defaults

    def list_in_pods(
        self, project_id: str | None, pod: str | None, count: int | None, after: str | None
    ) -> list[LimitRecord]:
        """The limits per pod of a project (None: of all), in this pod (None: in any); by project, pod and resource.

        ``count``: the maximum number of projects. ``after``: only projects after this one.
        """
        rows = self._database.read(lambda connection: tables.read_in_pods(connection, project_id, pod, count, after))
        return [LimitRecord(key.project_id, key.resource, limit, pod=key.pod) for key, limit in rows]

    def path(self, project_id: str) -> tuple[PathState, LimitTree]:
        """The usage and edges of a project and its ancestors, read in one transaction; and their limits."""
        state = self._database.read(lambda connection: path_state.read(connection, project_id))
        return state, self._limits.tree_of_path(state)

    def own_limits(self, project_id: str) -> tuple[set[str], dict[str, LimitOverride]]:
        """The resources for which a limit of the project is set, and the overrides that apply now, by resource."""

        def work(connection: Connection) -> tuple[set[str], dict[str, LimitOverride]]:
            own = {key.resource for key in tables.of_projects(connection, [project_id]) if key.is_whole}
            live, now = overrides.read(connection, [project_id])
            return own, {one.resource: one for one in live if now is not None and one.starts_at <= now}

        return self._database.read(work)

    def set_defaults(self, limits: Mapping[str, int | None], author: Author) -> None:
        """Set the defaults of these resources, all or none. None removes a default. Raises LimitRefused."""
        self._apply(Document(dict(sorted(limits.items())), {}, {}), author)

    def set_limits(
        self,
        project_id: str,
        limits: Mapping[ResourceKey, int | None],
        author: Author,
        allow: Callable[[str | None], None],
    ) -> None:
        """Set limits of a project, all or none. None removes a limit. Raises LimitRefused, DatabaseUnavailable.

        ``allow`` is called with the parent of the project, and raises if the caller may not set these limits. It may
        read files; therefore it runs before the transaction, and again if the project has moved by then.
        """

        def work(connection: Connection, family: Timeline) -> tuple[bool, RecordedChanges | None]:
            changes = []
            for counted, limit in sorted(limits.items()):
                key = UsageKey(project_id, *counted)
                changes += document.put(family.tree.project_limits, key, limit, project_id, counted)
                tables.set_limit(connection, key, limit)
            self._refuse(family, [project_id], list(limits))
            return True, change_log.record(connection, author, changes)

        self._change(functools.partial(self._allowed_parent, project_id, allow), work)

    def set_parent(self, project_id: str, parent_id: str | None, author: Author, *, is_new: bool) -> None:
        """Add a project to the tree (``is_new``), or move it. Raises ProjectRefused, LimitRefused."""

        def check(connection: Connection) -> None:
            tree = self._read(connection)
            if parent_id is not None and parent_id not in tree.parents:
                raise exceptions.ProjectRefused(parent_id, "is not known; add it first")
            if is_new and tree.parents.get(project_id) is not None:
                raise exceptions.ProjectRefused(project_id, f"is already in the tree, below {tree.parents[project_id]}")
            if not is_new and project_id not in tree.parents:
                raise exceptions.ProjectRefused(project_id, "is not known; add it first")
            tree.set_parent(project_id, parent_id)
            levels = len(tree.path(project_id)) - 1 + tree.height(project_id)
            if levels > MAX_DEPTH:
                raise exceptions.ProjectRefused(
                    project_id, f"would make a tree of {levels} levels; at most {MAX_DEPTH} are possible"
                )
            affected = [project_id, *tree.children_of.get(project_id, ())]
            limits = Timeline(tree, *overrides.read(connection))
            self._refuse(limits, affected, limits.keys)

        self._tree.place({project_id: parent_id}, author, check)

    def remove(self, project_id: str, author: Author) -> None:
        """Remove a project that holds no resources and has no children. Raises ProjectRefused."""
        self._tree.remove(project_id, author)

    def apply(self, wanted: Document, author: Author, *, dry_run: bool) -> list[RecordedChange]:
        """Apply a document of limits and projects. ``dry_run``: only return the changes.

        Raises LimitRefused, PodNotFound. The total limits follow in transactions of their own: see total_limits.py.
        """
        changes = self._apply(wanted, author, operation="import", dry_run=dry_run)
        self._tree.paths.forget_all()
        if wanted.totals:
            changes += self._total_limits.find_changes(wanted.totals)
            if not dry_run:
                self._total_limits.set(wanted.totals, author, operation="import")
        return changes

    def _apply(
        self, wanted: Document, author: Author, *, operation: str | None = None, dry_run: bool = False
    ) -> list[RecordedChange]:
        def work(connection: Connection) -> tuple[list[RecordedChange], RecordedChanges | None]:
            before = self._read(connection)
            after, changes = document.apply(before, wanted)
            _require_pods(connection, changes)
            live, now = overrides.read(connection)
            new: list[LimitOverride] = []
            first = None
            if wanted.new_overrides:
                now = overrides.now(connection)
                first = (change_log.generation(connection), len(changes))
                new = override_changes.made_by_import(wanted.new_overrides, live, now, first)
                changes += [override_changes.made(one) for one in new]
            planned = Timeline(after, [*live, *new], now, first)
            reasons = find_problems(self._limits, planned, changes) + _too_many(connection, changes)
            if reasons:
                raise exceptions.LimitRefused(reasons, changes)
            if dry_run:
                return changes, None
            # Before the moves, which lock usage rows.
            recorded = change_log.record(connection, author, changes, operation=operation)
            overrides.insert(connection, new)
            _write(connection, before, after, changes)
            return changes, recorded

        change = functools.partial(self._history.change, defaults=wanted.defaults, dry_run=dry_run)
        return until_stable(lambda: change(self._database, work))

    def _read(self, connection: Connection) -> LimitTree:
        return LimitTree(*tables.read_limits(connection), self._limits.initial_limits)


def _page(nodes: list[tuple[int, str]], limit: int | None, after: str | None) -> list[tuple[int, str]]:
    start = 0
    if after is not None:
        places = [index for index, (_, name) in enumerate(nodes) if name == after]
        if not places:
            raise exceptions.MarkerNotFound((after, None))
        start = places[0] + 1
    return nodes[start:] if limit is None else nodes[start : start + limit]


def _require_pods(connection: Connection, changes: Iterable[RecordedChange]) -> None:
    """Raise PodNotFound if a limit would be set in a pod that does not exist.

    A limit that stays as it is may name a pod that was removed: what was exported can be imported again.
    """
    names = {change.pod for change in changes if change.pod is not None and change.after is not None}
    pods.require(connection, sorted(names))


def _too_many(connection: Connection, changes: Iterable[RecordedChange]) -> list[str]:
    moved = {str(change.project_id) for change in changes if change.action == "move project"}
    rows = len(usages.row_ids(connection, moved))
    most = MOST_MOVED_ROWS if dialects.of(connection).max_writers != 1 else MOST_MOVED_ROWS_OF_ONE_WRITER
    if rows <= most:
        return []
    return [
        f"the {len(moved)} projects that would be moved have {rows} usage rows, and one import may move "
        f"{most} (one for each resource, and for each resource in each pod); import the tree in several files"
    ]


def _write(connection: Connection, before: LimitTree, after: LimitTree, changes: Iterable[RecordedChange]) -> None:
    added, moved, changed = {}, {}, {}
    for change in changes:
        if change.action == "add project":
            added[str(change.project_id)] = after.parents[str(change.project_id)]
        elif change.action == "move project":
            moved[str(change.project_id)] = after.parents[str(change.project_id)]
        elif change.override is not None:
            continue
        elif change.project_id is None:
            tables.set_default(connection, str(change.resource), after.defaults.get(str(change.resource)))
        else:
            key = change.key
            changed[key] = after.project_limits.get(key)
    # Lock the usage rows last, so that charges do not wait for the writes before.
    tables.set_limits(connection, changed, before.project_limits)
    moves.place_all(connection, added, moved)


def find_problems(limits: DatabaseLimitDriver, after: Timeline, changes: Iterable[RecordedChange]) -> list[str]:
    """The violations of the enforcement model and of MAX_DEPTH by these changes, now or in the future; each once."""
    tree = after.tree
    placed = {change.project_id for change in changes if change.resource is None and change.project_id is not None}
    reasons = _too_deep(tree, placed)
    affected = placed | {child for project_id in placed for child in tree.children_of.get(project_id, ())}
    keys = after.keys
    reasons += timeline.problems(limits.model, after, affected, keys)
    limited: dict[ResourceKey, set[str]] = {}
    for change in changes:
        if change.resource is not None:
            project_ids = tree.projects if change.project_id is None else [change.project_id]
            limited.setdefault(change.key.resource_key, set()).update(project_ids)
    for key, limited_ids in sorted(limited.items()):
        left = limited_ids - affected if key in keys else limited_ids
        if left:
            reasons += timeline.problems(limits.model, after, left, [key])
    return list(dict.fromkeys(reasons))


def _too_deep(after: LimitTree, placed: set[str]) -> list[str]:
    if not placed:
        return []
    problems = []
    for project_id in after.projects:
        path = after.path(project_id)
        if len(path) == MAX_DEPTH + 1 and not placed.isdisjoint(path):
            problems.append(
                f"project {project_id} would lie at level {MAX_DEPTH + 1}; at most {MAX_DEPTH} are possible"
            )
    return problems
