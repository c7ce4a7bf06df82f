# SPDX-License-Identifier: Apache-2.0
"""A private systemd, the first process of its own namespaces, which runs services with their sandboxes.

It has its own processes, mounts, network and control groups, and sees only the units that it is given. /etc, /opt and
/var are those of the machine; what is written there is gone at the end.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

import fixtures as fx

from tests.installing import NotAvailable
from tests.servers import machine

SYSTEMD: Final = "/lib/systemd/systemd"
PROGRAMS: Final = (SYSTEMD, "unshare", "nsenter", "systemctl")
LEGACY_GROUPS: Final = pathlib.Path("/sys/fs/cgroup/systemd")
"""The control groups of systemd where the other ones are of version 1."""

TIMEOUT_SECONDS = 60.0
TARGETS: Final = ("sysinit", "basic", "shutdown", "network-online")
"""The targets that services need by default: empty ones."""

START = """\
set -e
mount -t proc proc /proc
umount -l /sys/fs/cgroup
{groups}
mount -t tmpfs tmpfs /mnt
for top in etc opt var; do
    mkdir -p /mnt/$top/upper /mnt/$top/work
    mount -t overlay -o lowerdir=/$top,upperdir=/mnt/$top/upper,workdir=/mnt/$top/work overlay /$top
done
mount -t tmpfs tmpfs /run
mount --bind {log} /dev/console
{prepare}
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_UNIT_PATH={units} {systemd} --system \
    --unit=basic.target --log-target=console --show-status=no
"""
LEGACY_MOUNT = """\
mount -t tmpfs tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd"""
UNIFIED_MOUNT = "mount -t cgroup2 cgroup2 /sys/fs/cgroup"


class Systemd(fx.Fixture):
    """A running systemd with these units: {name: text}. Raises NotAvailable.

    ``prepare``: a shell script that runs before, in its namespaces, for example to create files in /etc.
    """

    def __init__(self, units: Mapping[str, str], prepare: str) -> None:
        super().__init__()
        self._units = {**{f"{name}.target": "[Unit]\nDefaultDependencies=no\n" for name in TARGETS}, **units}
        self._prepare = prepare

    def _setUp(self) -> None:
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise NotAvailable(f"{missing[0]} is not installed (bindep.txt names the packages)")
        self.directory = pathlib.Path(self.useFixture(fx.TempDir()).path)
        for name, text in self._units.items():
            path = self.directory / "units" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        # (Of all services: there is no journal.)
        output = self.directory / "units/service.d/output.conf"
        output.parent.mkdir()
        output.write_text(f"[Service]\nStandardOutput=append:{self.directory}/log\nStandardError=inherit\n")
        is_legacy = LEGACY_GROUPS.is_dir()
        start = START.format(
            groups=LEGACY_MOUNT if is_legacy else UNIFIED_MOUNT,
            log=self.directory / "log",
            prepare=self._prepare,
            units=self.directory / "units",
            systemd=SYSTEMD,
        )
        group = self._make_group(LEGACY_GROUPS if is_legacy else LEGACY_GROUPS.parent)
        flags = ("--pid", "--fork", "--kill-child", "--mount", "--cgroup", "--ipc", "--uts", "--net")
        command = machine.ends_with_parent(["unshare", *flags, "--propagation", "private", "sh", "-c", start])
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                ["sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.addCleanup(process.wait, TIMEOUT_SECONDS)
        self.addCleanup(process.kill)  # unshare ignores SIGTERM
        self._process = process
        machine.wait_until(lambda: self._is_up() or process.poll() is not None, TIMEOUT_SECONDS)
        if not self._is_up():
            raise NotAvailable(f"systemd does not start here: {self.log[-500:]}")

    def _make_group(self, top: pathlib.Path) -> pathlib.Path:
        group = top / f"cyborg-quota-test-{os.getpid()}-{self.directory.name}"
        try:
            group.mkdir()
        except OSError as error:
            raise NotAvailable(f"no control group can be made: {error}") from error
        self.addCleanup(_remove, group)
        return group

    @property
    def log(self) -> str:
        """What systemd and its services have logged."""
        return (self.directory / "log").read_text()

    def _is_up(self) -> bool:
        with contextlib.suppress(NotAvailable, subprocess.TimeoutExpired):
            return self.run("systemctl", "is-active", "basic.target").returncode == 0
        return False

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespaces of systemd."""
        found = machine.descendants(self._process.pid)
        if not found:
            raise NotAvailable(f"systemd has ended: {self.log[-500:]}")
        inside = ["nsenter", "--target", str(found[0]), "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--"]
        return subprocess.run([*inside, *command], check=False, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)


def _remove(group: pathlib.Path) -> None:
    """Remove a control group and those below it, as soon as their processes have ended."""

    def is_removed() -> bool:
        subprocess.run(["find", group, "-depth", "-type", "d", "-delete"], check=False, stderr=subprocess.DEVNULL)
        return not group.exists()

    machine.wait_until(is_removed, TIMEOUT_SECONDS)
