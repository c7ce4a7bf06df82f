# SPDX-License-Identifier: Apache-2.0
"""usage forecast: when projects reach their limits. (tests/unit/test_forecast.py has its arithmetic.)"""

from __future__ import annotations

import datetime
from typing import Any, ClassVar
from unittest import mock

import fixtures as fx

from cyborg_quota import plugins
from cyborg_quota.types import KEYSTONE
from tests import fixtures
from tests.cli import test_simulate

load_plugin = plugins.load


class DomainLimits(fixtures.DictLimits):
    """A limit of 30 for each project, and for its domain with all its projects, as Keystone has under two levels."""

    bounds_subtree = True
    origin: ClassVar[str | None] = KEYSTONE

    def __init__(self) -> None:
        super().__init__()
        self.limits = {(None, "gpu"): 30}
        self.subtree_limits = {("domain", "gpu"): 30}

    def parent_of(self, project_id: str) -> str | None:
        return None if project_id == "domain" else "domain"


def load(namespace: str, option: str, name: str) -> Any:
    """As plugins.load, with DomainLimits as the limit driver ``domains``."""
    return DomainLimits if name == "domains" else load_plugin(namespace, option, name)


class ForecastCase(test_simulate.SimulateCase):
    def grow(self, project: str, per_day: int, days: int = 20) -> None:
        """A project that has reserved so many more on each of the last days, and still holds them."""
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        for day in range(days):
            (row,) = self.good("reserve", "--project", project, f"gpu={per_day}")
            self.good("commit", row["uuid"])
            moment = now - datetime.timedelta(days=days - day - 0.5)
            self.sql(
                "UPDATE reservations SET created_at = :t, updated_at = :t WHERE uuid = :u",
                t=moment.isoformat(" ", "microseconds"),
                u=row["uuid"],
            )


class ForecastTest(ForecastCase):
    def test_a_rising_project(self) -> None:
        self.call("limit", "set", "--default", "gpu=100")
        self.grow("rising", 2, days=10)
        self.good("reserve", "--project", "constant", "gpu=5")
        (row,) = self.good("usage", "forecast")
        self.assertEqual(["rising", "gpu", 20, 100, 2.0], list(row.values())[:5])
        self.assertEqual(row["earliest"], row["latest"])  # the points are on the line
        (same,) = self.good("usage", "forecast", "--project", "rising", "--resource", "gpu")
        self.assertEqual((row["project_id"], row["held"]), (same["project_id"], same["held"]))
        for argv in (["--project", "constant"], ["--resource", "fpga"], ["--within", "3"]):
            self.assertEqual([], self.good("usage", "forecast", *argv))
        self.assertEqual("", self.call("usage", "forecast", "--within", "3").out)

    def test_the_limit_of_an_ancestor(self) -> None:
        self.call("limit", "import", self.limits({"projects": [
            {"id": "top", "limits": {"gpu": 30}, "children": [{"id": "leaf", "limits": {"gpu": 30}}]}]}))  # fmt: skip
        self.grow("leaf", 2, days=8)
        rows = self.good("usage", "forecast")
        self.assertEqual(["leaf", "top"], [row["project_id"] for row in rows])
        self.assertEqual(rows[0]["reaches_limit_at"], rows[1]["reaches_limit_at"])

    def test_the_domain_of_another_limit_driver(self) -> None:
        """The limit of a domain includes its projects, unless the driver ignores the edge because of its origin."""
        self.useFixture(fx.MockPatchObject(plugins, "load", load))
        self.configure("[limits]\ndriver = domains")
        self.grow("p", 2, days=8)
        rows = self.good("usage", "forecast")
        self.assertEqual([("domain", 16), ("p", 16)], [(row["project_id"], row["held"]) for row in rows])
        self.assertEqual(rows[0]["reaches_limit_at"], rows[1]["reaches_limit_at"])
        for name in ("origin", "bounds_subtree"):
            with mock.patch.object(DomainLimits, name, None):
                self.assertEqual(["p"], [row["project_id"] for row in self.good("usage", "forecast")])

    def test_overrides(self) -> None:
        """The forecast uses the limit that applies when the line reaches it."""
        self.call("limit", "set", "--default", "gpu=30")
        self.grow("p", 2, days=10)

        def row() -> tuple[int, float]:
            """The limit, and the days until the line reaches it."""
            (found,) = self.good("usage", "forecast")
            reached = datetime.datetime.fromisoformat(found["reaches_limit_at"].rstrip("Z"))
            now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
            return found["limit"], round((reached - now).total_seconds() / 86400, 1)

        limit, days = row()
        self.assertEqual((30, True), (limit, 4 < days < 6), days)

        def override(limit: int, start: float, end: float) -> None:
            now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
            times = [f"{(now + datetime.timedelta(days=one)).isoformat()}Z" for one in (start, end)]
            self.call("limit", "set", "--project", "p", f"gpu={limit}", "--from", times[0], "--until", times[1])

        override(100, -1, 20)
        self.assertEqual((30, 20.0), row())  # where the override ends, the line is above the limit already
        override(26, 1.5, 9)
        self.assertEqual(26, row()[0])
        override(-1, -1, 9)
        self.assertEqual((30, 20.0), row())
        override(0, 1, 2)
        self.assertEqual((0, 1.0), row())

    def test_bad_arguments(self) -> None:
        for bad in ("0", "-3", "x", "1e3"):
            self.misused("usage", "forecast", f"--days={bad}")
        self.assertIn("at least 5 days", self.refused(2, "usage", "forecast", "--days", "4"))
        self.assertIn("purge_age", self.refused(2, "usage", "forecast", "--days", "31"))
        self.assertIn("blank", self.refused(2, "usage", "forecast", "--project", " p"))
