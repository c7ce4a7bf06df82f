# SPDX-License-Identifier: Apache-2.0
"""The panels in a real Horizon, with a real Keystone and the served REST API, through a browser."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from cyborg_quota import Inventory, exceptions
from cyborg_quota.types.capacity import ResourceUse
from tests import base as ledger
from tests.horizon.base import PanelsTestCase
from tests.horizon.base import text as text_of
from tests.integration import catalog, rest_api
from tests.servers import machine

IN_KEYSTONE = """\
[limits]
driver = keystone
[oslo_limit]
auth_type = password
auth_url = {keystone.url}
username = admin
password = {keystone.password}
user_domain_id = default
system_scope = all
endpoint_id = {endpoint}
"""
PROJECT = "project/accelerator_quota"
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
MONTH = r"\d{4}-\d\d-01 00:00:00"
BUDGET = r"gpu 1000\.0 400\.\d (599\.\d|600\.0)"
"""What ``make_budget`` makes: the hours, those that are spent and those that are left."""
ADMIN = "admin/accelerator_quotas"


class TestProject(PanelsTestCase):
    """Project > Compute > Accelerator Quota."""

    def test_what_the_project_holds_and_what_fits(self) -> None:
        context = ledger.Context(self.stack.projects["atlas"])
        self.stack.attach("atlas", gpu=5)
        self.stack.engine.reserve(context, {"gpu": 1}, consumer="a request in flight")
        self.make_budget("atlas")
        page = self.log_in(self.stack.bob, PROJECT)
        page.get_by_role("link", name="Accelerator Quota", exact=True).wait_for()
        text = text_of(page)
        self.assertIn("gpu 5 of 20 in use, 1 reserved; 14 fit", text)
        self.assertIn("gpu 20 5 1 14 The limit of the project", text)
        self.assertRegex(text, r"gpu 1 a request in flight - \d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
        self.assertRegex(text, rf"{BUDGET} 6 {TIME} {MONTH} Requests are refused")
        self.check(page, "project")
        self.reach_the_limit(page)
        self.check_others_are_hidden(page)

    def reach_the_limit(self, page: Page) -> None:
        """First that of the parent binds; then the project attaches all that fits."""
        self.stack.attach("cms", gpu=8)
        self.stack.attach("physics", gpu=4)
        page.reload()
        physics = self.stack.projects["physics"]
        self.assertIn(f"12 The limit 30 of project {physics} and all projects below it", text_of(page))
        self.stack.attach("atlas", gpu=12)
        with self.assertRaises(exceptions.OverQuota):
            self.stack.attach("atlas", gpu=1)
        page.reload()
        self.assertIn("gpu 17 of 20 in use, 1 reserved; 0 fit", text_of(page))
        self.check(page, "limit-reached")

    def check_others_are_hidden(self, page: Page) -> None:
        """Bob sees no other project, and not the panel of the admin (I8)."""
        source = page.content()
        for name in ("cms", "biology"):
            self.assertNotIn(self.stack.projects[name], source)
        self.assertNotIn(ADMIN, source)
        for path in (ADMIN, f"{ADMIN}/project/{self.stack.projects['cms']}"):
            self.go(page, path)
            self.assertIn("You are not authorized to access this page", text_of(page, "body"))

    def test_an_admin_sees_only_the_project_of_the_token(self) -> None:
        """The token of an admin could read the reservations of all projects."""
        context = ledger.Context(self.stack.projects["biology"])
        uuids = self.stack.engine.reserve(context, {"gpu": 1}, consumer="of biology")
        self.addCleanup(self.stack.engine.rollback, context, uuids)
        page = self.log_in(self.stack.alice, PROJECT)
        self.assertIn("Reservations in Flight", text_of(page))
        self.assertNotIn("of biology", page.content())


class TestAdmin(PanelsTestCase):
    """Admin > System > Accelerator Quotas."""

    def open_project(self, page: Page, name: str, tab: str = "Usage") -> None:
        self.go(page, f"{ADMIN}/project/{self.stack.projects[name]}")
        self.open_tab(page, tab)

    def submit(self, page: Page, button: str, done: str | None = None, **fields: str) -> Locator:
        """Fill in the form that is shown, and press the button; ``done`` is the message of success.

        Returns the form, which is still shown after an error.
        """
        form = page.locator("#quota_form")
        for label, value in fields.items():
            form.get_by_label(label).fill(value)
        self.check(page, part="#quota_form")
        form.get_by_role("button", name=button).click()
        if done is not None:
            page.get_by_text(done).wait_for()
        return form

    def test_filter_and_pages(self) -> None:
        page = self.log_in(self.stack.alice, ADMIN, ("API_RESULT_PAGE_SIZE", "4"), is_new=True)  # (it keeps the filter)
        names = self.names(page)
        self.assertEqual(4, len(names))
        while page.get_by_role("link", name="Next").count():
            page.get_by_role("link", name="Next").last.click()
            page.wait_for_load_state()
            names += self.names(page)
        self.assertLessEqual({*self.stack.projects, "admin"}, {*names})
        self.assertEqual(sorted({*names}, key=str.casefold), names)
        for field, text, expected in (
            ("Project Name contains", "TLA", ["atlas"]),
            ("Project ID =", self.stack.projects["cms"], ["cms"]),
            ("Project ID =", "nobody", []),
        ):
            page.select_option("select[name=projects__filter__q_field]", label=field)
            page.fill("input[name=projects__filter__q]", text)
            page.get_by_role("button", name="Filter").click()
            page.wait_for_load_state()
            self.assertEqual(expected, self.names(page))

    def names(self, page: Page) -> list[str]:
        return page.locator("#projects tbody tr:not(.empty) td:first-child").all_inner_texts()

    def test_set_limits(self) -> None:
        self.stack.attach("atlas", gpu=12)
        self.stack.attach("cms", gpu=8)
        page = self.log_in(self.stack.alice, ADMIN)
        self.check(page, "projects")
        self.see_compact_rows(page)
        page.locator("#projects tbody tr", has_text="biology").get_by_role("link", name="Set Limits").click()
        self.submit(page, "Set Limits", "The limits were set.", gpu="7", Reason="two more cards")
        self.assertIn("gpu 0 of 7 in use; 7 fit", text_of(page))
        self.see_the_warning(page)
        self.see_refusals(page)
        self.see_the_history(page)
        self.return_to_the_defaults(page)

    def see_compact_rows(self, page: Page) -> None:
        """A line for each resource; the rows can be sorted by what is nearly full."""
        rows = page.locator("#projects tbody tr:not(.empty)")
        self.assertIn(
            "cms Default fpga 0 of 0 in use (default); 0 fit gpu 8 of 10 in use (own limit); 2 fit 80 %",
            text_of(page, "#projects"),
        )
        for _ in range(2):  # the largest is last, and then first
            page.locator("#projects th", has_text="Held").click()
        expect(rows.first).to_contain_text("cms")

    def see_the_warning(self, page: Page) -> None:
        """More is promised than exists, which is permitted."""
        self.stack.engine.capacity.add_provider(ledger.ADMIN, "node-0")
        self.addCleanup(self.stack.engine.capacity.remove_provider, ledger.ADMIN, "node-0")
        self.stack.engine.capacity.set_inventories(ledger.ADMIN, "node-0", {"gpu": Inventory(4)})
        self.open_project(page, "biology")
        page.get_by_role("link", name="Set Limits").click()
        self.submit(page, "Set Limits", "The limits were set.", gpu="8")
        expect(page.locator(".alert-warning").first).to_contain_text("gpu: the limits add up to")
        self.check(page)

    def see_refusals(self, page: Page) -> None:
        """The reasons of the service, in the form, which keeps what was typed; and a limit that needs force."""
        self.open_project(page, "cms")
        page.get_by_role("link", name="Set Limits").click()
        for value, words in (
            ("25", "the limits in gpu of the children of physics would sum up to 45; the limit of physics is 30"),
            ("3", "gpu: 3 is less than 8 in use and 0 reserved. Nothing was changed. Use force to set the limit."),
            ("many", "Enter a whole number"),
            ("10", "No limit was changed"),
        ):
            form = self.submit(page, "Set Limits", gpu=value)
            expect(form).to_contain_text(words)
            self.assertEqual(value, form.get_by_label("gpu").input_value())
            if value == "25":
                self.check(page, "refusal", part="#quota_form")
        form.get_by_text("Force: permit limits below").click()
        self.submit(page, "Set Limits", "The limits were set.", gpu="3")
        self.assertIn("gpu 8 of 3 in use (over the limit); 0 fit", text_of(page))
        self.check(page)

    def see_the_history(self, page: Page) -> None:
        self.open_project(page, "biology", "History")
        when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
        self.assertRegex(text_of(page), f"{when} set limit gpu - 5 7 - - two more cards alice")
        self.check(page, "history")

    def return_to_the_defaults(self, page: Page) -> None:
        self.go(page, ADMIN)
        row = page.locator("#projects tbody tr", has_text="biology")
        row.get_by_role("button", name="More actions").click()
        row.get_by_role("link", name="Return to Defaults").click()
        self.submit(page, "Return to Defaults", "The limits were removed.", Reason="the end")
        self.open_tab(page, "Usage")  # (Horizon shows the last tab)
        self.assertIn("gpu 0 of 0 in use", text_of(page))
        limits = self.stack.engine.limits.list_limits(ledger.ADMIN, self.stack.projects["biology"])
        self.assertEqual([], [one for one in limits if one.is_own])

    def test_overrides(self) -> None:
        page = self.log_in(self.stack.alice, ADMIN)
        row = page.locator("#projects tbody tr", has_text="biology")
        row.get_by_role("button", name="More actions").click()
        row.get_by_role("link", name="Add Override").click()
        form = page.locator("#quota_form")
        form.get_by_label("Resource").select_option("gpu")
        self.submit(page, "Add Override", Limit="9", Until="2001-01-31T08:00")
        expect(form.locator(".alert-danger")).to_contain_text("An override must end in the future")
        done = "The override was added."
        self.submit(page, "Add Override", done, Until="2099-01-31T08:00", Reason="a campaign")
        self.assertIn("gpu 0 of 9 in use; 9 fit", text_of(page))
        self.assertIn("gpu 9 (override until 2099-01-31 08:00:00, otherwise 5) 0 0 9 The override", text_of(page))
        self.check(page, "override")
        self.open_tab(page, "Overrides")
        self.assertRegex(text_of(page), r"gpu 9 [\d-]+ \d\d:\d\d:\d\d 2099-01-31 08:00:00 a campaign")
        self.check(page)
        self.see_the_own_limit(page)
        self.open_tab(page, "Overrides")
        page.get_by_role("link", name="Cancel Override").click()
        self.submit(page, "Cancel Override", "The override was cancelled.", Reason="it ended early")
        [entry] = self.stack.engine.limits.history(ledger.ADMIN, self.stack.projects["biology"], limit=1)
        self.assertEqual("it ended early", entry.reason)
        self.open_tab(page, "Usage")
        self.assertIn("gpu 0 of 5 in use; 5 fit", text_of(page))

    def see_the_own_limit(self, page: Page) -> None:
        """While an override applies, the form has the own limit, which can be set."""
        self.open_tab(page, "Usage")
        page.get_by_role("link", name="Set Limits").click()
        form = page.locator("#quota_form")
        self.assertEqual("5", form.get_by_label("gpu").input_value())
        # Meanwhile, a resource gets a limit that has none in this form.
        administration, biology = self.stack.engine.limits, self.stack.projects["biology"]
        administration.set_limit(ledger.ADMIN, "fpga", 3, biology)
        self.submit(page, "Set Limits", "The limits were set.", gpu="9")
        entries = administration.history(ledger.ADMIN, biology, limit=2)
        self.assertEqual([("gpu", 5, 9), ("fpga", None, 3)], [(one.resource, one.before, one.after) for one in entries])
        administration.set_limit(ledger.ADMIN, "gpu", 5, biology)

    def test_tree_and_reservations(self) -> None:
        self.stack.attach("cms", gpu=8)
        atlas = ledger.Context(self.stack.projects["atlas"])
        self.stack.engine.reserve(atlas, {"gpu": 2}, consumer="a request in flight")
        page = self.log_in(self.stack.alice, ADMIN)
        self.open_project(page, "physics", "Project Tree")
        text = text_of(page)
        self.assertIn("physics gpu 30 0 10 10", text)
        self.assertIn("cms gpu 10 8 0 8", text)
        self.assertLess(text.index("physics"), text.index("cms"))
        self.check(page, "tree")
        page.get_by_role("link", name="cms").first.click()
        page.locator(".detail-title", has_text="cms").wait_for()
        self.assertIn("gpu 8 of 10 in use; 2 fit", text_of(page))
        self.open_project(page, "atlas", "Reservations in Flight")
        self.assertIn("gpu 2 a request in flight", text_of(page))

    def test_defaults_capacity_and_pods(self) -> None:
        page = self.log_in(self.stack.alice, ADMIN, is_new=True)
        for name in ("Totals", "Budgets", "Capacity", "Pods"):
            self.assertEqual(0, page.get_by_role("link", name=name).count(), name)
        self.open_tab(page, "Defaults")
        page.get_by_role("link", name="Set Default Limits").click()
        self.submit(page, "Set Default Limits", "The default limits were set.", fpga="4")
        self.assertEqual(4, self.stack.engine.limits.default_limits(ledger.Context("p"))["fpga"])
        self.make_capacity_and_pod()
        self.make_budget("cms")
        self.go(page, ADMIN)
        for name, expected in (
            ("Totals", "gpu 50 0"),
            ("Budgets", f"cms {BUDGET} 0 - {MONTH} Requests are refused"),
            ("Capacity", "node-1 gpu 8 1 7 0 7"),
            ("Pods", "north az1 available gpu: 3 / 8"),
        ):
            self.open_tab(page, name)
            self.assertRegex(text_of(page), expected)
            self.check(page)
        self.see_that_the_service_is_down()

    def make_capacity_and_pod(self) -> None:
        capacity, pods = self.stack.engine.capacity, self.stack.engine.pods
        capacity.add_provider(ledger.ADMIN, "node-1")
        self.addCleanup(capacity.remove_provider, ledger.ADMIN, "node-1")
        capacity.set_inventories(ledger.ADMIN, "node-1", {"gpu": Inventory(8, reserved=1)})
        self.addCleanup(capacity.remove_inventory, ledger.ADMIN, "node-1", "gpu")
        pods.add(ledger.ADMIN, "north", zone="az1", threshold=90)
        self.addCleanup(pods.remove, ledger.ADMIN, "north")
        pods.set_usage(ledger.ADMIN, "north", {"gpu": ResourceUse(8, 3)})
        self.stack.engine.limits.set_total_limits(ledger.ADMIN, {"gpu": 50})
        self.addCleanup(self.stack.engine.limits.unset_total_limits, ledger.ADMIN, ["gpu"])

    def see_that_the_service_is_down(self) -> None:
        """Nothing answers at the endpoint of the catalog; Horizon remembers that there are capacity and pods."""
        nobody = f"http://127.0.0.1:{machine.free_port()}"
        self.useFixture(catalog.OnlyAccelerator(self.stack.keystone, nobody))
        page = self.log_in(self.stack.alice, PROJECT, is_new=True)
        for path in (PROJECT, ADMIN, f"{ADMIN}/project/{self.stack.projects['cms']}"):
            self.go(page, path)
            self.assertIn("The quota service cannot be reached.", text_of(page, "body"))
            self.assertNotIn("No resources are configured", text_of(page))
            if path != ADMIN:
                self.assertIn("The quota cannot be shown at the moment.", text_of(page))
                self.check(page, "unavailable" if path == PROJECT else None)
        self.go(page, f"{ADMIN}/project/{self.stack.projects['cms']}/set")
        self.assertTrue(page.url.endswith(f"/{ADMIN}/"), page.url)


class TestLimitsInKeystone(PanelsTestCase):
    """A service with the driver keystone, over a ledger whose tables have limits too."""

    def test_the_limits_of_keystone_which_cannot_be_set_here(self) -> None:
        keystone, biology = self.stack.keystone, self.stack.projects["biology"]
        service, endpoint = keystone.create_service()
        keystone.register(service, "gpu", 11)
        keystone.set_limit(service, "gpu", 7, project_id=biology)
        limits = IN_KEYSTONE.format(keystone=keystone, endpoint=endpoint)
        api = self.useFixture(rest_api.RestAPI(self.stack.ledger, keystone, rest_api.ONE_WORKER, limits))
        self.useFixture(catalog.OnlyAccelerator(keystone, f"{api.url}/v2"))
        self.stack.attach("biology", gpu=2)
        page = self.log_in(self.stack.alice, ADMIN, is_new=True)
        self.assertIn("gpu 2 of 7 in use", text_of(page, "#projects tr:has-text('biology')"))
        for path in (ADMIN, f"{ADMIN}/project/{biology}"):
            self.go(page, path)
            self.check(page)
            self.assertIn("Limits are set in Keystone", text_of(page))
            for action in ("Set Limits", "Add Override", "Return to Defaults", "Set Default Limits"):
                self.assertEqual(0, page.get_by_text(action, exact=True).count(), (path, action))
