# SPDX-License-Identifier: Apache-2.0
"""A real Nova with Cyborg, Placement, Glance, Neutron and cyborg_quota, in an environment kept in .venv-nova.

    python -m tests.novas.environment

Keystone has an environment of its own: see tests/integration/environment.py.
"""

from __future__ import annotations

import pathlib
import sys
import time

from tests import installing
from tests.installing import NotAvailable

PLACE = installing.TOP / ".venv-nova"
REQUIREMENTS = (
    "glance==33.0.0",
    "neutron==29.0.0",  # Nova reads the ports of every server that it deletes, also with --nic none
    "nova==34.0.0",
    "openstack-cyborg==17.0.0",
    "openstack-placement==16.0.0",
    "osc-placement==4.9.1",
    "PyMySQL==1.1.2",
    "python-openstackclient==10.5.0",
    "setuptools==80.9.0",  # builds cyborg_quota without access to the index
    "waitress==3.0.2",
)


def tables_directory() -> pathlib.Path:
    """Return the directory of these services' tables: see tables.py."""
    return PLACE / f"tables-{_stamp()[:12]}"


def _stamp() -> str:
    sources = [pathlib.Path(__file__).read_text(), pathlib.Path(installing.__file__).read_text()]
    return installing.stamp_of(str(PLACE), *REQUIREMENTS, *sources)


def ensure() -> pathlib.Path:
    """Make what is missing, one process at a time; returns the directory of the programs. Raises NotAvailable."""
    PLACE.mkdir(exist_ok=True)
    began = time.monotonic()
    python = PLACE / "env/bin/python"
    services = _stamp()
    ours = installing.package_stamp(services)
    with installing.locked(PLACE / "lock"):
        with installing.stamped(PLACE / "services.stamp", services) as needed:
            if needed:
                print(f"tests.novas: making {PLACE.name}", file=sys.stderr)
                installing.make_environment(PLACE / "env")
                installing.pip_install(python, *REQUIREMENTS)
        with installing.stamped(PLACE / "ours.stamp", ours) as needed:
            if needed:
                installing.install_package(python, "mysql")
                print(f"tests.novas: made in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return python.parent


if __name__ == "__main__":
    try:
        ensure()
    except NotAvailable as reason:
        sys.exit(f"tests.novas: no Nova: {reason}")
