# SPDX-License-Identifier: Apache-2.0
"""The page "Where is the code of ...?" names files, classes and functions that exist."""

from __future__ import annotations

import ast
import pathlib
import re

from oslotest import base

import cyborg_quota

PACKAGE = pathlib.Path(cyborg_quota.__file__).parent
PAGE = PACKAGE.parent / "doc/source/contributor/where-is-the-code.rst"
NAME = re.compile(r"``([\w/.]+)``")


def definitions(path: pathlib.Path) -> set[str]:
    """The functions, classes and constants of a module, and the methods as ``Class.method``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            methods = {f"{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
            names |= {node.name, *methods}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def references(text: str) -> list[tuple[str, str]]:
    """(file, name) for each name that follows a file in an item of the list."""
    pairs = []
    for item in re.findall(r"(?ms)^\* (.*?)(?=^\S|\Z)", text):
        file = ""
        for name in NAME.findall(item):
            if name.endswith(".py"):
                file = name
            elif file and not name.endswith("/"):
                pairs.append((file, name))
    return pairs


class TestCodeMap(base.BaseTestCase):
    def test_every_name_is_defined_in_its_file(self) -> None:
        pairs = references(PAGE.read_text())
        self.assertGreater(len(pairs), 40)
        missing = [
            (file, name)
            for file, name in pairs
            if not (PACKAGE / file).exists() or name not in definitions(PACKAGE / file)
        ]
        self.assertEqual([], missing)
