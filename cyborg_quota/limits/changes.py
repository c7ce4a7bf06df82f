# SPDX-License-Identifier: Apache-2.0
"""Changes limits: serialize all such changes, read the limit tree, change the copy, check the enforcement model, write.

Such changes are rare and run one at a time. Thus two administrators who set limits of two siblings at the same time
cannot exceed the limit of their parent.

An import (a document of limits and projects) is one transaction. It is not split into batches: between two batches,
charges would be checked against a tree that is neither the old nor the new one (see decision record 0028).
MAX_MOVED_ROWS limits the time for which charges wait.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from cyborg_quota import exceptions
from cyborg_quota.db import change_log, charges, dialects, overrides, path_state, pods, projects, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.minimums import Growth
from cyborg_quota.db.prepared import chunks
from cyborg_quota.ledger.enforcers import Enforcers
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.limit_source import LimitDriver
from cyborg_quota.ledger.paths import until_stable
from cyborg_quota.limits import document, minimum_rules, tables, timeline
from cyborg_quota.limits.document import Document, NewOverride
from cyborg_quota.limits.limit_tree import MAX_DEPTH, InitialLimits, LimitTree
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.tree import tables as moves
from cyborg_quota.tree.changes import Tree
from cyborg_quota.types import (
    TOTAL,
    Author,
    LimitOverride,
    RecordedChange,
    RecordedChanges,
    ResourceKey,
    TotalLimit,
    UsageKey,
    grouped,
)
from cyborg_quota.types.limits import Violation, shown

T = TypeVar("T")

Allow = Callable[[str | None], None]
"""Called with the parent of a project; raises if the caller may not set the limits of the project. It may read files:
therefore it runs before the transaction, and again if the project has moved by then."""

MayCancel = Callable[[str, str | None], bool]

MAX_MOVED_ROWS: Final = 40_000
"""The maximum number of usage rows that one import moves. Charges of these projects wait while they are locked: a third
of [quota] retry_seconds (record 0028)."""

MAX_MOVED_ROWS_OF_ONE_WRITER: Final = 20_000
"""The same on SQLite, where charges wait for the whole import."""

BATCH_PROJECTS: Final = 500
"""The number of projects that one transaction of move_projects moves. Charges of these projects wait for it."""

MAX_OVERRIDES: Final = 100
"""The maximum number of overrides of one limit that have not ended: each is checked with each change of a limit."""

_LEVELS: Final = "project {child} would lie at level {level}; at most {most} are possible"
_ROWS: Final = (
    "the {moved} projects that would be moved have {rows} usage rows, and one import may move {most} (one for each "
    "resource, and for each resource in each pod); import the tree in several files"
)

_MAX_READS: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class StoredLimits:
    """All limits and projects, the overrides that have not ended, the total limits, and the minimums."""

    tree: LimitTree
    overrides: list[LimitOverride]
    totals: list[TotalLimit]
    minimums: dict[UsageKey, int]


def read_all(database: Database, initial_limits: InitialLimits) -> StoredLimits:
    """All limits that are set, with no change of limits or of the tree between the statements that read them.

    Each such change increments the generation of the fence row: all is read again if that has changed meanwhile.
    After _MAX_READS attempts, changes wait until all is read.
    """

    def read(connection: Connection) -> tuple[StoredLimits, bool]:
        before = change_log.generation(connection)
        tree = LimitTree(*tables.read_limits(connection), initial_limits)
        live, _ = overrides.read(connection)
        minimums = {key: row.minimum for key, row in usages.keeping(connection).items() if row.minimum}
        stored = StoredLimits(tree, live, tables.read_totals(connection), minimums)
        return stored, change_log.generation(connection) == before

    def serialized(connection: Connection) -> StoredLimits:
        change_log.serialize(connection)
        return read(connection)[0]

    for _ in range(_MAX_READS):
        limits, is_unchanged = database.read(read)
        if is_unchanged:
            return limits
    return database.write(serialized)


@dataclasses.dataclass(eq=False)
class LimitChanges:
    """Sets limits, and adds and moves projects, as the enforcement model allows. All raise DatabaseUnavailable."""

    _database: Database
    _tree: Tree
    _limits: DatabaseLimitDriver
    _history: History
    _enforcers: Enforcers

    def _refuse_move(self, connection: Connection, growth: Growth) -> None:
        minimum_rules.refuse_move(self._limits, connection, growth)

    # --- limits of projects ---

    def set_limits(
        self,
        project_id: str,
        limits: Mapping[ResourceKey, int | None],
        author: Author,
        allow: Allow,
        generation: int | None = None,
        *,
        force: bool = False,
    ) -> int:
        """Set limits of a project, all or none. None removes a limit. Returns the generation that they have then.

        Raises LimitRefused, LimitsChanged.
        """

        def work(connection: Connection, family: Timeline) -> tuple[int, RecordedChanges | None]:
            if generation not in (None, change_log.latest(connection, project_id)):
                raise exceptions.LimitsChanged(project_id)
            changes = []
            after = dataclasses.replace(family, tree=family.tree.copy())
            for counted, limit in sorted(limits.items()):
                key = UsageKey(project_id, *counted)
                changes += document.put(after.tree.project_limits, key, limit, project_id, counted)
                tables.set_limit(connection, key, limit)
            minimum_rules.refuse(self._problems(connection, family, after, changes, force=force), changes)
            recorded = change_log.record(connection, author, changes)
            return change_log.latest(connection, project_id), recorded

        return self._change(functools.partial(self._allowed_parent, project_id, allow), work)

    def set_overrides(
        self,
        project_id: str,
        limits: Mapping[str, int],
        span: tuple[datetime.datetime | None, datetime.datetime],
        author: Author,
        allow: Allow,
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[LimitOverride]:
        """Make an override of each of these limits, or return the equal one. ``span``: start (None: now) and end.

        They are naive UTC. ``dry_run``: write nothing. Raises LimitRefused (with the changes), TooManyOverrides,
        InvalidRequest.
        """

        def work(connection: Connection, family: Timeline) -> tuple[list[LimitOverride], RecordedChanges | None]:
            now = overrides.now(connection)
            generation = change_log.generation(connection)
            check_span(span[0] or now, span[1], now)
            new: list[LimitOverride] = []
            equal_or_new: list[LimitOverride] = []
            for resource, limit in sorted(limits.items()):
                made_at = (generation, len(new))
                override = LimitOverride(made_at, project_id, resource, limit, span[0] or now, span[1], author.reason)
                equal = _equal_to(override, family.overrides, has_start=span[0] is not None)
                new += [] if equal else [override]
                equal_or_new.append(equal or override)
            changes = [RecordedChange.of_override(override) for override in new]
            after = Timeline(family.tree, [*family.overrides, *new], now)
            check_number(after.overrides, new)
            minimum_rules.refuse(self._problems(connection, family, after, changes, force=force), changes)
            if dry_run:
                return equal_or_new, None
            overrides.insert(connection, new)
            return equal_or_new, change_log.record(connection, author, changes)

        return self._change(functools.partial(self._allowed_parent, project_id, allow), work, dry_run=dry_run)

    def cancel_overrides(self, ids: Collection[str], author: Author, may_cancel: MayCancel) -> list[LimitOverride]:
        """Cancel these overrides, all or none.

        ``may_cancel`` gets the project of an override and its parent. If it is False, the error is that of an unknown
        id. Raises OverrideNotFound, LimitRefused.
        """

        def work(connection: Connection, family: Timeline) -> tuple[list[LimitOverride], RecordedChanges | None]:
            by_id = {override.id: override for override in family.overrides}
            for override_id in ids:
                if override_id not in by_id:
                    raise exceptions.OverrideNotFound(override_id)
            ended = [by_id[override_id] for override_id in sorted(set(ids))]
            left = [override for override in family.overrides if override not in ended]
            changes = [RecordedChange.of_override(override, is_cancelled=True) for override in ended]
            # (An override ends by itself anyway, whatever the minimums are.)
            minimum_rules.refuse(
                find_problems(self._limits, dataclasses.replace(family, overrides=left), changes), changes
            )
            overrides.delete(connection, ended)
            return ended, change_log.record(connection, author, changes)

        return self._change(lambda: self._parents(ids, may_cancel), work)

    def _parents(self, ids: Collection[str], may_cancel: MayCancel) -> dict[str, str | None]:
        """The parents of the projects of these overrides. Raises OverrideNotFound for the first that is unknown or
        that the caller may not cancel. Both cases run the same statements and evaluate the rule once (I8).
        """
        parents: dict[str, str | None] = {}
        for override_id in dict.fromkeys(ids):
            project_id, parent_id = self._database.read_synced(functools.partial(_project_of, override_id=override_id))
            if not may_cancel(project_id or "", parent_id) or project_id is None:
                raise exceptions.OverrideNotFound(override_id)
            parents[project_id] = parent_id
        return parents

    def _change(
        self,
        find_parents: Callable[[], Mapping[str, str | None]],
        work: Callable[[Connection, Timeline], tuple[T, RecordedChanges | None]],
        *,
        dry_run: bool = False,
    ) -> T:
        """Run ``work`` in a transaction (see History.change), with the limits of these projects and their families.

        ``find_parents`` returns the projects with their parents, and raises if the caller may not change their limits.
        It runs before the transaction, and again if one of them has moved by then.
        """

        def attempt() -> T | None:
            parents = find_parents()

            def in_family(connection: Connection) -> tuple[T | None, RecordedChanges | None]:
                tree = LimitTree(*tables.read_family(connection, *parents), self._limits.initial_limits)
                if any(tree.parents.get(name) != parent_id for name, parent_id in parents.items()):
                    return None, None
                return work(connection, Timeline(tree, *overrides.read(connection, {*parents, *tree.projects})))

            return self._history.change(self._database, in_family, dry_run=dry_run)

        return until_stable(attempt)

    def _allowed_parent(self, project_id: str, allow: Allow) -> dict[str, str | None]:
        """The project and its parent. ``allow`` is called with the parent."""
        parent_id = self._database.read(lambda connection: projects.parent_of(connection, project_id))
        allow(parent_id)
        return {project_id: parent_id}

    def _problems(
        self,
        connection: Connection,
        before: Timeline,
        after: Timeline,
        changes: Sequence[RecordedChange],
        *,
        force: bool = False,
    ) -> list[Violation]:
        """What the model forbids of these limits, now or when an override begins or ends.

        Also those that could not keep minimums, unless ``force`` is set.
        """
        problems = find_problems(self._limits, after, changes)
        if not force:
            problems += minimum_rules.problems_of_limits(connection, before, after, changes, self._limits)
        return problems

    # --- projects ---

    def set_parent(
        self, project_id: str, parent_id: str | None, author: Author, *, is_new: bool, is_unknown: bool = False
    ) -> None:
        """Add a project to the tree (``is_new``), or move it. Raises ProjectRefused, LimitRefused.

        ``is_unknown``: refuse a project that has or had anything here.
        """

        def check(connection: Connection) -> None:
            if is_unknown and tables.is_known(connection, project_id):
                raise exceptions.ProjectRefused(project_id, "is not new; only an admin can move it")
            family = tables.read_family(connection, project_id, new_parent=parent_id)
            tree = LimitTree(*family, self._limits.initial_limits)
            for name in (parent_id, None if is_new else project_id):
                if name is not None and name not in tree.parents:
                    raise exceptions.ProjectRefused(name, "is not known; add it first")
            if is_new and tree.parents.get(project_id) is not None:
                raise exceptions.ProjectRefused(project_id, f"is already in the tree, below {tree.parents[project_id]}")
            before = tree.copy()
            change = RecordedChange.of_parent(project_id, tree.parents, parent_id)
            tree.parents[project_id] = parent_id
            levels = len(tree.path(project_id)) - 1 + tree.height(project_id)
            if levels > MAX_DEPTH:
                raise exceptions.ProjectRefused(
                    project_id, f"would make a tree of {levels} levels; at most {MAX_DEPTH} are possible"
                )
            after = Timeline(tree, *overrides.read(connection, tree.projects))
            problems = self._problems(connection, dataclasses.replace(after, tree=before), after, [change])
            minimum_rules.refuse(problems, [change])

        self._tree.set_parents({project_id: parent_id}, author, check, refuse=self._refuse_move)

    def remove(self, project_id: str, author: Author) -> None:
        """Remove a project that holds no resources and has no children. Raises ProjectRefused."""

        def work(connection: Connection) -> tuple[None, RecordedChanges | None]:
            edges = projects.edges(connection)
            if project_id not in edges:
                raise exceptions.ProjectRefused(project_id, "is not known")
            children = sorted(child for child, parent in edges.items() if parent == project_id)
            if children:
                raise exceptions.ProjectRefused(
                    project_id, f"has children ({', '.join(children[:5])}); move them first"
                )
            _, limits, _ = tables.read_limits(connection, [project_id])
            live, _ = overrides.read(connection, [project_id])
            forgotten = [change for enforcer in self._enforcers for change in enforcer.forget(connection, project_id)]
            changes = minimum_rules.clear(connection, project_id)
            if not tables.forget_project(connection, project_id):
                raise exceptions.ProjectRefused(project_id, "holds resources; release them first")
            changes += [
                RecordedChange.of_limit(project_id, key.resource_key, limit, None)
                for key, limit in sorted(limits.items())
            ]
            changes += [RecordedChange.of_override(override, is_cancelled=True) for override in live]
            changes += forgotten
            changes.append(RecordedChange("remove project", project_id, None, edges[project_id], None))
            return None, change_log.record(connection, author, changes)

        def attempt() -> bool | None:
            try:
                self._history.change(self._database, work)
            except charges.Refused:
                return None  # (a row above was renewed meanwhile)
            return True

        until_stable(attempt)

    # --- documents, total limits ---

    def apply(
        self,
        wanted: Document,
        author: Author,
        *,
        operation: str | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[RecordedChange]:
        """Apply a document of limits and projects; returns the changes. ``dry_run``: write nothing.

        ``operation``: the call, for the history. The total limits follow in transactions of their own. The changes of
        minimums, which are the last, are checked and not made. Raises LimitRefused, LimitNotSet, TooManyOverrides,
        PodNotFound.
        """

        def work(connection: Connection) -> tuple[list[RecordedChange], RecordedChanges | None]:
            before = LimitTree(*tables.read_limits(connection), self._limits.initial_limits)
            live, _ = overrides.read(connection)
            now, generation = overrides.now(connection), change_log.generation(connection)
            planned, changes = plan(before, live, now, wanted, generation)
            # A limit that stays as it is may name a pod that was removed: what was exported can be imported again.
            pods.require(
                connection, sorted({change.pod for change in changes if change.pod and change.after is not None})
            )
            check_number(planned.overrides, planned.overrides[len(live) :])
            reasons = self._problems(connection, Timeline(before, live, now), planned, changes, force=force)
            following, problems = minimum_rules.plan_import(
                connection, before.parents, planned, wanted, self._limits, force=force
            )
            reasons += _too_many(connection, changes) + problems
            minimum_rules.refuse(reasons, [*changes, *following])
            if dry_run:
                return [*changes, *following], None
            # Before the moves, which lock usage rows.
            recorded = change_log.record(connection, author, changes, operation=operation)
            overrides.insert(connection, planned.overrides[len(live) :])
            _write(connection, before.project_limits, changes, self._refuse_move)
            return [*changes, *following], recorded

        change = functools.partial(self._history.change, defaults=wanted.defaults, dry_run=dry_run)
        changes = until_stable(lambda: change(self._database, work))
        if wanted.totals and not dry_run:
            try:
                self.set_totals(wanted.totals, author, operation=operation, force=force)
            except exceptions.LimitRefused as refused:
                outcome = (
                    "The limits of projects and the defaults are set, but no total limit and no minimum; import it "
                    "again for these."
                )
                raise exceptions.LimitRefused(refused.violations, changes, outcome=outcome) from None
        return changes

    def set_totals(
        self,
        wanted: Mapping[str, int | None],
        author: Author,
        *,
        must_exist: bool = False,
        operation: str | None = None,
        force: bool = False,
    ) -> list[RecordedChange]:
        """Set these total limits; None removes one. All or none. When it returns the changes, they are enforced.

        ``must_exist``: raise TotalLimitNotFound if one that is to be removed is not set. ``operation``: the call, for
        the history. After a crash, the same call continues.
        """
        given = sorted(resource for resource, limit in wanted.items() if limit is not None)
        counted: dict[UsageKey, int] = {}

        def make_rows(connection: Connection) -> dict[UsageKey, int]:
            change_log.serialize(connection)
            for resource in given:
                path_state.make_row(connection, UsageKey(TOTAL, resource))
            return usages.row_ids(connection, [TOTAL])

        def write(connection: Connection) -> tuple[list[RecordedChange] | None, RecordedChanges | None]:
            present = {total.resource: total.limit for total in tables.read_totals(connection)}
            known, rows = present.keys(), usages.row_ids(connection, [TOTAL])
            if must_exist and (missing := wanted.keys() - known - {key.resource for key in rows}):
                raise exceptions.TotalLimitNotFound(sorted(missing))
            new = set(given) - known
            if any(rows.get(key) != counted.get(key) for key in (UsageKey(TOTAL, resource) for resource in new)):
                return None, None  # another call has removed a limit, and its row: make it again
            changes = document.total_changes(present, wanted)
            recorded = change_log.record(connection, author, changes, operation=operation)
            for resource, limit in sorted(wanted.items()):
                tables.set_limit(connection, UsageKey(TOTAL, resource), limit)
                if limit is None:
                    usages.delete(connection, UsageKey(TOTAL, resource))
            # From here on, charges of these resources wait.
            charges.count_totals(connection, new)
            problems = minimum_rules.problems_of_totals(usages.keeping(connection, [TOTAL]), changes)
            minimum_rules.refuse([] if force else problems, changes)
            return changes, recorded

        def attempt() -> list[RecordedChange] | None:
            counted.update(self._database.write(make_rows))
            for resource in sorted(
                set(given) - {total.resource for total in self._database.read_synced(tables.read_totals)}
            ):
                self._database.write(functools.partial(charges.renew_roots, resource=resource))
            return self._history.change(self._database, write)

        return until_stable(attempt)


def plan(
    before: LimitTree, live: Sequence[LimitOverride], now: datetime.datetime, wanted: Document, generation: int
) -> tuple[Timeline, list[RecordedChange]]:
    """The limits that a document makes of these limits and overrides, and the changes. ``generation``: of the import.

    The new overrides are behind those that exist. Raises InvalidRequest.
    """
    after, changes = document.apply(before, wanted)
    first = (generation, len(changes))
    new = made_by_import(wanted.new_overrides, live, now, first)
    return Timeline(after, [*live, *new], now), [*changes, *map(RecordedChange.of_override, new)]


def _project_of(connection: Connection, override_id: str) -> tuple[str | None, str | None]:
    """The project of an override, and its parent."""
    override = overrides.find(connection, override_id)
    project_id = None if override is None else override.project_id
    return project_id, projects.parent_of(connection, project_id or "")


def check_span(starts_at: datetime.datetime, until: datetime.datetime, now: datetime.datetime) -> None:
    """Raise InvalidRequest unless the span ends after it starts, and in the future."""
    if until <= now:
        raise exceptions.InvalidRequest(
            f"An override must end in the future, not at {shown(until)} (the database's time is "
            f"{shown(now.replace(microsecond=0))})."
        )
    if until <= starts_at:
        raise exceptions.InvalidRequest(
            f"An override must end after it starts, not at {shown(until)} (it starts at {shown(starts_at)})."
        )


def check_number(present: Iterable[LimitOverride], new: Iterable[LimitOverride]) -> None:
    """Raise TooManyOverrides if a limit of which one of the ``new`` overrides is has more than MAX_OVERRIDES."""
    numbers = collections.Counter((override.project_id, override.resource) for override in present)
    for override in new:
        if numbers[override.project_id, override.resource] > MAX_OVERRIDES:
            raise exceptions.TooManyOverrides(override.project_id, override.resource, MAX_OVERRIDES)


def _equal_to(new: LimitOverride, present: Iterable[LimitOverride], *, has_start: bool) -> LimitOverride | None:
    """The override that has the effect of ``new``; without a start, it may have begun earlier.

    It is not one in whose place another one, made later, applies during that time.
    """
    during = [
        override
        for override in present
        if (override.project_id, override.resource) == (new.project_id, new.resource)
        and override.until > new.starts_at
        and override.starts_at < new.until
    ]
    last = during[-1] if during else None
    if last is None or (last.limit, last.until) != (new.limit, new.until):
        return None
    is_same_start = last.starts_at == new.starts_at if has_start else last.starts_at <= new.starts_at
    return last if is_same_start else None


def made_by_import(
    wanted: Sequence[NewOverride],
    live: Iterable[LimitOverride],
    now: datetime.datetime,
    first: tuple[int, int],
) -> list[LimitOverride]:
    """The overrides of a document that do not exist yet and have not ended. Raises InvalidRequest.

    Each override that exists stands for one equal entry of the document, so that the same document can be imported
    again. Without a start, an entry is equal to one that has begun.
    ``first``: the generation of the import, and the number of the first override among its changes.
    """
    lasting = [new for new in wanted if new.until > now]
    present: collections.Counter[Any] = collections.Counter((_what(override), override.starts_at) for override in live)
    left = []
    for new in lasting:
        if present[_what(new), new.starts_at]:  # (none of them has the start None)
            present[_what(new), new.starts_at] -= 1
        else:
            left.append(new)
    begun = collections.Counter(what for what, starts_at in present.elements() if starts_at <= now)
    new_overrides: list[LimitOverride] = []
    for new in left:
        if new.starts_at is None and begun[_what(new)]:
            begun[_what(new)] -= 1
            continue
        starts_at = new.starts_at or now
        check_span(starts_at, new.until, now)
        made_at = (first[0], first[1] + len(new_overrides))
        new_overrides.append(
            LimitOverride(made_at, new.project_id, new.resource, new.limit, starts_at, new.until, new.reason)
        )
    return new_overrides


def _what(override: LimitOverride | NewOverride) -> tuple[object, ...]:
    return override.project_id, override.resource, override.limit, override.until


def _too_many(connection: Connection, changes: Iterable[RecordedChange]) -> list[Violation]:
    moved = {str(change.project_id) for change in changes if change.action == "move project"}
    rows = len(usages.row_ids(connection, moved))
    maximum = MAX_MOVED_ROWS if dialects.of(connection).max_writers != 1 else MAX_MOVED_ROWS_OF_ONE_WRITER
    if rows <= maximum:
        return []
    return [Violation(_ROWS, None, None, {"moved": len(moved), "rows": rows, "most": maximum})]


def _write(
    connection: Connection, known: Collection[UsageKey], changes: Iterable[RecordedChange], refuse: moves.Refuse
) -> None:
    """``known``: the limits of projects that existed before the changes."""
    placed: dict[str, dict[str, Any]] = {"add project": {}, "move project": {}}
    limits: dict[UsageKey, Any] = {}
    for change in changes:
        after: Any = change.after
        if change.action in placed:
            placed[change.action][str(change.project_id)] = after
        elif change.override is None and change.project_id is None:
            tables.set_default(connection, str(change.resource), after)
        elif change.override is None:
            limits[change.key] = after
    # Lock the usage rows last, so that charges do not wait for the writes before.
    tables.set_limits(connection, limits, known)
    moves.set_parents(connection, placed["add project"], placed["move project"], refuse)


def find_problems(limits: DatabaseLimitDriver, after: Timeline, changes: Iterable[RecordedChange]) -> list[Violation]:
    """The violations of the enforcement model and of MAX_DEPTH by these changes, now or in the future; each once."""
    tree = after.tree
    placed = {change.project_id for change in changes if change.resource is None and change.project_id is not None}
    reasons = [
        Violation(_LEVELS, path[1], project_id, {"level": MAX_DEPTH + 1, "most": MAX_DEPTH}, above=path[2])
        for project_id in (tree.projects if placed else ())
        for path in [tree.path(project_id)]
        if len(path) == MAX_DEPTH + 1 and not placed.isdisjoint(path)
    ]
    affected = placed | {child for project_id in placed for child in tree.children_of.get(project_id, ())}
    keys = after.keys
    reasons += timeline.problems(limits.model, after, affected, keys)
    of_limits = [change for change in changes if change.resource is not None]
    by_key = grouped(of_limits, lambda change: change.key.resource_key)
    for key in sorted(by_key):
        owners = [tree.projects if change.project_id is None else [change.project_id] for change in by_key[key]]
        if left := set[str]().union(*owners) - (affected if key in keys else set()):
            reasons += timeline.problems(limits.model, after, left, [key])
    return list({str(violation): violation for violation in reasons}.values())


def find_moves(connection: Connection, limits: LimitDriver, wanted: Mapping[str, str | None]) -> list[RecordedChange]:
    """The changes, parents first, that give each project the parent that ``wanted`` names (None: make it a root).

    Raises ProjectRefused (a cycle, too many levels), and LimitRefused if the enforcement model of the driver database
    does not allow the limits below the new parents, or if a limit there cannot keep what is promised to minimums.
    """
    defaults, project_limits, before = tables.read_limits(connection)
    tree = LimitTree(defaults, project_limits, {**before, **wanted}, InitialLimits())
    depths = {project_id: len(tree.path(project_id)) for project_id in tree.parents}
    for project_id, levels in depths.items():
        if levels > MAX_DEPTH:
            raise exceptions.ProjectRefused(project_id, f"would lie at level {levels} of {MAX_DEPTH}")
    # (An unknown root is added with its first child, or when it is charged.)
    moved = [name for name in wanted if wanted[name] != before.get(name)]
    changes = [
        RecordedChange.of_parent(name, before, wanted[name])
        for name in sorted(moved, key=lambda name: (depths[name], name))
    ]
    after = Timeline(tree, *overrides.read(connection))
    _, problems = minimum_rules.plan_import(connection, before, after, Document({}, {}, wanted), limits)
    if isinstance(limits, DatabaseLimitDriver):
        after.tree.initial_limits = limits.initial_limits
        problems = find_problems(limits, after, changes) + problems
    minimum_rules.refuse(problems, changes)
    return changes


def move_projects(
    database: Database,
    tree: Tree,
    limits: LimitDriver,
    wanted: Mapping[str, str | None],
    author: Author,
    *,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[RecordedChange]:
    """Make the changes of find_moves, in batches, and return them. ``dry_run``: write nothing. Raises its errors.

    ``progress`` is called with the size of each batch.
    """

    def find(connection: Connection) -> list[RecordedChange]:
        return find_moves(connection, limits, wanted)

    changes, last, done = database.read(find), 0, 0

    def check(connection: Connection) -> None:
        """Compare again if others have changed limits or the tree since the batch before."""
        nonlocal last
        before, last = last, change_log.generation(connection)
        if last != before + 1 and isinstance(limits, DatabaseLimitDriver):
            find(connection)

    # A project is placed after its ancestors, so that no batch closes a cycle, whatever a later batch moves.
    refuse = functools.partial(minimum_rules.refuse_move, limits)
    for batch in () if dry_run else chunks(changes, BATCH_PROJECTS):
        parents = {str(change.project_id): wanted[str(change.project_id)] for change in batch}
        try:
            tree.set_parents(parents, author, check, operation="import", refuse=refuse)
        except exceptions.LimitRefused as refused:
            outcome = f"{done} of {len(changes)} projects were added or moved." if done else "Nothing was changed."
            raise exceptions.LimitRefused(refused.violations, changes[:done], outcome=outcome) from None
        done += len(batch)
        if progress is not None:
            progress(len(batch))
    return changes
