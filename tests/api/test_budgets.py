# SPDX-License-Identifier: Apache-2.0
"""Budgets and the report of usage by the REST API: who may do what, what a refusal says, and what stays hidden (I8)."""

from __future__ import annotations

import datetime
import itertools
import json
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.osc import quota
from cyborg_quota.types.hours import BudgetUse
from tests import base
from tests.api import server, test_osc

PARENT = "max@higgs:manager,member,reader"
READER = "rita@detector:reader"
MANAGER = "mia@detector:manager,member,reader"
STRANGER = "sam@elsewhere:manager,member,reader"
BUDGETS = "/v2/quotas/detector/budgets"
START, END = datetime.datetime(2026, 11, 1), datetime.datetime(2026, 12, 1)


class BudgetTestCase(test_osc.OscTestCase):
    """physics, with higgs below it, which has detector. They hold 8 gpu."""

    def setUp(self) -> None:
        super().setUp()
        self.hours = self.engine.hours

    def spend(self, hours: int) -> None:
        """Add to what physics, higgs and detector have used of gpu."""
        path = "('physics', 'higgs', 'detector')"
        self.execute(f"UPDATE quota_usages SET metered = metered + {hours * 3600} WHERE project_id IN {path}")

    def check_quota(self, who: str = server.ADMIN) -> Any:
        answer = self.call("/v2/quotas/detector/check", who, "POST", {"check": {"gpu": 5}})
        self.assert_agrees("CheckResult", answer)
        return [one for one in answer["violations"] if one["scope"] == "budget"]


class TestWhoMay(BudgetTestCase):
    def test_a_manager_of_the_parent_needs_a_budget_of_it(self) -> None:
        """A project does not change its own budget, and who may see a project may see its budget."""
        hours, changed = {"hours": {"gpu": 50}}, {"hours": {"gpu": -2}}
        error = self.call(BUDGETS, PARENT, "PUT", hours, 403)["errors"][0]["detail"]
        self.assertIn("a budget of the parent project", error)
        self.hours.set_budget(base.ADMIN, {"gpu": 10}, "higgs")
        self.hours.set_budget(base.ADMIN, {"gpu": 20}, "detector", reason="a grant")
        for who, status in ((MANAGER, 403), (READER, 403), (STRANGER, 404)):
            self.call(BUDGETS, who, "PUT", hours, status)
            self.call(f"{BUDGETS}/adjust", who, "POST", changed, status)
            self.call(BUDGETS, who, "DELETE", status=status)
        for who, path, status in (
            (STRANGER, BUDGETS, 404),
            (READER, "/v2/quotas/higgs/budgets", 404),
            (PARENT, "/v2/quota_budgets", 403),
        ):
            self.call(path, who, status=status)
        for who in (READER, PARENT, server.ADMIN):
            self.assertEqual([20], [one["hours"] for one in self.call(BUDGETS, who)["budgets"]])
        [made] = self.call(BUDGETS, PARENT, "PUT", hours)["budgets"]
        self.assertEqual((50, "refuse", "month", 0), tuple(made[n] for n in ("hours", "enforce", "every", "carry")))
        self.call(BUDGETS, PARENT, "PUT", {"hours": {"fpga": 50}}, 403)
        self.call(f"{BUDGETS}/adjust", PARENT, "POST", changed)
        for status in (204, 404):
            self.call(BUDGETS, PARENT, "DELETE", status=status)

    def test_the_history(self) -> None:
        self.hours.set_budget(base.ADMIN, {"gpu": 20}, "detector", reason="a grant")
        answer = self.call("/v2/quotas/detector/history", READER)
        self.assert_agrees("History", answer)
        change = answer["history"][0]
        self.assertEqual(("set budget", 20, "a grant"), (change["action"], change["after"]["hours"], change["reason"]))

    def test_pages_with_a_project_that_is_called_as_the_defaults(self) -> None:
        """The list never ended."""
        for name in ("(default)", "zeta"):
            self.hours.set_budget(base.ADMIN, {"gpu": 10}, name)
        pages = itertools.islice(self.pages("/v2/quota_budgets?limit=1", "budgets"), 3)
        self.assertEqual(["(default)", "zeta"], [row["project_id"] for [row] in pages])


