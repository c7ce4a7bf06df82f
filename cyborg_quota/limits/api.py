# SPDX-License-Identifier: Apache-2.0
"""The public interface for limits and the project tree in the tables of cyborg_quota: engine.limits."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cyborg_quota import exceptions, policy, validation
from cyborg_quota.db import change_log, overrides, path_state, projects
from cyborg_quota.db.database import Connection
from cyborg_quota.db.path_state import PathState
from cyborg_quota.limits import changes as limit_changes
from cyborg_quota.limits import document as documents
from cyborg_quota.limits import limit_tree, tables
from cyborg_quota.limits.document import Document
from cyborg_quota.limits.limit_tree import LimitTree
from cyborg_quota.limits.minimums import Minimums
from cyborg_quota.limits.projects import MAX_LISTED_PROJECTS
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.safe_repr import safe_repr
from cyborg_quota.subject import admin_call
from cyborg_quota.types import (
    MAX_LIMIT,
    SUBJECTS,
    TOTAL,
    Author,
    Counters,
    HistoryEntry,
    LimitOverride,
    LimitRecord,
    Marker,
    RecordedChange,
    ResourceKey,
    TotalLimit,
    UsageKey,
)
from cyborg_quota.types.limits import HistoryFilter, TreeRow, without_others
from cyborg_quota.validation import Context

MAX_TREE_PROJECTS: Final = 400
"""The maximum number of projects in one call of tree_page. (A walk has two steps for each; MariaDB makes 1,000.)"""


class Limits(Minimums):
    """Limits and projects, and the history. All calls need an admin's context, except history and default_limits.

    Policy may permit other contexts add_project, set_limit, set_limits, unset_limit, set_overrides, cancel_overrides.

    If ``[limits] driver`` is not ``database``, the calls raise LimitsReadOnly, except those that say so,
    ``list_limits``, ``list_projects``, ``import_projects``, ``is_known_project``, ``list_holders``, ``list_holdings``,
    and the calls on the history.

    A total limit is the largest amount of a resource that all projects may hold together.

    A ``reason`` is one line of text, recorded in the history; it is required if [limits] require_reason is set.
    """

    # --- limits ---

    def set_limit(
        self, context: Context, resource: str, limit: int, project_id: str | None = None, *, reason: str | None = None
    ) -> None:
        """Set the limit of a project or, with ``project_id`` None, the default of the resource.

        The limit may be below the present usage. The policy rule cyborg_quota:limit:set decides who may set the limit
        of a project; by default an admin, or an administrator of the direct parent. ``reason`` is recorded in the
        history. Raises NotAuthorized, UnknownResource, LimitRefused, ReasonRequired.
        """
        self._set(
            context,
            "set_limit",
            {validation.check_resource_name(resource): validation.check_limit(limit)},
            project_id,
            reason=reason,
        )

    def unset_limit(
        self, context: Context, resource: str, project_id: str | None = None, *, reason: str | None = None
    ) -> None:
        """Remove a limit, so that the inherited limit applies. Raises LimitRefused."""
        self._set(context, "unset_limit", {validation.check_resource_name(resource): None}, project_id, reason=reason)

    def set_limits(
        self,
        context: Context,
        limits: Mapping[str, int | None],
        project_id: str | None = None,
        *,
        pod: str | None = None,
        reason: str | None = None,
        generation: int | None = None,
        force: bool = False,
    ) -> int | None:
        """Set several limits ({resource: limit}) of a project, or defaults, atomically. The limit None removes one.

        With a ``pod``, they limit what the project (with an enforcement model that limits the usage of descendants:
        also these) holds in this pod, in addition to the limits over all pods. What is held there already counts. Needs
        also the policy rule cyborg_quota:pod:see, with the parent of the project. Raises PodNotFound, unless limits are
        only removed. ``generation``: raise LimitsChanged, and change nothing, unless it is that of the project's
        limits: see generation_of. ``force``: also below a minimum, or below what is used and promised to minimums.
        Returns the generation that the project's limits have then; None for defaults.
        """
        if not isinstance(limits, Mapping):
            raise exceptions.InvalidRequest(f"Limits must map resources to limits, not be a {type(limits).__name__}.")
        checked = {
            resource: None if limit is None else validation.check_limit(limit) for resource, limit in limits.items()
        }
        return self._set(
            context, "set_limits", checked, project_id, reason=reason, pod=pod, generation=generation, force=force
        )

    @admin_call
    def generation_of(self, context: Context, project_id: str) -> int:
        """The generation of the last change of the project's own limits, in all pods or in one; 0: none is known."""
        named = validation.check_name("project_id", project_id)
        return self._database.read(lambda connection: change_log.latest(connection, named))

    def _set(
        self,
        context: Context,
        action: str,
        limits: Mapping[str, int | None],
        project_id: str | None,
        *,
        reason: str | None,
        pod: str | None = None,
        generation: int | None = None,
        force: bool = False,
    ) -> int | None:
        if project_id is None:
            validation.admin_only(context, action)
        project_id, pod = validation.optional_name("project_id", project_id), validation.optional_name("pod", pod)
        new = [resource for resource, limit in limits.items() if limit is not None]
        validation.refuse_unknown(new, self._resources)
        checked = {validation.check_name("resource", name): limit for name, limit in limits.items()}
        author = self._author(context, reason)
        if project_id is None:
            if pod is not None:
                raise exceptions.InvalidRequest("A limit per pod is one of a project: name the project.")
            self._changes.apply(Document(dict(sorted(checked.items())), {}, {}), author, force=force)
            return None
        keys = {ResourceKey(resource, pod or ""): limit for resource, limit in checked.items()}

        def allow(parent_id: str | None) -> None:
            if pod is not None and not self._authority.allows(context, policy.SEE_PODS, project_id, parent_id):
                raise exceptions.NotAuthorized(action, f"a context that {policy.SEE_PODS} allows")
            self._require_may_set(context, action, project_id, parent_id)
            if pod is not None and new:  # (after the checks, so that the error reveals no pod)
                self._driver.require_pod(pod)

        with self._redacted(context):
            return self._changes.set_limits(project_id, keys, author, allow, generation, force=force)

    @admin_call
    def list_limits(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        limit: int | None = None,
        after: Marker | None = None,
        resource: str | None = None,
    ) -> list[LimitRecord]:
        """All limits, defaults first; for one project, the limits that apply to it, including inherited ones.

        ``limit``, ``after`` and ``resource``: as in QuotaEngine.list_usages; the project of a default is None. Works
        with all limit drivers. Without a project, a driver that has no defaults raises InvalidRequest.
        """
        project_id = validation.optional_name("project_id", project_id)
        page = validation.check_page(limit, after, resource)
        if not isinstance(self._source, DatabaseLimitDriver):
            return validation.select_page(self._limits_of_driver(project_id), page)
        if project_id is None:
            return self._database.read(lambda connection: tables.read_page(connection, page))
        _, tree = self._path(project_id)
        own, (live, now) = self._database.read(
            lambda connection: (
                tables.of_projects(connection, [project_id]),
                overrides.read(connection, [project_id]),
            )
        )
        active = {override.resource: override for override in live if now is not None and override.starts_at <= now}
        records = [
            LimitRecord(project_id, name, in_force, UsageKey(project_id, name) in own, active.get(name))
            for name in sorted({*self._resources.names(), *tree.resources})
            if (in_force := tree.limit(project_id, name)) is not None
        ]
        return validation.select_page(records, page)

    @admin_call
    def list_defaults(self, context: Context) -> dict[str, int]:
        """The default limits that are set, by resource. Raises LimitsReadOnly with a driver that cannot list them."""
        if isinstance(self._source, DatabaseLimitDriver):
            return self._database.read(lambda connection: tables.read_limits(connection, ()))[0]
        return self._fixed_defaults()

    def _fixed_defaults(self) -> dict[str, int]:
        """The defaults of a limit driver that stores none in the ledger. Raises LimitsReadOnly if it has no list."""
        defaults = self._source.defaults()
        if defaults is None:
            raise exceptions.LimitsReadOnly(self._source.set_where)
        return dict(defaults)

    @property
    def limit_if_missing(self) -> int | None:
        """What applies where neither a limit, nor a default, nor an initial limit is set: UNLIMITED, or None.

        None: a reserve is then refused.
        """
        return self._source.limit_if_missing

    def default_limits(self, context: Context, project_id: str | None = None) -> dict[str, int]:
        """The limits that the project would have without limits and overrides of its own, by resource.

        Any context may ask about its own project. A resource is left out if no limit would apply to it and a reserve
        would be refused. Raises LimitsReadOnly with a limit driver that does not know them (Keystone's).
        """
        project_id = validation.project_of(context, project_id)
        limits: Mapping[str, int | None]
        if isinstance(self._source, DatabaseLimitDriver):
            _, tree = self._path(project_id)
            resources = {*self._resources.names(), *tree.resources}
            tree.project_limits = {key: limit for key, limit in tree.project_limits.items() if key[0] != project_id}
            limits = {resource: tree.limit(project_id, resource) for resource in resources}
        else:
            limits = self._fixed_defaults()
        defaults = {resource: limit for resource, limit in limits.items() if limit is not None}
        missing = self.limit_if_missing
        return defaults if missing is None else {**dict.fromkeys(self._resources.names(), missing), **defaults}

    @admin_call
    def list_pod_limits(
        self,
        context: Context,
        project_id: str | None = None,
        pod: str | None = None,
        *,
        projects: int | None = None,
        after: str | None = None,
    ) -> list[LimitRecord]:
        """The limits per pod of a project (None: of all projects), in this pod (None: in any).

        ``projects``: the maximum number of projects, each with all these limits. ``after``: the id of the last project
        of the previous page, which need not exist any more. The database sorts the projects.

        A pod that was removed may have left limits. Raises PodNotFound if there is neither a limit nor the pod.
        """
        pod = validation.optional_name("pod", pod)
        owner = validation.optional_name("project_id", project_id)
        self.require_stored()
        after = validation.optional_name("after", after)

        def read(count: int | None, after: str | None) -> list[LimitRecord]:
            return self._database.read(lambda connection: tables.read_in_pods(connection, owner, pod, count, after))

        records = read(validation.row_limit(projects), after)
        if pod is not None and not records and not read(1, None):
            self._driver.require_pod(pod)
        return records

    def _limits_of_driver(self, project_id: str | None) -> list[LimitRecord]:
        if project_id is not None:
            usages = self._driver.headroom.get_usages(project_id, self._resources.names())
            return [
                LimitRecord(project_id, resource, usage.limit, is_own=False)
                for resource, usage in sorted(usages.items())
            ]
        defaults = self._source.defaults()
        if defaults is None:
            raise exceptions.InvalidRequest("This limit driver cannot list the limits of all projects; name one.")
        return [LimitRecord(None, resource, limit) for resource, limit in sorted(defaults.items())]

    @admin_call
    def tree(self, context: Context, project_id: str | None = None) -> list[TreeRow]:
        """The whole tree, or the subtree of a project. Parents come before their children; one row per resource.

        Reads the whole tree: see tree_page.
        """
        top = validation.optional_name("project_id", project_id)
        initial_limits = self.require_stored().initial_limits
        parents, state = self._database.read(path_state.read_tree)
        tree = LimitTree(dict(state.defaults), dict(state.project_limits), parents, initial_limits)
        nodes = limit_tree.walk(tree.roots if top is None else [top], tree.children_of)
        return limit_tree.rows(tree, state.counters, nodes, self.limit_if_missing, self._resources.names())

    @admin_call
    def tree_page(
        self, context: Context, project_id: str, limit: int = MAX_TREE_PROJECTS, after: str | None = None
    ) -> tuple[list[TreeRow], bool]:
        """Of the subtree of a project: the first projects, or those after ``after``; and whether more follow.

        ``limit``: the maximum number, at most MAX_TREE_PROJECTS; there may be fewer. The database sorts siblings by
        their ids. What it costs depends on ``limit`` alone. For all limit drivers. Raises MarkerNotFound.
        """
        top, last = validation.check_name("project_id", project_id), validation.optional_name("after", after)
        count = validation.integer(limit, 1, None, "The limit must be an integer of at least 1")

        def read(connection: Connection) -> tuple[list[tuple[int, str]], list[PathState], bool]:
            nodes, has_more = projects.subtree_page(connection, top, min(count, MAX_TREE_PROJECTS), last)
            return nodes, path_state.read_states(connection, {name for _, name in nodes})[1], has_more

        nodes, states, has_more = self._database.read(read)
        return self._subtree_rows(nodes, states), has_more

    def _subtree_rows(self, nodes: Sequence[tuple[int, str]], states: Sequence[PathState]) -> list[TreeRow]:
        """The rows of these projects, (depth, project_id). ``states``: theirs."""
        tree = LimitTree({}, {}, {}, limit_tree.InitialLimits(child=None))
        counters: dict[UsageKey, Counters] = {}
        for state in states:
            tree.parents[state.project_ids[0]] = next(iter(state.project_ids[1:]), None)
            counters.update(state.counters)
        if isinstance(self._source, DatabaseLimitDriver):
            tree.initial_limits = self._source.initial_limits
            for state in states:
                tree.defaults.update(state.defaults)
                tree.project_limits.update(state.project_limits)
        elif nodes:
            counters = {UsageKey(nodes[0][1], name): Counters() for name in self._resources.names()} | counters
            for limits in self._source.bounds(states, {key.resource for key in counters}):
                tree.project_limits.update((constraint.key, constraint.limit) for constraint in limits.constraints)
        return limit_tree.rows(tree, counters, nodes, self.limit_if_missing, self._resources.names())

    @admin_call
    def path(self, context: Context, project_id: str) -> list[TreeRow]:
        """A project and its ancestors, root first; one row per resource."""
        state, tree = self._path(validation.check_name("project_id", project_id))
        nodes = enumerate(reversed(state.project_ids))
        return limit_tree.rows(tree, state.counters, nodes, self.limit_if_missing, self._resources.names())

    def _path(self, project_id: str) -> tuple[PathState, LimitTree]:
        """The usage of a project and its ancestors, read in one statement; and their limits. Raises LimitsReadOnly."""
        source = self.require_stored()
        state = self._database.read(lambda connection: path_state.read(connection, project_id))
        parents = dict(zip(state.project_ids, [*state.project_ids[1:], None], strict=True))
        return state, LimitTree(dict(state.defaults), dict(state.project_limits), parents, source.initial_limits)

    @admin_call
    def list_over(self, context: Context) -> list[TreeRow]:
        """The rows of all pages of over_page, each as of one moment."""
        over: list[TreeRow] = []
        following: tuple[str, str] | None = ("", "")
        while following is not None:
            rows, following = self.over_page(context, following)
            over += rows
        return over

    @admin_call
    def over_page(
        self, context: Context, after: tuple[str, str] = ("", ""), count: int = MAX_LISTED_PROJECTS
    ) -> tuple[list[TreeRow], tuple[str, str] | None]:
        """The rows that count more than their limits permit: those of ``count`` projects that have usage or limits.

        First those of total limits (TOTAL), then as the database sorts the projects; there may be none. ``after``: the
        project and the resource of the last row of the page before; with the resource "", all rows of the project are
        before. Also returns where the next page begins; None: there are no more. With all limit drivers.
        """
        if not isinstance(after, (tuple, list)) or len(after) != 2 or not all(isinstance(name, str) for name in after):
            raise exceptions.InvalidRequest(f"A position is a project and a resource, not {safe_repr(after)}.")
        owner, resource = after
        is_first = owner in ("", TOTAL)
        names, last = self._holders("" if is_first else owner, count, tables.COUNTING)
        names = names if is_first or not resource else [owner, *names]
        states = self._database.read(lambda connection: path_state.read_states(connection, names)[1])
        totals = self.list_total_limits(context) if is_first else []
        rows = [
            TreeRow(TOTAL, None, 0, total.resource, total.limit, 0, total.held, promised=total.promised)
            for total in totals
        ]
        rows += self._subtree_rows([(0, name) for name in names], states)
        over = [
            row
            for row in rows
            if row.available is not None
            and row.available < 0
            and (self._source.bounds_subtree or row.project_id == TOTAL or row.used + row.reserved > (row.limit or 0))
            and (row.project_id != owner or row.resource > resource)
        ]
        return over, None if last is None else (last, "")

    # --- limits over all projects ---

    @admin_call
    def set_total_limits(
        self,
        context: Context,
        limits: Mapping[str, int],
        *,
        reason: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[RecordedChange]:
        """Set total limits ({resource: limit}). They are enforced when the call returns.

        The call counts what all projects hold, while other calls reserve. The limit may be below the present usage:
        reserves are then refused until the usage is below it. ``force``: as in set_limits. Raises UnknownResource,
        InvalidRequest, LimitRefused. Returns the changes. ``dry_run``: write nothing.
        """
        if not isinstance(limits, Mapping) or not limits:
            raise exceptions.InvalidRequest("Total limits must map at least one resource to a limit.")
        validation.refuse_unknown(limits, self._resources)
        checked = {
            validation.check_name("resource", resource): validation.integer(
                limit, 0, MAX_LIMIT, f"The total limit of {resource} must be an integer from 0 to {MAX_LIMIT}"
            )
            for resource, limit in limits.items()
        }
        if dry_run:
            return self._changes.apply(Document({}, {}, {}, totals=checked), Author(), dry_run=True, force=force)
        return self._changes.set_totals(checked, self._author(context, reason), force=force)

    @admin_call
    def unset_total_limits(self, context: Context, resources: Iterable[str], *, reason: str | None = None) -> None:
        """Remove total limits, all or none. Raises TotalLimitNotFound."""
        names = [validation.check_name("resource", name) for name in validation.resource_list(resources)]
        author = self._author(context, reason)
        self._changes.set_totals(dict.fromkeys(names), author, must_exist=True)

    @admin_call
    def list_total_limits(self, context: Context) -> list[TotalLimit]:
        """All total limits, by resource. With another limit driver than database, none."""
        is_stored = isinstance(self._source, DatabaseLimitDriver)
        return self._database.read_synced(tables.read_totals) if is_stored else []

    @admin_call
    def count_total_limits_held(self, context: Context, resources: Iterable[str]) -> dict[str, int]:
        """What all projects have in use and reserved, by resource, whether a total limit is set or not.

        Adds up the counters of all projects in one statement.
        """
        self.require_stored()
        names = [validation.check_name("resource", name) for name in validation.resource_list(resources)]
        amounts = self._database.read(lambda connection: tables.held_by_all(connection, names))
        return {**dict.fromkeys(names, 0), **amounts}

    # --- overrides ---

    def set_overrides(
        self,
        context: Context,
        limits: Mapping[str, int],
        project_id: str,
        until: datetime.datetime,
        *,
        start: datetime.datetime | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[LimitOverride]:
        """Set limits ({resource: limit}) of a project for a span of time, atomically. Returns the overrides.

        They apply from ``start`` (None: now) until ``until``, by the clock of the database; a naive time means UTC.
        Where overrides of one limit overlap, the one made last applies. What the project holds at the end stays. The
        policy rule of set_limit applies. Raises NotAuthorized, UnknownResource, InvalidRequest, ReasonRequired, and
        LimitRefused (if the enforcement model forbids the limits at any time in the span). ``dry_run`` writes nothing,
        needs no reason, and returns or raises the same; the ids of the overrides that it returns are not assigned.
        ``force``: as in set_limits.
        """
        why = "a default cannot be set for a span of time"
        named = validation.one_project(context, "set_overrides", project_id, why)
        if not isinstance(limits, Mapping) or not limits:
            raise exceptions.InvalidRequest("Limits must map resources to limits, and name at least one.")
        checked = {
            validation.check_resource_name(resource): validation.check_limit(limit)
            for resource, limit in limits.items()
        }
        validation.refuse_unknown(checked, self._resources)
        span = (None if start is None else validation.moment("start", start), validation.moment("until", until))
        with self._redacted(context):
            return self._changes.set_overrides(
                named,
                checked,
                span,
                Author() if dry_run else self._author(context, reason),
                lambda parent_id: self._require_may_set(context, "set_overrides", named, parent_id),
                dry_run=dry_run,
                force=force,
            )

    @admin_call
    def list_overrides(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
        resource: str | None = None,
    ) -> tuple[list[LimitOverride], datetime.datetime | None]:
        """The overrides that have not ended, of all projects or of one, in the order in which they were made.

        Also returns the time of the database (naive UTC), which decides which of them apply; None without overrides.
        ``limit``: the maximum number. ``after``: the id of the last override of the previous page.
        """
        owner = validation.optional_name("project_id", project_id)
        self.require_stored()
        count, last = validation.row_limit(limit), None if after is None else validation.entry_id(after)
        page = count, last, validation.optional_name("resource", resource)
        return self._database.read(lambda connection: overrides.read_page(connection, owner, page))

    def cancel_overrides(
        self, context: Context, ids: Iterable[str], *, reason: str | None = None
    ) -> list[LimitOverride]:
        """Cancel overrides by their ids, all or none. Returns them. The policy rule of set_limit applies.

        An override that the context may not cancel is reported as unknown. Raises OverrideNotFound, LimitRefused.
        """
        named = validation.listed(
            ids, exceptions.InvalidRequest("The ids of overrides must be a list of strings."), str
        )
        author = self._author(context, reason)
        with self._redacted(context):
            return self._changes.cancel_overrides(
                named, author, lambda *project: self._authority.permits(policy.RULE, context, *project)
            )

    # --- export and import ---

    @admin_call
    def export_limits(self, context: Context) -> dict[str, Any]:
        """All limits and the project tree as a document for import_limits; see limits/document.py."""
        stored = limit_changes.read_all(self._database, self.require_stored().initial_limits)
        return documents.write(stored.tree, stored.overrides, stored.totals, stored.minimums)

    @admin_call
    def import_limits(
        self,
        context: Context,
        document: object,
        *,
        dry_run: bool = False,
        reason: str | None = None,
        force: bool = False,
    ) -> list[RecordedChange]:
        """Apply a document to the limits and the project tree. Returns the changes.

        All of them are made, or none; except that total limits, and then the minimums of each project, follow in
        transactions of their own, before which other calls may take what the limits leave.
        Limits and projects that the document does not contain stay unchanged. The position of a project in the
        document determines its parent. A limit None is removed. ``dry_run`` writes nothing, and returns or raises the
        same as the import. ``force``: as in set_limits.
        Raises InvalidDocument, UnknownResource, PodNotFound, LimitRefused (with every problem, and the changes).
        """
        changes = self._changes
        wanted = documents.read(document)
        validation.refuse_unknown(wanted.resources, self._resources)
        author = self._author(context, reason) if not dry_run else Author()
        made = changes.apply(wanted, author, operation="import", dry_run=dry_run, force=force)
        if not dry_run:
            self._import_minimums(context, [change for change in made if change.action == "set minimum"], reason)
        return made

    # --- history ---

    def history(
        self,
        context: Context,
        project_id: str | None = None,
        *,
        subject: str | None = None,
        resource: str | None = None,
        provider: str | None = None,
        pod: str | None = None,
        user_id: str | None = None,
        since: datetime.datetime | None = None,
        until: datetime.datetime | None = None,
        limit: int | None = None,
        marker: str | None = None,
        oldest_first: bool = False,
    ) -> list[HistoryEntry]:
        """The changes of limits, overrides, the tree, providers, inventories and pods; by default the newest first.

        Works with all limit drivers. Only the entries with all given values. ``project_id``: its own limits and place
        in the tree. ``subject``: one of SUBJECTS. ``provider``: a name or a UUID, also of one that was removed.
        ``since`` and ``until``: times (naive means UTC). ``limit``: the maximum number of entries.
        ``marker``: the id of the entry after which the list starts. A context that is not an admin's gets only the
        changes of its own project, without author and ids of parents, and cannot select by provider, pod or user. It
        sees the names of pods if the policy rule cyborg_quota:pod:see allows it. Raises NotAuthorized, InvalidRequest.
        """
        is_admin = validation.is_admin(context)
        if project_id is not None or not is_admin:
            project_id = validation.project_of(context, project_id)
        if any(value is not None for value in (provider, pod, user_id)):
            validation.admin_only(context, "history")
        if subject is not None and subject not in SUBJECTS:
            raise exceptions.InvalidName("subject", subject, f"the subjects are {', '.join(SUBJECTS)}")
        wanted = HistoryFilter(
            subject=subject,
            project_id=project_id,
            resource=validation.optional_name("resource", resource),
            provider=validation.optional_name("provider", provider),
            pod=validation.optional_name("pod", pod),
            user_id=validation.optional_name("user_id", user_id),
            since=None if since is None else validation.moment("since", since),
            until=None if until is None else validation.moment("until", until),
        )
        page: Any = {
            "limit": validation.row_limit(limit),
            "marker": None if marker is None else validation.entry_id(marker),
            "oldest_first": oldest_first,
        }
        entries = self._untimed.read(lambda connection: change_log.read(connection, wanted, **page))
        if is_admin:
            return entries
        assert project_id is not None
        return [without_others(entry) for entry in self._authority.visible(context, project_id, entries)]

    @admin_call
    def purge_history(self, context: Context, older_than_seconds: int) -> int:
        """Delete older entries of the history, and those of overrides that ended before. Returns their number."""
        age = validation.age_microseconds(older_than_seconds)
        purged = 0
        while deleted := self._untimed.write(lambda connection: change_log.purge(connection, age)):
            purged += deleted
        return purged
