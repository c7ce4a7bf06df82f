# SPDX-License-Identifier: Apache-2.0
"""A real Keystone, from the package index, in an environment of its own: made once, and kept in .venv-keystone.

    python -m tests.integration.environment

It holds a template as well: the tables, the keys and the first user, as keystone-manage makes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

TOP = pathlib.Path(__file__).parents[2]
PLACE = TOP / ".venv-keystone"
REQUIREMENTS = ("keystone==30.0.0", "waitress==3.0.2")
INSTALL_TIMEOUT_SECONDS = 240.0
STEP_TIMEOUT_SECONDS = 60.0
REGION = "RegionOne"

CONFIG = """\
[DEFAULT]
log_file = {place}/keystone.log
[database]
connection = sqlite:///{place}/keystone.sqlite
[fernet_tokens]
key_repository = {place}/fernet
[fernet_receipts]
key_repository = {place}/fernet
[identity]
# for a password that nobody has to keep
password_hash_rounds = 4
[unified_limit]
enforcement_model = {model}
"""


class NotAvailable(Exception):
    """Keystone cannot be had here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """What is there. ``password`` is that of the user admin, who may do all."""

    python: pathlib.Path
    template: pathlib.Path
    password: str


def write_config(place: pathlib.Path, model: str) -> pathlib.Path:
    """A keystone.conf for the data in ``place``."""
    path = place / "keystone.conf"
    path.write_text(CONFIG.format(place=place, model=model))
    return path


def ensure() -> Environment:
    """Make what is missing, one process at a time. Raises NotAvailable."""
    PLACE.mkdir(exist_ok=True)
    found = Environment(PLACE / "env/bin/python", PLACE / "template", "")
    with _locked(PLACE / "lock"):
        stamp = hashlib.sha256(
            "\n".join((str(PLACE), sys.version, *REQUIREMENTS, pathlib.Path(__file__).read_text())).encode()
        ).hexdigest()
        stamped = PLACE / "stamp"
        if not stamped.exists() or stamped.read_text() != stamp:
            began = time.monotonic()
            print(f"tests.integration: making {PLACE.name}", file=sys.stderr)
            stamped.unlink(missing_ok=True)
            _install()
            _make_template(found)
            stamped.write_text(stamp)
            print(f"tests.integration: made in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return dataclasses.replace(found, password=(found.template / "password").read_text())


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install() -> None:
    shutil.rmtree(PLACE / "env", ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(PLACE / "env")], STEP_TIMEOUT_SECONDS)
    pip = [str(PLACE / "env/bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*pip, *REQUIREMENTS], INSTALL_TIMEOUT_SECONDS)


def _make_template(found: Environment) -> None:
    shutil.rmtree(found.template, ignore_errors=True)
    found.template.mkdir(mode=0o700)
    (found.template / "fernet").mkdir(mode=0o700)
    config = write_config(found.template, "flat")
    password = secrets.token_hex(16)
    manage = [str(found.python.parent / "keystone-manage"), "--config-file", str(config)]
    owner = f"--keystone-user={os.geteuid()}", f"--keystone-group={os.getegid()}"
    _run([*manage, "db_sync"], STEP_TIMEOUT_SECONDS)
    _run([*manage, "fernet_setup", *owner], STEP_TIMEOUT_SECONDS)
    bootstrap = ["--bootstrap-public-url=http://127.0.0.1/v3", f"--bootstrap-region-id={REGION}"]
    _run([*manage, "bootstrap", *bootstrap], STEP_TIMEOUT_SECONDS, OS_BOOTSTRAP_PASSWORD=password)
    (found.template / "password").write_text(password)


def _run(command: list[str], timeout_seconds: float, **environment: str) -> None:
    try:
        ended = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_seconds,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"{pathlib.Path(command[0]).name} took longer than {timeout_seconds:.0f} s") from None
    if ended.returncode != 0:
        last = (ended.stderr.strip() or ended.stdout.strip() or "nothing said").splitlines()[-1]
        raise NotAvailable(f"{' '.join([pathlib.Path(command[0]).name, *command[1:4]])} failed: {last}")


if __name__ == "__main__":
    try:
        ensure()
    except NotAvailable as reason:
        sys.exit(f"tests.integration: no Keystone: {reason}")
