# SPDX-License-Identifier: Apache-2.0
"""The projects of the ledger and their tree: the part of engine.limits that is about them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cyborg_quota import exceptions, policy, validation
from cyborg_quota.db import path_state, projects
from cyborg_quota.db.database import Database
from cyborg_quota.ledger.history import History
from cyborg_quota.limits import changes as limit_changes
from cyborg_quota.limits import tables
from cyborg_quota.limits.changes import LimitChanges
from cyborg_quota.limits.sources.database import DatabaseLimitDriver
from cyborg_quota.subject import Subject, admin_call
from cyborg_quota.tree.changes import Tree
from cyborg_quota.types import Author, RecordedChange, grouped
from cyborg_quota.types.limits import Holding
from cyborg_quota.validation import Context

if TYPE_CHECKING:
    from cyborg_quota.limits.sources.keystone_projects import ProjectDirectory

MAX_LISTED_PROJECTS: Final = 500
"""The maximum number of projects in one call of list_holders or list_holdings."""


class Projects(Subject):
    """What a call may do with projects, under every limit driver. See Limits."""

    def __init__(
        self,
        database: Database,
        untimed: Database,
        tree: Tree,
        history: History,
        *common: Any,
        directory: Callable[[], ProjectDirectory] | None = None,
        **options: Any,
    ) -> None:
        """``database``: for transactions that check all limits, which takes seconds in a large cloud. ``untimed``: for
        statements without a timeout: the history may be long. ``directory``: makes a directory of Keystone's projects;
        None: it is not configured. ``common``, ``options``: the arguments of Subject.
        """
        super().__init__(*common, **options)
        self._database = database
        self._untimed = untimed
        self._tree = tree
        self._history = history
        self._directory = directory
        self._source = self._driver.limit_driver

    @property
    def read_only(self) -> str | None:
        """Where the limits in force are set, if that is not in the ledger; otherwise None."""
        return None if isinstance(self._source, DatabaseLimitDriver) else self._source.set_where

    def require_stored(self) -> DatabaseLimitDriver:
        """The limit driver. Raises LimitsReadOnly if it does not store limits in the ledger."""
        if not isinstance(self._source, DatabaseLimitDriver):
            raise exceptions.LimitsReadOnly(self._source.set_where)
        return self._source

    @contextlib.contextmanager
    def _redacted(self, context: Context) -> Iterator[None]:
        """Make the sentences of a LimitRefused for this caller: without the ids of projects that it may not see."""
        try:
            yield
        except exceptions.LimitRefused as refused:
            may_see = functools.partial(self._authority.allows, context, policy.GET)
            raise exceptions.LimitRefused(refused.violations, refused.changes, may_see) from None

    def _require_may_set(self, context: Context, action: str, project_id: str, parent_id: str | None) -> None:
        """Raise NotAuthorized unless the context may set limits and minimums of the project."""
        if not self._authority.permits(policy.RULE, context, project_id, parent_id):
            raise exceptions.NotAuthorized(
                action, f"the context of an admin or of an administrator of the parent project (rule {policy.RULE})"
            )

    @property
    def _changes(self) -> LimitChanges:
        """What changes limits. Raises LimitsReadOnly."""
        return LimitChanges(self._database, self._tree, self.require_stored(), self._history, self._driver.enforcers)

    @admin_call
    def list_projects(
        self, context: Context, *, limit: int | None = None, after: str | None = None
    ) -> list[tuple[str, str | None]]:
        """(project_id, parent_id) of the known projects, as the database sorts their ids. For all limit drivers.

        ``limit``: the maximum number. ``after``: the last project of the previous page. Raises MarkerNotFound.
        """
        count, last = validation.row_limit(limit), validation.optional_name("after", after)
        return self._untimed.read(lambda connection: projects.edges_page(connection, count, last))

    @admin_call
    def get_parent(self, context: Context, project_id: str) -> str | None:
        """The parent that limits the project, as stored; None for a root or an unknown project. For all drivers."""
        named = validation.check_name("project_id", project_id)
        return self._database.read(lambda connection: projects.parent_of(connection, named))

    def add_project(
        self, context: Context, project_id: str, parent_id: str | None = None, *, reason: str | None = None
    ) -> None:
        """Add a project to the tree, under a known parent or (None) as a root.

        The project may already have usage. The policy rule cyborg_quota:project:add_child decides who, besides an
        admin, may add one below a parent: such a user can only add a project whose parent in Keystone is this one, and
        that is_known_project does not know; without Keystone's credentials in [oslo_limit], none. Raises
        NotAuthorized, ProjectRefused, LimitRefused, ProjectLookupFailed.
        """
        parent_id = validation.optional_name("parent_id", parent_id)
        is_admin = validation.is_admin(context)
        if not is_admin and (parent_id is None or not self._authority.permits(policy.ADD_CHILD, context, parent_id)):
            raise exceptions.NotAuthorized("add_project", f"a context that {policy.ADD_CHILD} allows")
        if not is_admin:  # Keystone decides, so that nobody takes the projects of others.
            project_id = validation.check_name("project_id", project_id)
            if self._directory is None:
                raise exceptions.NotAuthorized(
                    "add_project",
                    "an admin's context, because the service has no credentials for Keystone ([oslo_limit])",
                )
            project = self._directory().get(project_id)
            # (The error is the same for a project that Keystone has elsewhere and one that it does not have: I8.)
            if project is None or project.parent_id != parent_id:
                raise exceptions.ProjectRefused(
                    project_id, f"is not below {parent_id} in Keystone; only an admin can add it"
                )
        self._set_parent(context, project_id, parent_id, reason, is_new=True, is_unknown=not is_admin)

    @admin_call
    def require_project(self, context: Context, project_id: str) -> None:
        """Raise UnknownProject for a project that neither the ledger nor Keystone knows.

        Without Keystone's credentials in [oslo_limit], it raises nothing. Raises ProjectLookupFailed.
        """
        if self._directory is None or self.is_known_project(context, project_id):
            return
        if self._directory().get(project_id) is None:
            raise exceptions.UnknownProject(project_id)

    @admin_call
    def move_project(
        self, context: Context, project_id: str, parent_id: str | None, *, reason: str | None = None
    ) -> None:
        """Move a project, its descendants and their usage to another parent. Raises ProjectRefused, LimitRefused."""
        self._set_parent(context, project_id, parent_id, reason, is_new=False)

    def _set_parent(
        self, context: Context, project_id: str, parent_id: str | None, reason: str | None, **is_new: bool
    ) -> None:
        project_id = validation.check_name("project_id", project_id)
        parent_id = validation.optional_name("parent_id", parent_id)
        self.require_own_tree()
        with self._redacted(context):
            self._changes.set_parent(project_id, parent_id, self._author(context, reason), **is_new)

    @admin_call
    def remove_project(self, context: Context, project_id: str, *, reason: str | None = None) -> None:
        """Remove a project and its limits. Raises ProjectRefused if it has usage or children."""
        project_id = validation.check_name("project_id", project_id)
        self.require_own_tree()
        self._changes.remove(project_id, self._author(context, reason))

    def require_own_tree(self) -> None:
        """Raise TreeReadOnly if the limit driver takes the project tree from another source."""
        if self._source.tree_source is not None:
            raise exceptions.TreeReadOnly(self._source.tree_source)

    @admin_call
    def is_known_project(self, context: Context, project_id: str) -> bool:
        """Whether the project is in the tree, has or had usage, a limit or an override. For all limit drivers."""
        named = validation.check_name("project_id", project_id)
        return self._database.read(lambda connection: tables.is_known(connection, named))

    @admin_call
    def list_holders(
        self, context: Context, after: str = "", count: int = MAX_LISTED_PROJECTS
    ) -> tuple[list[str], str | None]:
        """The first projects after ``after`` that have usage, an own limit, or an override that has not ended.

        The database sorts them by their ids. At most ``count``, and MAX_LISTED_PROJECTS; there may be fewer, or none.
        Also returns the project after which the next call continues; None: there are no more. What it reads does not
        depend on the number of projects. For all limit drivers.
        """
        return self._holders(after, count, tables.HOLDING)

    def _holders(self, after: str, count: int, which: Sequence[tables.Condition]) -> tuple[list[str], str | None]:
        """See list_holders. ``which``: tables.HOLDING or tables.COUNTING."""
        first = after if after == "" else validation.check_name("after", after)
        maximum = validation.integer(count, 1, None, "The count must be an integer of at least 1")
        return self._database.read(
            lambda connection: tables.holders(connection, first, min(maximum, MAX_LISTED_PROJECTS), which)
        )

    @admin_call
    def list_holdings(self, context: Context, project_ids: Collection[str]) -> list[Holding]:
        """Usage, own limits, number of overrides of at most MAX_LISTED_PROJECTS projects. For all limit drivers."""
        names = _checked(project_ids)
        return self._database.read(lambda connection: tables.holdings(connection, names))

    @admin_call
    def limits_in_force(self, context: Context, project_ids: Collection[str]) -> dict[str, dict[str, int]]:
        """The limits of at most MAX_LISTED_PROJECTS projects, by project and resource, with each limit driver."""
        names = sorted(set(_checked(project_ids)))
        states = self._database.read(lambda connection: path_state.read_states(connection, names)[1])
        limits = self._source.limits(states, self._resources.names()).items()
        by_project = grouped(limits, lambda item: item[0].project_id)
        return {name: {key.resource: limit for key, limit in items} for name, items in by_project.items()}

    @admin_call
    def import_projects(
        self,
        context: Context,
        parents: Mapping[str, str | None],
        *,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
        reason: str | None = None,
    ) -> list[RecordedChange]:
        """Give each of these projects the parent that another source of the tree reports (None: make it a root).

        Other projects keep their parents. Works with all limit drivers, except those for which TreeReadOnly is raised.
        Runs in batches, one transaction each: call it again after an interruption. ``progress`` is called with the size
        of each batch. ``dry_run`` writes nothing. Returns the changes. Raises InvalidName, ProjectRefused
        and LimitRefused (see limits.changes.find_moves) before the first write, or before a later batch if others have
        changed limits or the tree meanwhile: what the batches before it did stays.
        """
        self.require_own_tree()
        if not isinstance(parents, Mapping):
            raise exceptions.InvalidRequest(f"Parents must map projects to parents, not be a {type(parents).__name__}.")
        wanted = {
            validation.check_name("project_id", name): validation.optional_name("parent_id", parent_id)
            for name, parent_id in parents.items()
        }
        author = Author() if dry_run else self._author(context, reason)
        return limit_changes.move_projects(
            self._database, self._tree, self._source, wanted, author, dry_run=dry_run, progress=progress
        )


def _checked(project_ids: Collection[str]) -> list[str]:
    """The projects. Raises InvalidRequest, InvalidName."""
    is_list = isinstance(project_ids, (list, tuple, set, frozenset))
    if not is_list or len(project_ids) > MAX_LISTED_PROJECTS:
        raise exceptions.InvalidRequest(f"Give a list of at most {MAX_LISTED_PROJECTS} projects.")
    return [validation.check_name("project_id", name) for name in project_ids]
