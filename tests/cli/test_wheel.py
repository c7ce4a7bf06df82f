# SPDX-License-Identifier: Apache-2.0
"""tools/wheel.sh: cyborg_quota runs from the wheel on a host without the source tree."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import fixtures as fx
from oslotest import base

from tests import installing

TIMEOUT_SECONDS = 120.0


class WheelTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.workdir = pathlib.Path(self.useFixture(fx.TempDir()).path)

    def run_program(self, *command: str, **environment: str) -> str:
        ended = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.workdir,
            env={**os.environ, **environment},
            timeout=TIMEOUT_SECONDS,
        )
        self.assertEqual(0, ended.returncode, f"{command}: {ended.stdout}{ended.stderr}")
        return ended.stdout

    def test_installed_and_run(self) -> None:
        """The wheel contains the whole package: its commands run where no source tree can be imported."""
        tree = self.workdir / "tree"
        shutil.copytree(installing.TOP / "tools", tree / "tools")
        shutil.copytree(installing.TOP / installing.PACKAGE, tree / installing.PACKAGE)
        for name in installing.PACKAGED:
            shutil.copy(installing.TOP / name, tree)
        # A deleted module that an earlier build left behind must not be packed.
        (tree / "build/lib/cyborg_quota").mkdir(parents=True)
        (tree / "build/lib/cyborg_quota/deleted.py").touch()
        wheel = pathlib.Path(self.run_program(str(tree / "tools/wheel.sh"), "wheels").strip())
        self.assertEqual(self.workdir / "wheels", wheel.parent)
        shutil.rmtree(tree)

        # Its dependencies are those of the test environment; only the package comes from the wheel.
        target = self.workdir / "installed"
        pip = (sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-compile")
        self.run_program(*pip, "--target", str(target), str(wheel))
        path = str(target)
        where = self.run_program(
            sys.executable, "-c", "import cyborg_quota; print(cyborg_quota.__file__)", PYTHONPATH=path
        )
        self.assertEqual(f"{target}/cyborg_quota/__init__.py", where.strip())
        files = (file.relative_to(target) for file in (target / "cyborg_quota").rglob("*") if file.is_file())
        installed = {str(path) for path in files if "__pycache__" not in path.parts}
        self.assertEqual({str(path) for path in installing.package_files()}, installed)
        connection = f"sqlite:///{self.workdir}/quota.sqlite"
        for command in (("db", "sync"), ("reserve", "--project", "p", "gpu=1"), ("usage", "audit")):
            program = str(target / "bin/cyborg-quota")
            self.run_program(sys.executable, program, *command, PYTHONPATH=path, OS_DATABASE__CONNECTION=connection)
