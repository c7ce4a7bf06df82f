# SPDX-License-Identifier: Apache-2.0
"""Benchmarks and soak tests show no password: in a table, a JSON file, a traceback, or a process's arguments."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import pathlib
import runpy
import sys
from typing import Any

import fixtures as fx
import sqlalchemy as sa
from oslotest import base

from benchmarks import cinder_processes, harness
from tests import fixtures
from tests.faults import test_commit_lost
from tests.security.secrets import QUOTED, closed_port, pieces_in

TOP = pathlib.Path(__file__).parents[2]
BENCHMARK = ("benchmarks", "--only", "attach", "--rounds", "1", "--seconds", "0.05")
SOAK = ("tests.faults.soak", "--only", "commit-lost", "--minutes", "0.01")


def run(where: pathlib.Path, module: str, *arguments: str, **environ: str) -> tuple[int, str, str]:
    """Run it with ``--json``; returns its exit status, its output, and the file ("" if there is none).

    In a fork of this process, which has loaded the libraries; and with rounds of less than a second.
    """
    file, output = where / "figures.json", where / "output"
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(1, 2)
            status = _run_module(module, *arguments, "--json", str(file), **environ)
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, output.read_text(), file.read_text() if file.exists() else ""


def _run_module(module: str, *arguments: str, **environ: str) -> int:
    """Run it in this process as ``python -m`` does. Returns the exit status."""
    atexit._clear()
    os.chdir(TOP)
    os.environ.update(environ)
    harness.WARM_SECONDS = 0.01
    test_commit_lost.cut_under_load = functools.partial(_cut_for_a_moment, test_commit_lost.cut_under_load)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    logging.getLogger().handlers.clear()
    sys.argv = [module, *arguments]
    status: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status or 0)


def _cut_for_a_moment(cut_under_load: Any, ledger: Any, proxies: Any, _seconds: float, seed: int) -> int:
    return int(cut_under_load(ledger, proxies, 0.5, seed))


class TestRuns(base.BaseTestCase):
    """On a server that answers, with the right password."""

    def setUp(self) -> None:
        super().setUp()
        fixtures.need_server(self, "mariadb")
        self.password = str(sa.make_url(str(fixtures.admin_url("mariadb"))).password)
        self.assertNotIn(self.password, ("", "None"))

    def assert_hidden(self, *command: str) -> None:
        status, output, written = run(pathlib.Path(self.useFixture(fx.TempDir()).path), *command)
        self.assertEqual(0, status, output)
        self.assertTrue(json.loads(written))
        for text in (output, written):
            self.assertIn("mariadb" if command[0] == "benchmarks" else "commit-lost", text)
            self.assertNotIn(self.password, text)

    def test_a_benchmark(self) -> None:
        self.assert_hidden(*BENCHMARK, "--on", "mariadb")

    def test_a_soak(self) -> None:
        self.assert_hidden(*SOAK)


class TestFailures(base.BaseTestCase):
    """On a server that is down: the traceback passes through all libraries."""

    def test_output(self) -> None:
        schemes = {"MARIADB": "mysql+pymysql", "POSTGRESQL": "postgresql+psycopg2"}
        urls = {
            f"CYBORG_QUOTA_TEST_{name}": f"{scheme}://root:{QUOTED}@127.0.0.1:{closed_port()}/db"
            for name, scheme in schemes.items()
        }
        for command in ((*BENCHMARK, "--on", "mariadb"), (*BENCHMARK, "--on", "postgresql"), SOAK):
            status, output, written = run(pathlib.Path(self.useFixture(fx.TempDir()).path), *command, **urls)
            self.assertEqual(1, status, output)
            self.assertIn("Error", output)
            self.assertEqual([], pieces_in(output + written), output)


class TestCinder(base.BaseTestCase):
    """A program that replaces Cinder's Python, and prints its arguments and its input."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        self.python = self.directory / "python"
        seen = f'>>"{self.directory}/seen"'
        self.python.write_text(
            f'#!/bin/sh\nread -r url\necho "$url" >>"{self.directory}/urls"\n'
            f'tr "\\0" " " </proc/$$/cmdline {seen}\ncat /proc/$$/environ {seen}\n'
            '[ "$2" != make ] || exit 0\necho ready\nread -r go\n[ "$go" = go ] && echo "[[0.1], 1.0]"\n'
        )
        self.python.chmod(0o755)

    def test_the_url_is_no_argument(self) -> None:
        urls = [f"mysql+pymysql://root:{QUOTED}@node{number}/db" for number in range(2)]
        cinder_processes.make(str(self.python), urls[0], 3)
        sample = cinder_processes.turns(str(self.python), urls, 3, "try")(3, 0.1)
        self.assertEqual(3, sample.cycles)
        self.assertEqual(
            sorted([urls[0], urls[0], urls[1], urls[0]]), sorted((self.directory / "urls").read_text().split())
        )
        seen = (self.directory / "seen").read_text()
        self.assertIn("cinder_side.py try 3 2 0.1", seen)
        self.assertEqual([], pieces_in(seen))
