# SPDX-License-Identifier: Apache-2.0
"""A real Nova with Cyborg, Placement, Glance, Neutron and cyborg_quota, in an environment kept in .venv-nova.

    python -m tests.novas.environment

Keystone has an environment of its own: see tests/integration/environment.py.
"""

from __future__ import annotations

import pathlib

from tests import installing

DIRECTORY = installing.TOP / ".venv-nova"
REQUIREMENTS = (
    "glance==33.0.0",
    "neutron==29.0.0",  # Nova reads the ports of every server that it deletes, also with --nic none
    "nova==34.0.0",
    "openstack-cyborg==17.0.0",
    "openstack-placement==16.0.0",
    "PyMySQL==1.1.2",
    "setuptools==80.9.0",  # builds cyborg_quota without access to the index
    "waitress==3.0.2",
)


def ensure() -> pathlib.Path:
    """Install what is missing or outdated; returns the directory of the programs. Raises NotAvailable."""
    return installing.ensure_services("tests.novas", DIRECTORY, REQUIREMENTS, [__file__])


if __name__ == "__main__":
    installing.main(ensure)
