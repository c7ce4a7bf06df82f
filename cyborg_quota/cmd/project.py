# SPDX-License-Identifier: Apache-2.0
"""Commands on the project tree: list, add, move, import, remove."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.cmd import arguments, base, formats, paging, projects
from cyborg_quota.limits import keystone_tree

COLUMNS = ("project_id", "parent_id")
CHANGES = ("action", "project_id", "before", "after")


def _add_project(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("project", metavar="PROJECT", help=arguments.PROJECT_HELP)
    arguments.add_project_domain(parser)


class List(base.Lister):
    """List every known project with its parent.

    A project is known once it was added or charged. `limit tree` shows the
    projects as a tree, with limits and usage.
    """

    example = "cyborg-quota project list -f csv"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        paging.add_limit(parser)
        parser.add_argument(
            "--marker", metavar="ID", help="start after this project, the last row of the previous page"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        projects = self.engine.administration.list_projects(
            self.context, limit=parsed_args.limit, after=parsed_args.marker
        )
        return COLUMNS, [(project_id, formats.Optional(parent_id)) for project_id, parent_id in projects]


class Add(base.Command):
    """Add a project to the tree, with or without a parent.

    The project may have usage already. Until a limit is set for it, the initial
    limit of [limits] child_initial_limit or root_initial_limit applies.
    """

    example = "cyborg-quota project add higgs --parent physics"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_project(parser)
        arguments.add_force(parser)
        parser.add_argument("--parent", metavar="PROJECT", help="the parent, which must be known (default: no parent)")
        arguments.add_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.administration.add_project(
            self.context, parsed_args.project, parsed_args.parent, reason=parsed_args.reason
        )


class Move(base.Command):
    """Move a project to another parent, with its descendants and all their usage.

    May run while these projects reserve and commit. A move is refused if the
    enforcement model does not allow the limits at the new place, or if the new
    parent is the project itself or one of its descendants.
    """

    example = "cyborg-quota project move higgs --parent operations"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_project(parser)
        arguments.add_force(parser)
        target = parser.add_mutually_exclusive_group(required=True)
        target.add_argument("--parent", metavar="PROJECT", help="the new parent, which must be known")
        target.add_argument("--root", action="store_true", help="make it a root, without a parent")
        arguments.add_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.administration.move_project(
            self.context, parsed_args.project, parsed_args.parent, reason=parsed_args.reason
        )


class Import(base.Lister):
    """Give the projects of Keystone the parents that they have there.

    Reads all projects and domains of Keystone, in pages; [oslo_limit] has the
    credentials. A project without a parent is placed below its domain. Projects
    that Keystone does not have keep their parents. Runs in batches, and may run
    while the services run. After an interruption, run it again. Prints the
    changes.
    """

    example = "cyborg-quota project import --from keystone --dry-run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--from", dest="source", required=True, choices=["keystone"], help="the source of the tree")
        parser.add_argument("--dry-run", action="store_true", help="write nothing; print what would change")
        arguments.add_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        projects.require_keystone(self.app, "--from keystone")
        with base.progress_bar(None, "projects read") as progress:
            parents = keystone_tree.read_parents(self.conf, progress)
        with base.progress_bar(None, "projects placed") as progress:
            changes = self.engine.administration.import_projects(
                self.context, parents, dry_run=parsed_args.dry_run, progress=progress, reason=parsed_args.reason
            )
        return CHANGES, [
            (change.action, change.project_id, formats.Optional(change.before), formats.Optional(change.after))
            for change in changes
        ]


class Remove(base.Command):
    """Remove a project that has no usage and no children, together with its limits."""

    example = "cyborg-quota project remove higgs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_project(parser)
        arguments.add_reason(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.engine.administration.remove_project(self.context, parsed_args.project, reason=parsed_args.reason)
