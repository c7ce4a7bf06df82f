# SPDX-License-Identifier: Apache-2.0
"""A real Horizon with cyborg_quota, in an environment of its own that is kept in .venv-horizon.

    python -m tests.horizon.environment

The panels are enabled as the documentation says. The static files of Horizon are collected and compressed once.
"""

from __future__ import annotations

import pathlib
import shutil

from tests import installing
from tests.installing import STEP_TIMEOUT_SECONDS

DIRECTORY = installing.TOP / ".venv-horizon"
REQUIREMENTS = (
    "horizon==27.0.0",
    "setuptools==80.9.0",  # builds cyborg_quota without access to the index
    "waitress==3.0.2",
    "whitenoise==6.9.0",  # serves the static files, as Apache does in production
)
LOCAL_SETTINGS = pathlib.Path(__file__).with_name("local_settings.py")
ENABLED = installing.TOP / "cyborg_quota/horizon/enabled"
SETTINGS_MODULE = "openstack_dashboard.settings"


def ensure() -> pathlib.Path:
    """Install what is missing or outdated; returns Horizon's Python. Raises NotAvailable."""
    sources = [__file__, str(LOCAL_SETTINGS)]
    programs = installing.ensure_services("tests.horizon", DIRECTORY, REQUIREMENTS, sources, "horizon")
    stamp = (DIRECTORY / "services.stamp").read_text()
    [packages] = DIRECTORY.glob("env/lib/python3*/site-packages")
    local = packages / "openstack_dashboard/local"
    with installing.locked(DIRECTORY / "lock"):
        with installing.stamped(DIRECTORY / "static.stamp", stamp) as needed:
            if needed:
                shutil.copy(LOCAL_SETTINGS, local)
                _collect_static_files(programs)
        # What the panels need is read from these files when Horizon starts.
        for path in ENABLED.glob("_[0-9]*.py"):
            shutil.copy(path, local / "enabled")
    return programs / "python"


def _collect_static_files(programs: pathlib.Path) -> None:
    for arguments in (("collectstatic", "--noinput"), ("compress", "--force")):
        command = [str(programs / "django-admin"), *arguments]
        installing.run(command, STEP_TIMEOUT_SECONDS, DJANGO_SETTINGS_MODULE=SETTINGS_MODULE)


if __name__ == "__main__":
    installing.main(ensure)
