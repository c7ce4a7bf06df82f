# SPDX-License-Identifier: Apache-2.0
"""Commands on resources: list."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.cmd import base, formats, paging

COLUMNS = ("resource", "description", "limit", "limit_source")


class List(base.Lister):
    """List the counted resources, and where their limits come from.

    The resources, and their descriptions are options of [quota]. limit is
    that of a project without a parent, if none is set for the project: the default,
    or [limits] root_initial_limit. It is empty (json: null) if none is set, or if it
    is set in Keystone.
    """

    example = "cyborg-quota resource list -f json"
    has_names = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        paging.add_paging(parser, owner="resource", metavar="NAME", resources=False)
        paging.add_resource(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        descriptions = self.conf.quota.resource_descriptions
        limits = self._defaults()
        return COLUMNS, [
            (
                resource,
                descriptions.get(resource, ""),
                formats.OptionalLimit(limits.get(resource)),
                self._source(resource in limits),
            )
            for resource in paging.page(parsed_args, sorted(set(self.conf.quota.resources)), lambda name: (name, name))
        ]

    def _defaults(self) -> Mapping[str, int]:
        if self.conf.limits.driver == "keystone":
            return {}  # Keystone's registered limits apply; this command does not read them
        if (initial := self._root_initial_limit()) is not None:
            return dict.fromkeys(self.conf.quota.resources, initial)
        try:
            return self.engine.list_defaults(self.context)
        except exceptions.LimitsReadOnly:
            return {}  # the limit driver cannot list them

    def _root_initial_limit(self) -> int | None:
        """[limits] root_initial_limit, which only the driver ``database`` uses; None: the default applies."""
        from cyborg_quota.limits.limit_tree import InitialLimits

        options = self.conf.limits
        if options.driver != "database":
            return None
        return InitialLimits.parse(options.child_initial_limit, options.root_initial_limit).root

    def _source(self, is_set: bool) -> str:
        if self._root_initial_limit() is not None:
            return "[limits] root_initial_limit"
        return limit_source(self.conf.limits.driver, self.conf.limits.missing, is_set)


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
