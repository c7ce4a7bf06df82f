# SPDX-License-Identifier: Apache-2.0
"""Reads usage and limits: get_usages, list_usages. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import path_state, usages
from cyborg_quota.db.database import Database
from cyborg_quota.limits.base import LimitDriver
from cyborg_quota.types import UNLIMITED, Counters, Page, Usage, UsageKey, UsageRecord

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
        held = {key.resource for key in state.counters if key.project_id == project_id}
        names = sorted(held.union(resources))
        limits = _look_up(lambda: self._limits.get_limits_on_path(state, names), allow_unknown=allow_unknown_limits)
        counters = {name: state.counters.get(UsageKey(project_id, name), Counters()) for name in names}
        return {name: _usage(counters[name], limits, name, self._limits.missing_limit) for name in names}

    def list_usages(
        self, project_id: str | None, page: Page, *, allow_unknown_limits: bool = False, pod: str | None = None
    ) -> list[UsageRecord]:
        """A page of the usage of all projects, or of one, as the database sorts them. Raises MarkerNotFound."""
        rows = self._untimed.read(lambda connection: usages.read_page(connection, project_id, page, pod or ""))
        project_ids, resources = {key.project_id for key in rows}, {key.resource for key in rows}
        limits = _look_up(
            lambda: self._limits.get_limits(project_ids, resources)
            if pod is None
            else self._limits.get_limits_in_pod(project_ids, resources, pod),
            allow_unknown=allow_unknown_limits,
        )
        missing = self._limits.missing_limit if pod is None else UNLIMITED  # (in a pod, there need not be one)
        return [
            UsageRecord(*key[:2], usage=_usage(counters, limits, key[:2], missing), pod=pod)
            for key, counters in rows.items()
        ]


def _usage(counters: Counters, limits: Mapping[Key, int] | None, key: Key, missing: int) -> Usage:
    """``limits`` None: unknown. ``missing``: what applies where none is set."""
    limit = None if limits is None else limits.get(key, missing)
    return Usage(limit=limit, used=counters.used, reserved=counters.reserved)


def _look_up(limits: Callable[[], Mapping[Key, int]], *, allow_unknown: bool) -> Mapping[Key, int] | None:
    """The limits. If they are unavailable: None (``allow_unknown``), or raises LimitsUnavailable."""
    try:
        return limits()
    except exceptions.LimitsUnavailable as error:
        if not allow_unknown:
            raise
        LOG.warning("The limits are unknown: %s", error.reason)
        return None
