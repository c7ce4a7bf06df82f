# SPDX-License-Identifier: Apache-2.0
"""The rules of the house: which way imports run, how long a file may be, and that the tools find nothing."""

from __future__ import annotations

import ast
import importlib.metadata
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping

from oslotest import base

TOP = pathlib.Path(__file__).parents[2]
PACKAGE = "cyborg_quota"
LONGEST_FILE = 500
LONGEST_FUNCTION = 70

LEAVES = {"exceptions", "types", "shown", "names", "transitions", "overs"}
# room: what it may import, beside itself. "" is the package itself, with its public names.
ARROWS: dict[str, set[str]] = {
    "types": set(),
    "shown": set(),
    "exceptions": {"types", "shown"},
    "names": {"exceptions", "shown", "types"},
    "transitions": {"exceptions", "types"},
    "overs": {"exceptions", "types"},
    "requests": LEAVES,
    "conf": set(),
    "db": LEAVES,
    "plugins": {"exceptions", "types"},
    # (The driver that keeps limits in our own tables.)
    "limits": LEAVES | {"db", "plugins"},
    "drivers": LEAVES | {"db", "limits"},
    "engine": LEAVES | {"requests", "authority", "drivers", "administration"},
    "attachment": LEAVES | {"requests", "engine"},
    "authority": LEAVES | {"requests"},
    "administration": LEAVES | {"requests", "authority", "drivers", "limits"},
    "factory": LEAVES | {"engine", "authority", "drivers", "limits", "conf", "plugins"},
    "": LEAVES | {"conf", "engine", "attachment", "factory"},
    "integrations": LEAVES | {"", "requests", "conf", "engine", "attachment", "factory"},
    "cmd": LEAVES
    | {"", "requests", "conf", "engine", "attachment", "factory", "drivers", "limits", "db", "integrations"},
}
MODULE_ARROWS = {
    # The driver's own factory: from options to what the driver is told.
    "cyborg_quota.drivers.settings": {"conf"},
}
# What only some rooms may import of others: top-level module, and who may.
GUARDED = {
    "sqlalchemy": {"db"},
    "alembic": {"db"},
    "oslo_db": {"db"},
    "cliff": {"cmd"},
    "cotyledon": {"cmd"},
    "tqdm": {"cmd"},
    "matplotlib": {"cmd"},
    "oslo_policy": {"authority"},
    "keystoneauth1": {"limits"},
    "oslo_limit": {"limits"},
    "cyborg": {"integrations"},
    "oslo_messaging": {"cmd", "integrations"},
    "oslo_service": {"integrations"},
    "oslo_upgradecheck": {"cmd"},
}
GUARD_EXCEPTIONS = {("cyborg_quota.conf.database", "oslo_db.options")}


