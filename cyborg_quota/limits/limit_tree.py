# SPDX-License-Identifier: Apache-2.0
"""All limits and the project tree, in memory: the limit of each project, its ancestors and its children. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.types import Counters, UsageKey, grouped
from cyborg_quota.types.limits import TreeRow

DEFAULT: Final = "default"
"""The value of [limits] child_initial_limit and root_initial_limit that means the default of the resource."""

MAX_DEPTH: Final = 8
"""The maximum number of levels of the project tree."""


@dataclasses.dataclass(frozen=True, slots=True)
class InitialLimits:
    """The limit of a project for which none is set: a number, or None for the default of the resource."""

    child: int | None = 0
    root: int | None = None

    @classmethod
    def parse(cls, child: str, root: str) -> InitialLimits:
        """From [limits] child_initial_limit and root_initial_limit."""
        return cls(*(None if value == DEFAULT else int(value) for value in (child, root)))


def effective(
    is_root: bool, project_limit: int | None, default: int | None, initial_limits: InitialLimits
) -> int | None:
    """The limit of a project: ``project_limit`` (set for it), or else the initial limit. None: no limit applies."""
    if project_limit is not None:
        return project_limit
    initial_limit = initial_limits.root if is_root else initial_limits.child
    return default if initial_limit is None else initial_limit


@dataclasses.dataclass(slots=True)
class LimitTree:
    """Default limits by resource, limits of projects by key, and parents by project.

    ``parents`` must not change after the first use of ``children_of``.
    """

    defaults: dict[str, int]
    project_limits: dict[UsageKey, int]
    parents: dict[str, str | None]
    initial_limits: InitialLimits
    _children: dict[str, list[str]] | None = None

    def copy(self) -> LimitTree:
        """A copy that can be changed without changing this tree."""
        return LimitTree(dict(self.defaults), dict(self.project_limits), dict(self.parents), self.initial_limits)

    @property
    def resources(self) -> list[str]:
        """The resources that have a default or a limit of a project for the whole resource, sorted."""
        return sorted({*self.defaults, *(key.resource for key in self.project_limits if key.is_whole)})

    @property
    def projects(self) -> list[str]:
        """The projects that are in the tree or have a limit, sorted."""
        return sorted(set(self.parents) | {key.project_id for key in self.project_limits})

    @property
    def children_of(self) -> Mapping[str, Sequence[str]]:
        """The children of each project that has children, sorted. Other projects have no entry."""
        if self._children is None:
            children = [project_id for project_id, parent_id in sorted(self.parents.items()) if parent_id is not None]
            self._children = grouped(children, lambda project_id: str(self.parents[project_id]))
        return self._children

    @property
    def roots(self) -> list[str]:
        """The projects without a parent, sorted."""
        return [project_id for project_id in self.projects if self.parents.get(project_id) is None]

    def path(self, project_id: str) -> list[str]:
        """The project and its ancestors, leaf first. Raises ProjectRefused for a cycle."""
        path = [project_id]
        while (parent_id := self.parents.get(path[-1])) is not None:
            if parent_id in path:
                raise exceptions.ProjectRefused(project_id, f"would lie below itself: {path[-1]} is below it")
            path.append(parent_id)
        return path

    def height(self, project_id: str) -> int:
        """The number of levels of the subtree of the project, including its own."""
        return 1 + max(depth for depth, _ in walk([project_id], self.children_of))

    def limit(self, project_id: str, *counted: str) -> int | None:
        """The limit of the project for a resource, or for the parts of a ResourceKey; None if no limit applies."""
        key = UsageKey(project_id, *counted)
        own = self.project_limits.get(key)
        if not key.is_whole:  # (there is neither a default nor an initial limit)
            return own
        return effective(
            self.parents.get(project_id) is None,
            own,
            self.defaults.get(key.resource),
            self.initial_limits,
        )


def walk(tops: Iterable[str], children_of: Mapping[str, Collection[str]], depth: int = 0) -> Iterator[tuple[int, str]]:
    """(depth, project_id) of these projects, with depth 0, and of their descendants; parents before their children."""
    for project_id in tops:
        yield depth, project_id
        yield from walk(children_of.get(project_id, ()), children_of, depth + 1)


def rows(
    tree: LimitTree,
    counters: Mapping[UsageKey, Counters],
    projects: Iterable[tuple[int, str]],
    limit_if_missing: int | None,
    registered: Collection[str],
) -> list[TreeRow]:
    """The limits and usage of these projects, given as (depth, project_id); one row per project and resource.

    ``registered``: the resources of the rows if none is limited or used yet, so that every project has a row.
    """
    resources = sorted({*tree.resources, *(key.resource for key in counters if key.is_whole)} or registered)
    tree_rows = []
    for depth, name in projects:
        for resource in resources:
            limit = tree.limit(name, resource)
            limit = limit_if_missing if limit is None else limit
            key = UsageKey(name, resource)
            tree_rows.append(TreeRow.of(key, tree.parents.get(name), depth, limit, counters.get(key, Counters())))
    return tree_rows
