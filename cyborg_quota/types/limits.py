# SPDX-License-Identifier: Apache-2.0
"""Rows of reports on limits (the project tree, what projects hold), and the words of the history. No I/O."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from cyborg_quota.types import UNLIMITED, Author, Constraint, Counters, HistoryEntry, RecordedChange, UsageKey
from cyborg_quota.types.metrics import ProjectMetrics

EPOCH: Final = datetime.datetime(2020, 1, 1)
"""The time from which the ledger counts seconds (db/clock.py), in UTC."""


class RowBound(Protocol):
    """What bounds a usage row besides limits, as an enforcer has read it: see Enforcer.bounds and usages.Posting."""

    @property
    def key(self) -> UsageKey:
        """The usage row."""

    @property
    def refuses(self) -> bool:
        """Whether the bound is enforced; if not, it is only reported."""

    @property
    def at_most(self) -> int:
        """The maximum device-seconds of the row ``ahead`` seconds from now, if its holdings do not change."""

    @property
    def ahead(self) -> int:
        """How far ahead ``at_most`` is checked, in seconds."""

    def constraint(self, counters: Mapping[UsageKey, Counters], at: int) -> Constraint:
        """What may be held at the second ``at``."""

    def shown_in(self, metrics: ProjectMetrics, row: Counters, at: int) -> ProjectMetrics:
        """The metrics of the row, with those of the bound."""


@dataclasses.dataclass(frozen=True, slots=True)
class TreeRow:
    """A project in the tree and its figures for one resource. ``available`` is limit - subtree - promised.

    ``minimum``: what the project, with all below it, can always reach. ``promised``: what minimums below keep there
    beyond ``subtree``.

    ``hierarchical_usage`` is what its descendants hold, without the project itself (source: CERN, nested quota models).
    ``limit`` is None if no limit applies and a reserve is therefore refused. ``available`` is None if ``limit`` is
    None or UNLIMITED.

    list_over also returns totals over all projects: project_id is TOTAL, ``used`` is 0, ``subtree`` is what all hold.
    """

    project_id: str
    parent_id: str | None
    depth: int
    resource: str
    limit: int | None
    used: int
    subtree: int
    reserved: int = 0
    minimum: int = 0
    promised: int = 0

    @classmethod
    def of(cls, key: UsageKey, parent_id: str | None, depth: int, limit: int | None, now: Counters) -> TreeRow:
        """The row of a project whose usage row counts this now."""
        return cls(
            key.project_id,
            parent_id,
            depth,
            key.resource,
            limit,
            now.used,
            now.subtree,
            now.reserved,
            now.minimum,
            now.promised,
        )

    @property
    def hierarchical_usage(self) -> int:
        return self.subtree - self.used - self.reserved

    @property
    def available(self) -> int | None:
        return None if self.limit is None or self.limit == UNLIMITED else self.limit - self.subtree - self.promised


@dataclasses.dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Selects entries of the history: those that have all given values.

    ``provider``: a name or a UUID, of the past too. ``since`` and ``until``: times (naive UTC); an entry of the
    time ``until`` is not selected.
    """

    subject: str | None = None
    project_id: str | None = None
    resource: str | None = None
    provider: str | None = None
    pod: str | None = None
    user_id: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """The usage of a project, its own limit (None: no limit is set for it), and the number of its overrides that have
    not ended. ``is_overridden``: one of these applies now.
    """

    key: UsageKey
    used: int
    reserved: int
    limit: int | None
    overrides: int = 0
    is_overridden: bool = False


def shown(moment: datetime.datetime) -> str:
    """A time (naive UTC) in a message: 2026-12-01T08:00Z, with seconds only if there are some."""
    precision = "auto" if moment.second or moment.microsecond else "minutes"
    return f"{moment.isoformat(timespec=precision)}Z"


MaySee = Callable[[str, "str | None"], bool]
"""Whether somebody may see a project, given with its parent."""


@dataclasses.dataclass(frozen=True, eq=False)
class Violation:
    """A rule of an enforcement model that limits in a tree do not keep.

    ``kind``: the sentence without a full stop, with {parent}, {child} and the names of ``figures`` in their places.
    ``parent``, ``child``: the ids of the projects that it names; a reader who may not see a project does not get its
    id. ``above``: the parent of ``parent``. ``hidden``: the sentence for a reader who may not see ``parent``, if it is
    another one. ``when``: from when on it would be violated; empty: from now on.
    """

    kind: str
    parent: str | None
    child: str | None = None
    figures: Mapping[str, object] = dataclasses.field(default_factory=dict)
    above: str | None = None
    when: str = ""
    hidden: str = ""

    def sentence(self, may_see: MaySee = lambda _project_id, _parent_id: True) -> str:
        """The sentence for a reader who may see these projects."""
        is_seen = self.parent is None or may_see(self.parent, self.above)
        parent = self.parent if is_seen else "another project"
        child = self.child if self.child is None or may_see(self.child, self.parent) else "a child"
        kind = self.kind if is_seen else self.hidden or self.kind
        return kind.format(parent=parent, child=child, **self.figures) + self.when

    __str__ = sentence


def reason_of(author: Author, change: RecordedChange) -> str | None:
    """The reason to record for a change: that of the override that it makes, or else that of the call."""
    own = change.override.reason if change.override is not None and change.action == "set override" else None
    return own or author.reason


def without_others(entry: HistoryEntry) -> HistoryEntry:
    """The entry without what the users of its project may not see: the author and other projects (I8)."""
    entry = dataclasses.replace(entry, user_id=None, user_project_id=None, request_id=None)
    return entry if entry.resource is not None else dataclasses.replace(entry, before=None, after=None)
