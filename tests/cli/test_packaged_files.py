# SPDX-License-Identifier: Apache-2.0
"""The files of the wheel besides the code: the man page, the completion of bash, and the units of systemd."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import testscenarios
from oslotest import base

from tests import man_page, needs

load_tests = testscenarios.load_tests_apply_scenarios
TOP = pathlib.Path(__file__).parents[2]
UNITS = sorted((TOP / "etc/systemd").glob("*.service"))
COMPLETION = TOP / "share/bash-completion/completions/cyborg-quota"
LIBRARY = """
    _get_comp_words_by_ref() {
        words=("${COMP_WORDS[@]}"); cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}
    }
"""
"""What the function needs of bash-completion, which is not installed everywhere."""
MAX_EXPOSURE = 30
"""In tenths, as systemd-analyze takes it."""


def run(test: base.BaseTestCase, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(program) is None:
        needs.missing(test, f"{program} is not installed")
    bin_directory = str(pathlib.Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"}
    return subprocess.run(
        [program, *arguments], check=False, capture_output=True, text=True, timeout=60, env=environment
    )


class TestManPage(base.BaseTestCase):
    def test_it_is_current(self) -> None:
        self.assertEqual(
            man_page.text(), man_page.FILE.read_text(), "run python -m tests.man_page > share/man/man1/cyborg-quota.1"
        )

    def test_its_format(self) -> None:
        ended = run(self, "groff", "-man", "-Tutf8", "-ww", "-z", str(man_page.FILE))
        self.assertEqual((0, ""), (ended.returncode, ended.stderr))


class TestCompletion(base.BaseTestCase):
    def test_commands_and_options(self) -> None:
        """What bash offers for the last word of each line."""
        lines = (("prov",), ("provider", "s"), ("list", "--proj"))
        script = f"{LIBRARY}\n. {COMPLETION}\n"
        for line in lines:
            words = ("cyborg-quota", *line)
            script += f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(line)}; _cyborg_quota\n"
            script += 'echo "${COMPREPLY[@]}"\n'
        ended = run(self, "bash", "--norc", "-c", f"{script}complete -p cyborg-quota")
        self.assertEqual((0, ""), (ended.returncode, ended.stderr))
        command, subcommand, option, registered = (line.split() for line in ended.stdout.splitlines())
        self.assertEqual(["provider"], command)
        self.assertIn("set", subcommand)
        self.assertIn("--project", option)
        self.assertEqual("complete -F _cyborg_quota cyborg-quota", " ".join(registered))


class TestUnits(base.BaseTestCase):
    scenarios = [(path.stem, {"path": path}) for path in UNITS]
    path: pathlib.Path

    def test_exposure(self) -> None:
        ended = run(self, "systemd-analyze", "security", "--offline=yes", f"--threshold={MAX_EXPOSURE}", str(self.path))
        self.assertEqual(0, ended.returncode, (ended.stdout + ended.stderr)[-400:])
        self.assertIn("Overall exposure level", ended.stdout)
