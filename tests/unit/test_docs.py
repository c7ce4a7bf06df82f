# SPDX-License-Identifier: Apache-2.0
"""The documentation builds without a warning, and agrees with the code."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fixtures as fx
import yaml
from docutils import nodes
from docutils.core import publish_doctree
from oslo_config import cfg
from oslotest import base

import cyborg_quota
from cyborg_quota import QuotaEngine, conf, exceptions, policy
from cyborg_quota.capacity.api import Capacity
from cyborg_quota.cli import main
from cyborg_quota.conf import loading
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.db.settings import database_settings
from cyborg_quota.ledger import transitions
from cyborg_quota.limits.api import Limits
from cyborg_quota.pods.api import Pods
from cyborg_quota.surface import table
from cyborg_quota.types import STATES, Row
from tests import fixtures, forked
from tests.servers import machine

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "doc/source"
EXAMPLES = SOURCE / "examples"

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (*SOURCE.rglob("*.rst"), ROOT / "README.rst")}


def build(source: pathlib.Path, out: str, page: str = "", *, has_git: bool = True) -> forked.Ended:
    """Build as ``tox -e docs`` does, or write one page. Builds in ``out`` share the pages that have been read.

    In a fork: Sphinx and the modules that it describes are loaded once.
    """
    from sphinx.cmd import build as sphinx_build  # not above: each worker imports every module of tests

    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", f"{out}/doctrees", *([] if page else ["-a"])]
    pages = [str(source / page)] if page else []

    def run() -> int:
        if not has_git:
            os.environ["GIT_DIR"] = f"{out}/nowhere"
            os.chdir(out)
        return sphinx_build.main([*options, str(source), f"{out}/html", *pages])

    ended = forked.run(run)
    # The theme asks git for a commit, and prints git's error.
    error = re.sub(r"(?m)^fatal: not a git repository.*\n(Stopping at filesystem.*\n)?", "", ended.err)
    return ended._replace(err=error)


@functools.cache
def _build_once(_pid: int) -> tuple[pathlib.Path, forked.Ended]:
    out, lock = machine.private_directory("cyborg-quota-docs-", ROOT)
    fixtures.at_exit(lock.close)
    fixtures.at_exit(functools.partial(shutil.rmtree, out))
    return out, build(SOURCE, str(out))


def built() -> pathlib.Path:
    """The directory of the HTML pages, which are built once for the tests of this process."""
    return _build_once(os.getpid())[0] / "html"


class TestBuild(base.BaseTestCase):
    def test_it_builds_with_and_without_git_and_has_all_options(self) -> None:
        out, ended = _build_once(os.getpid())
        self.out = str(out)
        self.assertEqual((0, ""), (ended.status, ended.err))

        groups = ("quota", "limits", "cyborg")
        commands = [name for name, _ in main.Shell().command_manager if name not in ("help", "complete")]
        for page, expected in (
            ("configuration/index", [f"{group}.{one.name}" for group in groups for one in conf.opts.OPTIONS[group]]),
            ("reference/python", [f"cyborg_quota.{name}" for name in documented_names()]),
            ("cli/index", [name.replace(" ", "-") for name in commands]),
            ("cli/openstack", [f"accelerator-quota-{name.replace(' ', '-')}" for name in table.operations()]),
        ):
            found = re.findall(r'id="([^"]+)"', pathlib.Path(self.out, f"html/{page}.html").read_text())
            self.assertEqual(set(), set(expected) - set(found), page)

        # From a copy without git: the theme asks git for a commit while it writes a page.
        index = pathlib.Path(self.out, "html/index.html")
        index.unlink()
        # (In the same directory: Sphinx warns if one page is written where there is no search index.)
        ended = build(SOURCE, self.out, "index.rst", has_git=False)
        self.assertEqual((0, ""), (ended.status, ended.err))
        self.assertTrue(index.exists())


def documented_names() -> Iterator[str]:
    """The calls of the engine and of its interfaces, and the errors: each has a docstring on the reference page."""
    for name in (*vars(QuotaEngine), *vars(QuotaEngine(mock.Mock()))):
        if not name.startswith("_"):
            yield f"QuotaEngine.{name}"
    for interface in (Limits, Capacity, Pods):
        where = f"{interface.__module__}.{interface.__name__}".removeprefix("cyborg_quota.")
        yield from (f"{where}.{name}" for name in vars(interface) if not name.startswith("_"))
    for name, error in vars(exceptions).items():
        if isinstance(error, type) and issubclass(error, exceptions.QuotaError):
            yield f"exceptions.{name}"


class TestNames(base.BaseTestCase):
    """The names on the pages exist in the code."""

    def test_the_policy_rule_agrees_with_the_code(self) -> None:
        self.assertIn(f'"{policy.RULE}": "{policy.DEFAULT}"', PAGES["doc/source/admin/limits.rst"])

    def test_the_options_of_the_database_and_their_defaults(self) -> None:
        self.useFixture(fx.EnvironmentVariable("OS_DATABASE__CONNECTION"))
        settings = fixtures.configuration()
        table = table_named("doc/source/configuration/index.rst", "database-options")
        shown = {row[0]: row[1] for row in table[1:]}
        used = re.search(r"Used are (.*?)\. ", str(conf.opts.__doc__), re.DOTALL)
        assert used is not None
        self.assertEqual(set(re.split(r",\s+|\s+and\s+", used[1])), set(shown))

        resolved = dataclasses.asdict(database_settings(settings))
        names = {
            "connection": "url",
            "pool_timeout": "pool_timeout_seconds",
            "connection_recycle_time": "pool_recycle_seconds",
        }
        del shown["connection_parameters"]
        for name, default in shown.items():
            value = resolved[names.get(name, name)]
            shown_value = f"{value:g}" if isinstance(value, float) else str(value)
            self.assertEqual("(none)" if value is None else shown_value, default, name)

    def test_no_page_forgets_an_option_group(self) -> None:
        text = "".join(PAGES.values())
        known = {f"[{group}] {option.name}" for group, options in conf.opts.OPTIONS.items() for option in options}
        for found in re.findall(r"``(\[(?:quota|limits|cyborg)\] \w+)", text):
            self.assertIn(found, known)


class TestCallTable(base.BaseTestCase):
    """The table of calls and states agrees with the code."""

    def test_every_cell(self) -> None:
        header, *rows = table_named("doc/source/reference/concepts.rst", "call-x-state")
        calls = header[1:]
        self.assertEqual(["commit", "rollback", "release", "extend", "resize", "transfer", "expire"], calls)
        expected = [
            [state, *(cell(call, state.removesuffix(", overdue"), state.endswith("overdue")) for call in calls)]
            for state in ("reserved", "reserved, overdue", *STATES[1:])
        ]
        self.assertEqual(expected, rows[:-1])
        self.assertEqual("unknown, or another project's", rows[-1][0])


def cell(call: transitions.Call, state: str, overdue: bool) -> str:
    """Return the result that ``transitions`` gives, in the words of the page."""
    row = Row(1, "u", 1, "p", "gpu", 1, state, overdue)  # type: ignore[arg-type]
    plan = transitions.decide(call, [row])
    words = {"extend": "gets a new expiry", "resize": "gets the new amount", "transfer": "moves to the receiver"}
    results = [words[call] if move.to == state else f"becomes {move.to}" for move in plan.moves]
    if plan.error is not None:
        results.append(type(plan.error).__name__)
    return ", then ".join(results) or "no-op"


def table_named(page: str, name: str) -> list[list[str]]:
    """Return the cells of the table with that name, row by row."""
    found = re.search(rf"(?m)^\.\. (?:list|csv)-table::\n(?:   :.*\n)*   :name: {name}\n(?:   .*\n|\n)*", PAGES[page])
    assert found is not None, f"no table {name} in {page}"
    text = re.sub(r":(doc|ref):", "", found[0])
    tree = publish_doctree(text, settings_overrides={"report_level": 5})
    return [[" ".join(cell.astext().split()) for cell in row.findall(nodes.entry)] for row in tree.findall(nodes.row)]


class TestCommands(base.BaseTestCase):
    """The program can parse every command line that is shown."""

    def test_every_command_parses(self) -> None:
        lines = list(command_lines("cyborg-quota"))
        self.assertGreater(len(lines), 30)
        for page, argv in lines:
            shell = main.Shell()
            shell.options, rest = shell.parser.parse_known_args(argv)
            if shell.options.deferred_help:
                continue
            factory, name, rest = shell.command_manager.find_command(rest)
            parser = factory(shell, shell.options, cmd_name=name).get_parser(f"cyborg-quota {name}")
            output = io.StringIO()
            try:
                with contextlib.redirect_stderr(output):
                    parser.parse_args(rest)
            except SystemExit:
                self.fail(f"{page}: {argv}: {output.getvalue()}")

    def test_every_expirer_line_parses(self) -> None:
        lines = list(command_lines("cyborg-quota-expirer"))
        self.assertGreater(len(lines), 0)
        for page, argv in lines:
            rest = [word for word in argv if not word.startswith("/")]
            self.assertLessEqual(set(rest), {"--config-file", "--once"}, page)

    def test_every_named_file_exists(self) -> None:
        for page, text in PAGES.items():
            for name in re.findall(r"\b(?:tests|tools|etc|cyborg_quota)/[\w/.-]+\b", text):
                if not name.startswith(("etc/systemd/system", "cyborg_quota/cyborg_quota.")) and f"/{name}" not in text:
                    self.assertTrue((ROOT / name).exists(), f"{page}: {name}")


def command_lines(program: str) -> Iterator[tuple[str, list[str]]]:
    """Return (page, arguments) of every shown line that runs ``program``."""
    for page, text in PAGES.items():
        for line in re.findall(rf"(?m)^ +(?:\$ |\*/5 .* )?((?:\w+=\S+ )?(?:/usr/bin/)?{program} .*)$", text):
            words = shlex.split(re.split(r" [|>]", line)[0])
            yield page, words[words.index(next(word for word in words if word.endswith(program))) + 1 :]


class ExampleTestCase(base.BaseTestCase):
    """An empty ledger, and programs that use it."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        self.url = f"sqlite:///{self.directory}/quota.sqlite"
        schema.sync(Database(fixtures.settings(self.url)))
        self.useFixture(fx.EnvironmentVariable("OS_DATABASE__CONNECTION", self.url))

    def run_python(self, *argv: str, **environment: str) -> str:
        paths = os.pathsep.join((str(self.directory), str(EXAMPLES), str(ROOT)))
        found = subprocess.run(
            [sys.executable, *argv],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": paths, "HOME": str(self.directory), **environment},
        )
        self.assertEqual("", found.stderr)
        return found.stdout

    def install(self, name: str, entry_points: str) -> None:
        """Install a package that has these entry points. Its modules are in EXAMPLES, or in the directory."""
        information = self.directory / f"{name}-1.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (information / "entry_points.txt").write_text(entry_points)


