# SPDX-License-Identifier: Apache-2.0
"""What is read of all limits is of one moment, although it takes several statements; on every database."""

from __future__ import annotations

import threading
from typing import Any

from cyborg_quota.limits import changes as limit_reading
from cyborg_quota.limits.models import Flat
from tests import base
from tests.functional import test_limits


class TestOneMoment(test_limits.LimitsTestCase):
    policy = Flat

    def test_export(self) -> None:
        """All of an import, or nothing of it: its limit and its override."""
        self.set("p", 5)
        span = {"resource": "gpu", "limit": 1, "from": "2900-01-01", "until": "2901-01-01"}
        document = {"projects": [{"id": "p", "limits": {"gpu": 8}, "overrides": [span]}]}
        read = limit_reading.overrides.read
        change = threading.Thread(target=self.admin.import_limits, args=(base.ADMIN, document))

        def change_first(*arguments: Any) -> Any:
            if change.ident is None:
                change.start()
                change.join(0.3)
            return read(*arguments)

        self.patch(limit_reading.overrides, "read", change_first)
        found = []
        for _ in range(2):
            (project,) = self.admin.export_limits(base.ADMIN)["projects"]
            found.append((project["limits"]["gpu"], len(project.get("overrides", ()))))
            change.join(60)
        self.assertEqual([(5, 0), (8, 1)], found)
