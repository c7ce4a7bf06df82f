# SPDX-License-Identifier: Apache-2.0
"""What a reserve charges, what it refuses, and what it returns."""

from __future__ import annotations

from cyborg_quota import UNLIMITED, Claim, Usage
from tests import base, fixtures


class TestShapes(base.LedgerTestCase):
    """What a call returns, and in which order."""

    scenarios = fixtures.ON_SQLITE

    def test_check_writes_nothing(self) -> None:
        self.quotas.check(base.Context("never seen"), {"gpu": 1})
        for table in ("quota_usages", "reservations", "projects"):
            self.assertEqual([], self.fetch(f"SELECT * FROM {table}"))

    def test_the_order_of_uuids(self) -> None:
        """Also of a repeated call."""
        claims = [
            base.claim("z", gpu=1, fpga=2),
            base.claim(None, gpu=3),
            Claim("a", {"gpu.A100": 4, "fpga": 5}),
        ]

        uuids = self.quotas.reserve_many(self.context, claims)

        rows = {row.uuid: row for row in self.quotas.list_reservations(base.ADMIN)}
        self.assertEqual(
            [
                ("z", "gpu", 1),
                ("z", "fpga", 2),
                (None, "gpu", 3),
                ("a", "gpu.A100", 4),
                ("a", "fpga", 5),
            ],
            [(rows[uuid].consumer, rows[uuid].resource, rows[uuid].delta) for uuid in uuids],
        )
        self.assertEqual(5, len(rows))
        again = self.quotas.reserve(self.context, {"fpga": 2, "gpu": 1}, consumer="z")
        self.assertEqual(uuids[:2], again[::-1])

    def test_usages(self) -> None:
        """Of one project, and of all, sorted; also of a resource that is no longer registered."""
        self.limits.own["p1", "gpu"] = 9
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"gpu": 3}))
        self.quotas.reserve(self.context, {"gpu": 2, "fpga": 1})
        self.quotas.reserve(base.Context("p0"), {"gpu": 1})
        expected = {"fpga": Usage(UNLIMITED, 0, 1), "gpu": Usage(9, 3, 2), "gpu.A100": Usage(UNLIMITED, 0, 0)}
        usages = self.quotas.get_usages(self.context)
        self.assertEqual(list(expected.items()), list(usages.items()))
        self.assertEqual([None, 4, None], [usage.available for usage in usages.values()])
        self.assertEqual(
            [("p0", "gpu", -1), ("p1", "fpga", -1), ("p1", "gpu", 9)],
            [(one.project_id, one.resource, one.usage.limit) for one in self.quotas.list_usages(base.ADMIN)],
        )
        self.assertEqual(["p1", "p1"], [one.project_id for one in self.quotas.list_usages(base.ADMIN, "p1")])
        self.quotas.register_resource("vpu")
        self.quotas.reserve(self.context, {"vpu": 1})
        self.assertEqual(1, self.make_engine().get_usages(self.context)["vpu"].reserved)
