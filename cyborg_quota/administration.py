# SPDX-License-Identifier: Apache-2.0
"""Administration: the public face for limits and the project tree, where they are kept in tables of our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cyborg_quota import exceptions, names, requests
from cyborg_quota.drivers.keeping import LimitKeeper
from cyborg_quota.requests import Context
from cyborg_quota.types import UNLIMITED, Figures

MAX_LIMIT = 2**62


@dataclasses.dataclass(frozen=True, slots=True)
class LimitRecord:
    """One limit. ``project_id`` None is the resource's default; ``is_own`` says that it was set, not inherited."""

    project_id: str | None
    resource: str
    limit: int
    is_own: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class TreeRow:
    """A project in the tree, for one resource. ``available`` is what its own limit leaves for its subtree."""

    project_id: str
    depth: int
    resource: str
    limit: int | None
    used: int
    subtree: int

    @property
    def available(self) -> int | None:
        return None if self.limit is None or self.limit == UNLIMITED else self.limit - self.subtree


class Administration:
    """Limits and projects. Every call needs an admin's context; ``may_set`` can let others set single limits."""

    def __init__(self, keeper: LimitKeeper, resources: Mapping[str, Any]) -> None:
        self._keeper = keeper
        self._resources = resources

    # --- projects ---

    def list_projects(self, context: Context) -> list[tuple[str, str | None]]:
        """(project_id, parent_id) of every known project, sorted."""
        requests.admin_only(context, "list_projects")
        return sorted(self._keeper.book().parents.items())

    def add_project(self, context: Context, project_id: str, parent_id: str | None = None) -> None:
        """Put a project into the tree, below a known parent or (None) as a root.

        It may hold something already. Raises ProjectRefused, LimitRefused.
        """
        self._place(context, "add_project", project_id, parent_id, is_new=True)

    def move_project(self, context: Context, project_id: str, parent_id: str | None) -> None:
        """Put a project, with all below it and all they hold, elsewhere. Raises ProjectRefused, LimitRefused."""
        self._place(context, "move_project", project_id, parent_id, is_new=False)

    def _place(self, context: Context, action: str, project_id: str, parent_id: str | None, *, is_new: bool) -> None:
        requests.admin_only(context, action)
        project_id = names.check_name("project_id", project_id)
        parent_id = requests.optional_name("parent_id", parent_id)
        self._keeper.place(project_id, parent_id, is_new=is_new)

    def remove_project(self, context: Context, project_id: str) -> None:
        """Forget a project that holds nothing and has no children, with its limits. Raises ProjectRefused."""
        requests.admin_only(context, "remove_project")
        self._keeper.remove(names.check_name("project_id", project_id))

    # --- limits ---

    def set_limit(self, context: Context, resource: str, limit: int, project_id: str | None = None) -> None:
        """Set the limit of a project, or (None) the resource's default. May lie below what is held already.

        Raises UnknownResource, LimitRefused.
        """
        requests.admin_only(context, "set_limit")
        self._keeper.set(requests.optional_name("project_id", project_id), self._known(resource), check_limit(limit))

    def unset_limit(self, context: Context, resource: str, project_id: str | None = None) -> None:
        """Take a limit away: what is inherited holds again. Raises LimitRefused where that may not be."""
        requests.admin_only(context, "unset_limit")
        resource = names.check_name("resource", resource)
        self._keeper.set(requests.optional_name("project_id", project_id), resource, None)

    def list_limits(self, context: Context, project_id: str | None = None) -> list[LimitRecord]:
        """Every limit that is set, the defaults first; of one project all that hold for it, inherited ones too."""
        requests.admin_only(context, "list_limits")
        book = self._keeper.book()
        if project_id is not None:
            names.check_name("project_id", project_id)
            found = {resource: book.limit(project_id, resource) for resource in book.resources}
            return [
                LimitRecord(project_id, resource, limit, (project_id, resource) in book.overrides)
                for resource, limit in found.items()
                if limit is not None
            ]
        return [LimitRecord(None, resource, limit) for resource, limit in sorted(book.defaults.items())] + [
            LimitRecord(*key, limit=limit) for key, limit in sorted(book.overrides.items())
        ]

    def tree(self, context: Context, project_id: str | None = None) -> list[TreeRow]:
        """The whole tree, or what lies below one project, parents before their children; a row per resource."""
        requests.admin_only(context, "tree")
        book, figures = self._keeper.book(), self._keeper.figures()
        resources = sorted(set(book.resources) | {resource for _, resource in figures})
        tops = book.roots if project_id is None else [names.check_name("project_id", project_id)]
        rows = []
        for depth, one in _walk(tops, book.children_of):
            for resource in resources:
                now = figures.get((one, resource), Figures())
                rows.append(TreeRow(one, depth, resource, book.limit(one, resource), now.used, now.subtree))
        return rows

    def list_over(self, context: Context) -> list[TreeRow]:
        """Where more is held than the limit allows now: after one was lowered, this is how to learn it."""
        rows = self.tree(context)
        return [row for row in rows if row.available is not None and row.available < 0]

    def _known(self, resource: str) -> str:
        if not isinstance(resource, str) or resource not in self._resources:
            raise exceptions.UnknownResource([str(resource)], self._resources)
        return resource


def check_limit(limit: object) -> int:
    """A limit: -1 (unlimited), 0, or a number. Raises InvalidRequest."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not UNLIMITED <= limit <= MAX_LIMIT:
        raise exceptions.InvalidRequest(f"A limit must be a whole number of at least -1 (unlimited), not {limit!r}.")
    return limit


def _walk(tops: Iterable[str], children_of: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[int, str]]:
    for one in tops:
        yield depth, one
        yield from _walk(children_of.get(one, ()), children_of, depth + 1)
