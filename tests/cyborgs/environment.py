# SPDX-License-Identifier: Apache-2.0
"""A real Cyborg and Placement with cyborg_quota, each version in an environment of its own that is kept.

Cyborg 17 is kept in .venv-cyborg, Cyborg 16 in .venv-cyborg16, and a copy of Cyborg 17 with the patch of tests/upstream
in .venv-cyborg/patched.

    python -m tests.cyborgs.environment
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib

from tests import installing, upstream

DIRECTORY = installing.TOP / ".venv-cyborg"
PATCHED = "17.0.0 with quota"
VERSIONS = ("17.0.0", "16.0.1", PATCHED)
"""Most tests run with the first version."""
VARIABLE = "CYBORG_QUOTA_TEST_CYBORG"
"""The environment variable that names a source tree of Cyborg, which is installed in place of the first version."""
DIRECTORIES = {"17.0.0": DIRECTORY, "16.0.1": installing.TOP / ".venv-cyborg16"}
OF_VERSION = {
    "17.0.0": ("openstack-placement==16.0.0",),
    # Cyborg 16 does not start with oslo.policy 5, which Placement 16 needs.
    "16.0.1": ("openstack-placement==15.0.0", "oslo.policy==4.8.0"),
}
REQUIREMENTS = (
    "PyMySQL==1.1.2",
    "oslo.limit==2.12.0",  # the limit driver keystone
    "prometheus-client==0.26.0",  # the counters of the conductor
    "gunicorn==27.0.1",  # serves the API in test_wsgi_servers
    "pyuwsgi==2.0.30.post1",  # uWSGI as a binary wheel, for the same tests
    "setuptools==80.9.0",  # builds cyborg_quota without access to the index
    "waitress==3.0.2",
)


def ensure(version: str = VERSIONS[0]) -> pathlib.Path:
    """Install what is missing or outdated; returns the directory of the programs. Raises NotAvailable."""
    if version == PATCHED:
        return upstream.ensure(ensure(VERSIONS[0]))
    cyborg = os.environ.get(VARIABLE) if version == VERSIONS[0] else None
    requirements = (cyborg or f"openstack-cyborg=={version}", *REQUIREMENTS, *OF_VERSION[version])
    return installing.ensure_services("tests.cyborgs", DIRECTORIES[version], requirements, [__file__])


def ensure_all() -> None:
    """Each step is a program of its own. (The patched version makes the first one.)"""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(ensure, (PATCHED, "16.0.1")))


if __name__ == "__main__":
    installing.main(ensure_all)