class TestRefusals(BudgetTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine.limits.set_limits(base.ADMIN, {"gpu": 20}, "detector")
        self.hours.set_budget(base.ADMIN, {"gpu": 1012}, "physics")
        self.spend(1000)

    def test_an_admin_sees_the_hours(self) -> None:
        [one] = self.check_quota()
        budget = one["budget"]
        found = one["project_id"], budget["hours"], budget["held"], round(budget["spent"]), round(budget["left"])
        self.assertEqual(("physics", 1012, 8, 1000, 12), found)
        self.assertRegex(budget["period_ends"], r"^\d{4}-\d\d-01T00:00:00Z$")

    def test_a_child_does_not_see_the_figures_of_the_parent(self) -> None:
        [one] = self.check_quota(READER)
        hidden = [one[name] for name in ("limit", "in_use", "reserved", "subtree")]
        self.assertEqual([None] * 7, hidden + [one["budget"][name] for name in ("spent", "left", "held")])
        detail = self.call("/v2/quotas/detector/detail", READER)["quota"]["gpu"]
        self.assertEqual({"project_id": "physics", "scope": "budget", "limit": None}, detail["bound_by"])
        self.assertIn(detail["fits"], (3, 4))
        for text in (
            json.dumps(one),
            json.dumps(detail),
            self.run_as(READER, quota.CheckQuota, "gpu=5", "detector")[0],
        ):
            self.assertNotRegex(text, r"\b1000\b|\b99\d\b|\b12\b(?!-)")

    def test_what_was_carried_is_hidden(self) -> None:
        """It is what was not used in the period before."""
        hidden = BudgetUse(1200.0, 1190.0, 8, 1, START, END, is_repeated=True, carried=200.0).hidden
        self.assertEqual((1000.0, None, None, None), (hidden.hours, hidden.spent, hidden.left, hidden.held))
        self.assertNotIn("200", hidden.describe(1))

    def test_the_client_says_what_a_reserve_says(self) -> None:
        for who, context in ((server.ADMIN, base.ADMIN), (READER, base.Context("detector"))):
            [line] = self.run_as(who, quota.CheckQuota, "gpu=5", "detector")[0].splitlines()
            error = self.assertRaises(
                exceptions.BudgetExceeded, self.engine.reserve, context, {"gpu": 5}, project_id="detector"
            )
            self.assertEqual(str(error), f"Budget exceeded for {line}")
        rows, _ = self.run_command(quota.ShowQuota, "--usage", "detector")
        self.assertEqual(["physics (budget)"], [row["Bound By"] for row in rows if row["Resource"] == "gpu"])


class TestReport(BudgetTestCase):
    PATH = "/v2/quota_usage?from=2026-01&to=2099-01"

    def projects(self, who: str, query: str = "") -> list[str]:
        return [one["project_id"] for one in self.call(f"{self.PATH}{query}", who)["usage"]]

    def test_who_sees_what(self) -> None:
        """A marker of another project reveals nothing: it is a position among the rows that the user may see."""
        self.spend(7)
        everything = ["detector", "higgs", "physics"]
        self.assertEqual(everything, [one for one in self.projects(server.ADMIN) if one in everything])
        for who, query, expected in (
            (READER, "", ["detector"]),
            (READER, "&marker=biology/gpu/2020-01", ["detector"]),
            (READER, "&marker=physics/gpu/2020-01", []),
            (PARENT, "&project_id=detector", ["detector"]),
            (PARENT, "&tree=true", ["higgs", "detector"]),
        ):
            self.assertEqual(expected, self.projects(who, query), query)
        for who, query, status in (
            ("rita@higgs:reader", "&tree=true", 403),
            (READER, "&project_id=higgs", 404),
            (READER, "&project_id=nowhere", 404),
        ):
            self.call(f"{self.PATH}{query}", who, status=status)
        for project_id in ("biology", "physics", "nowhere"):
            answer = self.call(f"{self.PATH}&tree=true&marker={project_id}/gpu/2020-01", PARENT, status=400)
            self.assertIn("the list has no such row", answer["errors"][0]["detail"])

    def test_bad_input(self) -> None:
        usage = "/v2/quota_usage?"
        for method, path, body in (
            ("GET", f"{usage}from=2026-13", None),
            ("GET", f"{usage}from=2026-1", None),
            ("GET", f"{usage}to=x", None),
            ("GET", f"{usage}from=2026-02&to=2026-01", None),
            ("GET", f"{usage}from=2019-12", None),
            ("GET", f"{usage}marker=a/b", None),
            ("PUT", BUDGETS, {}),
            ("PUT", BUDGETS, {"hours": {}}),
            ("PUT", BUDGETS, {"hours": {"gpu": -1}}),
            ("PUT", BUDGETS, {"hours": {"gpu": 1}, "from": "2026-01-02"}),
        ):
            self.call(path, method=method, body=body, status=400)
