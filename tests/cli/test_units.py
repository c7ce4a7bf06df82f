# SPDX-License-Identifier: Apache-2.0
"""The units of the expirer, the REST API and the metrics under a real systemd, in their sandboxes."""

from __future__ import annotations

import os
import pathlib
import re
import sys
from collections.abc import Callable

import fixtures as fx
from oslotest import base

from tests import installing, needs
from tests.cli.systemd import Systemd
from tests.servers import machine

UNITS = installing.TOP / "etc/systemd"
SERVICES = ("cyborg-quota-expirer", "cyborg-quota-api", "cyborg-quota-metrics")
CONF = """\
[database]
connection = sqlite:////var/lib/cyborg_quota/cyborg_quota.sqlite
[quota]
expire_interval = 1
[metrics]
listen = 127.0.0.1:9877
projects = *
[keystone_authtoken]
auth_type = password
auth_url = http://127.0.0.1:9/
www_authenticate_uri = http://127.0.0.1:9/
"""
PREPARE = """\
echo 'cyborg:x:6666:6666::/nonexistent:/usr/sbin/nologin' >>/etc/passwd
echo 'cyborg:x:6666:' >>/etc/group
mkdir -p /opt/python /opt/cyborg/venv /opt/cyborg/src/cyborg_quota /etc/cyborg_quota
mount --bind {python} /opt/python
mount --bind {venv} /opt/cyborg/venv
mount --bind {source} /opt/cyborg/src/cyborg_quota
cp {directory}/cyborg_quota.conf {wsgi}/*-gunicorn.py /etc/cyborg_quota/
"""
# The sandbox hides the directories of the interpreter and of the virtual environment, if they are below /home, /root or
# /tmp. They are mounted elsewhere, and found by these variables.
DROP_IN = """\
[Service]
Environment={environment}
ExecStart=
ExecStart={python} {command}
"""
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = f"/opt/python/bin/{VERSION} -S"
"""-S: without the packages of the interpreter's own directory. Debian's has those of the system."""
PACKAGES = f"/opt/cyborg/venv/lib/{VERSION}/site-packages"
ENVIRONMENT = f"PYTHONPATH=/opt/cyborg/src:{PACKAGES} LD_LIBRARY_PATH=/opt/python/lib"
CONFIG = ("--config-file", "/etc/cyborg_quota/cyborg_quota.conf")
QUOTA = f"{PYTHON} /opt/cyborg/venv/bin/cyborg-quota {' '.join(CONFIG)}"
COMMANDS = f"{QUOTA} db sync && {QUOTA} reserve --project film --consumer arq --expire 1 gpu=1"
TIMEOUT_SECONDS = 60.0


class TestServices(base.BaseTestCase):
    def start(self) -> Systemd:
        """A systemd with all units, and one that makes a ledger with a reservation of one second."""
        units = {}
        for name in [f"{service}.service" for service in SERVICES]:
            units[name] = (UNITS / name).read_text()
            [command] = re.findall(r"(?m)^ExecStart=(.*)$", units[name])
            units[f"{name}.d/10-test.conf"] = DROP_IN.format(environment=ENVIRONMENT, python=PYTHON, command=command)
        # The ledger is made by commands in the same sandbox, as the same user.
        once = units["cyborg-quota-expirer.service"].replace("Type=simple", "Type=oneshot")
        units["prepare.service"] = re.sub(r"(?m)^(ExecStart|Restart)=.*$", "", once)
        command = f"-c pass\nExecStart=/bin/sh -c '{COMMANDS}'"
        drop_in = DROP_IN.format(environment=ENVIRONMENT, python=PYTHON, command=command)
        units["prepare.service.d/10-test.conf"] = drop_in
        directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        (directory / "cyborg_quota.conf").write_text(CONF)
        prepare = PREPARE.format(
            python=sys.base_prefix,
            venv=sys.prefix,
            source=installing.TOP / "cyborg_quota",
            directory=directory,
            wsgi=installing.TOP / "etc/wsgi",
        )
        if os.geteuid() != 0:
            self.skipTest("only root can start a private systemd")
        try:
            return self.useFixture(Systemd(units, prepare))
        except installing.NotAvailable as reason:
            needs.missing(self, str(reason))

    def test_in_their_sandboxes(self) -> None:
        systemd = self.start()

        def good(*command: str) -> str:
            ended = systemd.run(*command)
            self.assertEqual(0, ended.returncode, f"{command}: {ended.stdout}{ended.stderr}{systemd.log[-6000:]}")
            return ended.stdout

        good("systemctl", "start", "prepare.service")
        good("systemctl", "start", *SERVICES)
        # The API has reported that it listens; it asks for a token.
        for path, status in (("healthcheck", "200"), ("v2/quotas/film", "401")):
            answer = good("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://127.0.0.1:6667/{path}")
            self.assertEqual(status, answer)
        # The reservation is expired, and the counters and the ledger are served.
        command = f"{QUOTA} reservation list --project film -f value -c state"
        states = ["env", *ENVIRONMENT.split(), *command.split()]
        found = self.wait_for(lambda: good(*states), "expired")
        self.assertEqual("expired", found.strip(), systemd.log[-6000:])
        series = "cyborg_quota_expirer_last_success_timestamp_seconds"
        text = self.wait_for(lambda: systemd.run("curl", "-s", "http://127.0.0.1:9877/metrics").stdout, series)
        self.assertIn(series, text)
        self.assertIn('cyborg_quota_used{project_id="film"', good("curl", "-s", "http://127.0.0.1:9876/metrics"))
        self.check_sandbox(good)
        good("systemctl", "stop", *SERVICES)
        for name in SERVICES:
            self.assertEqual("success\n", good("systemctl", "show", "--value", "--property=Result", f"{name}.service"))

    def check_sandbox(self, good: Callable[..., str]) -> None:
        """The processes are those of the user, without privileges."""
        for name in SERVICES:
            pid = good("systemctl", "show", "--value", "--property=MainPID", f"{name}.service").strip()
            lines = good("cat", f"/proc/{pid}/status").splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            self.assertEqual(["6666"] * 4, status["Uid"].split())
            self.assertEqual(("0" * 16, "1", "2"), (status["CapBnd"], status["NoNewPrivs"], status["Seccomp"]), name)

    def wait_for(self, read: Callable[[], str], text: str) -> str:
        """The text that ``read`` returns, as soon as it contains ``text``; at last whatever it is."""
        machine.wait_until(lambda: text in read(), TIMEOUT_SECONDS)
        return read()
