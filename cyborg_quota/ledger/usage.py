# SPDX-License-Identifier: Apache-2.0
"""Reads usage and limits: get_usages, list_usages. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import path_state, usages
from cyborg_quota.db.database import Connection, Database
from cyborg_quota.db.path_state import PathState
from cyborg_quota.ledger.limit_source import LimitDriver
from cyborg_quota.types import UNLIMITED, Counters, Page, Usage, UsageKey, UsageRecord

LOG = logging.getLogger(__name__)


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
        limits = _look_up(lambda: self._limits.limits([state], names), allow_unknown=allow_unknown_limits)
        keys = [UsageKey(project_id, name) for name in names]
        return {key.resource: _usage(key, state.counters.get(key, Counters()), limits) for key in keys}

    def list_usages(
        self, project_id: str | None, page: Page, *, allow_unknown_limits: bool = False, pod: str | None = None
    ) -> list[UsageRecord]:
        """A page of the usage of all projects, or of one, as the database sorts them. Raises MarkerNotFound."""

        def read(connection: Connection) -> tuple[dict[UsageKey, Counters], list[PathState]]:
            rows = usages.read_page(connection, project_id, page, pod or "")
            return rows, path_state.read_states(connection, {key.project_id for key in rows}, pod)

        rows, states = self._untimed.read(read)
        resources = {key.resource for key in rows}
        limits = _look_up(
            lambda: self._limits.limits(states, resources) if pod is None else self._limits_in_pods(states),
            allow_unknown=allow_unknown_limits,
        )
        return [UsageRecord(*key[:2], usage=_usage(key, counters, limits), pod=pod) for key, counters in rows.items()]

    def _limits_in_pods(self, states: Sequence[PathState]) -> Mapping[UsageKey, int]:
        return {one.key: one.limit for limits in self._limits.bounds(states, ()) for one in limits.constraints}


def _usage(key: UsageKey, counters: Counters, limits: Mapping[UsageKey, int] | None) -> Usage:
    """``limits`` None: unknown. (In a pod, there need not be a limit.)"""
    limit = None if limits is None else limits.get(key, UNLIMITED)
    return Usage(limit=limit, used=counters.used, reserved=counters.reserved)


def _look_up(limits: Callable[[], Mapping[UsageKey, int]], *, allow_unknown: bool) -> Mapping[UsageKey, int] | None:
    """The limits. If they are unavailable: None (``allow_unknown``), or raises LimitsUnavailable."""
    try:
        return limits()
    except exceptions.LimitsUnavailable as error:
        if not allow_unknown:
            raise
        LOG.warning("The limits are unknown: %s", error.reason)
        return None
