# SPDX-License-Identifier: Apache-2.0
"""What projects hold, in batches, and whether the ledger has a project; on every database."""

from __future__ import annotations

import datetime

from cyborg_quota import exceptions
from cyborg_quota.limits import tables
from cyborg_quota.limits.projects import MAX_LISTED_PROJECTS
from cyborg_quota.types import UsageKey
from cyborg_quota.types.limits import Holding
from tests import base, fixtures
from tests.functional import test_limits

DAY = datetime.timedelta(days=1)


class TestHoldings(test_limits.LimitsTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.set(None, 100)
        self.make_tree({"in the tree": None})
        self.hold("used", 2)
        self.quotas.reserve(base.Context("reserved"), {"gpu": 1})
        self.set("limited", 7)
        self.set("limited", 0, "fpga")
        self.hold("was used", 1)
        self.quotas.release(base.ADMIN, [one.uuid for one in self.quotas.list_reservations(base.ADMIN, "was used")])
        for name in ("Used", "\u00fcsed", "used2"):  # names are compared by bytes
            self.set(name, 1)
        now = datetime.datetime.now(datetime.timezone.utc)
        for project_id, resource, days in (
            ("overridden", "fpga", -1),
            ("used", "gpu", -1),
            ("used", "gpu", -0.5),
            ("later", "gpu", 1),
            ("ended", "gpu", -1),
        ):
            times = {"start": now + days * DAY, "until": now + 2 * DAY}
            self.admin.set_overrides(base.ADMIN, {resource: 4}, project_id, **times)
        long_ago = "starts_at = '2001-01-01 00:00:00.000000', ends_at = '2001-01-02 00:00:00.000000'"
        self.execute(f"UPDATE limit_overrides SET {long_ago} WHERE project_id = 'ended'")

    def test_known_projects(self) -> None:
        known = ["in the tree", "used", "reserved", "limited", "was used", "Used", "overridden", "later"]
        names = [*known, "USED", "u", "use_", "unknown"]
        self.assertEqual(known, [name for name in names if self.admin.is_known_project(base.ADMIN, name)])

    def test_holders_in_batches_of_any_size(self) -> None:
        holders = {"used", "reserved", "limited", "Used", "\u00fcsed", "used2", "overridden", "later"}
        for count in (1, 2, 5, 100):
            self.patch(tables, "BATCH_PROJECTS", count)  # (so that some batches have no holder)
            found: list[str] = []
            following: str | None = ""
            while following is not None:
                batch, following = self.admin.list_holders(base.ADMIN, following, count)
                self.assertLessEqual(len(batch), count)
                found += batch
            self.assertEqual(sorted(holders), sorted(found))

    def test_holdings(self) -> None:
        self.engine.pods.add(base.ADMIN, "p1")
        for project_id, limit in (("only in a pod", 3), ("used", 4)):
            self.engine.limits.set_limits(base.ADMIN, {"gpu": limit}, project_id, pod="p1")
        names = ["used", "reserved", "limited", "was used", "in the tree", "unknown", "overridden", "later", "ended"]
        self.assertEqual(
            [
                Holding(UsageKey("later", "gpu"), 0, 0, None, 1),
                Holding(UsageKey("limited", "fpga"), 0, 0, 0),
                Holding(UsageKey("limited", "gpu"), 0, 0, 7),
                Holding(UsageKey("only in a pod", "gpu", "p1"), 0, 0, 3),
                Holding(UsageKey("overridden", "fpga"), 0, 0, None, 1, is_overridden=True),
                Holding(UsageKey("reserved", "gpu"), 0, 1, None),
                Holding(UsageKey("used", "gpu"), 2, 0, None, 2, is_overridden=True),
                Holding(UsageKey("used", "gpu", "p1"), 0, 0, 4),
            ],
            self.admin.list_holdings(base.ADMIN, [*names, "only in a pod"]),
        )
        self.assertEqual([], self.admin.list_holdings(base.ADMIN, []))

    def test_bad_input(self) -> None:
        listed, holders = self.admin.list_holdings, self.admin.list_holders
        for kind, call, *arguments in (
            (exceptions.InvalidRequest, listed, ["p"] * (MAX_LISTED_PROJECTS + 1)),
            *((exceptions.InvalidRequest, listed, wrong) for wrong in ("used", None, 5, {"used": 1})),
            *((exceptions.InvalidRequest, holders, "", wrong) for wrong in (0, -1, True, None, "2", 1.5)),
            (exceptions.InvalidName, listed, [" "]),
            (exceptions.InvalidName, holders, "\x00"),
            (exceptions.InvalidName, self.admin.is_known_project, ""),
        ):
            self.assertRaises(kind, call, base.ADMIN, *arguments)
