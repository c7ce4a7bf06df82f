# SPDX-License-Identifier: Apache-2.0
"""Runs the console examples of the documentation, each page on a ledger of its own.

A page controls this by comments::

    .. run: COMMAND [&& ...]    runs commands that the page does not show
    .. save: NAME               writes the next code block to a file
    .. not run: REASON          leaves out the next console block; ELSEWHERE says where it is run

The output may differ from the page in UUIDs, times, durations and the width of columns. A UUID that the page shows
stands for the one that was printed in its place.

    python -m tests.doc_examples            compares, and exits with 1 if a page differs
    python -m tests.doc_examples --write    rewrites the outputs that differ
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import pathlib
import re
import shlex
import sqlite3
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator

from cyborg_quota.cli import expirer, main, status
from tests.api import client

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted((ROOT / "doc/source").rglob("*.rst"))
    if re.search(r"(?m)^ *\$ (cyborg-quota|openstack accelerator quota)", path.read_text())
}
PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "cyborg-quota": main.main,
    "cyborg-quota-expirer": expirer.main,
    "cyborg-quota-status": status.main,
    "openstack": client.main,
}
ELSEWHERE = {
    "/opt/cyborg/venv/bin/pip": "installed in a directory of its own: tests/installing.py",
    "ENABLED=$(python3": "tests/horizon/environment.py enables the panels",
    "ansible": "needs hosts; tests.unit.test_docs checks the playbook",
    "cp $ENABLED": "tests/horizon/environment.py enables the panels",
    "curl": "tests.api.test_examples",
    "cyborg-quota capacity import --from cyborg": "tests.cyborgs.test_capacity reads it without Keystone",
    "cyborg-quota capacity import --from placement": "tests.cyborgs.test_capacity",
    "cyborg-quota project import --from keystone": "tests.integration.test_project_names",
    "cyborg-quota reconcile": "tests.cyborgs.test_reconcile",
    "cyborg-quota set": "tests.integration.test_project_names",
    "cyborg-quota simulate half.yaml": "tests.cli.test_simulate",
    "cyborg-quota-status": "tests.cyborgs.test_status",
    "echo '{}' | cyborg-quota simulate": "tests.cli.test_simulate",
    "export PATH": "the tests call the programs of the environment",
    "kolla-ansible": "needs hosts; tests.unit.test_docs checks the playbook",
    "mariadb-dump": "tests/faults/backups.py calls it",
    "openstack": "tests.integration.test_openstackclient",
    "pg_dump": "tests/faults/backups.py calls it",
    "python -m tests.doc_pages": "tests.unit.test_doc_pages calls its functions",
    "python -m tests.servers": "runs the tests",
    "python3 -m venv": "tools/quickstart.sh does it",
    "sphinx-build": "tests.unit.test_docs calls it",
    "sqlite3": "tests/faults/backups.py calls its function",
    "stestr": "runs the tests",
    "tools/benchmark.sh": "takes minutes",
    "tools/soak.sh": "takes minutes",
    "tools/test.sh": "runs the tests",
    "tools/wheel.sh": "tests.cli.test_wheel calls it",
    "tox": "runs the tests",
    ".venv/bin/pip": "tools/quickstart.sh does it",
}
"""For each beginning of a command that ``differences`` does not run: the module of tests that runs it, or the reason.

