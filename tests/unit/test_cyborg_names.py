# SPDX-License-Identifier: Apache-2.0
"""The start check lists each name of Cyborg that the integration uses. Reads the source code; does not need Cyborg."""

from __future__ import annotations

import ast
import pathlib

from oslotest import base

import cyborg_quota
from cyborg_quota.cyborg import compatibility

FOLDER = pathlib.Path(cyborg_quota.__file__).parent / "cyborg"
_DB = "cyborg.db.sqlalchemy.api.Connection"
_EXTARQ = "cyborg.objects.ext_arq.ExtARQ"
_MODELS = "cyborg.db.sqlalchemy.models"
ALIASES = {
    "cyborg.db.api.get_instance()": _DB,
    "cyborg.objects.ExtARQ": _EXTARQ,
    f"{_EXTARQ}.arq": "cyborg.objects.arq.ARQ",
}
VARIABLES = {
    "db": _DB,
    "self._db": _DB,
    "record": f"{_MODELS}.ExtArq",
    "profile": f"{_MODELS}.DeviceProfile",
}
"""{variable in arq_records.py: the class of Cyborg whose instance it is}."""
MIXINS = {"_Quota": _EXTARQ}
"""{class that is combined with a class of Cyborg: that class}."""
CHECKED_ELSEWHERE = {
    "cyborg.wsgi.api": "its import creates the application; its package is looked up without an import",
    "cyborg.api.controllers.v2.versions": "its package needs the registered objects; called when the application loads",
    "cyborg.objects.ExtARQ": "exists only after register_all(); see check_registered",
    "cyborg.db.sqlalchemy.api.main_context_manager.reader": "a property of oslo.db's class",
}


class Names(ast.NodeVisitor):
    """Collects the dotted names of Cyborg that one module uses."""

    def __init__(self, has_records: bool) -> None:
        self.used: set[str] = set()
        self._bound = dict(VARIABLES) if has_records else {}
        self._base: str | None = None
        self._own: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and node.module.split(".")[0] == "cyborg":
            for alias in node.names:
                self._bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                self.used.add(f"{node.module}.{alias.name}")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [name for name in map(self._name, node.bases) if name]
        self._base = MIXINS.get(node.name) or (bases[-1] if bases else None)
        parts = [*ast.walk(node)]
        self._own = {part.name for part in parts if isinstance(part, ast.FunctionDef)}
        self._own |= {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        self.generic_visit(node)
        self._base = None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._name(node)
        if name:
            self.used.add(name)
        self.generic_visit(node)

    def _name(self, node: ast.expr) -> str | None:
        """The dotted name of an expression, from the module of Cyborg on; None if it is not of Cyborg."""
        text = ast.unparse(node)
        if text == "super()":
            return self._base
        if text in self._bound:
            return self._bound[text]
        if isinstance(node, ast.Call):
            return ALIASES.get(f"{self._name(node.func)}()")
        if not isinstance(node, ast.Attribute):
            return None
        is_inherited = text == f"self.{node.attr}" and node.attr not in self._own
        prefix = self._base if is_inherited else self._name(node.value)
        return f"{ALIASES.get(prefix, prefix)}.{node.attr}" if prefix else None


class TestListedNames(base.BaseTestCase):
    def test_each_used_name_is_listed(self) -> None:
        listed = {f"{part.module}.{part.name}" for part in compatibility.SERVICE_PARTS}
        for path in sorted({*FOLDER.glob("*.py")} - {FOLDER / "compatibility.py"}):
            names = Names(has_records=path.stem == "arq_records")
            names.visit(ast.parse(path.read_text()))
            missing = [
                name
                for name in sorted(names.used)
                if not any(known == name or known.startswith(f"{name}.") for known in listed)
                and not any(name == other or name.startswith(f"{other}.") for other in CHECKED_ELSEWHERE)
            ]
            self.assertEqual([], missing, path.name)
