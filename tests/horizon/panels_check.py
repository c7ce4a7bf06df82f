# SPDX-License-Identifier: Apache-2.0
"""Forms, texts and the client of the panels, without a service and a browser: run by Horizon's Python.

See test_parts.py, which runs it.
"""

from __future__ import annotations

import re
import unittest
from typing import Any
from unittest import mock

import django
from django.http import QueryDict
from django.template.loader import render_to_string
from django.test import RequestFactory

django.setup()

from horizon import exceptions  # noqa: E402

from cyborg_quota.horizon import client, forms, rows, tables, tabs, texts  # noqa: E402

REQUESTS = RequestFactory()


def tab_of(slug: str, api: client.QuotaClient) -> Any:
    """A tab of the cloud, which is not part of a page."""
    [kind] = [one for one in tabs.QuotasTabs.tabs if one.slug == slug]
    made = kind.__new__(kind)
    made.request, made.tab_group = mock.Mock(_cyborg_quota_client=api, GET={}), mock.Mock(kwargs={})
    return made


class TestLimits(unittest.TestCase):
    """The form is shown with fpga and gpu, and sent when the service has other resources."""

    def test_a_resource_that_appears_does_not_take_the_limit_of_another(self) -> None:
        query = QueryDict(mutable=True)
        query.update({"limit_fpga": "2", "initial-limit_fpga": "2", "limit_gpu": "22", "initial-limit_gpu": "20"})
        for kind in (forms.SetLimitsForm, forms.SetDefaultsForm):
            for now in ({"fpga": 2, "fpga.U250": None, "gpu": None}, {"a": 1, "fpga": 2, "gpu": 20}):
                form = kind(REQUESTS.post("/x"), query, initial={"ids": {"project_id": "p"}, "limits": now})
                self.assertTrue(form.is_valid(), form.errors.as_json())
                self.assertEqual({"gpu": 22}, form.body(form.cleaned_data)["quota"])
        query["limit_gpu"] = ""
        form = forms.SetLimitsForm(REQUESTS.post("/x"), query, initial={"ids": {}, "limits": {"fpga": 2, "gpu": 20}})
        self.assertEqual(["limit_gpu"], list(form.errors))


class TestBars(unittest.TestCase):
    def text(self, **changes: Any) -> str:
        detail = {
            "limit": 20,
            "in_use": 5,
            "reserved": 1,
            "fits": 14,
            "bound_by": None,
            "override": None,
            "in_force": "own",
            **changes,
        }
        usages = [rows.usage("gpu", detail)]
        shown = render_to_string("accelerator_quota/_bars.html", {"usages": usages, "is_cell": True})
        return " ".join(re.sub(r"<[^>]+>", " ", shown).split())

    def test_what_is_held_and_what_fits(self) -> None:
        total = {"project_id": None, "scope": "total", "limit": 6}
        counter = {"project_id": "p", "scope": "counter", "limit": 2**31 - 1}
        for changes, expected in (
            ({}, "gpu 5 of 20 in use, 1 reserved (own limit); 14 fit"),
            ({"in_force": "default"}, "gpu 5 of 20 in use, 1 reserved (default); 14 fit"),
            ({"in_force": "override"}, "gpu 5 of 20 in use, 1 reserved (override); 14 fit"),
            ({"in_force": None}, "gpu 5 of 20 in use, 1 reserved; 14 fit"),
            ({"fits": 1, "reserved": 0}, "gpu 5 of 20 in use (own limit); 1 fits"),
            ({"limit": 4, "fits": 0}, "gpu 5 of 4 in use, 1 reserved (over the limit) (own limit); 0 fit"),
            ({"limit": -1, "fits": 0, "bound_by": total}, "gpu 5 in use (unlimited), 1 reserved (own limit); 0 fit"),
            ({"limit": -1, "fits": 2**31 - 7, "bound_by": counter}, "gpu 5 in use (unlimited), 1 reserved (own limit)"),
            ({"limit": -1, "fits": -1}, "gpu 5 in use (unlimited), 1 reserved (own limit)"),
            ({"limit": None, "fits": 0}, "gpu 5 in use (no limit is set), 1 reserved; 0 fit"),
        ):
            self.assertEqual(expected, self.text(**changes))


class TestTexts(unittest.TestCase):
    def usage(self, **changes: Any) -> Any:
        detail = {"limit": 9, "in_use": 5, "reserved": 1, "fits": 3, "bound_by": None, "override": None, **changes}
        return rows.usage("gpu", detail)

    def test_limits_and_what_binds(self) -> None:
        usage = self.usage(override={"until": "2999-12-05T18:00:07Z", "otherwise": -1})
        self.assertEqual("9 (override until 2999-12-05 18:00:07, otherwise Unlimited)", texts.limit_in_force(usage))
        budget = self.usage(bound_by={"project_id": "physics", "scope": "budget", "limit": None})
        self.assertEqual("The budget of project physics and all projects below it", texts.bound_by(budget))
        counter = {"project_id": "p", "scope": "counter", "limit": 2**31 - 1}
        for changes in ({"fits": -1}, {"fits": 2**31 - 4, "bound_by": counter}):
            self.assertEqual("Unlimited", texts.fits(self.usage(limit=-1, **changes)))

    def test_a_budget_that_has_ended(self) -> None:
        ended = {"spent": None, "left": None, "held": None, "enforce": "notify"}
        self.assertEqual((None, "Notices only"), (texts.hours("spent")(ended), texts.when_spent(ended)))

    def test_what_was_changed(self) -> None:
        found = [texts.changed(value) for value in (None, -1, 0, 7, "physics", {"hours": 10, "every": "month"})]
        self.assertEqual([None, "Unlimited", "0", "7", "physics", "hours 10, every month"], found)


