# SPDX-License-Identifier: Apache-2.0
"""The path of one project to its root, with the usage rows that a charge changes. path_state.py reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cyborg_quota.db.usages import Node
from cyborg_quota.types import ResourceKey


class Total(NamedTuple):
    """The row of the total of a resource over all projects: see totals.py.

    ``is_counted``: it counts the root of the path with which it was read.
    """

    node: Node
    is_open: bool
    is_counted: bool = False


class ProjectPath:
    """The path of one project, leaf first, and the usage rows along it, by key.

    ``totals``: the totals over all projects, by the same keys.
    """

    __slots__ = ("_nodes", "_rows", "project_ids", "totals")

    def __init__(
        self,
        project_ids: Sequence[str],
        rows: dict[ResourceKey, tuple[Node, ...]],
        totals: Mapping[ResourceKey, Total] | None = None,
    ) -> None:
        self.project_ids = tuple(project_ids)
        self.totals = totals or {}
        self._rows = rows
        self._nodes = {key: nodes for key, nodes in rows.items() if len(nodes) == len(self.project_ids)}
        for key, total in self.totals.items():
            if total.is_counted and key in self._nodes:
                self._nodes[key] += (total.node,)

    def nodes(self, key: ResourceKey) -> tuple[Node, ...] | None:
        """The rows to charge, leaf first, with the total that counts the root; None if a row does not exist yet."""
        return self._nodes.get(key)

    def uncounted(self, keys: Iterable[ResourceKey]) -> list[ResourceKey]:
        """Those of the keys of which a total is open and does not count the root."""
        totals = ((key, self.totals.get(key)) for key in keys if key in self._nodes)
        return [key for key, total in totals if total is not None and total.is_open and not total.is_counted]

    @property
    def keys(self) -> list[ResourceKey]:
        """The keys of the usage rows along this path, sorted."""
        return sorted(self._rows)

    def lacking(self, key: ResourceKey) -> set[str]:
        """The projects along the path that have no usage row of ``key``."""
        return set(self.project_ids) - {node.project_id for node in self._rows.get(key, ())}

    def missing(self, keys: Iterable[ResourceKey]) -> list[ResourceKey]:
        """Those of the keys that cannot be charged yet: a project along this path has no usage row, or the root is not
        counted in the total.
        """
        lacking = [key for key in keys if key not in self._nodes]
        return lacking + self.uncounted(keys) if self.totals else lacking
