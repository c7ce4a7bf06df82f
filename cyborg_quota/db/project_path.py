# SPDX-License-Identifier: Apache-2.0
"""The path of one project to its root, with the usage rows that a charge changes. path_state.py reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cyborg_quota.db.usages import Node


class Total(NamedTuple):
    """The row of the total of a resource over all projects: see totals.py.

    ``is_counted``: it counts the root of the path with which it was read.
    """

    node: Node
    is_open: bool
    is_counted: bool = False


class ProjectPath:
    """The path of one project, leaf first, and the usage rows along it, by resource.

    ``totals``: the totals over all projects, by resource.
    """

    __slots__ = ("_nodes", "_rows", "project_ids", "totals")

    def __init__(
        self,
        project_ids: Sequence[str],
        rows: dict[str, tuple[Node, ...]],
        totals: Mapping[str, Total] | None = None,
    ) -> None:
        self.project_ids = tuple(project_ids)
        self.totals = totals or {}
        self._rows = rows
        self._nodes = {name: nodes for name, nodes in rows.items() if len(nodes) == len(self.project_ids)}
        for name, total in self.totals.items():
            if total.is_counted and name in self._nodes:
                self._nodes[name] += (total.node,)

    def nodes(self, resource: str) -> tuple[Node, ...] | None:
        """The rows to charge, leaf first, with the total that counts the root; None if a row does not exist yet."""
        return self._nodes.get(resource)

    def uncounted(self, resources: Iterable[str]) -> list[str]:
        """Those of the resources of which a total is open and does not count the root."""
        totals = ((name, self.totals.get(name)) for name in resources if name in self._nodes)
        return [name for name, total in totals if total is not None and total.is_open and not total.is_counted]

    @property
    def resources(self) -> list[str]:
        """The resources with usage rows along this path, sorted."""
        return sorted(self._rows)

    def lacking(self, resource: str) -> set[str]:
        """The projects along the path that have no usage row for ``resource``."""
        return set(self.project_ids) - {node.project_id for node in self._rows.get(resource, ())}

    def missing(self, resources: Iterable[str]) -> list[str]:
        """Those of the resources that cannot be charged yet: a project along this path has no usage row, or the root is
        not counted in the total.
        """
        lacking = [resource for resource in resources if resource not in self._nodes]
        return lacking + self.uncounted(resources) if self.totals else lacking
