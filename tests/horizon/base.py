# SPDX-License-Identifier: Apache-2.0
"""The base class of the tests of the panels: it logs users in, and checks the pages that they see."""

from __future__ import annotations

import datetime
import os
import pathlib
from typing import Any, Final

from axe_playwright_python.base import AXE_SCRIPT
from oslotest import base
from PIL import Image
from playwright.sync_api import Page, expect
from testtools.content import text_content

from tests.base import ADMIN
from tests.horizon import stack
from tests.integration import catalog
from tests.servers import sharing

TIMEOUT_MILLISECONDS: Final = 30_000
WIDTHS: Final = (1300, 390)
"""A desktop and a phone, in pixels."""
CONTENT: Final = "#content_body"
"""The part of a page that is not the same on all pages of Horizon."""
SHOWN: Final = f"{CONTENT} table, .modal-content, #sidebar-accordion"
MARGIN: Final = 20
THEME_COLOURS: Final = {"#428bca", "#d9534f"}
"""Colours of links and buttons in Horizon's default theme. Their contrast to white is 3.6 and 4.0, and not 4.5."""
PICTURES: Final = "CYBORG_QUOTA_PICTURES"
"""The environment variable with the directory to which the pictures of the documentation are written."""


class PanelsTestCase(base.BaseTestCase):
    """A test with the shared services, with Cyborg in the catalog at the address of the REST API."""

    def setUp(self) -> None:
        super().setUp()
        self.stack = sharing.need(self, "Horizon", stack.running)
        self.stack.reset()
        expect.set_options(timeout=TIMEOUT_MILLISECONDS)
        self.useFixture(catalog.OnlyAccelerator(self.stack.keystone, f"{self.stack.api.url}/v2"))

    def log_in(self, user: tuple[str, str], panel: str, *cookies: tuple[str, str], is_new: bool = False) -> Page:
        """A page with the browser's cookies of this user alone; ``panel`` is a path, as in project/accelerator_quota.

        The sessions share the browser's cache: Horizon's scripts are large. An earlier page has no session any more. If
        the test fails, its report has what the browser shows, and the log of Horizon.

        :param is_new: log in; otherwise, continue the last session that was not new. A session keeps the catalog.
        """
        context, url = self.stack.context, self.stack.horizon_url
        session = None if is_new else self.stack.sessions.get(user)
        context.clear_cookies()
        context.add_cookies(
            [*(session or []), *[{"name": name, "value": value, "url": url} for name, value in cookies]]
        )
        self.page = page = context.new_page()
        self.addCleanup(page.close)
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        page.set_default_timeout(TIMEOUT_MILLISECONDS)
        self.addOnException(self.describe)
        if session is not None:
            page.goto(f"{url}/{panel}/")
        else:
            page.goto(f"{url}/auth/login/?next=/{panel}/")
            page.fill("#id_username", user[0])
            page.fill("#id_password", user[1])
            page.click("#loginBtn")
        page.wait_for_selector(CONTENT)
        if not is_new and session is None:
            given = {name for name, _value in cookies}
            self.stack.sessions[user] = [one for one in context.cookies() if one["name"] not in given]
        return page

    def describe(self, _error: object) -> None:
        self.addDetail("page", text_content(f"{self.page.url}\n{self.page.content()[:20_000]}"))
        self.addDetail("Horizon", text_content(self.stack.horizon.output()[-10_000:]))

    def make_budget(self, name: str) -> None:
        """Give a project a budget of 1000 hours for a year, of which 400 are spent."""
        hours, project_id = self.stack.engine.hours, self.stack.projects[name]
        start = datetime.datetime.now(datetime.timezone.utc).date().replace(day=1)
        hours.set_budget(ADMIN, {"gpu": 1000}, project_id, start=start, until=start.replace(year=start.year + 1))
        self.addCleanup(hours.delete_budget, ADMIN, project_id)
        hours.adjust(ADMIN, {"gpu": 400}, project_id)

    def go(self, page: Page, path: str) -> None:
        """Go to another path of Horizon."""
        page.goto(f"{self.stack.horizon_url}/{path}/")

    def open_tab(self, page: Page, name: str) -> None:
        """Open a tab, whose content the browser then asks for."""
        page.get_by_role("link", name=name, exact=True).click()
        page.locator(f"{CONTENT} .tab-pane.active .table_wrapper").wait_for()

    def check(self, page: Page, picture: str | None = None, part: str = CONTENT) -> None:
        """Check the page at both widths: it does not scroll to the side, and axe has no serious finding."""
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            self.assertEqual(width, page.evaluate("document.documentElement.scrollWidth"), page.url)
            self.assertEqual([], serious_findings(page, part), (page.url, width))
            if picture is not None and PICTURES in os.environ:
                take_picture(page, f"{picture}-{width}")
        page.set_viewport_size({"width": WIDTHS[0], "height": 900})


def text(page: Page, selector: str = CONTENT) -> str:
    """What a user reads, with single blanks."""
    return " ".join(page.inner_text(selector).split())


def take_picture(page: Page, name: str) -> None:
    """Write a picture of the page, as high as what it shows, to the directory that the environment names."""
    page.evaluate("document.activeElement.blur()")
    bottoms = page.locator(SHOWN).evaluate_all("found => found.map(one => one.getBoundingClientRect().bottom)")
    width = page.evaluate("window.innerWidth")
    path = pathlib.Path(os.environ[PICTURES]) / f"horizon-{name}.png"
    clip: Any = {"x": 0, "y": 0, "width": width, "height": max(bottoms) + MARGIN}
    page.screenshot(path=path, full_page=True, clip=clip)
    with Image.open(path) as image:
        image.convert("RGB").quantize(64).save(path, optimize=True)


def serious_findings(page: Page, part: str) -> list[tuple[Any, ...]]:
    """The serious and critical findings of axe in a part of the page, except the contrast of the theme's colours."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE_SCRIPT)
    result = page.evaluate("part => axe.run(part, {resultTypes: ['violations']})", part)
    return [
        (finding["id"], node["html"])
        for finding in result["violations"]
        if finding["impact"] in ("serious", "critical")
        for node in finding["nodes"]
        if not (finding["id"] == "color-contrast" and THEME_COLOURS & _colours(node))
    ]


def _colours(node: Any) -> set[Any]:
    data = [check["data"] or {} for check in node["any"]]
    return {one.get(name) for one in data for name in ("fgColor", "bgColor")}
