# SPDX-License-Identifier: Apache-2.0
"""history list: the changes of limits, overrides, the tree, providers, inventories and pods."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cyborg_quota.cmd import arguments, base, formats, paging
from cyborg_quota.types import SUBJECTS, HistoryEntry

LONG_COLUMNS: Final = ("user_project_id", "request_id")
COLUMNS: Final = (
    "id",
    "at",
    "user_id",
    "action",
    "project_id",
    "provider",
    "resource",
    "pod",
    "before",
    "after",
    "from",
    "until",
    "reason",
    *LONG_COLUMNS,
)


class List(base.Lister):
    """Show who changed what, when and why; newest first.

    Limits, overrides, the project tree, providers, inventories and pods. pod is the pod, or that of a limit per pod.
    before and after are a limit, the parent of a project, or the values of a provider, an inventory or a pod; a table
    shows those that differ. from and until are the span of an override. user_project_id and request_id are those of
    the context in which the change was made; a table shows them with --long.
    """

    example = (
        "cyborg-quota history list --project P --since 30d --long\n"
        "  cyborg-quota history list --subject inventory --provider node1\n"
        "  cyborg-quota history list --since 2026-12-01T08:00Z --until 2026-12-02 -f csv"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--subject", choices=SUBJECTS, help="only changes of this")
        arguments.add_project(parser)
        paging.add_resource(parser)
        parser.add_argument("--provider", metavar="PROVIDER", help="only of this provider: a name or UUID")
        parser.add_argument("--pod", metavar="NAME", help="only of this pod, and of limits in it")
        parser.add_argument("--user", metavar="ID", help="only changes by this user")
        for option, when in (("--since", "since"), ("--until", "before")):
            parser.add_argument(
                option,
                type=arguments.moment_or_age,
                metavar="TIME",
                help=f"only changes {when} this time (2026-12-01T08:00Z), or this age (12h, 30d)",
            )
        paging.add_limit(parser)
        parser.add_argument("--marker", metavar="ID", help="start after the entry with this id")
        parser.add_argument("--long", action="store_true", help=f"also show {' and '.join(LONG_COLUMNS)} in a table")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        names = ("subject", "resource", "provider", "pod", "since", "until", "limit", "marker")
        entries = self.engine.administration.history(
            self.context,
            parsed_args.project,
            user_id=parsed_args.user,
            **{name: getattr(parsed_args, name) for name in names},
        )
        is_short = parsed_args.formatter == formats.TABLE and not parsed_args.columns and not parsed_args.long
        count = len(COLUMNS) - (len(LONG_COLUMNS) if is_short else 0)
        return COLUMNS[:count], [_row(entry)[:count] for entry in entries]


class _Values(formats.Optional):
    """The values of a provider, an inventory or a pod; a table shows those that differ from ``other``."""

    def __init__(self, value: Mapping[str, Any], other: Mapping[str, Any] | None) -> None:
        super().__init__(value)
        self._other = other

    def human_readable(self) -> str:
        other = self._other or {}
        shown = {name: value for name, value in self._value.items() if value != other.get(name)}
        return ", ".join(f"{name} {value}" for name, value in shown.items())


def _row(entry: HistoryEntry) -> tuple[Any, ...]:
    return (
        entry.id,
        formats.timestamp(entry.at),
        formats.Optional(entry.user_id),
        entry.action if entry.operation is None else f"{entry.action} ({entry.operation})",
        formats.Default(entry.project_id) if entry.action.endswith(" limit") else formats.Optional(entry.project_id),
        formats.Optional(entry.provider),
        formats.Optional(entry.resource),
        formats.Optional(entry.pod),
        _value(entry.before, entry.after),
        _value(entry.after, entry.before),
        formats.timestamp(entry.starts_at),
        formats.timestamp(entry.until),
        formats.Optional(entry.reason),
        formats.Optional(entry.user_project_id),
        formats.Optional(entry.request_id),
    )


def _value(value: Any, other: Any) -> formats.Optional | formats.OptionalLimit:
    if isinstance(value, Mapping):
        return _Values(value, other)
    return formats.OptionalLimit(value) if isinstance(value, int) else formats.Optional(value)
