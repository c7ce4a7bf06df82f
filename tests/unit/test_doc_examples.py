# SPDX-License-Identifier: Apache-2.0
"""Every console example of the documentation prints what the page shows, or says why it is not run."""

from __future__ import annotations

import re

from oslotest import base

from tests import doc_examples


class TestExamples(base.BaseTestCase):
    def assert_page(self, name: str) -> None:
        for shown, output in doc_examples.differences(f"doc/source/{name}.rst"):
            self.assertEqual(
                shown.output, output, f"{shown.place}: {shown.command} (python -m tests.doc_examples --write)"
            )

    def test_capacity(self) -> None:
        self.assert_page("capacity")

    def test_cli(self) -> None:
        self.assert_page("cli")

    def test_concepts(self) -> None:
        self.assert_page("concepts")

    def test_contributor_limit_drivers(self) -> None:
        self.assert_page("contributor/limit-drivers")

    def test_cyborg(self) -> None:
        self.assert_page("cyborg")

    def test_install(self) -> None:
        self.assert_page("install")

    def test_keystone(self) -> None:
        self.assert_page("keystone")

    def test_limits(self) -> None:
        self.assert_page("limits")

    def test_operating(self) -> None:
        self.assert_page("operating")

    def test_pods(self) -> None:
        self.assert_page("pods")

    def test_replay(self) -> None:
        self.assert_page("replay")

    def test_what_if(self) -> None:
        self.assert_page("what-if")

    def test_readme_shows_the_table_of_the_page_install(self) -> None:
        """The table of the page is compared with the output of the command."""

        def table(text: str) -> list[str]:
            return [line.strip() for line in re.findall(r"(?m)^ +[|+].*$", text)[:8]]

        readme = (doc_examples.ROOT / "README.rst").read_text()
        page = doc_examples.PAGES["doc/source/install.rst"].read_text()
        self.assertIn("| lab        | gpu      | 4         |        5 |", table(readme)[6])
        self.assertEqual(table(page), table(readme))

    def test_no_page_is_left_out(self) -> None:
        tests = {name.removeprefix("test_").replace("_", "") for name in dir(self) if name.startswith("test_")}
        pages = {page.removeprefix("doc/source/").removesuffix(".rst") for page in doc_examples.PAGES}
        self.assertEqual(set(), {page for page in pages if "".join(filter(str.isalnum, page)) not in tests})


class TestRunner(base.BaseTestCase):
    """The runner itself: a difference is found."""

    PAGE = """
.. run: cyborg-quota db sync

.. save: new.yaml

.. code-block:: yaml

   defaults: {gpu: 4}

.. not run: it needs a server

.. code-block:: console

   $ systemctl restart something

.. code-block:: console

   $ cyborg-quota db version -f value -c needed
   a1c0
   $ cyborg-quota db purge -f value

Text.
"""

    def test_steps(self) -> None:
        steps = list(doc_examples.steps("page", self.PAGE))
        self.assertEqual("cyborg-quota db sync", steps[0].hidden)
        self.assertEqual(("new.yaml", "defaults: {gpu: 4}\n"), steps[1].file)
        shown = [step.shown for step in steps[2:] if step.shown is not None]
        self.assertEqual(
            ["cyborg-quota db version -f value -c needed", "cyborg-quota db purge -f value"],
            [one.command for one in shown],
        )
        self.assertEqual([("a1c0", (19, 19)), ("", (21, 20))], [(one.output, one.lines) for one in shown])

    def test_an_old_output_is_found(self) -> None:
        with doc_examples.surroundings() as directory:
            session = doc_examples.Session(directory)
            outputs = [session.run(step) for step in doc_examples.steps("page", self.PAGE)]
        self.assertEqual([None, None], outputs[:2])
        self.assertNotEqual("a1c0", outputs[2])
        self.assertEqual("0", outputs[3])

    def test_what_may_differ(self) -> None:
        for one, other in (
            ("| seconds  | 0.08  |", "| seconds | 12.5 |"),
            ("+----+", "+------+"),
            ("at 2026-11-21T16:27:31.352630Z", "at 2027-01-01T00:00:00.000000Z"),
            ("5205b36c-1e5f-436a-8395-9a048da050ff", "92bf95c0-29da-452d-8c8b-1ca9f06024e1"),
        ):
            self.assertEqual(doc_examples.normalized(one), doc_examples.normalized(other))
        self.assertNotEqual(doc_examples.normalized("| used | 3 |"), doc_examples.normalized("| used | 4 |"))
