# SPDX-License-Identifier: Apache-2.0
"""Every console example of the documentation prints what the page shows, or says why it is not run."""

from __future__ import annotations

import re

import testscenarios
from oslotest import base

from tests import doc_examples


class TestExamples(testscenarios.WithScenarios, base.BaseTestCase):
    scenarios = [(page, {"page": page}) for page in doc_examples.PAGES]
    page = ""

    def test_page(self) -> None:
        for shown, output in doc_examples.differences(self.page):
            self.assertEqual(
                shown.output, output, f"{shown.place}: {shown.command} (python -m tests.doc_examples --write)"
            )


class TestReadme(base.BaseTestCase):
    def test_readme_shows_the_table_of_the_page_install(self) -> None:
        """The table of the page is compared with the output of the command."""
        tables = []
        for path in (doc_examples.PAGES["doc/source/install/index.rst"], doc_examples.ROOT / "README.rst"):
            tables.append([line.strip() for line in re.findall(r"(?m)^ +[|+].*$", path.read_text())[:8]])
        self.assertEqual(*tables)
        self.assertIn("| lab        | gpu      | 4         |        5 |", tables[0][6])


class TestElsewhere(base.BaseTestCase):
    def test_every_other_command_has_a_test_or_a_reason(self) -> None:
        found = list(doc_examples.left_out())
        self.assertEqual([], [one.place for one in found if doc_examples.where(one.command) is None])
        self.assertEqual({*doc_examples.ELSEWHERE.values()}, {doc_examples.where(one.command) for one in found})

    def test_the_tests_take_the_commands_from_the_pages(self) -> None:
        for module in {*doc_examples.ELSEWHERE.values()}:
            if re.fullmatch(r"[\w.]+", module):
                source = (doc_examples.ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
                self.assertIn("doc_examples.commands_of(__name__)", source)


class TestNormalized(base.BaseTestCase):
    def test_what_may_differ(self) -> None:
        for one, other in (
            ("| seconds  | 0.08  |", "| seconds | 12.5 |"),
            ("+----+", "+------+"),
            ("at 2026-11-21T16:27:31.352630Z", "at 2027-01-01T00:00:00.000000Z"),
            ("5205b36c-1e5f-436a-8395-9a048da050ff", "92bf95c0-29da-452d-8c8b-1ca9f06024e1"),
        ):
            self.assertEqual(doc_examples.normalized(one), doc_examples.normalized(other))
        self.assertNotEqual(doc_examples.normalized("| used | 3 |"), doc_examples.normalized("| used | 4 |"))
