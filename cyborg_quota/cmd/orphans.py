# SPDX-License-Identifier: Apache-2.0
"""project orphans: what projects hold that Keystone does not have."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cyborg_quota.cmd import base, formats, paging, projects
from cyborg_quota.cmd.errors import REFUSED, BadUsage
from cyborg_quota.limit_types import Holding
from cyborg_quota.types import UsageKey

COLUMNS = ("project_id", "resource", "used", "reserved", "limit", "overrides", "pod")


class Orphans(base.Lister):
    """List what projects hold that Keystone has deleted, or never had: usage, limits, overrides.

    If there are any, prints a row for each project and resource and exits with 1;
    otherwise prints nothing and exits with 0. overrides is the number of overrides
    that have not ended. A limit per pod has a row of its own, with the usage in this
    pod; the --marker of such a row takes the pod after the resource. `release`,
    `limit unset` and `limit override cancel` remove what these projects hold.
    Keystone's domains are no orphans.
    """

    example = "cyborg-quota project orphans -f csv"
    has_names = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        paging.add_paging(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        holdings = [
            (
                one.key.project_id,
                one.key.resource,
                one.used,
                one.reserved,
                formats.OptionalLimit(one.limit),
                one.overrides,
                formats.Optional(one.key.pod or None),
            )
            for one in itertools.islice(self._orphans(parsed_args), parsed_args.limit)
        ]
        if holdings:
            self.status = REFUSED
        return COLUMNS, holdings

    def _orphans(self, parsed_args: argparse.Namespace) -> Iterator[Holding]:
        """The selected rows. It reads as many batches of projects as the caller takes rows."""
        directory = projects.require_directory(self.app, "project orphans")
        administration = self.engine.administration
        project_id, *names = parsed_args.marker or [""]
        if len(names) > 2:
            raise BadUsage("--marker takes the project, the resource and the pod of a row.")
        last = UsageKey(project_id, *names) if names else None
        # The marker's own project may have more rows if the marker names a resource.
        holders = [project_id] if last else administration.list_holders(self.context, project_id)
        with base.progress_bar(None, "projects") as progress:
            while holders:
                for one in administration.list_holdings(self.context, directory.unknown(holders)):
                    is_after = last is None or one.key.project_id != project_id or one.key > last
                    if is_after and parsed_args.resource in (None, one.key.resource):
                        yield one
                progress(len(holders))
                holders = administration.list_holders(self.context, holders[-1])
