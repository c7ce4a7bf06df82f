# SPDX-License-Identifier: Apache-2.0
"""Amounts that exceed the range of a counter."""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.types import MAX_AMOUNT
from tests import base


class TestOverflow(base.LedgerTestCase):
    """A counter has 32 bits on each database. An error is raised before it overflows."""

    def assert_overflow(self, call: object, *args: object) -> None:
        before = self.quotas.list_reservations(base.ADMIN)
        error = self.assertRaises(exceptions.UsageOverflow, call, *args)
        self.assertEqual(("p1", "gpu"), (error.project_id, error.resource))
        self.assertIn("2147483647", str(error))
        self.assertEqual(before, self.quotas.list_reservations(base.ADMIN))

    def test_full(self) -> None:
        """Also below a limit that is larger than a counter. What is used and what is reserved count together."""
        self.limits.own[None, "gpu"] = 2**40
        uuids = self.quotas.reserve(self.context, {"gpu": MAX_AMOUNT})
        self.quotas.commit(self.context, uuids)
        self.quotas.resize(self.context, {"gpu": MAX_AMOUNT - 1}, reservation=uuids[0])
        self.quotas.reserve(self.context, {"gpu": 1})
        self.assertEqual((MAX_AMOUNT - 1, 1), self.figures())
        self.assert_overflow(self.quotas.reserve, self.context, {"fpga": 1, "gpu": 1})
        self.assert_overflow(self.quotas.adopt, base.ADMIN, [base.claim("a", gpu=1)], "p1")
        self.assertEqual((0, 0), self.figures(resource="fpga"))

    def test_limits_of_any_size(self) -> None:
        self.limits.own[None, "gpu"] = self.limits.subtree_limits["p1", "gpu"] = 2**80
        self.quotas.reserve(self.context, {"gpu": 10**6})
        usage = self.quotas.get_usages(self.context)["gpu"]
        self.assertEqual((2**80, 10**6, 2**80 - 10**6), (usage.limit, usage.reserved, usage.available))

    def test_more_is_held_than_a_counter_can_show(self) -> None:
        """Possible after a change by hand only. ``heal`` reports it, and no release is refused (I6)."""
        for consumer in ("a", "b"):
            self.engine.reserve(self.context, {"gpu": MAX_AMOUNT}, consumer=consumer)
            self.execute("UPDATE quota_usages SET reserved = 0, subtree = 0")
        error = self.assertRaises(exceptions.UsageOverflow, self.engine.heal, base.ADMIN)
        self.assertEqual(("p1", "gpu"), (error.project_id, error.resource))
        self.engine.release(self.context, consumer="a")
        self.assertEqual((0, MAX_AMOUNT), self.figures())
        self.assert_invariants()
