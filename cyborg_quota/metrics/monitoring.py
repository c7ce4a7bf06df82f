# SPDX-License-Identifier: Apache-2.0
"""Monitoring, the public interface for programs that export metrics of the ledger."""

from __future__ import annotations

from collections.abc import Collection

from cyborg_quota import exceptions, validation
from cyborg_quota.subject import Subject
from cyborg_quota.types.metrics import LedgerMetrics
from cyborg_quota.validation import Context


class Monitoring(Subject):
    """What a monitoring system may know of the ledger. All calls are for admins only."""

    def read(self, context: Context, project_ids: Collection[str] | None = None) -> LedgerMetrics:
        """The metrics of the ledger. ``project_ids``: only these projects; None: all with usage or limits.

        One transaction reads the ledger. Raises LimitsUnavailable if another service has the limits.
        """
        validation.admin_only(context, "read_metrics")
        if isinstance(project_ids, str):
            raise exceptions.InvalidName("project_ids", project_ids, "a list of ids is expected")
        names = None if project_ids is None else [validation.check_name("project_id", name) for name in project_ids]
        return self._driver.read_metrics(project_ids=names, resources=self._resources.names())
