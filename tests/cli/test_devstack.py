# SPDX-License-Identifier: Apache-2.0
"""The phases of devstack/plugin.sh, run with small versions of the functions that devstack gives a plugin.

The files that it writes are real, and so are the database and the limits of the first run. Calls that need devstack
(systemd units, Cyborg's own plugin) are recorded instead; in further runs, the commands of cyborg-quota too.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import os
import pathlib
import subprocess
import sys

import fixtures as fx
from oslotest import base

from cyborg_quota.cli import main

TOP = pathlib.Path(__file__).parents[2]
TIMEOUT_SECONDS = 120.0

DEVSTACK = r"""
set -euo pipefail
export STACK_USER=$(id -un) DEST=$PLACE
record() { printf '%s\n' "$*" >>"$PLACE/calls"; }
echo_summary() { record "summary: $*"; }
is_service_enabled() { local one; for one in "$@"; do [[ ,$SERVICES, == *,$one,* ]] && return 0; done; return 1; }
enable_service() { SERVICES+=,$1; }
pip_install() { record "pip_install $*"; }
sudo() { "$@"; }
get_python_exec_prefix() { echo "$PROGRAMS"; }
database_connection_url() { echo "sqlite:///$PLACE/$1.sqlite"; }
recreate_database() { record "recreate_database $1"; rm -f "$PLACE/$1.sqlite"; }
run_process() { record "run_process $*"; }
stop_process() { record "stop_process $*"; }
ini() {
    "$PYTHON" - "$@" <<'PYTHON'
import configparser, pathlib, sys
action, path, section, option, *value = sys.argv[1:]
parser = configparser.RawConfigParser()
parser.read(path)
if action == "set":
    parser.has_section(section) or parser.add_section(section)
    parser.set(section, option, *value)
else:
    parser.remove_option(section, option)
with pathlib.Path(path).open("w") as file:
    parser.write(file)
PYTHON
}
iniset() { ini set "$@"; }
inidelete() { ini delete "$@"; }
source "$TOP/devstack/settings"
phase() { source "$TOP/devstack/plugin.sh" "$@"; }
"""

PHASES = """
phase stack pre-install
phase stack install
phase stack post-config
phase stack extra
phase stack test-config
"""


class DevstackTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.workdir = pathlib.Path(self.useFixture(fx.TempDir()).path)
        self.cyborg_conf = self.workdir / "cyborg.conf"
        self.cyborg_conf.write_text("[DEFAULT]\ndebug = True\n")
        self.uwsgi = self.workdir / "cyborg-api-uwsgi.ini"
        self.uwsgi.write_text("[uwsgi]\nwsgi-file = /opt/stack/bin/cyborg-wsgi-api\nprocesses = 2\n")
        self.conf_dir = self.workdir / "etc"
        self.programs = pathlib.Path(sys.executable).parent

    def commands(self, calls: list[str]) -> list[str]:
        """The recorded commands of cyborg-quota."""
        return [call for call in calls if call.startswith("cyborg-quota ")]

    def record_commands(self) -> None:
        """From now on, the program cyborg-quota is one that records its arguments."""
        self.programs = self.workdir / "bin"
        self.programs.mkdir()
        program = self.programs / "cyborg-quota"
        program.write_text('#!/bin/sh\nshift 2\necho "cyborg-quota $*" >>"$PLACE/calls"\n')
        program.chmod(0o755)

    def run_phases(self, phases: str, services: str = "cyborg-api,cyborg-cond", **settings: str) -> list[str]:
        """Run these phases; returns the recorded calls."""
        calls = self.workdir / "calls"
        calls.unlink(missing_ok=True)
        environment = {
            "PLACE": str(self.workdir),
            "TOP": str(TOP),
            "PYTHON": sys.executable,
            "PROGRAMS": str(self.programs),
            "SERVICES": services,
            "CYBORG_QUOTA_CONF_DIR": str(self.conf_dir),
            "CYBORG_CONF_FILE": str(self.cyborg_conf),
            "CYBORG_UWSGI_CONF": str(self.uwsgi),
            **settings,
        }
        ended = subprocess.run(
            ["bash", "-c", DEVSTACK + phases],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            timeout=TIMEOUT_SECONDS,
        )
        self.assertEqual(0, ended.returncode, ended.stdout + ended.stderr)
        return calls.read_text().splitlines() if calls.exists() else []

    def read(self, path: pathlib.Path) -> configparser.RawConfigParser:
        parser = configparser.RawConfigParser()
        parser.read(path)
        return parser

    def test_stack_and_unstack(self) -> None:
        """stack.sh, the same again on the same host, unstack.sh and clean.sh."""
        self.check_stack()
        conf = self.conf_dir / "cyborg_quota.conf"
        first = conf.read_text(), self.uwsgi.read_text()
        self.record_commands()
        calls = self.run_phases(PHASES)
        self.assertEqual(["cyborg-quota db sync", "cyborg-quota set --default fpga=4 gpu=4"], self.commands(calls))
        self.assertEqual(first, (conf.read_text(), self.uwsgi.read_text()))
        self.assertEqual(["stop_process cyborg-quota-expirer"], self.run_phases("phase unstack"))
        self.run_phases("phase clean")
        self.assertFalse(self.conf_dir.exists())
        self.assertEqual([], self.run_phases(PHASES, services="nova"), "without Cyborg")
        self.assertFalse(self.conf_dir.exists())

    def check_stack(self) -> None:
        """Install, configure and start: the conductor and the API run with quota, under the default limits."""
        calls = self.run_phases(PHASES)
        programs = self.programs
        conf = self.conf_dir / "cyborg_quota.conf"
        self.assertEqual(
            [
                "summary: Installing cyborg_quota",
                f"pip_install {TOP}[mysql,postgresql,keystone,api]",
                "summary: Configuring cyborg_quota",
                "recreate_database cyborg_quota",
                "summary: Starting cyborg_quota",
                "stop_process cyborg-cond",
                f"run_process cyborg-cond {programs}/cyborg-quota-conductor --config-file {self.cyborg_conf}",
                f"run_process cyborg-quota-expirer {programs}/cyborg-quota-expirer --config-file {conf}",
            ],
            calls,
        )
        self.assertEqual(0o600, conf.stat().st_mode & 0o777)
        self.assertEqual(str(conf), self.read(self.cyborg_conf)["cyborg_quota"]["config_file"])
        uwsgi = self.read(self.uwsgi)["uwsgi"]
        self.assertEqual({"module": "cyborg_quota.cyborg.wsgi:application", "processes": "2"}, dict(uwsgi))
        out = io.StringIO()
        columns = ("-c", "resource", "-c", "limit", "-f", "csv", "--quote", "none")
        with contextlib.redirect_stdout(out):
            self.assertEqual(0, main.main(["--config-file", str(conf), "list", *columns]))
        self.assertEqual(["resource,limit", "fpga,4", "gpu,4"], out.getvalue().split())

    def test_other_limits(self) -> None:
        """The settings choose the counted resources and the limits; other drivers have their limits elsewhere."""
        self.record_commands()
        calls = self.run_phases(PHASES, CYBORG_QUOTA_LIMIT_DRIVER="noop", CYBORG_QUOTA_RESOURCES="gpu")
        self.assertEqual(["cyborg-quota db sync"], self.commands(calls))
        conf = self.read(self.conf_dir / "cyborg_quota.conf")
        self.assertEqual(("gpu", "noop"), (conf["quota"]["resources"], conf["limits"]["driver"]))