class TestClient(unittest.TestCase):
    """The calls of the client, with answers of the test."""

    def client(self, *answers: Any) -> tuple[client.QuotaClient, mock.Mock]:
        made = client.QuotaClient.__new__(client.QuotaClient)
        call = made.call = mock.Mock(side_effect=answers)
        return made, call

    def test_pages_of_the_capacity(self) -> None:
        first = {"capacity": [{"provider": "n/1", "resource": "gpu"}], "capacity_links": [{"rel": "next"}]}
        api, call = self.client(first, {"capacity": []})
        found, has_more = api.listed("capacity", "/quota_capacity", {}, 1, None)
        self.assertEqual((True, "n%2F1/gpu"), (has_more, client.marker_of("provider", "resource")(found[0])))
        self.assertEqual(([], False), api.listed("capacity", "/quota_capacity", {}, 1, "n%2F1/gpu"))
        self.assertEqual({"limit": 1, "marker": "n%2F1/gpu"}, call.call_args.kwargs["params"])

    def test_all_total_limits(self) -> None:
        """The tab has those of all pages."""
        link = {"rel": "next", "href": "http://x/v2/quota_totals?limit=1&marker=fpga"}
        api, call = self.client(
            {"quota": {"fpga": {"limit": 2, "held": 0}}, "quota_links": [link]},
            {"quota": {"gpu": {"limit": 5, "held": 1}}},
        )
        self.assertEqual(["fpga", "gpu"], [one["resource"] for one in tab_of("totals", api).read()])
        self.assertEqual({"limit": "1", "marker": "fpga"}, call.call_args.kwargs["params"])

    def test_the_budgets_have_the_names_of_their_projects(self) -> None:
        page = {"budgets": [{"project_id": "p", "resource": "gpu"}, {"project_id": "gone", "resource": "gpu"}]}
        api, call = self.client(page)
        with mock.patch("cyborg_quota.horizon.client.project_names", return_value={"p": "physics"}):
            self.assertEqual(["physics", "gone"], [one["name"] for one in tab_of("budgets", api).read(limit=9)])
        self.assertEqual({"limit": 9}, call.call_args.kwargs["params"])


class TestExpiredToken(unittest.TestCase):
    """The service answers 401, in its own format or in that of keystonemiddleware in Cyborg's API."""

    def test_horizon_asks_for_a_new_login(self) -> None:
        api = client.QuotaClient.__new__(client.QuotaClient)
        api._endpoint, api._session = "http://127.0.0.1:1/v2", mock.Mock()
        for body in ({"errors": [{"status": 401, "detail": "no"}]}, {"error": {"code": 401, "message": "no"}}):
            answer = mock.Mock(status_code=401, json=mock.Mock(return_value=body))
            api._session.request.return_value = answer
            self.assertRaises(rows.QuotaUnauthorized, api.quota, client.DEFAULTS)
            tab = tab_of("pods", api)
            with mock.patch("horizon.messages.error"):
                self.assertRaises(exceptions.NotAuthorized, tab.rows_or_none)
            form = forms.UnsetLimitsForm(tab.request, {"reason": ""}, initial={"ids": {"project_id": "p"}})
            self.assertTrue(form.is_valid())
            self.assertRaises(rows.QuotaUnauthorized, form.handle, tab.request, form.cleaned_data)


class TestTables(unittest.TestCase):
    def test_a_limit_in_a_pod_is_named(self) -> None:
        column = tables.HistoryTable(REQUESTS.get("/x"), data=[], project_id="p").columns["pod"]
        found = [column.get_data({"id": f"of {pod}", "pod": pod}) for pod in (None, "north", "")]
        self.assertEqual([None, "north", "(hidden)"], found)

    def test_the_next_page_is_in_the_same_tab(self) -> None:
        for table, expected in (
            (tables.CapacityTable, "tab=quotas__capacity&capacity_marker=n%252F1%2Fgpu"),
            (tables.HistoryTable, "tab=quota__history&history_marker=7-0"),
            (tables.CloudBudgetsTable, "tab=quotas__budgets&budget_marker=p%2Fgpu"),
        ):
            datum = {"id": "7-0", "project_id": "p", "provider": "n/1", "resource": "gpu", "pod": None}
            made = table(REQUESTS.get("/x"), data=[datum], project_id="p")
            self.assertEqual(expected, made.get_pagination_string())


if __name__ == "__main__":
    unittest.main()