class TestExamples(ExampleTestCase):
    """Each example is run unchanged."""

    def test_embed(self) -> None:
        output = self.run_python(str(EXAMPLES / "embed.py"))
        self.assertEqual("attach here\nUsage(limit=-1, used=1, reserved=0)\n", output)
        page = PAGES["doc/source/user/programming.rst"]
        self.assertIn("    attach here\n    Usage(limit=-1, used=1, reserved=0)\n", page)

    def test_the_program_of_the_readme(self) -> None:
        found = re.search(r"(?m)^    from oslo_config.*\n(?:    .*\n|\n)*", PAGES["README.rst"])
        assert found is not None
        program = re.sub(r"(?m)^    ", "", found[0])
        self.assertEqual("attach here\n", self.run_python("-c", program))

    def test_the_program_of_the_readme_works_on_the_quick_start_s_database(self) -> None:
        """A reader may have charged the trace of the quick start before, so a project of the trace may be full."""
        project_ids = re.findall(r'RequestContext\(project_id="(\w+)"\)', PAGES["README.rst"])
        trace = (ROOT / "etc/cyborg_quota/traces/example.csv").read_text().splitlines()
        self.assertEqual(1, len(project_ids))
        self.assertNotIn(project_ids[0], {line.split(",")[3] for line in trace})

    def test_conductor(self) -> None:
        program = (
            "import conductor, cyborg_quota; from oslo_config import cfg; from oslo_context import context as oc\n"
            "conf = cfg.ConfigOpts(); cyborg_quota.conf.register_opts(conf); conf([])\n"
            "quotas, context = cyborg_quota.make_engine(conf), oc.RequestContext(project_id='p')\n"
            "arqs = {'a': 'gpu', 'b': 'gpu', 'c': 'fpga'}\n"
            "print(conductor.attach_all(quotas, context, 'i', arqs, lambda arq: arq != 'b'))\n"
            "print(quotas.get_usages(context)['gpu'])\n"
            "def lose(arq): quotas.rollback(context, consumer=arq); return True\n"
            "print(conductor.attach_all(quotas, context, 'j', {'d': 'gpu'}, lose), quotas.get_usages(context)['gpu'])\n"
            "for _ in range(2): conductor.detach_all(quotas, context, 'i')\n"
            "print(quotas.get_usages(context)['gpu'])\n"
        )
        one, two = "Usage(limit=-1, used=1, reserved=0)", "Usage(limit=-1, used=2, reserved=0)"
        self.assertEqual(f"['a', 'c']\n{one}\n['d'] {two}\n{one}\n", self.run_python("-c", program))

    def test_limit_driver(self) -> None:
        """It is found by its entry point, with the name that its package would give it."""
        self.install("file_limits", "[cyborg_quota.limits]\nfile = file_limits:FileLimitDriver\n")
        limits = self.directory / "limits.json"
        limits.write_text('{"film": {"gpu": 1, "fpga": 0}}')
        program = (
            "import cyborg_quota; from oslo_config import cfg; from oslo_context import context as oc\n"
            "conf = cfg.ConfigOpts(); cyborg_quota.conf.register_opts(conf); conf([])\n"
            "quotas, context = cyborg_quota.make_engine(conf), oc.RequestContext(project_id='film')\n"
            "quotas.commit(context, quotas.reserve(context, {'gpu': 1}))\n"
            "for resource in ('gpu', 'fpga'):\n"
            "    try: quotas.reserve(context, {resource: 1})\n"
            "    except cyborg_quota.exceptions.OverQuota as error: print(error)\n"
        )
        output = self.run_python("-c", program, OS_LIMITS__DRIVER="file", OS_LIMITS__FILE=str(limits))
        line = "Quota exceeded: project film, resource gpu: limit 1, used 1, reserved 0, requested 1"
        self.assertEqual(line, output.splitlines()[0])
        self.assertIn("resource fpga: limit 0, used 0, reserved 0, requested 1", output.splitlines()[1])
        self.assertIn(line, PAGES["doc/source/contributor/limit-drivers.rst"])

    def test_enforcement_model(self) -> None:
        """It is found by the entry point that the page shows, and permits twice the limit of the parent, not more."""
        page = PAGES["doc/source/contributor/enforcement-models.rst"]
        [entry] = re.findall(r"(?m)^   cyborg_quota\.policies =\n       (.*)$", page)
        self.install("overbooking", f"[cyborg_quota.policies]\n{entry}\n")
        program = (
            "import types, cyborg_quota; from oslo_config import cfg\n"
            "conf = cfg.ConfigOpts(); cyborg_quota.conf.register_opts(conf); conf([])\n"
            "limits = cyborg_quota.make_engine(conf).limits\n"
            "admin = types.SimpleNamespace(project_id=None, is_admin=True)\n"
            "def project(name, limit, *children):\n"
            "    return {'id': name, 'limits': {'gpu': limit}, 'children': list(children)}\n"
            "children = project('physics', 130), project('operations', 70)\n"
            "limits.import_limits(admin, {'projects': [project('atlas', 100, *children)]})\n"
            "try: limits.set_limit(admin, 'gpu', 71, 'operations')\n"
            "except cyborg_quota.exceptions.LimitRefused as error: print(error)\n"
        )
        output = self.run_python(
            "-c", program, OS_LIMITS__DRIVER="database", OS_LIMITS__ENFORCEMENT_MODEL="overbooking"
        )
        self.assertIn("the children of atlas would get 201 of gpu; twice its limit is 200", output)
        self.assertLessEqual(len((EXAMPLES / "overbooking.py").read_text().splitlines()), 22)

    def test_an_operation(self) -> None:
        """It is a command, a call of the REST API, and a command of OpenStackClient."""
        program = (
            "from cyborg_quota.ledger import operations; from reservation_count import RESERVATION_COUNT\n"
            "operations.OPERATIONS += (RESERVATION_COUNT,)\n"
            "from cyborg_quota.api.operations import OPERATIONS; from cyborg_quota.cli import main\n"
            "from cyborg_quota.osc import quota\n"
            "assert main.main(['reserve', '--project', 'p', 'gpu=1', '-f', 'value', '-c', 'delta']) == 0\n"
            "for state in ('reserved', 'committed'):\n"
            "    assert main.main(['reservation', 'count', '--state', state, '-f', 'value']) == 0\n"
            "print([call.answer for call in OPERATIONS if call.path.endswith('/count')])\n"
            "print(quota.reservation_count.operation.summary)\n"
        )
        expected = "1\n1\n0\n['ReservationCountAnswer']\nCount the reservations that match all given options.\n"
        self.assertEqual(expected, self.run_python("-c", program))

    def test_pod_plugins(self) -> None:
        """They are found by the entry points that the page shows, and used in a selection."""
        page = PAGES["doc/source/admin/pods.rst"]
        entries = re.findall(r"(?m)^   (cyborg_quota\.pod_\w+) =\n       (\w+ = pod_plugins:\w+)$", page)
        self.assertEqual(2, len(entries))
        self.install("pod_plugins", "".join(f"[{group}]\n{entry}\n" for group, entry in entries))
        options = dict(re.findall(r"(?m)^   (filters|weighers) = (.*)$", page))
        program = (
            "import cyborg_quota; from oslo_config import cfg\n"
            "from cyborg_quota.types.capacity import ResourceUse\n"
            "conf = cfg.ConfigOpts(); cyborg_quota.conf.register_opts(conf); conf([])\n"
            "engine, admin = cyborg_quota.make_engine(conf), cyborg_quota.validation.admin_context()\n"
            "for name, used in (('p1', 0), ('p2', 5), ('p3', 7)):\n"
            "    engine.pods.add(admin, name)\n"
            "    engine.pods.set_usage(admin, name, {'gpu': ResourceUse(8, used)})\n"
            "for amount in (1, 2, 4):\n"
            "    print(engine.pods.select(admin, request={'gpu': amount}, project_id=f'film{amount}').pod)\n"
        )
        environment = {"OS_PODS__FILTERS": options["filters"], "OS_PODS__WEIGHERS": options["weighers"]}
        self.assertEqual("p3\np2\np1\n", self.run_python("-c", program, **environment))


