# SPDX-License-Identifier: Apache-2.0
"""The base class of the command-line tests: an empty ledger, a configuration file, and methods that run commands."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import fixtures as fx
import sqlalchemy as sa
from oslotest import base

from cyborg_quota.cli import expirer, main, status
from tests import fixtures

PROGRAM = "cyborg-quota"
DATABASE = "[limits]\ndriver = database\n"
HEADER = "time,event,consumer,project,resource,amount\n"


@dataclasses.dataclass
class Ended:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def commands() -> dict[str, Any]:
    """All commands by their words. ``load()`` of each returns its class."""
    return {words: point for words, point in main.Shell().command_manager if words not in ("help", "complete")}


def installed(name: str) -> str:
    """Return the installed entry point: next to this Python, or on the path."""
    beside = pathlib.Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found is not None, f"{name} is not installed in this environment"
    return found


def run_program(program: Callable[[list[str]], int], *argv: str) -> Ended:
    """Run the main function of a program in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = program([*argv])
    return Ended(code, out.getvalue(), err.getvalue())


class CliTestCase(base.BaseTestCase):
    """A test with an empty ledger at ``url`` and a configuration file ``conf`` that names it."""

    backend = "sqlite"
    options = ""
    """What ``configure`` writes first."""

    def setUp(self) -> None:
        super().setUp()
        fixtures.need_server(self, self.backend)
        self.url = self.useFixture(fixtures.EmptyLedger(self.backend)).url
        self.directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        self.conf = self.directory / "cyborg_quota.conf"
        self.configure(self.options)

    def configure(self, text: str = "", *, url: str | None = None) -> None:
        """Write the configuration file again: the database, and the other options."""
        # oslo.config would take a $ for the name of another option.
        connection = (url or self.url).replace("$", "$$")
        self.conf.write_text(f"[database]\nconnection = {connection}\n{text}\n")

    def trace(self, *lines: str) -> str:
        """Write a trace of these events; return the name of its file."""
        return self.write_file("trace.csv", HEADER + "".join(f"{line}\n" for line in lines))

    def write_file(self, name: str, text: str) -> str:
        """Write a file in the directory of the test; return its name."""
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def limit(self, limits: str) -> None:
        """Set the limits of every project: ``gpu:5,fpga:1``."""
        self.configure(f"[limits]\ndriver = config\nlimits = {limits}")

    def call(self, *argv: str) -> Ended:
        """Run a command in this process."""
        return self._call(main.main, *argv)

    def call_expirer(self, *argv: str) -> Ended:
        """Run cyborg-quota-expirer in this process; with --once, it ends."""
        return self._call(expirer.main, *argv)

    def call_status(self, *argv: str) -> Ended:
        """Run cyborg-quota-status in this process."""
        return self._call(status.main, *argv)

    def result_of(self, check: str) -> tuple[int, str]:
        """The result of a check of `cyborg-quota-status upgrade check`, and its details."""
        checks = self.call_status("upgrade", "check", "--json").json["checks"]
        (found,) = [one for one in checks if one["check"] == check]
        return found["result"], found["details"]

    def _call(self, program: Callable[[list[str]], int], *argv: str) -> Ended:
        return run_program(program, "--config-file", str(self.conf), *argv)

    def good(self, *argv: str) -> Any:
        """Run a command that must succeed; returns its output parsed as JSON, None if there is none."""
        display = "-f" in argv or argv[0] in ("commit", "rollback", "release", "extend")
        ended = self.call(*argv) if display else self.call(*argv, "-f", "json")
        self.assertEqual((0, ""), (ended.status, ended.err))
        return ended.json if ended.out else None

    def done(self, *argv: str) -> None:
        """Run a command that must succeed without output."""
        ended = self.call(*argv)
        self.assertEqual((0, "", ""), (ended.status, ended.out, ended.err))

    def columns(self, line: str, names: str) -> list[tuple[Any, ...]]:
        """Run a command that must succeed; returns the values of these columns in each row, or in its one object."""
        found = self.good(*line.split())
        rows = found if isinstance(found, list) else [found]
        return [tuple(row[name] for name in names.split()) for row in rows]

    def refused(self, status: int, *argv: str) -> str:
        """Run a command that must fail with ``status`` and one line on stderr; returns that line."""
        ended = self.call(*argv)
        self.assertEqual(status, ended.status, ended.err)
        self.assertEqual("", ended.out)
        self.assertEqual(1, ended.err.count("\n"), ended.err)
        self.assertTrue(ended.err.startswith(f"{PROGRAM}: "), ended.err)
        return ended.err

    def prepare(self, *lines: str) -> None:
        """Run commands that must succeed, whatever they print."""
        for line in lines:
            ended = self.call(*line.split())
            self.assertEqual(0, ended.status, (line, ended.err))

    def refused_each(self, status: int, lines: Mapping[str, str]) -> None:
        """Run each command, which must fail with ``status`` and one line that contains the text beside it."""
        for line, text in lines.items():
            self.assertIn(text, self.refused(status, *line.split()), line)

    def misused(self, *argv: str) -> str:
        """Run a command that argparse must refuse: one line with a hint, exit status 2; returns that line."""
        line = self.refused(2, *argv)
        self.assertRegex(line, rf"\. See `{PROGRAM} .*--help`\.\n$")
        return line

    def make_overdue(self) -> None:
        """Set the expiry of every reservation to the past."""
        self.sql("UPDATE reservations SET expire = '2001-01-01 00:00:00.000000'")

    def sql(self, statement: str, **values: Any) -> None:
        """Run SQL on the database, without the ledger."""
        with sa.create_engine(self.url, poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.text(statement), values)

    def spawn(self, *argv: str, program: str = PROGRAM, **changes: Any) -> subprocess.Popen[str]:
        """Start the installed program in a process of its own."""
        environment = {**os.environ, "HOME": str(self.directory), **changes.pop("env", {})}
        process = subprocess.Popen(
            [installed(program), "--config-file", str(self.conf), *argv],
            stdin=subprocess.DEVNULL,
            stdout=changes.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=environment,
            **changes,
        )
        self.addCleanup(self._end, process)
        return process

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            process.kill()
        process.communicate()
