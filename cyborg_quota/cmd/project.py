# SPDX-License-Identifier: Apache-2.0
"""Commands on the project tree: list, add, move, detach, remove."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.cmd import base, formats
from cyborg_quota.types import ORIGINS

COLUMNS = ("project_id", "parent_id")


def _add_project(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("project", metavar="ID", help="the project that is meant")


class List(base.Lister):
    """List every known project and the one it lies below.

    Known is what was added, and whatever was charged once. `limit tree` shows
    the same as a tree, with limits and usage.
    """

    example = "cyborg-quota project list -f csv"

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        found = self.engine.administration.list_projects(self.context)
        return COLUMNS, [(project_id, formats.Optional(parent_id)) for project_id, parent_id in found]


class Add(base.Command):
    """Put a project into the tree: below another one, or below none.

    It may hold something already. Until somebody sets a limit for it, it may hold
    what [limits] child_start or root_start says.
    """

    example = "cyborg-quota project add higgs --parent physics"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_project(parser)
        parser.add_argument("--parent", metavar="ID", help="the project it lies below; it must be known")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.administration.add_project(self.context, parsed_args.project, parsed_args.parent)


class Move(base.Command):
    """Put a project elsewhere in the tree, with all below it and all they hold.

    May run while they reserve and commit. Refused where the limits would no
    longer fit, or the project would lie below itself.
    """

    example = "cyborg-quota project move higgs --parent operations"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_project(parser)
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--parent", metavar="ID", help="the project it will lie below; it must be known")
        where.add_argument("--root", action="store_true", help="let it lie below none")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.administration.move_project(self.context, parsed_args.project, parsed_args.parent)


class Detach(base.Lister):
    """Make the projects roots that Keystone put below their domains.

    For a ledger whose [limits] driver was keystone (with strict_two_level) and is
    another one now. What is left of Keystone's tree is ignored then: a domain
    limits none of its projects. This command takes these projects out of their
    domains, in batches, while they reserve and commit. With --keep, they stay
    where they are, and the edges become your own: the limits of the domains
    apply from then on. Prints the projects and where they were.
    """

    example = "cyborg-quota project detach --origin keystone --dry-run"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--origin", required=True, choices=ORIGINS, help="which source put them there")
        parser.add_argument("--keep", action="store_true", help="keep them there, as if by `project move`")
        parser.add_argument("--dry-run", action="store_true", help="write nothing: print which projects are meant")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        with base.progress_bar(None, "projects") as progress:
            return COLUMNS, self.engine.administration.detach_projects(
                self.context,
                parsed_args.origin,
                keep=parsed_args.keep,
                dry_run=parsed_args.dry_run,
                progress=progress,
            )


class Remove(base.Command):
    """Forget a project that holds nothing and has no children, with its limits."""

    example = "cyborg-quota project remove higgs"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_project(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.administration.remove_project(self.context, parsed_args.project)
