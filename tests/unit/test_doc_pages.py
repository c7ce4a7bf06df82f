# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation in a browser, at two widths: nothing is cut off, and nothing is listed twice."""

from __future__ import annotations

import html
import pathlib
import re

import fixtures as fx
import yaml
from oslotest import base

from tests import doc_pages, installing, needs
from tests.unit import test_docs

FAULTY = """\
<!DOCTYPE html>
<html><body><div class="docs-body">
<pre style="overflow: hidden; width: 300px">{long}</pre>
<p style="overflow-wrap: normal; width: 100px">{word}</p>
<ul><li>one</li><li style="margin-top: -10px">two</li></ul>
<p>These:
* one
* two</p>
<div style="width: 1200px">A table</div>
</div>
<div id="table-of-contents"><ul><li><a href="page.html">Page</a></li><li><a href="page.html#x">Page</a></li></ul></div>
</body></html>
"""
"""A page with each fault that the check knows, besides a scroll bar that does not show."""


class TestPages(base.BaseTestCase):
    def check(self, html_directory: pathlib.Path, names: list[str]) -> list[str]:
        try:
            return doc_pages.check(html_directory, names)
        except doc_pages.NotAvailable as reason:
            needs.missing(self, str(reason))

    def test_each_page_at_each_width(self) -> None:
        names = doc_pages.pages_of(test_docs.built())
        self.assertGreater(len(names), 50)
        self.assertEqual([], self.check(test_docs.built(), names))

    def test_faults_are_found(self) -> None:
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        (directory / "faulty.html").write_text(FAULTY.format(long="long " * 100, word="long" * 30))
        found = self.check(directory, ["faulty"])
        for width, fault in (
            (1300, "is cut off"),
            (1300, "is wider than its box"),
            (1300, "items of a list run together"),
            (1300, "a list in a paragraph"),
            (1300, "a page is listed twice in the side bar"),
            (390, "the page scrolls horizontally"),
            (390, "reaches from 8 to 1208 px"),
        ):
            with self.subTest(fault):
                self.assertTrue([one for one in found if one.startswith(f"faulty ({width} px): {fault}")], found)
        self.assertFalse([one for one in found if "(1300 px): the page scrolls" in one], found)

    def test_the_release_notes_are_shown(self) -> None:
        """The first words of each note are on the page."""
        page = (test_docs.built() / "release-notes.html").read_text()
        shown = _plain(html.unescape(re.sub(r"<[^>]+>", "", page)))
        notes = sorted((installing.TOP / "releasenotes/news").glob("*.yaml"))
        self.assertEqual(1, len(notes))
        for path in notes:
            for section, texts in yaml.safe_load(path.read_text()).items():
                for text in [texts] if section == "prelude" else texts:
                    first = _plain(re.sub(r":\w+:`[^`]*`.*|`[^`]* <[^`]*>`_.*", "", text))[:40]
                    self.assertIn(first, shown, path.name)


def _plain(text: str) -> str:
    """The letters and digits of a text."""
    return re.sub(r"[\W_]+", "", text)
