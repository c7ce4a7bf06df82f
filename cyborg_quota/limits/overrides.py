# SPDX-License-Identifier: Apache-2.0
"""Sets, lists and cancels overrides: limits of a project that apply between a start and an end time.

Overrides are changes of limits: they are serialized with all others, and recorded in the history. The enforcement model
checks them at every moment, from now on, at which an override of the family begins or ends.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from cyborg_quota import exceptions
from cyborg_quota.db import change_log, projects
from cyborg_quota.db import overrides as tables
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.ledger.history import History
from cyborg_quota.ledger.paths import until_stable
from cyborg_quota.limits import tables as limit_tables
from cyborg_quota.limits import timeline
from cyborg_quota.limits.document import NewOverride
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.limits.timeline import Timeline
from cyborg_quota.types import Author, LimitOverride, RecordedChange, RecordedChanges, ResourceKey

T = TypeVar("T")

MayCancel = Callable[[str, "str | None"], bool]


class LimitChanger:
    """Changes limits of projects with the limit driver ``database``, as the enforcement model allows."""

    def __init__(self, database: Database, limits: DatabaseLimitDriver, history: History) -> None:
        self._database = database
        self._limits = limits
        self._history = history

    def _change(
        self,
        find_parents: Callable[[], Mapping[str, str | None]],
        work: Callable[[Connection, Timeline], tuple[T, RecordedChanges | None]],
        *,
        dry_run: bool = False,
    ) -> T:
        """Run ``work`` in a transaction (see History.change), with the limits of these projects and their families.

        ``find_parents`` returns the projects with their parents, and raises if the caller may not change their limits.
        It may read files; therefore it runs before the transaction, and again if one of them has moved by then. Raises
        DatabaseUnavailable.
        """

        def attempt() -> T | None:
            parents = find_parents()

            def in_family(connection: Connection) -> tuple[T | None, RecordedChanges | None]:
                tree = LimitTree(*limit_tables.read_family(connection, *parents), self._limits.initial_limits)
                if any(tree.parents.get(name) != parent_id for name, parent_id in parents.items()):
                    return None, None
                return work(connection, Timeline(tree, *tables.read(connection, {*parents, *tree.projects})))

            return self._history.change(self._database, in_family, dry_run=dry_run)

        return until_stable(attempt)

    def _allowed_parent(self, project_id: str, allow: Callable[[str | None], None]) -> dict[str, str | None]:
        """The project and its parent. ``allow`` is called with the parent."""
        parent_id = self._database.read(lambda connection: projects.parent_of(connection, project_id))
        allow(parent_id)
        return {project_id: parent_id}

    def _refuse(
        self,
        limits: Timeline,
        names: Collection[str],
        keys: Collection[ResourceKey],
        changes: Sequence[RecordedChange] = (),
    ) -> None:
        """Raise LimitRefused if the model forbids these limits, now or when an override begins or ends."""
        problems = timeline.problems(self._limits.model, limits, names, keys)
        if problems:
            raise exceptions.LimitRefused(problems, changes)


class Overrides(LimitChanger):
    """The overrides of one ledger with the limit driver ``database``."""

    def read(
        self, project_id: str | None, limit: int | None, after: tuple[int, int] | None, resource: str | None
    ) -> tuple[list[LimitOverride], datetime.datetime | None]:
        """A page of the overrides that have not ended, oldest first; and the database's time. See tables.read_page."""
        page = (limit, after, resource)
        return self._database.read(lambda connection: tables.read_page(connection, project_id, page))

    def set(
        self,
        project_id: str,
        limits: Mapping[str, int],
        span: tuple[datetime.datetime | None, datetime.datetime],
        author: Author,
        allow: Callable[[str | None], None],
        *,
        dry_run: bool = False,
    ) -> list[LimitOverride]:
        """Make an override of each of these limits. ``span``: start (None: now) and end, naive UTC.

        ``allow``: see LimitKeeper.set_limits. ``dry_run``: write nothing. Raises LimitRefused (with the changes),
        InvalidRequest, DatabaseUnavailable.
        """

        def work(connection: Connection, family: Timeline) -> tuple[list[LimitOverride], RecordedChanges | None]:
            now = tables.now(connection)
            generation = change_log.generation(connection)
            new = [
                LimitOverride((generation, number), project_id, resource, limit, span[0] or now, span[1], author.reason)
                for number, (resource, limit) in enumerate(sorted(limits.items()))
            ]
            check_span(span[0] or now, span[1], now)
            changes = [made(one) for one in new]
            after = Timeline(family.tree, [*family.overrides, *new], now, (generation, 0))
            self._refuse(after, [project_id], sorted(map(ResourceKey, limits)), changes)
            if dry_run:
                return new, None
            tables.insert(connection, new)
            return new, change_log.record(connection, author, changes)

        return self._change(functools.partial(self._allowed_parent, project_id, allow), work, dry_run=dry_run)

    def cancel(self, ids: Collection[str], author: Author, may_cancel: MayCancel) -> list[LimitOverride]:
        """Cancel these overrides, all or none.

        ``may_cancel`` gets the project of an override and its parent. If it is False, the error is that of an unknown
        id. Raises OverrideNotFound, LimitRefused, DatabaseUnavailable.
        """

        def work(connection: Connection, family: Timeline) -> tuple[list[LimitOverride], RecordedChanges | None]:
            by_id = {one.id: one for one in family.overrides}
            for override_id in ids:
                if override_id not in by_id:
                    raise exceptions.OverrideNotFound(override_id)
            ended = [by_id[override_id] for override_id in sorted(set(ids))]
            left = [one for one in family.overrides if one not in ended]
            keys = sorted({ResourceKey(one.resource) for one in ended})
            self._refuse(dataclasses.replace(family, overrides=left), {one.project_id for one in ended}, keys)
            tables.delete(connection, ended)
            return ended, change_log.record(connection, author, [cancelled(one) for one in ended])

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


