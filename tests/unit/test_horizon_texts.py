# SPDX-License-Identifier: Apache-2.0
"""Every text of the panels of Horizon goes through gettext."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

from oslotest import base

PANELS = pathlib.Path(__file__).parents[2] / "cyborg_quota/horizon"
TRANSLATED = {"_", "gettext", "gettext_lazy", "ngettext_lazy"}
SENTENCE = re.compile(r"[A-Z]\w*\b(?!/)")
"""How the texts of the panels begin. No other string of their code begins with a capital letter."""
NOT_TEXTS = {"GET", "PUT", "POST", "DELETE", "Accept", "Item"}
TAGS = re.compile(
    r"{% comment %}.*?{% endcomment %}|{% blocktrans.*?{% endblocktrans %}|{%.*?%}|{{.*?}}|{#.*?#}|<[^>]*>", re.DOTALL
)


def untranslated(source: str) -> Iterator[str]:
    """The texts of a module that are no arguments of gettext. Docstrings are not texts."""
    tree = ast.parse(source)
    passed = {
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TRANSLATED
        for argument in node.args
    }
    passed |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in passed:
            continue
        if SENTENCE.match(node.value) and node.value not in NOT_TEXTS:
            yield node.value


def untranslated_of_template(source: str) -> str:
    """What remains of a template without its tags, and is thus shown as it is."""
    return re.sub(r"[^A-Za-z]+", " ", TAGS.sub(" ", source)).strip()


class TestTexts(base.BaseTestCase):
    def test_modules(self) -> None:
        modules = sorted(PANELS.rglob("*.py"))
        self.assertGreater(len(modules), 10)
        self.assertEqual({}, {path.name: found for path in modules if (found := [*untranslated(path.read_text())])})

    def test_templates(self) -> None:
        templates = sorted(PANELS.rglob("*.html"))
        self.assertGreater(len(templates), 5)
        self.assertEqual(
            {}, {path.name: found for path in templates if (found := untranslated_of_template(path.read_text()))}
        )
