# SPDX-License-Identifier: Apache-2.0
"""A real Cyborg and Placement beside cyborg_quota, each version in an environment of its own: made once, kept.

Cyborg 17 is kept in .venv-cyborg, Cyborg 16 in .venv-cyborg16.

    python -m tests.cyborgs.environment
"""

from __future__ import annotations

import pathlib
import sys
import time

from tests import installing
from tests.installing import NotAvailable

PLACE = installing.TOP / ".venv-cyborg"
VERSIONS = ("17.0.0", "16.0.1")
"""The first is the one that most tests run with."""
PLACES = {"17.0.0": PLACE, "16.0.1": installing.TOP / ".venv-cyborg16"}
OF_VERSION = {
    "17.0.0": ("openstack-placement==16.0.0",),
    # Cyborg 16 does not start with oslo.policy 5, which Placement 16 needs.
    "16.0.1": ("openstack-placement==15.0.0", "oslo.policy==4.8.0"),
}
REQUIREMENTS = (
    "PyMySQL==1.1.2",
    "gunicorn==27.0.1",  # serves the API in test_wsgi_servers
    "pyuwsgi==2.0.30.post1",  # the same: uWSGI, as a binary wheel
    "setuptools==80.9.0",  # builds cyborg_quota, without asking the index each time
    "waitress==3.0.2",
)


def ensure(version: str = VERSIONS[0]) -> pathlib.Path:
    """Make what is missing, one process at a time; returns the directory of the programs. Raises NotAvailable."""
    place = PLACES[version]
    place.mkdir(exist_ok=True)
    began = time.monotonic()
    python = place / "env/bin/python"
    requirements = (f"openstack-cyborg=={version}", *REQUIREMENTS, *OF_VERSION[version])
    sources = [pathlib.Path(__file__).read_text(), pathlib.Path(installing.__file__).read_text()]
    services = installing.stamp_of(str(place), *requirements, *sources)
    # Whatever is edited wants a new installation of ours; Cyborg stays.
    ours = installing.package_stamp(services)
    with installing.locked(place / "lock"):
        with installing.stamped(place / "services.stamp", services) as needed:
            if needed:
                print(f"tests.cyborgs: making {place.name}", file=sys.stderr)
                installing.make_environment(place / "env")
                installing.pip_install(python, *requirements)
        with installing.stamped(place / "ours.stamp", ours) as needed:
            if needed:
                installing.install_package(python, "mysql")
                print(f"tests.cyborgs: made in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return python.parent


if __name__ == "__main__":
    try:
        for one in VERSIONS:
            ensure(one)
    except NotAvailable as reason:
        sys.exit(f"tests.cyborgs: no Cyborg: {reason}")
