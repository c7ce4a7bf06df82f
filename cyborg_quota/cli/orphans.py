# SPDX-License-Identifier: Apache-2.0
"""project orphans: what projects hold that Keystone does not have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cyborg_quota.cli import base, formats, paging, projects
from cyborg_quota.cli.errors import BadUsage
from cyborg_quota.surface.operations import Column, Operation, columns
from cyborg_quota.types import UsageKey
from cyborg_quota.types.limits import Holding


def _orphans(run: base.Run, after: list[str] | None, resource: str | None) -> Iterator[Holding]:
    """The selected rows. It reads as many batches of projects as the caller takes rows."""
    directory = projects.require_directory(run.app, "project orphans")
    administration = run.engine.limits
    project_id, *names = after or [""]
    if len(names) > 2:
        raise BadUsage("--marker takes the project, the resource and the pod of a row.")
    last = UsageKey(project_id, *names) if names else None
    # The marker's own project may have more rows if the marker names a resource.
    holders = [project_id] if last else administration.list_holders(run.context, project_id)
    with base.progress_bar(None, "projects") as progress:
        while holders:
            for one in administration.list_holdings(run.context, directory.unknown(holders)):
                is_after = last is None or one.key.project_id != project_id or one.key > last
                if is_after and resource in (None, one.key.resource):
                    yield one
            progress(len(holders))
            holders = administration.list_holders(run.context, holders[-1])


Orphans = base.generate(
    Operation(
        """List what projects hold that Keystone has deleted, or never had: usage, limits, overrides.

        If there are any, prints a row for each project and resource and exits with 1;
        otherwise prints nothing and exits with 0. overrides is the number of overrides
        that have not ended. A limit per pod has a row of its own, with the usage in this
        pod; the --marker of such a row takes the pod after the resource. `release`,
        `limit unset` and `limit override cancel` remove what these projects hold.
        Keystone's domains are no orphans.
        """,
        "cyborg-quota project orphans -f csv",
        lambda run, limit, **given: itertools.islice(_orphans(run, **given), limit),
        paging.paging(),
        (
            Column("project_id", value=lambda one: one.key.project_id),
            Column("resource", value=lambda one: one.key.resource),
            *columns("used", "reserved"),
            Column("limit", formats.OptionalLimit),
            Column("overrides"),
            Column("pod", formats.Optional, lambda one: one.key.pod or None),
        ),
        refuses=True,
        has_names=False,
    )
)
