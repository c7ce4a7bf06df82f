# SPDX-License-Identifier: Apache-2.0
"""Monitoring, the public interface for programs that export metrics of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from cyborg_quota import exceptions, validation
from cyborg_quota.metric_types import LedgerMetrics
from cyborg_quota.validation import Context

if TYPE_CHECKING:  # the command line's help must not load a database
    from cyborg_quota.ledger.driver import DbQuotaDriver


class Monitoring:
    """What a monitoring system may know of the ledger. All calls are for admins only."""

    def __init__(self, driver: DbQuotaDriver, resources: Mapping[str, Any]) -> None:
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
        return self._driver.metrics.read(names, sorted(self._resources))
