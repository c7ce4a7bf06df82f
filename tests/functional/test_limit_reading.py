# SPDX-License-Identifier: Apache-2.0
"""What is read of all limits is of one moment, although it takes several statements; on every database.

The changes are made between two statements. (On SQLite, a transaction reads one snapshot, and is never repeated.)
"""

from __future__ import annotations

from typing import Any

from cyborg_quota.limits import changes as limit_reading
from cyborg_quota.limits.models import Flat
from tests import base
from tests.functional import test_limits


class TestOneMoment(test_limits.LimitsTestCase):
    policy = Flat

    def setUp(self) -> None:
        super().setUp()
        self.set("p", 5)
        self.hold("p", 5)
        self.limit, self.changes = 5, 0

    def change_before(self, module: Any, times: int, name: str) -> None:
        """Change limits before this function reads all rows, this number of times."""
        read = getattr(module, name)

        def change_first(*arguments: Any) -> Any:
            if len(arguments) == 1 and self.changes < times:
                self.change()
            return read(*arguments)

        self.patch(module, name, change_first)

    def change(self) -> None:
        """Raise the limit by 3, reserve as much, and make an override that applies later."""
        self.limit, self.changes = self.limit + 3, self.changes + 1
        span = {"resource": "gpu", "limit": 1, "from": "2900-01-01", "until": f"{2900 + self.limit}-01-01"}
        entry = {"id": "p", "limits": {"gpu": self.limit}, "overrides": [span]}
        self.admin.import_limits(base.ADMIN, {"projects": [entry]})
        self.quotas.reserve(base.Context("p"), {"gpu": 3})

    def test_changes_that_never_end(self) -> None:
        """The last attempt makes them wait."""
        self.change_before(limit_reading.tables, 3, "read_totals")
        before = self.generation()
        self.admin.export_limits(base.ADMIN)
        expected = (1, before + 1) if self.backend == "sqlite" else (3, before + 4)
        self.assertEqual(expected, (self.changes, self.generation()))

    def generation(self) -> int:
        return self.database.read(limit_reading.change_log.generation)

    def test_export(self) -> None:
        """All of an import, or nothing of it: its limit and its override."""
        self.change_before(limit_reading.overrides, 1, "read")
        (project,) = self.admin.export_limits(base.ADMIN)["projects"]
        found = project["limits"]["gpu"], len(project.get("overrides", ()))
        self.assertEqual((5, 0) if self.backend == "sqlite" else (8, 1), found)
