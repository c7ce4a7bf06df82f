# SPDX-License-Identifier: Apache-2.0
"""A real Cyborg and Placement beside cyborg_quota, in an environment of its own: made once, kept in .venv-cyborg.

    python -m tests.cyborgs.environment
"""

from __future__ import annotations

import pathlib
import sys
import time

from tests import installing
from tests.installing import NotAvailable

PLACE = installing.TOP / ".venv-cyborg"
REQUIREMENTS = (
    "openstack-cyborg==17.0.0",
    "openstack-placement==16.0.0",
    "PyMySQL==1.1.2",
    "gunicorn==27.0.1",  # serves the API in test_wsgi_servers
    "pyuwsgi==2.0.30.post1",  # the same: uWSGI, as a binary wheel
    "setuptools==80.9.0",  # builds cyborg_quota, without asking the index each time
    "waitress==3.0.2",
)


def ensure() -> pathlib.Path:
    """Make what is missing, one process at a time; returns the directory of the programs. Raises NotAvailable."""
    PLACE.mkdir(exist_ok=True)
    began = time.monotonic()
    python = PLACE / "env/bin/python"
    sources = [pathlib.Path(__file__).read_text(), pathlib.Path(installing.__file__).read_text()]
    services = installing.stamp_of(str(PLACE), *REQUIREMENTS, *sources)
    # Whatever is edited wants a new installation of ours; Cyborg stays.
    ours = installing.package_stamp(services)
    with installing.locked(PLACE / "lock"):
        with installing.stamped(PLACE / "services.stamp", services) as needed:
            if needed:
                print(f"tests.cyborgs: making {PLACE.name}", file=sys.stderr)
                installing.make_environment(PLACE / "env")
                installing.pip_install(python, *REQUIREMENTS)
        with installing.stamped(PLACE / "ours.stamp", ours) as needed:
            if needed:
                installing.install_package(python, "mysql")
                print(f"tests.cyborgs: made in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return python.parent


if __name__ == "__main__":
    try:
        ensure()
    except NotAvailable as reason:
        sys.exit(f"tests.cyborgs: no Cyborg: {reason}")