A module of tests gets the commands from the pages, by ``commands_of``; so does no page become wrong unnoticed.
"""
_COMMENT = re.compile(r" *\.\. (run|save|not run): (.*)")
_BLOCK = re.compile(r"( *)\.\. code-block:: (\w+)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DATABASE = "OS_DATABASE__CONNECTION"
_ENVIRONMENT = re.compile(r"OS_[A-Z]+__\w+")


@dataclasses.dataclass
class Shown:
    """A command on a page and its output. ``lines`` are the numbers of the first and the last line of the output."""

    page: str
    command: str
    output: str
    lines: tuple[int, int]
    indent: int

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.lines[0]}"


@dataclasses.dataclass
class Step:
    """What to do next: run a command that is shown or hidden, or save a file."""

    shown: Shown | None = None
    hidden: str | None = None
    file: tuple[str, str] | None = None


def steps(page: str, text: str) -> Iterator[Step]:
    """The steps of a page, in its order."""
    lines = text.splitlines()
    save: str | None = None
    is_left_out = False
    index = 0
    while index < len(lines):
        comment, block = _COMMENT.fullmatch(lines[index]), _BLOCK.match(lines[index])
        index += 1
        if comment and comment[1] == "run":
            yield from (Step(hidden=command) for command in comment[2].split(" && "))
        elif comment and comment[1] == "save":
            save = comment[2]
        elif comment:
            is_left_out = True
        elif block:
            begin, end = _body(lines, index, len(block[1]))
            body = textwrap.dedent("\n".join(lines[begin:end]))
            if save is not None:
                yield Step(file=(save, body + "\n"))
                save = None
            elif block[2] == "console" and not is_left_out and _has_program(body):
                yield from _commands(page, lines, begin, end)
            is_left_out = is_left_out and block[2] != "console"
            index = end


def _has_program(body: str) -> bool:
    """Whether a block has one of our commands; pip, other commands of openstack and the like cannot be run here."""
    return any(line.startswith(("$ cyborg-quota", "$ openstack accelerator quota")) for line in body.splitlines())


def _body(lines: list[str], index: int, indent: int) -> tuple[int, int]:
    """The first line of the content of a directive, and the line after its last one."""
    while not lines[index].strip() or lines[index].strip().startswith(":"):
        index += 1
    end = last = index
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" " * (indent + 1))):
        last = end if lines[end].strip() else last
        end += 1
    return index, last + 1


def _commands(page: str, lines: list[str], begin: int, end: int) -> Iterator[Step]:
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    content = [line[indent:] for line in lines[begin:end]]
    starts = [number for number, line in enumerate(content) if line.startswith("$ ")] + [len(content)]
    for start, following in itertools.pairwise(starts):
        output = "\n".join(content[start + 1 : following]).rstrip()
        numbers = (begin + start + 2, begin + following)
        yield Step(shown=Shown(page, content[start][2:], output, numbers, indent))


def left_out() -> Iterator[Shown]:
    """The commands of all pages that ``differences`` does not run."""
    for path in sorted((ROOT / "doc/source").rglob("*.rst")):
        page, text = path.relative_to(ROOT).as_posix(), path.read_text()
        run = {step.shown.lines[0] for step in steps(page, text) if step.shown}
        for found in re.finditer(r"(?m)^( +)\$ (.*)\n((?:\1(?!\$ ).+\n)*)", text):
            first = text.count("\n", 0, found.start()) + 2
            output = textwrap.dedent(found[3]).rstrip()
            if first not in run:
                yield Shown(page, found[2], output, (first, first + output.count("\n")), len(found[1]))


def where(command: str) -> str | None:
    """What ELSEWHERE says about a command: the entry with the longest beginning."""
    return ELSEWHERE.get(max(filter(command.startswith, ELSEWHERE), key=len, default=""))


def commands_of(module: str) -> list[Shown]:
    """The commands of the pages that a module of tests runs."""
    found = [shown for shown in left_out() if where(shown.command) == module]
    assert found, f"no page has a command that {module} runs"
    return found


class Session:
    """Runs the commands of one page in a directory of its own."""

    def __init__(self, directory: str) -> None:
        self._directory = pathlib.Path(directory)
        self._alias: list[str] = []
        self._uuids: dict[str, str] = {}
        (self._directory / "etc").symlink_to(ROOT / "etc")

    def run(self, step: Step) -> str | None:
        """Take a step. Returns the output of a shown command, with the UUIDs of the page; None if it is as shown."""
        if step.file is not None:
            (self._directory / step.file[0]).write_text(step.file[1])
        elif step.hidden is not None:
            exit_status, output = self._call(step.hidden)
            assert exit_status == 0, f"{step.hidden}: {output}"
        elif step.shown is not None:
            shown = step.shown
            _, output = self._call(_UUID.sub(lambda match: self._uuids.get(match[0], match[0]), shown.command))
            pages, printed = _UUID.findall(shown.output), _UUID.findall(output)
            if len(pages) == len(printed):
                self._uuids.update(zip(pages, printed, strict=True))
            if normalized(output) != normalized(shown.output):
                return self._with_uuids_of_page(output)
        return None

    def _with_uuids_of_page(self, output: str) -> str:
        pages = {actual: shown for shown, actual in self._uuids.items()}
        return _UUID.sub(lambda match: pages.get(match[0], match[0]), output)

    def _call(self, line: str) -> tuple[int, str]:
        """(exit status, stdout and stderr together)"""
        line, _, count = line.partition(" | head -")
        words = shlex.split(line)
        if words[0] == "alias":
            self._alias = shlex.split(words[1].partition("=")[2])[1:]
            return 0, ""
        if words[0] == "export":
            os.environ.update(word.split("=", 1) for word in words[1:] if _ENVIRONMENT.match(word))
            return 0, ""
        if words[0] == "sql":
            with contextlib.closing(sqlite3.connect(os.environ[_DATABASE].removeprefix("sqlite:///"))) as connection:
                connection.execute(line.removeprefix("sql "))
                connection.commit()
            return 0, ""
        if words[0] == "unset":
            for name in words[1:]:
                os.environ.pop(name, None)
            return 0, ""
        if words[0] not in PROGRAMS:
            raise AssertionError(f"{line}: only {', '.join(PROGRAMS)} can be run; add `.. not run: REASON`")
        arguments = [*(self._alias if words[0] == "cyborg-quota" else []), *words[1:]]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            exit_status = PROGRAMS[words[0]](arguments)
        lines = said.getvalue().rstrip().splitlines()
        return exit_status, "\n".join(lines[: int(count)] if count else lines)


def normalized(text: str) -> str:
    """The text without what differs from run to run."""
    text = _UUID.sub("UUID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "TIME", text)
    text = re.sub(r"((?:seconds|events_per_second)\W+)[\d.]+", r"\1N", text)
    return re.sub(r"-{3,}", "--", re.sub(r" +", " ", text)).strip()


@contextlib.contextmanager
def surroundings() -> Iterator[str]:
    """A directory of its own, and no configuration but that of the page."""
    environment, directory = dict(os.environ), os.getcwd()
    with tempfile.TemporaryDirectory() as own:
        for name in filter(_ENVIRONMENT.match, environment):
            del os.environ[name]
        os.environ.update(HOME=own, COLUMNS="200")
        os.chdir(own)
        try:
            yield own
        finally:
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)


def differences(page: str) -> list[tuple[Shown, str]]:
    """The commands of a page whose output is another one now, with that output."""
    found = []
    with surroundings() as directory:
        session = Session(directory)
        for step in steps(page, PAGES[page].read_text()):
            output = session.run(step)
            if output is not None and step.shown is not None:
                found.append((step.shown, output))
    return found


def rewrite(page: str, found: list[tuple[Shown, str]]) -> None:
    """Replace the outputs on a page."""
    lines = PAGES[page].read_text().splitlines()
    for shown, output in reversed(found):
        begin = shown.lines[0] - 1
        lines[begin : begin + len(shown.output.splitlines())] = [
            (" " * shown.indent + line).rstrip() for line in output.splitlines()
        ]
    PAGES[page].write_text("\n".join(lines) + "\n")


def run(write: bool) -> int:
    """Compare all pages; returns the exit status."""
    status = 0
    for page in PAGES:
        for shown, output in (found := differences(page)):
            print(f"{shown.place}: $ {shown.command}\n--- shown\n{shown.output}\n--- now\n{output}\n")
        if write:
            rewrite(page, found)
        elif found:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(run("--write" in sys.argv[1:]))
