# SPDX-License-Identifier: Apache-2.0
"""A real Keystone from the package index, in an environment of its own that is kept in .venv-keystone.

    python -m tests.integration.environment

It also holds a template: the tables, the keys and the first user, as keystone-manage makes them.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import secrets
import shutil
import sys

from tests import installing
from tests.installing import STEP_TIMEOUT_SECONDS

DIRECTORY = installing.TOP / ".venv-keystone"
REQUIREMENTS = ("keystone==30.0.0", "waitress==3.0.2")
REGION = "RegionOne"
CONFIG_NAME = "keystone.conf"

CONFIG = """\
[DEFAULT]
log_file = {workdir}/keystone.log
max_project_tree_depth = 9
[database]
connection = sqlite:///{workdir}/keystone.sqlite
[fernet_tokens]
key_repository = {workdir}/fernet
[fernet_receipts]
key_repository = {workdir}/fernet
[identity]
# for a password that need not be kept
password_hash_rounds = 4
[cache]
backend = dogpile.cache.memory
[unified_limit]
caching = false
enforcement_model = {model}
"""


@dataclasses.dataclass(frozen=True)
class Environment:
    """The environment. ``password`` is that of the user admin, who has all privileges."""

    python: pathlib.Path
    template: pathlib.Path
    password: str


def write_config(workdir: pathlib.Path, model: str) -> pathlib.Path:
    """A keystone.conf for the data in ``workdir``."""
    path = workdir / CONFIG_NAME
    path.write_text(CONFIG.format(workdir=workdir, model=model))
    return path


def ensure() -> Environment:
    """Install what is missing, one process at a time. Raises NotAvailable."""
    DIRECTORY.mkdir(exist_ok=True)
    found = Environment(DIRECTORY / "env/bin/python", DIRECTORY / "template", "")
    sources = [pathlib.Path(__file__).read_text(), pathlib.Path(installing.__file__).read_text()]
    stamp = installing.stamp_of(str(DIRECTORY), *REQUIREMENTS, *sources)
    with installing.locked(DIRECTORY / "lock"), installing.stamped(DIRECTORY / "stamp", stamp) as needed:
        if needed:
            print(f"tests.integration: making {DIRECTORY.name}", file=sys.stderr)
            installing.make_environment(DIRECTORY / "env")
            installing.pip_install(found.python, *REQUIREMENTS)
            _make_template(found)
    return dataclasses.replace(found, password=(found.template / "password").read_text())


def _make_template(found: Environment) -> None:
    shutil.rmtree(found.template, ignore_errors=True)
    found.template.mkdir(mode=0o700)
    (found.template / "fernet").mkdir(mode=0o700)
    config = write_config(found.template, "flat")
    password = secrets.token_hex(16)
    manage = [str(found.python.parent / "keystone-manage"), "--config-file", str(config)]
    owner = f"--keystone-user={os.geteuid()}", f"--keystone-group={os.getegid()}"
    installing.run([*manage, "db_sync"], STEP_TIMEOUT_SECONDS)
    installing.run([*manage, "fernet_setup", *owner], STEP_TIMEOUT_SECONDS)
    bootstrap = ["--bootstrap-public-url=http://127.0.0.1/v3", f"--bootstrap-region-id={REGION}"]
    installing.run([*manage, "bootstrap", *bootstrap], STEP_TIMEOUT_SECONDS, OS_BOOTSTRAP_PASSWORD=password)
    (found.template / "password").write_text(password)


if __name__ == "__main__":
    installing.main(ensure)
