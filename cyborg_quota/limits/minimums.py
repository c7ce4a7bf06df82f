# SPDX-License-Identifier: Apache-2.0
"""The public interface for minimums: the part of engine.limits that is about them. minimum_rules.py has the rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cyborg_quota import exceptions, policy, validation
from cyborg_quota.db import change_log, charges, path_state, projects, usages
from cyborg_quota.db.database import Connection
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger.paths import until_stable
from cyborg_quota.limits.minimum_rules import limits_of, plan, refuse, write
from cyborg_quota.limits.projects import Projects
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.subject import admin_call
from cyborg_quota.types import MAX_AMOUNT, Author, Counters, RecordedChange, RecordedChanges, ResourceKey, UsageKey
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
            parent_id = self._database.read(lambda connection: projects.parent_of(connection, named))
            parent_id = parent_id if reported is None else next(iter(reported[1:]), None)
            if not self._authority.may_set(context, named, parent_id):
                raise exceptions.NotAuthorized("set_minimums", f"a context that the policy rule {policy.RULE} allows")
            state = self._database.read(lambda connection: path_state.read(connection, named))
            changes, _, problems = plan(state.project_ids, state.counters, self._limits_of(state, wanted), wanted)
            if dry_run:
                refuse(problems, changes)
            if dry_run or not changes:
                return changes
            if reported is not None:
                self._tree.follow(reported, str(self._source.tree_source))
            return self._set_minimums(named, parent_id, wanted, author)

        with self._told(context):
            return until_stable(attempt)

    def _import_minimums(
        self, context: Context, wanted: Mapping[str, Mapping[str, int]], reason: str | None, *, dry_run: bool
    ) -> list[RecordedChange]:
        """Set the minimums of a document, whose limits are set: first those that become lower. Raises LimitRefused.

        A dry run returns what differs: it does not know whether the limits of the document will keep them.
        """
        rows = self._database.read(lambda connection: usages.keeping(connection, list(wanted)))
        if dry_run:
            return [change for project_id, some in wanted.items() for change in plan([project_id], rows, {}, some)[0]]
        lower = {
            project_id: {
                resource: amount
                for resource, amount in some.items()
                if amount < rows.get(UsageKey(project_id, resource), Counters()).minimum
            }
            for project_id, some in wanted.items()
        }
        made: list[RecordedChange] = []
        try:
            for project_id, some in (*lower.items(), *wanted.items()):
                made += self.set_minimums(context, some, project_id, reason=reason) if some else []
        except exceptions.LimitRefused as refused:
            outcome = f"The limits and {len(made)} minimums of the document are set; import it again for the others."
            raise exceptions.LimitRefused(refused.violations, made, outcome=outcome) from None
        return made

    def _limits_of(self, state: PathState, wanted: Mapping[str, int]) -> dict[UsageKey, int]:
        """The limits on the path of a project. Raises LimitNotSet, LimitsUnavailable."""
        (bounds,) = self._source.bounds([state], sorted(wanted))
        if bounds.error is not None and any(wanted.values()):
            raise bounds.error
        return limits_of([bounds])

    def _set_minimums(
        self, project_id: str, parent_id: str | None, wanted: Mapping[str, int], author: Author
    ) -> list[RecordedChange] | None:
        """Set them, if the limits keep them. None: the tree or a limit has changed since it was read, retry."""
        keys = [ResourceKey(resource) for resource in sorted(wanted)]
        path = self._tree.paths.get(project_id, keys, is_again=True)
        self._tree.paths.forget(project_id)  # (a retry reads it again)
        if path.limits is None or path.project_ids[1:2] != (() if parent_id is None else (parent_id,)):
            return None
        limits = self._limits_of(path.limits, wanted)

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
        found: dict[str, tuple[str, int] | None] = dict.fromkeys(sorted(resources))
        for key, limit in sorted(limits.items(), key=lambda item: -item[1]):
            if key.project_id != named and key.is_whole and key.resource in found:
                found[key.resource] = key.project_id, limit
        return found
