# SPDX-License-Identifier: Apache-2.0
"""Rows of reports on limits: the project tree, and what projects hold. Frozen, no I/O."""

from __future__ import annotations

import dataclasses

from cyborg_quota.types import UNLIMITED


@dataclasses.dataclass(frozen=True, slots=True)
class TreeRow:
    """A project in the tree and its figures for one resource. ``available`` is limit - subtree."""

    project_id: str
    parent_id: str | None
    depth: int
    resource: str
    limit: int | None
    used: int
    subtree: int

    @property
    def available(self) -> int | None:
        return None if self.limit is None or self.limit == UNLIMITED else self.limit - self.subtree


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What a project holds of one resource: its usage, its own limit (None: no limit is set for it), and the number of
    its overrides that have not ended.
    """

    project_id: str
    resource: str
    used: int
    reserved: int
    limit: int | None
    overrides: int = 0
