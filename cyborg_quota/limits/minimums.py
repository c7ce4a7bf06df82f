# SPDX-License-Identifier: Apache-2.0
"""The public interface for minimums: the part of engine.limits that is about them. minimum_rules.py has the rules."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from cyborg_quota import exceptions, validation
from cyborg_quota.db import change_log, charges, path_state, projects
from cyborg_quota.db.database import Connection
from cyborg_quota.ledger.paths import until_stable
from cyborg_quota.limits.minimum_rules import limits_of, limits_of_path, plan, refuse, write
from cyborg_quota.limits.projects import Projects
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.subject import admin_call
from cyborg_quota.types import MAX_AMOUNT, Author, RecordedChange, RecordedChanges, ResourceKey
from cyborg_quota.validation import Context


class Minimums(Projects):
    """What a call may do with minimums. See Limits."""

    def set_minimums(
        self,
        context: Context,
        minimums: Mapping[str, int],
        project_id: str,
        *,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> list[RecordedChange]:
        """Set minimums ({resource: amount}; 0: none) of a project, atomically. Returns the changes.

        A minimum is what the project, with all below it, can always reach, whatever its siblings do: the limits of its
        ancestors, and the total over all projects, count it as if it were used. The policy rule of set_limit applies.
        Raises NotAuthorized, UnknownResource, InvalidRequest, ReasonRequired, LimitsReadOnly (a limit driver that
        limits no project together with others), and LimitRefused if a limit could not keep it, or if it is above the
        project's own limit. ``dry_run`` writes nothing, and returns or raises the same.
        """
        named = validation.one_project(context, "set_minimums", project_id, "a default has no minimum")
        if not isinstance(minimums, Mapping) or not minimums:
            raise exceptions.InvalidRequest("Minimums must map resources to amounts, and name at least one.")
        wanted = {
            validation.check_resource_name(resource): validation.integer(
                amount, 0, MAX_AMOUNT, f"The minimum of {resource} must be an integer from 0 to {MAX_AMOUNT}"
            )
            for resource, amount in minimums.items()
        }
        if not self._source.bounds_subtree and not isinstance(self._source, DatabaseLimitDriver):
            raise exceptions.LimitsReadOnly(self._source.set_where)
        validation.refuse_unknown([resource for resource, amount in wanted.items() if amount], self._resources)
        author = Author() if dry_run else self._author(context, reason)
        reported = self._source.path_of(named)

        def attempt() -> list[RecordedChange] | None:
            if reported is None:
                parent_id = self._database.read(lambda connection: projects.parent_of(connection, named))
            else:
                parent_id = next(iter(reported[1:]), None)
            self._require_may_set(context, "set_minimums", named, parent_id)
            state = self._database.read(lambda connection: path_state.read(connection, named))
            changes, _, problems = plan(
                state.project_ids, state.counters, limits_of_path(self._source, state, wanted), wanted
            )
            if dry_run:
                refuse(problems, changes)
            if dry_run or not changes:
                return changes
            if reported is not None:
                self._tree.follow(reported, str(self._source.tree_source))
            return self._set_minimums(named, parent_id, wanted, author)

        with self._redacted(context):
            return until_stable(attempt)

    def _import_minimums(self, context: Context, changes: Iterable[RecordedChange], reason: str | None) -> None:
        """Make these changes, in order. Raises LimitRefused if other calls have taken what was left meanwhile."""
        made: list[RecordedChange] = []
        try:
            for project_id, project_changes in itertools.groupby(changes, lambda change: str(change.project_id)):
                wanted: Any = {change.resource: change.after for change in project_changes}
                made += self.set_minimums(context, wanted, project_id, reason=reason)
        except exceptions.LimitRefused as refused:
            outcome = f"The limits and {len(made)} minimums of the document are set; import it again for the others."
            raise exceptions.LimitRefused(refused.violations, made, outcome=outcome) from None

    def _set_minimums(
        self, project_id: str, parent_id: str | None, wanted: Mapping[str, int], author: Author
    ) -> list[RecordedChange] | None:
        """Set them, if the limits keep them. None: the tree or a limit has changed since it was read, retry."""
        keys = [ResourceKey(resource) for resource in sorted(wanted)]
        path = self._tree.paths.get(project_id, keys, is_again=True)
        self._tree.paths.forget(project_id)  # (a retry reads it again)
        if path.limits is None or path.project_ids[1:2] != (() if parent_id is None else (parent_id,)):
            return None
        limits = limits_of_path(self._source, path.limits, wanted)

        def work(connection: Connection) -> tuple[list[RecordedChange], RecordedChanges | None]:
            projects.lock_and_add(connection, [project_id])
            changes = write(connection, path, limits, wanted)
            return changes, change_log.record(connection, author, changes)

        try:
            return self._history.change(self._database, work)
        except charges.Refused:
            return None

    @admin_call
    def bounds_of_minimums(
        self, context: Context, project_id: str, resources: Collection[str]
    ) -> dict[str, tuple[str, int] | None]:
        """For each resource, the lowest limit of an ancestor, or the total: (its project, the limit).

        None: no limit bounds what the siblings of the project take. The project of a total is TOTAL.
        """
        named = validation.check_name("project_id", project_id)
        state = self._database.read(lambda connection: path_state.read(connection, named))
        limits = limits_of(self._source.bounds([state], sorted(resources)))
        lowest: dict[str, tuple[str, int] | None] = dict.fromkeys(sorted(resources))
        for key, limit in sorted(limits.items(), key=lambda item: -item[1]):
            if key.project_id != named and key.is_whole and key.resource in lowest:
                lowest[key.resource] = key.project_id, limit
        return lowest
