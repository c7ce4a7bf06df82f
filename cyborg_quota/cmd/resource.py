# SPDX-License-Identifier: Apache-2.0
"""Commands on resources: list."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cyborg_quota.cmd import base, formats, paging

COLUMNS = ("resource", "description", "unit", "limit", "limit_source")


class List(base.Lister):
    """List the counted resources, and where their limits come from.

    The resources, their descriptions and units are options of [quota]. limit is
    the default limit of a project without a parent. It is empty (json: null) if
    none is set, or if it is set in Keystone.
    """

    example = "cyborg-quota resource list -f json"
    has_names = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        paging.add_paging(parser, owner="resource", metavar="NAME", resources=False)
        paging.add_resource(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        descriptions = self.conf.quota.resource_descriptions
        units = self.conf.quota.resource_units
        limits = self._defaults()
        return COLUMNS, [
            (
                resource,
                descriptions.get(resource, ""),
                units.get(resource, ""),
                formats.OptionalLimit(limits.get(resource)),
                limit_source(self.conf.limits.driver, self.conf.limits.missing, resource in limits),
            )
            for resource in paging.page(parsed_args, sorted(set(self.conf.quota.resources)), lambda name: (name, name))
        ]

    def _defaults(self) -> Mapping[str, int]:
        if self.conf.limits.driver == "keystone":
            return {}  # Keystone's registered limits apply; this command does not read them
        records = self.engine.administration.list_limits(self.context)
        return {record.resource: record.limit for record in records if record.project_id is None}


def limit_source(driver: str, missing: str, is_set: bool) -> str:
    """The place at which the default limit of a resource is set, or what applies if it is not set."""
    if driver == "noop":
        return "none: [limits] driver is noop"
    if driver == "config":
        return "[limits] limits" if is_set else "none: not in [limits] limits"
    if driver == "database":
        return "limit set --default" if is_set else f"not set: [limits] missing = {missing}"
    if driver == "keystone":
        return "registered limits in Keystone"
    return f"[limits] driver {driver}"
