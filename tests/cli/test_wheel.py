# SPDX-License-Identifier: Apache-2.0
"""tools/wheel.sh: cyborg_quota runs from the wheel on a host without the source tree."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import fixtures as fx
from oslotest import base

from tests import installing

TOP = installing.TOP
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
        shutil.copytree(TOP / "tools", tree / "tools")
        installing.copy_sources(tree)
        # A deleted module that an earlier build left behind must not be packed.
        (tree / "build/lib/cyborg_quota").mkdir(parents=True)
        (tree / "build/lib/cyborg_quota/deleted.py").touch()
        wheel = pathlib.Path(self.run_program(str(tree / "tools/wheel.sh"), "wheels").strip())
        self.assertEqual(self.workdir / "wheels", wheel.parent)
        # The source distribution is complete: the wheel that is built from it is the same.
        self.run_program(sys.executable, "-m", "build", "--outdir", "dist", str(tree))
        names = [sorted(zipfile.ZipFile(path).namelist()) for path in (wheel, self.workdir / "dist" / wheel.name)]
        self.assertEqual(*names)
        shutil.rmtree(tree)

        # Its dependencies are those of the test environment; only the package comes from the wheel.
        target = self.workdir / "installed"
        pip = (sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-compile")
        self.run_program(*pip, "--target", str(target), str(wheel))
        files = (file.relative_to(target) for file in (target / "cyborg_quota").rglob("*") if file.is_file())
        installed = {str(path) for path in files if "__pycache__" not in path.parts}
        self.assertEqual({str(path) for path in installing.package_files()}, installed)
        self.check_other_files(target)
        self.check_commands(target)

    def check_commands(self, target: pathlib.Path) -> None:
        """The program; and in one more process, two commands and the place from which the package is imported."""
        environment = {"PYTHONPATH": str(target), "OS_DATABASE__CONNECTION": f"sqlite:///{self.workdir}/quota.sqlite"}
        self.run_program(sys.executable, str(target / "bin/cyborg-quota"), "db", "sync", **environment)
        script = (
            "import cyborg_quota; from cyborg_quota.cli.main import main; print(cyborg_quota.__file__);"
            "print(main(['reserve', '--project', 'p', 'gpu=1', '-f', 'value', '-c', 'state']));"
            "print(main(['audit', '-f', 'value']))"
        )
        printed = self.run_program(sys.executable, "-c", script, **environment).split()
        self.assertEqual([f"{target}/cyborg_quota/__init__.py", "reserved", "0", "0"], printed)

    def check_other_files(self, target: pathlib.Path) -> None:
        """The samples, the units, the man page and the completion are those of the source tree."""
        expected = {
            "etc/cyborg_quota": ["etc/cyborg_quota/cyborg_quota.conf.sample", "etc/cyborg_quota/policy.yaml.sample"],
            "share/cyborg_quota/cloudkitty": ["etc/cloudkitty/metrics.yml"],
            "share/cyborg_quota/grafana": ["etc/grafana/cyborg_quota.json"],
            "share/cyborg_quota/prometheus": ["etc/prometheus/rules.yaml"],
            "share/cyborg_quota/systemd": [str(path.relative_to(TOP)) for path in TOP.glob("etc/systemd/*")],
            "share/cyborg_quota/wsgi": [str(path.relative_to(TOP)) for path in TOP.glob("etc/wsgi/*.*")],
            "share/man/man1": ["share/man/man1/cyborg-quota.1"],
            "share/bash-completion/completions": ["share/bash-completion/completions/cyborg-quota"],
        }
        for directory, sources in expected.items():
            found = {path.name: path.read_bytes() for path in (target / directory).iterdir()}
            self.assertEqual({pathlib.Path(path).name: (TOP / path).read_bytes() for path in sources}, found)
            self.assertNotEqual({}, found)
