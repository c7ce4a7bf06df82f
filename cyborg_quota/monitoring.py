# SPDX-License-Identifier: Apache-2.0
"""Monitoring, the public interface for programs that export metrics of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from cyborg_quota import exceptions, validation
from cyborg_quota.ledger.base import QuotaDriver
from cyborg_quota.metric_types import LedgerMetrics, ProjectMetrics
from cyborg_quota.validation import Context

if TYPE_CHECKING:
    from cyborg_quota.ledger.election import Election

_MAX_ELECTION_CHARS: Final = 24


class Monitoring:
    """What a monitoring system may know of the ledger. All calls are for admins only."""

    def __init__(self, driver: QuotaDriver, resources: Mapping[str, Any]) -> None:
        self._driver = driver
        self._resources = resources

    def read(self, context: Context, project_ids: Collection[str] | None = None) -> LedgerMetrics:
        """The metrics of the ledger. ``project_ids``: only these projects; None: all with usage or limits.

        One transaction reads the ledger. Raises LimitsUnavailable if another service has the limits.
        """
        validation.admin_only(context, "read_metrics")
        if isinstance(project_ids, str):
            raise exceptions.InvalidName("project_ids", project_ids, "a list of ids is expected")
        names = None if project_ids is None else [validation.check_name("project_id", name) for name in project_ids]
        return self._driver.read_metrics(names, sorted(self._resources))

    def read_project(self, context: Context, project_id: str) -> list[ProjectMetrics]:
        """The metrics of one project, for each registered resource and each other one that it holds.

        The cost depends on the path of the project to its root alone. Raises LimitsUnavailable.
        """
        validation.admin_only(context, "read_project_metrics")
        return self._driver.read_project_metrics(
            validation.check_name("project_id", project_id), sorted(self._resources)
        )

    def make_election(self, context: Context, name: str, lease_seconds: float) -> Election:
        """The candidacy of this process in an election among the processes that share the ledger. No I/O.

        Call its ``campaign`` periodically, at least twice per lease; ``is_elected`` is True in at most one process.
        """
        validation.admin_only(context, "make_election")
        validation.check_name("election", name)
        if len(name) > _MAX_ELECTION_CHARS or not lease_seconds > 0:
            raise exceptions.InvalidRequest(
                f"An election needs a name of at most {_MAX_ELECTION_CHARS} characters and a positive lease."
            )
        return self._driver.make_election(name, lease_seconds)
