# SPDX-License-Identifier: Apache-2.0
"""Commands on resources: list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.cli import base
from cyborg_quota.surface import formats, paging
from cyborg_quota.surface.operations import Operation, cells


def _list(run: base.Run, **paging_options: Any) -> list[tuple[Any, ...]]:
    options, limits = run.conf.quota, _defaults(run)
    resources = paging.page(sorted(set(options.resources)), lambda name: (name, name), **paging_options)
    return [
        (
            resource,
            options.resource_descriptions.get(resource, ""),
            formats.OptionalLimit(limits.get(resource)),
            _source(run.conf.limits, is_set=resource in limits),
        )
        for resource in resources
    ]


def _defaults(run: base.Run) -> Mapping[str, int]:
    if run.conf.limits.driver == "keystone":
        return {}  # Keystone's registered limits apply; this command does not read them
    if (initial := _root_initial_limit(run.conf.limits)) is not None:
        return dict.fromkeys(run.conf.quota.resources, initial)
    try:
        return run.engine.limits.list_defaults(run.context)
    except exceptions.LimitsReadOnly:
        return {}  # the limit driver cannot list them


def _root_initial_limit(options: Any) -> int | None:
    """[limits] root_initial_limit, which only the driver ``database`` uses; None: the default applies."""
    from cyborg_quota.limits.limit_tree import InitialLimits

    if options.driver != "database":
        return None
    return InitialLimits.parse(options.child_initial_limit, options.root_initial_limit).root


def _source(options: Any, *, is_set: bool) -> str:
    """The place at which the default limit of a resource is set, or what applies if it is not set."""
    if _root_initial_limit(options) is not None:
        return "[limits] root_initial_limit"
    return {
        "noop": "none: [limits] driver is noop",
        "config": "[limits] limits" if is_set else "none: not in [limits] limits",
        "database": "set --default" if is_set else f"not set: [limits] missing = {options.missing}",
        "keystone": "registered limits in Keystone",
    }.get(options.driver, f"[limits] driver {options.driver}")


List = base.generate(
    Operation(
        """List the counted resources, and where their limits come from.

        The resources, and their descriptions are options of [quota]. limit is
        that of a project without a parent, if none is set for the project: the default,
        or [limits] root_initial_limit. It is empty (json: null) if none is set, or if it
        is set in Keystone.
        """,
        "cyborg-quota resource list -f json",
        _list,
        (
            paging.LIMIT,
            paging.marker("NAME", "start after the last row of this resource", nargs="+"),
            paging.RESOURCE,
        ),
        cells("resource", "description", "limit", "limit_source"),
        has_names=False,
    )
)
