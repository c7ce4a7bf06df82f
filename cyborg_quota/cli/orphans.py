# SPDX-License-Identifier: Apache-2.0
"""project list --orphans: what projects hold that Keystone does not have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from cyborg_quota.cli import base, projects
from cyborg_quota.cli.errors import REFUSED, BadUsage
from cyborg_quota.surface import formats
from cyborg_quota.surface.operations import Column, Table, columns
from cyborg_quota.types import UsageKey
from cyborg_quota.types.limits import Holding


def _orphans(run: base.Run, after: list[str] | None, resource: str | None) -> Iterator[Holding]:
    """The selected rows. It reads as many batches of projects as the caller takes rows."""
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
            for holding in limits.list_holdings(run.context, directory.unknown(holders)):
                is_after = last is None or holding.key.project_id != project_id or holding.key > last
                if is_after and resource in (None, holding.key.resource):
                    yield holding
            progress(len(holders))
            if following is None:
                return
            holders, following = limits.list_holders(run.context, following)


COLUMNS: Final = (
    Column("project_id", value=lambda holding: holding.key.project_id),
    Column("resource", value=lambda holding: holding.key.resource),
    *columns("used", "reserved"),
    Column("limit", formats.OptionalLimit),
    Column("overrides"),
    Column("pod", formats.Optional, lambda holding: holding.key.pod or None),
)


def listed(run: base.Run, limit: int | None, after: list[str] | None, resource: str | None) -> Table:
    """What projects hold that Keystone does not have. Sets the exit status if there is anything."""
    holdings = list(itertools.islice(_orphans(run, after, resource), limit))
    run.status = REFUSED if holdings else run.status
    return Table(COLUMNS, holdings)
