# SPDX-License-Identifier: Apache-2.0
"""Commands on limits: list, set, unset, show, tree, over."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from cyborg_quota.cmd import arguments, base, formats
from cyborg_quota.cmd.errors import REFUSED
from cyborg_quota.types import TreeRow

COLUMNS = ("project_id", "resource", "limit", "is_own")
PLACE_COLUMNS = ("parent_id", "depth")
TREE_COLUMNS = ("project_id", *PLACE_COLUMNS, "resource", "limit", "used", "subtree_used", "available")
_TREE_FIGURES = """\
used is what a project itself has attached; subtree_used also what it has in
flight, and all of that of the projects below it. available is what its own
limit leaves for it and them."""


class List(base.Lister):
    """List the limits that are set: the defaults first, then each project's own.

    With --project, all that hold for it; is_own says that they were set for it,
    and not inherited. With another limit driver than database, what that one can
    say; keystone needs --project.
    """

    example = "cyborg-quota limit list --project P -f json"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        found = self.engine.administration.list_limits(self.context, parsed_args.project)
        return COLUMNS, [
            (formats.Default(one.project_id), one.resource, formats.Limit(one.limit), one.is_own) for one in found
        ]


def _add_whose(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--default", action="store_true", help="the default of the resource, for every project")
    whose.add_argument("--project", metavar="ID", help="the limit of one project")


class Set(base.Command):
    """Set limits, of one project or as defaults; all of them or none.

    A limit may lie below what is held already: then nothing new can be created,
    and `limit over` lists it. Refused where [limits] enforcement_model does not allow it.
    """

    example = "cyborg-quota limit set --default gpu=10\n  cyborg-quota limit set --project P gpu=20 fpga=-1"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_whose(parser)
        parser.add_argument(
            "limits",
            nargs="+",
            type=arguments.limit,
            metavar="RESOURCE=LIMIT",
            help="the most of a resource, as in gpu=20; -1 is unlimited, 0 allows nothing",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        limits = arguments.once_each(parsed_args.limits, "limits")
        self.engine.administration.set_limits(self.context, limits, parsed_args.project)


class Unset(base.Command):
    """Take limits away; what is inherited holds again. All of them or none."""

    example = "cyborg-quota limit unset --project P gpu"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_whose(parser)
        parser.add_argument("resources", nargs="+", metavar="RESOURCE", help="what the limit is for")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        limits = dict.fromkeys(parsed_args.resources)
        self.engine.administration.set_limits(self.context, limits, parsed_args.project)


class _Tree(base.Lister):
    """Rows of the tree. A table shows the depth by indenting; programs get parent_id and depth as columns."""

    def rows(
        self, parsed_args: argparse.Namespace, found: Iterable[TreeRow], *, indented: bool = True
    ) -> tuple[Sequence[str], list[Any]]:
        rows = [
            (
                formats.Indented(row.project_id, row.depth if indented else 0),
                formats.Optional(row.parent_id),
                row.depth,
                row.resource,
                formats.Limit(row.limit),
                row.used,
                row.subtree,
                formats.Available(row.available),
            )
            for row in found
        ]
        if parsed_args.formatter != formats.TABLE or parsed_args.columns:
            return TREE_COLUMNS, rows
        kept = [index for index, name in enumerate(TREE_COLUMNS) if name not in PLACE_COLUMNS]
        return [TREE_COLUMNS[index] for index in kept], [[row[index] for index in kept] for row in rows]


class _OfProject(_Tree):
    """The tree around a project."""

    needs_project: ClassVar[bool] = False

    def get_description(self) -> str:
        return f"{super().get_description()}\n\n{_TREE_FIGURES}"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        arguments.add_project(parser, required=self.needs_project)
        return parser


class Show(_OfProject):
    """Show what bounds one project: its limits, and those of each project above it."""

    example = "cyborg-quota limit show --project P"
    needs_project = True

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        return self.rows(parsed_args, self.engine.administration.path(self.context, parsed_args.project))


class Tree(_OfProject):
    """Show the project tree, or what lies below one project, with limits and usage."""

    example = "cyborg-quota limit tree --project physics"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        return self.rows(parsed_args, self.engine.administration.tree(self.context, parsed_args.project))


class Over(_Tree):
    """List where more is held than the limit allows now: after one was lowered.

    Prints a row per limit, and exits with 1, or nothing and 0. Nothing new can be
    created there until as much was given back.
    """

    example = "cyborg-quota limit over -f csv"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        found = self.engine.administration.list_over(self.context)
        if found:
            self.status = REFUSED
        return self.rows(parsed_args, found, indented=False)
