# SPDX-License-Identifier: Apache-2.0
"""project list, with --orphans; and project import: the project tree of another source."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Final

from cyborg_quota.cli import base, projects
from cyborg_quota.cli.errors import REFUSED, BadUsage
from cyborg_quota.limits.sources import keystone_projects
from cyborg_quota.surface import arguments, formats, paging, table
from cyborg_quota.surface.operations import Argument, Column, Operation, Table, columns
from cyborg_quota.types import RecordedChange, UsageKey
from cyborg_quota.types.limits import Holding


def _import(run: base.Run, source: str, *, dry_run: bool, reason: str | None) -> list[RecordedChange]:
    run.engine.limits.require_own_tree()
    projects.require_directory(run.app, f"--from {source}")
    parents = keystone_projects.read_parents(run.conf)
    with base.progress_bar(None, "projects placed") as progress:
        return run.engine.limits.import_projects(
            run.context, parents, dry_run=dry_run, progress=progress, reason=reason
        )


Import = base.generate(
    Operation(
        """Give the projects of Keystone the parents that they have there.

        Reads all projects and domains of Keystone; [oslo_limit] has the credentials. A
        project without a parent is placed below its domain. Projects that Keystone
        does not have keep their parents. Runs in batches, and may run while the
        services run. After an interruption, run it again. Prints the changes.
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


def _orphans(run: base.Run, after: list[str] | None, resource: str | None) -> Iterator[Holding]:
    """What projects hold that Keystone does not have. It reads as many batches of projects as the caller takes rows."""
    directory = projects.require_directory(run.app, "--orphans")
    limits = run.engine.limits
    project_id, *names = after or [""]
    if len(names) > 2:
        raise BadUsage("--marker takes the project, the resource and the pod of a row.")
    last = UsageKey(project_id, *names) if names else None
    # The marker's own project may have more rows if the marker names a resource.
    holders, following = ([project_id], project_id) if last else limits.list_holders(run.context, project_id)
    with base.progress_bar(None, "projects") as progress:
        while True:
            # (In the order of the pages, which is that of the database.)
            position = {name: index for index, name in enumerate(holders)}
            holdings = limits.list_holdings(run.context, directory.unknown(holders))
            for holding in sorted(holdings, key=lambda holding: position[holding.key.project_id]):
                is_after = last is None or holding.key.project_id != project_id or holding.key > last
                if is_after and resource in (None, holding.key.resource):
                    yield holding
            progress(len(holders))
            if following is None:
                return
            holders, following = limits.list_holders(run.context, following)


_ORPHANS: Final = (
    Column("project_id", value=lambda holding: holding.key.project_id),
    Column("resource", value=lambda holding: holding.key.resource),
    *columns("used", "reserved"),
    Column("limit", formats.OptionalLimit),
    Column("overrides"),
    Column("pod", formats.Optional, lambda holding: holding.key.pod or None),
)


def _list(run: base.Run, after: list[str] | None, resource: str | None, *, orphans: bool, limit: int | None) -> Any:
    if orphans:
        run.noun = ""
        holdings = list(itertools.islice(_orphans(run, after, resource), limit))
        run.status = REFUSED if holdings else run.status
        return Table(_ORPHANS, holdings)
    if resource is not None or (after is not None and len(after) > 1):
        raise BadUsage("Without --orphans, --marker takes a project, and there is no --resource.")
    return _LIST.call(run, limit=limit, after=after and after[0])


_LIST: Final = table.operations()["project list"]

List = base.generate(
    dataclasses.replace(
        _LIST,
        summary=f"""{_LIST.summary.rstrip()}

        With --orphans, list what projects hold that Keystone has deleted, or never had: usage, limits, overrides. If
        there are any, prints a row for each project and resource and exits with 1; otherwise prints nothing and exits
        with 0. overrides is the number of overrides that have not ended. A limit per pod has a row of its own, with the
        usage in this pod; the --marker of such a row takes the pod after the resource. `release`, `unset` and
        `override delete` remove what these projects hold. Keystone's domains are no orphans.
        """,
        example="cyborg-quota project list -f csv\n  cyborg-quota project list --orphans -f csv",
        call=_list,
        arguments=(
            Argument("--orphans", action="store_true", help="list what projects hold that Keystone does not have"),
            *paging.paging(),
        ),
    )
)
