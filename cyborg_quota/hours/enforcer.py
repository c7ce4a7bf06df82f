# SPDX-License-Identifier: Apache-2.0
"""The enforcer of budgets: they bound the meters of the usage rows of their projects (db/meters.py).

The charge of the usage rows itself compares them (db/charges.py), as it compares limits.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oslo_config import cfg

from cyborg_quota.db.database import Connection
from cyborg_quota.hours import tables
from cyborg_quota.ledger.enforcers import Enforcer, Parts
from cyborg_quota.types import RecordedChange
from cyborg_quota.types.hours import HOUR, BudgetPeriod


class BudgetEnforcer(Enforcer):
    """Reads the budgets of the projects of a path."""

    def __init__(self, parts: Parts, hours_ahead: int | None) -> None:
        """``hours_ahead``: for how many hours the budget must pay for all that is held after a reserve. None: 1."""
        self.parts: Final = parts
        self.ahead: Final = (hours_ahead or 1) * HOUR

    @staticmethod
    def selection_of(conf: cfg.ConfigOpts) -> int:
        """[budgets] hours_ahead."""
        return int(conf.budgets.hours_ahead)

    def bounds(
        self, connection: Connection, project_ids: Collection[str], resources: Collection[str]
    ) -> tuple[list[BudgetPeriod], int | None]:
        """The budgets in force, and the second at which this changes."""
        return tables.periods(connection, tables.read(connection, project_ids, resources), self.ahead)

    def forget(self, connection: Connection, project_id: str) -> list[RecordedChange]:
        """Delete the budgets of a project that is removed."""
        return tables.delete(connection, project_id, tables.read(connection, [project_id]))
