# SPDX-License-Identifier: Apache-2.0
"""history list: the changes of limits, overrides, the tree, providers, inventories and pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cyborg_quota.cli import arguments, base, formats, paging
from cyborg_quota.surface.operations import Argument, Column, Operation, Table, columns
from cyborg_quota.types import SUBJECTS, HistoryEntry


def _value(value: Any, other: Any) -> formats.Cell:
    """A value before or after a change. Of the values of a provider, an inventory or a pod, a table shows those that
    differ from ``other``.
    """
    if isinstance(value, Mapping):
        others = other or {}
        return formats.Cell(value, ", ".join(f"{name} {one}" for name, one in value.items() if one != others.get(name)))
    return formats.OptionalLimit(value) if isinstance(value, int) else formats.Optional(value)


def _project(entry: HistoryEntry) -> formats.Cell:
    return (formats.Default if entry.action.endswith(" limit") else formats.Optional)(entry.project_id)


LONG_COLUMNS: Final = ("user_project_id", "request_id")
_COLUMNS: Final = (
    Column("id"),
    Column("at", formats.timestamp),
    Column("user_id", formats.Optional),
    Column("action", value=lambda one: one.action if one.operation is None else f"{one.action} ({one.operation})"),
    Column("project_id", value=_project),
    *columns("provider", "resource", "pod", cell=formats.Optional),
    Column("before", value=lambda one: _value(one.before, one.after)),
    Column("after", value=lambda one: _value(one.after, one.before)),
    Column("from", formats.timestamp, lambda one: one.starts_at),
    Column("until", formats.timestamp),
    *columns("reason", *LONG_COLUMNS, cell=formats.Optional),
)


def _list(run: base.Run, project_id: str | None, user: str | None, *, long: bool, **given: Any) -> Table:
    entries = run.engine.limits.history(run.context, project_id, user_id=user, **given)
    return Table(_COLUMNS[: -len(LONG_COLUMNS)] if run.is_short and not long else _COLUMNS, entries)


List = base.generate(
    Operation(
        """Show who changed what, when and why; newest first.

        Limits, overrides, the project tree, providers, inventories and pods. pod is the pod, or that of a limit per
        pod. before and after are a limit, the parent of a project, or the values of a provider, an inventory or a pod;
        a table shows those that differ. from and until are the span of an override. user_project_id and request_id are
        those of the context in which the change was made; a table shows them with --long.
        """,
        "cyborg-quota history list --project P --since 30d --long\n"
        "  cyborg-quota history list --subject inventory --provider node1\n"
        "  cyborg-quota history list --since 2026-12-01T08:00Z --until 2026-12-02 -f csv",
        _list,
        (
            Argument("--subject", choices=SUBJECTS, help="only changes of this"),
            *arguments.project(),
            paging.RESOURCE,
            Argument("--provider", metavar="PROVIDER", help="only of this provider: a name or UUID"),
            Argument("--pod", metavar="NAME", help="only of this pod, and of limits in it"),
            Argument("--user", metavar="ID", help="only changes by this user"),
            *(
                Argument(
                    option,
                    type=arguments.moment_or_age,
                    metavar="TIME",
                    help=f"only changes {when} this time (2026-12-01T08:00Z), or this age (12h, 30d)",
                )
                for option, when in (("--since", "since"), ("--until", "before"))
            ),
            paging.LIMIT,
            Argument("--marker", metavar="ID", help="start after the entry with this id"),
            Argument("--long", action="store_true", help=f"also show {' and '.join(LONG_COLUMNS)} in a table"),
        ),
        _COLUMNS,
    )
)
