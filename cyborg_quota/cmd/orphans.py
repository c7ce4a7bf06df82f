# SPDX-License-Identifier: Apache-2.0
"""project orphans: what projects hold that Keystone does not have."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cyborg_quota.cmd import base, formats, projects
from cyborg_quota.cmd.errors import REFUSED

COLUMNS = ("project_id", "resource", "used", "reserved", "limit", "overrides")


class Orphans(base.Lister):
    """List what projects hold that Keystone has deleted, or never had: usage, limits, overrides.

    If there are any, prints a row for each project and resource and exits with 1;
    otherwise prints nothing and exits with 0. overrides is the number of overrides
    that have not ended. `release`, `limit unset` and `limit override cancel` remove
    what they hold. Keystone's domains are no orphans.
    """

    example = "cyborg-quota project orphans -f csv"
    has_names = False

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        directory = projects.require_directory(self.app, "project orphans")
        administration = self.engine.administration
        rows = []
        with base.progress_bar(None, "projects") as progress:
            holders = administration.list_holders(self.context)
            while holders:
                held = administration.list_holdings(self.context, directory.unknown(holders))
                rows += [
                    (
                        one.project_id,
                        one.resource,
                        one.used,
                        one.reserved,
                        formats.OptionalLimit(one.limit),
                        one.overrides,
                    )
                    for one in held
                ]
                progress(len(holders))
                holders = administration.list_holders(self.context, holders[-1])
        if rows:
            self.status = REFUSED
        return COLUMNS, rows
