# SPDX-License-Identifier: Apache-2.0
"""The path of one project to its root: the usage rows that a charge changes, and the limits that were read with them.

path_state.py reads it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cyborg_quota.db.usages import Node
from cyborg_quota.types import TOTAL, Counters, ResourceKey, UsageKey

_FRESH_SECONDS: Final = 60
"""The age at which limits are read again in any case."""


@dataclasses.dataclass(frozen=True, slots=True)
class PathState:
    """A state at one moment. ``project_ids``: the project and its ancestors, leaf first.

    ``project_limits``: the limits of the projects, or the overrides in their place that apply at that moment.
    ``defaults``: the default limits, by resource. Values that are not stored are missing. ``totals`` has the total
    limits, by resource; what they count is in ``counters``, with the project id TOTAL. The states of ``read_many``
    share these mappings.
    """

    project_ids: Sequence[str]
    counters: Mapping[UsageKey, Counters]
    project_limits: Mapping[UsageKey, int]
    defaults: Mapping[str, int]
    totals: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def resources(self) -> list[str]:
        """Every resource that has a default limit, or a limit or a usage row on the path; sorted."""
        keys = [*self.counters, *self.project_limits]
        return sorted({*self.defaults, *(key.resource for key in keys if key.project_id != TOTAL and key.is_whole)})


class ProjectPath:
    """The path of one project, leaf first, and the usage rows along it, by key.

    ``limits`` are the stored limits of these keys (without counters), as of the moment at which the rows
    were read; None: they were not read. ``until``: when an override on the path begins or ends next, in microseconds
    since 1970 by the database's clock; None: never. ``bounds``: what the limit driver has made of the limits for the
    last charge, with its resources; see LimitDriver.is_pure.
    """

    __slots__ = ("_rows", "bounds", "charged", "fresh_until", "limits", "project_ids", "until")

    def __init__(
        self,
        project_ids: Sequence[str],
        rows: dict[ResourceKey, tuple[Node, ...]],
        totals: Mapping[str, Node] | None = None,
        limits: PathState | None = None,
        until: int | None = None,
    ) -> None:
        self.project_ids = tuple(project_ids)
        self.limits = limits
        self.bounds: tuple[tuple[str, ...], Any] | None = None
        self.until = until
        self._rows = rows
        self.fresh_until = time.monotonic() + _FRESH_SECONDS
        self.charged = {key: nodes for key, nodes in rows.items() if len(nodes) == len(self.project_ids)}
        for resource, total in (totals or {}).items():
            if (key := ResourceKey(resource)) in self.charged:
                self.charged[key] += (total,)

    def nodes(self, key: ResourceKey) -> tuple[Node, ...] | None:
        """The rows to charge: leaf first, the total over all projects last; None if a row does not exist yet."""
        return self.charged.get(key)

    @property
    def keys(self) -> list[ResourceKey]:
        """The keys of the usage rows along this path, sorted."""
        return sorted(self._rows)

    def lacking(self, key: ResourceKey) -> set[str]:
        """The projects along the path that have no usage row of ``key``."""
        return set(self.project_ids) - {node.project_id for node in self._rows.get(key, ())}

    def missing(self, keys: Iterable[ResourceKey]) -> list[ResourceKey]:
        """Those of the keys that cannot be charged yet, because a project along this path has no usage row."""
        lacking = [key for key in keys if key not in self.charged]
        if self.limits is not None and self.limits.totals:
            lacking += [key for key in keys if self.lacks_total(key)]
        return lacking

    def lacks_total(self, key: ResourceKey) -> bool:
        """Whether a total limit is set, and its row does not exist."""
        if not key.is_whole or self.limits is None or key.resource not in self.limits.totals:
            return False
        return key in self.charged and self.charged[key][-1].project_id != TOTAL
