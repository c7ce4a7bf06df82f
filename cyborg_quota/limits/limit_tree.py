# SPDX-License-Identifier: Apache-2.0
"""The limits of a whole tree, in memory: what each project may hold, and who stands above and below it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from cyborg_quota import exceptions
from cyborg_quota.types import UNLIMITED

DEFAULT: Final = "default"
"""As a start: the resource's default."""


@dataclasses.dataclass(frozen=True, slots=True)
class InitialLimits:
    """A project's limit before anybody sets one: a number, or None for the resource's default."""

    child: int | None = 0
    root: int | None = None

    @classmethod
    def parse(cls, child: str, root: str) -> InitialLimits:
        """From [limits] child_initial_limit and root_initial_limit. Raises ConfigurationError."""
        return cls(child=_start("child_initial_limit", child), root=_start("root_initial_limit", root))


def _start(option: str, value: str) -> int | None:
    if value == DEFAULT:
        return None
    try:
        limit = int(value)
    except ValueError:
        limit = UNLIMITED - 1
    if limit < UNLIMITED:
        raise exceptions.ConfigurationError(f"[limits] {option} = {value}: give a number of at least -1, or default.")
    return limit


def effective(is_root: bool, override: int | None, default: int | None, starts: InitialLimits) -> int | None:
    """What a project may hold: its own limit, or the start of its kind. None: nobody has set anything."""
    if override is not None:
        return override
    start = starts.root if is_root else starts.child
    return default if start is None else start


@dataclasses.dataclass(slots=True)
class LimitTree:
    """Defaults by resource, overrides by (project, resource), parents by project; and what follows from them.

    ``ignored`` has the stored parent of each project whose edge these limits ignore (its entry in ``parents`` is None).
    Only an import needs it, and reads it.
    """

    defaults: dict[str, int]
    overrides: dict[tuple[str, str], int]
    parents: dict[str, str | None]
    starts: InitialLimits
    ignored: dict[str, str] = dataclasses.field(default_factory=dict)
    _children: dict[str, list[str]] | None = None

    def copy(self) -> LimitTree:
        """One to try a change on."""
        return LimitTree(dict(self.defaults), dict(self.overrides), dict(self.parents), self.starts, dict(self.ignored))

    @property
    def resources(self) -> list[str]:
        """Everything a limit is set for, sorted."""
        return sorted(set(self.defaults) | {resource for _, resource in self.overrides})

    @property
    def projects(self) -> list[str]:
        """Every project in the tree or with a limit of its own, sorted."""
        return sorted(set(self.parents) | {project_id for project_id, _ in self.overrides})

    @property
    def children_of(self) -> Mapping[str, Sequence[str]]:
        """The direct children of each project that has some, sorted."""
        if self._children is None:
            found: dict[str, list[str]] = {}
            for project_id, parent_id in sorted(self.parents.items()):
                if parent_id is not None:
                    found.setdefault(parent_id, []).append(project_id)
            self._children = found
        return self._children

    @property
    def roots(self) -> list[str]:
        """The projects below none, sorted."""
        return [project_id for project_id in self.projects if self.parents.get(project_id) is None]

    def set_parent(self, project_id: str, parent_id: str | None) -> None:
        """Put a project below another, or below none."""
        self.parents[project_id] = parent_id
        self._children = None

    def path(self, project_id: str) -> list[str]:
        """The project and its ancestors, leaf first. Raises ProjectRefused for a cycle."""
        path = [project_id]
        while (parent_id := self.parents.get(path[-1])) is not None:
            if parent_id in path:
                raise exceptions.ProjectRefused(project_id, f"would lie below itself (through {parent_id})")
            path.append(parent_id)
        return path

    def height(self, project_id: str) -> int:
        """How many levels there are from the project downwards, itself included."""
        level, count = [project_id], 0
        while level:
            level = [child for one in level for child in self.children_of.get(one, ())]
            count += 1
        return count

    def limit(self, project_id: str, resource: str) -> int | None:
        """What the project may hold; None where nobody has set anything."""
        return effective(
            self.parents.get(project_id) is None,
            self.overrides.get((project_id, resource)),
            self.defaults.get(resource),
            self.starts,
        )
