# SPDX-License-Identifier: Apache-2.0
"""A real Nova with Cyborg, Placement, Glance, Neutron and cyborg_quota, in an environment kept in .venv-nova.

    python -m tests.novas.environment

Keystone has an environment of its own: see tests/integration/environment.py.
"""

from __future__ import annotations

import pathlib
import sys

from tests import installing
from tests.installing import NotAvailable

DIRECTORY = installing.TOP / ".venv-nova"
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


def ensure() -> pathlib.Path:
    """Install what is missing or outdated; returns the directory of the programs. Raises NotAvailable."""
    sources = [pathlib.Path(__file__).read_text(), pathlib.Path(installing.__file__).read_text()]
    stamp = installing.stamp_of(str(DIRECTORY), *REQUIREMENTS, *sources)
    return installing.ensure_services("tests.novas", DIRECTORY, REQUIREMENTS, stamp)


if __name__ == "__main__":
    try:
        ensure()
    except NotAvailable as reason:
        sys.exit(f"tests.novas: no Nova: {reason}")