class TestPlaybooks(base.BaseTestCase):
    """The playbooks are valid, and what they write exists in the package."""

    def plays(self, name: str) -> list[dict[str, Any]]:
        plays: list[dict[str, Any]] = yaml.safe_load((EXAMPLES / name).read_text())
        for play in plays:
            self.assertLessEqual({"name", "hosts", "become", "tasks"}, set(play))
            for task in play["tasks"]:
                self.assertEqual(1, len([key for key in task if key.startswith("ansible.builtin.")]), task)
        return plays

    def test_ansible(self) -> None:
        install, api, conductor = self.plays("cyborg_quota_playbook.yml")
        tasks = {task["name"]: task for task in install["tasks"]}
        written = tasks["Write the configuration, which holds the password of the database"]["ansible.builtin.copy"]
        self.assertEqual("0600", written["mode"])
        path = pathlib.Path(self.useFixture(fx.TempDir()).path, "cyborg_quota.conf")
        text = written["content"].replace("{{ cyborg_quota_database | replace('$', '$$') }}", "sqlite://")
        path.write_text(text.replace("{{ cyborg_region }}", "RegionOne"))
        self.useFixture(fx.EnvironmentVariable("OS_DATABASE__CONNECTION"))
        loaded = loading.load(cfg.ConfigOpts(), ["--config-file", str(path)])
        self.assertEqual(
            (["fpga", "gpu"], "sqlite://", "database", "RegionOne"),
            (loaded.quota.resources, loaded.database.connection, loaded.limits.driver, loaded.cyborg.source),
        )
        self.assertEqual(["cyborg_api", "cyborg_conductor"], [api["hosts"], conductor["hosts"]])

    def test_kolla(self) -> None:
        (module, threads), (conductor,) = (play["tasks"] for play in self.plays("kolla_cyborg_quota.yml"))
        line = module["ansible.builtin.lineinfile"]
        self.assertRegex("module = cyborg.wsgi.api:application", line["regexp"])
        self.assertIn(line["line"] + "\n", (ROOT / "etc/wsgi/cyborg-api-uwsgi.ini").read_text())
        line = threads["ansible.builtin.lineinfile"]
        self.assertRegex("processes = 5", line["insertafter"])
        self.assertRegex(line["line"], line["regexp"])
        edit = conductor["ansible.builtin.replace"]
        command = '    "command": "cyborg-conductor --config-file /etc/cyborg/cyborg.conf",'
        expected = command.replace("cyborg-conductor", "cyborg-quota-conductor")
        edited = [re.sub(edit["regexp"], edit["replace"], line) for line in (command, expected)]
        self.assertEqual([expected] * 2, edited)


class TestReadme(base.BaseTestCase):
    def test_it_is_short(self) -> None:
        self.assertLess(len(PAGES["README.rst"].splitlines()), 100)

    def test_the_version_is_one(self) -> None:
        self.assertIn(f"version = {cyborg_quota.__version__}\n", (ROOT / "setup.cfg").read_text())
