# SPDX-License-Identifier: Apache-2.0
"""Reads usage and limits: get_usages, list_usages. Writes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import path_state, usages
from cyborg_quota.db.database import Database
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.scopes import is_scoped, scoped_name, split
from cyborg_quota.types import UNLIMITED, Counters, Page, Usage, UsageRecord

LOG = logging.getLogger(__name__)

Key = TypeVar("Key")


class UsageReader:
    """Reads usage, for display."""

    def __init__(self, database: Database, limits: LimitDriver) -> None:
        self._database = database
        self._untimed = database.untimed
        self._limits = limits

    def get_usages(
        self, project_id: str, resources: Collection[str], *, allow_unknown_limits: bool = False
    ) -> dict[str, Usage]:
        """The project's usage of each of ``resources``, and of all other resources that have a usage row."""
        state = self._database.read(lambda connection: path_state.read(connection, project_id))
        held = {name for owner, name in state.counters if owner == project_id and not is_scoped(name)}
        names = sorted(held.union(resources))
        limits = _look_up(lambda: self._limits.get_limits_on_path(state, names), allow_unknown=allow_unknown_limits)
        counters, missing = state.counters, self._limits.missing_limit
        return {name: _usage(counters.get((project_id, name), Counters()), limits, name, missing) for name in names}

    def list_usages(
        self, project_id: str | None, page: Page, *, allow_unknown_limits: bool = False, pod: str | None = None
    ) -> list[UsageRecord]:
        """A page of the usage of all projects, or of one, as the database sorts them. Raises MarkerNotFound."""
        if pod is not None:
            page = _page_of(page, pod)
        rows = self._untimed.read(lambda connection: usages.read_page(connection, project_id, page, pod))
        limits = _look_up(
            lambda: self._limits.get_limits({key[0] for key in rows}, {key[1] for key in rows}),
            allow_unknown=allow_unknown_limits,
        )
        if pod is not None:  # (where no limit is set in the pod, there is none)
            return [
                UsageRecord(key[0], split(key[1])[0], _usage(counters, limits, key, UNLIMITED), pod=pod)
                for key, counters in rows.items()
            ]
        missing = self._limits.missing_limit
        return [UsageRecord(*key, usage=_usage(counters, limits, key, missing)) for key, counters in rows.items()]


def _usage(counters: Counters, limits: Mapping[Key, int] | None, key: Key, missing: int) -> Usage:
    """``limits`` None: unknown. ``missing``: what applies where none is set."""
    limit = None if limits is None else limits.get(key, missing)
    return Usage(limit=limit, used=counters.used, reserved=counters.reserved)


def _page_of(page: Page, pod: str) -> Page:
    """The page of the rows of a pod, which have scoped names."""
    after = page.after
    if after is not None and after[1] is not None:
        after = after[0], scoped_name(after[1], pod)
    resource = None if page.resource is None else scoped_name(page.resource, pod)
    return dataclasses.replace(page, after=after, resource=resource)


def _look_up(limits: Callable[[], Mapping[Key, int]], *, allow_unknown: bool) -> Mapping[Key, int] | None:
    """The limits. If they are unavailable: None (``allow_unknown``), or raises LimitsUnavailable."""
    try:
        return limits()
    except exceptions.LimitsUnavailable as error:
        if not allow_unknown:
            raise
        LOG.warning("The limits are unknown: %s", error.reason)
        return None
