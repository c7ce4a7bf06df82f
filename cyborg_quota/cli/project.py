# SPDX-License-Identifier: Apache-2.0
"""Commands on the project tree: list, add, move, import, remove."""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from cyborg_quota.cli import arguments, base, formats, paging, projects
from cyborg_quota.limits.sources import keystone_projects
from cyborg_quota.surface.operations import Argument, Column, OneOf, Operation, columns
from cyborg_quota.types import RecordedChange

_PROJECT: Final = (
    Argument("project_id", metavar="PROJECT", help=arguments.PROJECT_HELP),
    arguments.PROJECT_DOMAIN,
)

List = base.generate(
    Operation(
        """List every known project with its parent.

        A project is known once it was added or charged. `limit tree` shows the
        projects as a tree, with limits and usage.
        """,
        "cyborg-quota project list -f csv",
        lambda run, **given: run.engine.limits.list_projects(run.context, **given),
        (paging.LIMIT, paging.marker("ID", "start after this project, the last row of the previous page")),
        (Column("project_id", value=itemgetter(0)), Column("parent_id", formats.Optional, itemgetter(1))),
    )
)

Add = base.generate(
    Operation(
        """Add a project to the tree, with or without a parent.

        The project may have usage already. Until a limit is set for it, the initial
        limit of [limits] child_initial_limit or root_initial_limit applies.
        """,
        "cyborg-quota project add higgs --parent physics",
        lambda run, **given: run.engine.limits.add_project(run.context, **given),
        (
            *_PROJECT,
            arguments.FORCE_PROJECT,
            Argument(
                "--parent",
                dest="parent_id",
                metavar="PROJECT",
                help="the parent, which must be known (default: no parent)",
            ),
            arguments.REASON,
        ),
    )
)

Move = base.generate(
    Operation(
        """Move a project to another parent, with its descendants and all their usage.

        May run while these projects reserve and commit. A move is refused if the
        enforcement model does not allow the limits at the new place, or if the new
        parent is the project itself or one of its descendants.
        """,
        "cyborg-quota project move higgs --parent operations",
        lambda run, **given: run.engine.limits.move_project(run.context, **given),
        (
            *_PROJECT,
            arguments.FORCE_PROJECT,
            OneOf(
                Argument("--parent", dest="parent_id", metavar="PROJECT", help="the new parent, which must be known"),
                Argument(
                    "--root",
                    dest="parent_id",
                    action="store_const",
                    const=None,
                    help="make it a root, without a parent",
                ),
                required=True,
            ),
            arguments.REASON,
        ),
    )
)


def _import(run: base.Run, source: str, *, dry_run: bool, reason: str | None) -> list[RecordedChange]:
    projects.require_keystone(run.app, f"--from {source}")
    with base.progress_bar(None, "projects read") as progress:
        parents = keystone_projects.read_parents(run.conf, progress)
    with base.progress_bar(None, "projects placed") as progress:
        return run.engine.limits.import_projects(
            run.context, parents, dry_run=dry_run, progress=progress, reason=reason
        )


Import = base.generate(
    Operation(
        """Give the projects of Keystone the parents that they have there.

        Reads all projects and domains of Keystone, in pages; [oslo_limit] has the
        credentials. A project without a parent is placed below its domain. Projects
        that Keystone does not have keep their parents. Runs in batches, and may run
        while the services run. After an interruption, run it again. Prints the
        changes.
        """,
        "cyborg-quota project import --from keystone --dry-run",
        _import,
        (
            Argument("--from", dest="source", required=True, choices=["keystone"], help="the source of the tree"),
            Argument("--dry-run", action="store_true", help="write nothing; print what would change"),
            arguments.REASON,
        ),
        (*columns("action", "project_id"), *columns("before", "after", cell=formats.Optional)),
    )
)

Remove = base.generate(
    Operation(
        "Remove a project that has no usage and no children, together with its limits.",
        "cyborg-quota project remove higgs",
        lambda run, **given: run.engine.limits.remove_project(run.context, **given),
        (*_PROJECT, arguments.REASON),
    )
)