def _project_of(connection: Connection, override_id: str) -> tuple[str | None, str | None]:
    """The project of an override, and its parent."""
    found = tables.find(connection, override_id)
    project_id = None if found is None else found.project_id
    return project_id, projects.parent_of(connection, project_id or "")


def check_span(starts_at: datetime.datetime, until: datetime.datetime, now: datetime.datetime) -> None:
    """Raise InvalidRequest unless the span ends after it starts, and in the future."""
    if until <= now:
        raise exceptions.InvalidRequest(
            f"An override must end in the future, not at {timeline.shown(until)} (the database's time is "
            f"{timeline.shown(now.replace(microsecond=0))})."
        )
    if until <= starts_at:
        raise exceptions.InvalidRequest(
            f"An override must end after it starts, not at {timeline.shown(until)} (it starts at "
            f"{timeline.shown(starts_at)})."
        )


def made(one: LimitOverride) -> RecordedChange:
    """The change for the history: the override was made."""
    return RecordedChange("set override", one.project_id, one.resource, None, one.limit, one)


def cancelled(one: LimitOverride) -> RecordedChange:
    """The change for the history: the override was cancelled, or its project was removed."""
    return RecordedChange("cancel override", one.project_id, one.resource, one.limit, None, one)


_Key = tuple[str, str, int, datetime.datetime, "datetime.datetime | None"]


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
    present = collections.Counter(_key(one, one.starts_at) for one in live)
    exists = [_take(present, _key(new, new.starts_at)) for new in lasting]
    begun: collections.Counter[_Key] = collections.Counter()
    for key, count in present.items():
        if key[-1] is not None and key[-1] <= now:
            without_start = (*key[:-1], None)
            begun[without_start] += count
    found: list[LimitOverride] = []
    for new, is_present in zip(lasting, exists, strict=True):
        if is_present or (new.starts_at is None and _take(begun, _key(new, None))):
            continue
        starts_at = new.starts_at or now
        check_span(starts_at, new.until, now)
        made_at = (first[0], first[1] + len(found))
        found.append(LimitOverride(made_at, new.project_id, new.resource, new.limit, starts_at, new.until, new.reason))
    return found


def _key(one: LimitOverride | NewOverride, starts_at: datetime.datetime | None) -> _Key:
    return one.project_id, one.resource, one.limit, one.until, starts_at


def _take(counts: collections.Counter[_Key], key: _Key) -> bool:
    """Remove one; False if there is none."""
    if not counts[key]:
        return False
    counts[key] -= 1
    return True
