# SPDX-License-Identifier: Apache-2.0
"""adopt charges accelerators that are already attached."""

from __future__ import annotations

from cyborg_quota import exceptions
from tests import base


class TestAdopt(base.LedgerTestCase):
    """Charges what is already attached, regardless of the limits."""

    CLAIMS = [base.claim("a", gpu=2), base.claim("b", gpu=1, fpga=1)]

    def test_it_ignores_limits_and_does_not_expire(self) -> None:
        """But a consumer must not hold anything else."""
        self.limits.own[None, "gpu"] = 0
        uuids = self.quotas.adopt(base.ADMIN, self.CLAIMS, "p1", group="g")
        self.assertEqual(uuids, self.quotas.adopt(base.ADMIN, self.CLAIMS, "p1"), "a repeat")
        rows = self.quotas.list_reservations(base.ADMIN, reservations=uuids)
        self.assertEqual([("committed", None)] * 3, [(row.state, row.expire) for row in rows])
        self.assertEqual(0, self.quotas.expire(base.ADMIN))
        self.assertEqual([(3, 0), (1, 0)], [self.figures(), self.figures(resource="fpga")])
        self.quotas.release(self.context, consumer="b")
        self.assertEqual((2, 0), self.figures())
        uuids = self.quotas.reserve_many(self.context, [base.claim("b", fpga=7)])
        error = self.assertRaises(exceptions.ReservationConflict, self.quotas.adopt, base.ADMIN, self.CLAIMS, "p1")
        self.assertEqual(("b", {"fpga": 7}), (error.consumer, error.held))
        self.assertEqual((["reserved"], (2, 0)), (self.states(*uuids), self.figures()))