def sources() -> dict[str, str]:
    """The text of every module of the package, by its dotted name."""
    found = {}
    for path in sorted((TOP / PACKAGE).rglob("*.py")):
        parts = list(path.relative_to(TOP).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path.read_text()
    return found


def room_of(module: str) -> str:
    """The first name below the package; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def imported(source: str, known: Mapping[str, str]) -> Iterator[str]:
    """Every module that a source imports, wherever in it, also for type checking alone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base_name = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{base_name}.{alias.name}"
                # Of ours, a name that is no module is the module's; of others it makes no difference.
                yield full if full in known or not base_name.startswith(PACKAGE) else base_name


def may_import(module: str, target: str) -> bool:
    """Whether a module may import this of somebody else's."""
    return (
        room_of(module) in GUARDED.get(target.partition(".")[0], {room_of(module)})
        or (module, target) in GUARD_EXCEPTIONS
    )


def bad_arrows(modules: Mapping[str, str]) -> list[str]:
    """The imports that run the wrong way, in words."""
    faults = []
    for module, source in modules.items():
        room = room_of(module)
        allowed = {room} | ARROWS.get(room, set()) | MODULE_ARROWS.get(module, set())
        if room not in ARROWS:
            faults.append(f"{module} is in no room of the house")
        for target in sorted(set(imported(source, modules))):
            top = target.partition(".")[0]
            is_ours = top == PACKAGE
            if (
                target.startswith(".")
                or (is_ours and room_of(target) not in allowed)
                or (not is_ours and not may_import(module, target))
            ):
                faults.append(f"{module} imports {target}")
    return faults


class TestImports(base.BaseTestCase):
    def test_no_arrow_runs_back(self) -> None:
        found = sources()
        self.assertIn("cyborg_quota.db.usages", found)
        self.assertEqual([], bad_arrows(found))

    def test_every_room_is_there(self) -> None:
        """A room that is gone, or renamed, would be guarded for nothing."""
        rooms = {room_of(module) for module in sources()}
        self.assertEqual(set(ARROWS), rooms)

    def test_bad_arrows_are_seen(self) -> None:
        """The checker itself, on sources made to offend."""
        modules = {
            "cyborg_quota": "",
            "cyborg_quota.types": "",
            "cyborg_quota.engine": "",
            "cyborg_quota.db": "",
            "cyborg_quota.db.usages": "",
            "cyborg_quota.drivers": "",
            "cyborg_quota.drivers.db": "",
            "cyborg_quota.conf.database": "",
            "cyborg_quota.cmd.main": "",
        }
        self.assertEqual([], bad_arrows(modules))
        for module, source in (
            ("cyborg_quota.db.usages", "import cyborg_quota.engine"),
            ("cyborg_quota.db.usages", "from cyborg_quota import engine"),
            ("cyborg_quota.db.usages", "from cyborg_quota.drivers import db"),
            ("cyborg_quota.db.usages", "from cyborg_quota.drivers.db import DbQuotaDriver"),
            ("cyborg_quota.db.usages", "def f():\n    from cyborg_quota import engine"),
            ("cyborg_quota.db.usages", "if TYPE_CHECKING:\n    from cyborg_quota import engine"),
            ("cyborg_quota.db.usages", "from cyborg_quota import QuotaEngine"),
            ("cyborg_quota.db.usages", "from . import api"),
            ("cyborg_quota.db.usages", "from ..engine import QuotaEngine"),
            ("cyborg_quota.types", "from cyborg_quota import db"),
            ("cyborg_quota.engine", "import sqlalchemy as sa"),
            ("cyborg_quota.engine", "from sqlalchemy import exc"),
            ("cyborg_quota.engine", "from oslo_db import exception"),
            ("cyborg_quota.engine", "from cyborg_quota.db import usages"),
            ("cyborg_quota.drivers.db", "import alembic.command"),
            ("cyborg_quota.drivers.db", "from cyborg_quota.conf import database"),
            ("cyborg_quota.drivers.db", "from cyborg_quota.cmd import main"),
            ("cyborg_quota.conf.database", "from oslo_db import exception"),
            ("cyborg_quota.conf.database", "from cyborg_quota import types"),
            ("cyborg_quota.attic", ""),
        ):
            faults = bad_arrows({**modules, module: source})
            self.assertEqual(1, len(faults), (module, source, faults))
            self.assertTrue(faults[0].startswith(module))

    def test_good_arrows_pass(self) -> None:
        modules = {
            "cyborg_quota": "",
            "cyborg_quota.types": "",
            "cyborg_quota.db": "import sqlalchemy as sa\nfrom alembic import op",
            "cyborg_quota.db.usages": "from cyborg_quota.types import Figures\nimport os",
            "cyborg_quota.conf": "from cyborg_quota.conf import database",
            "cyborg_quota.conf.database": "from oslo_db import options",
            "cyborg_quota.drivers.settings": "from cyborg_quota.conf.database import GROUP",
            "cyborg_quota.cmd.db": "import cyborg_quota\nfrom cyborg_quota.db import schema",
        }
        modules["cyborg_quota.db.schema"] = ""
        self.assertEqual([], bad_arrows(modules))


class TestSizes(base.BaseTestCase):
    def test_files(self) -> None:
        long = {
            module: len(source.splitlines())
            for module, source in sources().items()
            if len(source.splitlines()) > LONGEST_FILE
        }
        self.assertEqual({}, long)

    def test_functions(self) -> None:
        self.assertEqual([], [name for module in sources().items() for name in too_long(*module)])

    def test_the_check_itself(self) -> None:
        body = "    x = 1\n" * LONGEST_FUNCTION
        self.assertEqual(["m.f"], too_long("m", f"class C:\n  pass\ndef f():\n{body}"))
        self.assertEqual([], too_long("m", "def f():\n" + body[10:]))


def too_long(module: str, source: str) -> list[str]:
    """The functions with more lines than one should have."""
    return [
        f"{module}.{node.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION
    ]


class TestTools(base.BaseTestCase):
    """What .ci/run would say."""

    def assert_clean(self, *command: str) -> None:
        result = subprocess.run(
            [sys.executable, "-m", *command], cwd=TOP, capture_output=True, text=True, check=False
        )
        self.assertEqual(0, result.returncode, result.stdout[-4000:] + result.stderr[-1000:])

    def test_ruff(self) -> None:
        self.assert_clean("ruff", "check", ".")

    def test_mypy(self) -> None:
        self.assert_clean("mypy")


class TestPackage(base.BaseTestCase):
    def test_every_file_names_its_licence(self) -> None:
        bare = [
            module
            for module, source in sources().items()
            if source and not source.startswith("# SPDX-License-Identifier: Apache-2.0\n")
        ]
        self.assertEqual([], bare)

    def test_every_room_is_installed(self) -> None:
        """What has no __init__.py runs from the tree, and is not found by who packages it."""
        directories = {path.parent for path in (TOP / PACKAGE).rglob("*.py")}
        self.assertEqual([], sorted(str(path) for path in directories if not (path / "__init__.py").exists()))

    def test_entry_points_load(self) -> None:
        points = importlib.metadata.distribution(PACKAGE).entry_points
        groups = {point.group for point in points}
        self.assertLessEqual(
            {
                "console_scripts",
                "cyborg_quota.cli",
                "cyborg_quota.drivers",
                "cyborg_quota.limits",
                "oslo.config.opts",
            },
            groups,
        )
        for point in points:
            self.assertTrue(callable(point.load()), point)
