# SPDX-License-Identifier: Apache-2.0
"""The metrics of the ledger, on each database."""

from __future__ import annotations

import datetime

from cyborg_quota import exceptions
from cyborg_quota.db import schema
from cyborg_quota.types import UNLIMITED, TotalLimit
from cyborg_quota.types.capacity import ResourceUse
from cyborg_quota.types.metrics import ProjectMetrics
from tests import base, fixtures
from tests.base import ADMIN
from tests.functional import test_limits


class TestMetrics(test_limits.LimitsTestCase):
    scenarios = fixtures.ON_SQLITE

    def setUp(self) -> None:
        super().setUp()
        limits = {"physics": 30, "higgs": 15, "decays": 10, "web": 15}
        self.import_tree(
            {"physics": None, "higgs": "physics", "decays": "higgs", "web": "physics"},
            {name: {"gpu": limit, "fpga": UNLIMITED} for name, limit in limits.items()},
            gpu=0,
            fpga=UNLIMITED,
        )

    def read(self, *project_ids: str) -> dict[tuple[str, str], ProjectMetrics]:
        """Without the device-seconds, which grow between two reads (see test_budget_metrics)."""
        rows = self.engine.monitoring.read(ADMIN, project_ids or None).projects
        found = {(row.project_id, row.resource): row._replace(device_seconds_total=0) for row in rows}
        self.assertEqual(len(rows), len(found))
        return found

    def test_the_values_are_those_of_the_queries(self) -> None:
        self.hold("decays", 4)
        self.hold("higgs", 3)
        self.quotas.reserve(base.Context("web"), {"gpu": 2, "fpga": 5})
        until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        self.admin.set_overrides(ADMIN, {"gpu": 9}, "decays", until)
        found = self.read()
        self.assertEqual(ProjectMetrics("decays", "gpu", 9, 4, 0, 4, 5), found["decays", "gpu"])
        self.assertEqual(ProjectMetrics("higgs", "gpu", 15, 3, 0, 7, 8), found["higgs", "gpu"])
        self.assertEqual(ProjectMetrics("physics", "gpu", 30, 0, 0, 9, 21), found["physics", "gpu"])
        self.assertEqual((None, 0, 5, 5, None, None, None), found["web", "fpga"][2:9])
        for (project_id, resource), row in found.items():
            [record] = [one for one in self.engine.get_detail(base.Context(project_id)) if one.resource == resource]
            self.assertEqual(record.usage.limit, UNLIMITED if row.limit is None else row.limit)
            self.assertEqual((record.usage.used, record.usage.reserved), (row.used, row.reserved))
            headroom = record.headroom
            self.assertEqual(None if headroom.scope == "counter" else headroom.fits, row.fits)
        self.assertEqual(
            {key: row for key, row in found.items() if key[0] in ("web", "decays")}, self.read("web", "decays")
        )
        self.assertEqual({}, self.read("unknown"))
        self.assertRaises(exceptions.InvalidRequest, self.engine.monitoring.read, ADMIN, "web")
        self.admin.set_total_limits(ADMIN, {"gpu": 40})
        for project_ids in (None, [], ["web"]):
            self.assertEqual([TotalLimit("gpu", 40, 9)], self.engine.monitoring.read(ADMIN, project_ids).totals)
        self.assertEqual(found, self.read())

    def test_capacity_pods_and_overdue(self) -> None:
        self.engine.pods.add(ADMIN, "north")
        self.engine.pods.add(ADMIN, "far", endpoint="far-cloud")
        for name, pod, total in (("n1", "north", 8), ("n2", "north", 4), ("lone", None, 2)):
            self.add_provider(name, pod=pod, gpu=total)
        self.engine.pods.set_usage(ADMIN, "far", {"gpu": ResourceUse(10, 7)})
        # North has inventories, which count, and not its measurement.
        self.engine.pods.set_usage(ADMIN, "north", {"gpu": ResourceUse(99, 9)})
        [uuid] = self.engine.reserve(base.Context("web"), {"gpu": 3}, provider="n1")
        metrics = self.engine.monitoring.read(ADMIN)
        capacity = {("gpu", "north"): (12, 3), ("gpu", ""): (2, 0), ("gpu", "far"): (10, 7)}
        found = (
            dict(metrics.capacity),
            sorted(metrics.measurement_ages),
            metrics.oldest_overdue_seconds,
            metrics.revision,
        )
        self.assertEqual((capacity, ["far", "north"], 0.0, schema.HEAD), found)
        # Nothing measures a disabled pod: its age would grow for ever. A pod whose endpoint was never reached has one.
        self.engine.pods.change(ADMIN, "north", state="disabled")
        self.engine.pods.add(ADMIN, "unreached", endpoint="wrong-cloud")
        self.engine.pods.add(ADMIN, "empty")
        self.execute("UPDATE pods SET created_at = '2001-01-01 00:00:00'")
        ages = self.engine.monitoring.read(ADMIN).measurement_ages
        self.assertEqual(["far", "unreached"], sorted(ages))
        self.assertLess(abs(ages["far"]), 3600)
        self.assertGreater(ages["unreached"], 20 * 365 * 86400)

        self.make_overdue(uuid)
        self.assertGreater(self.engine.monitoring.read(ADMIN).oldest_overdue_seconds, 20 * 365 * 86400)
