# SPDX-License-Identifier: Apache-2.0
"""Makes the directory of Keystone's projects. Importing this module does not import openstacksdk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

from cyborg_quota import exceptions

if TYPE_CHECKING:
    from cyborg_quota.limits.keystone_projects import ProjectDirectory


def make_directory(conf: cfg.ConfigOpts, within_seconds: float | None = None) -> ProjectDirectory:
    """The projects of Keystone. Imports openstacksdk, which takes a second. No I/O. Raises ConfigurationError.

    ``within_seconds``: all requests of the directory together end within this time from now.
    """
    try:
        from cyborg_quota.limits.keystone_projects import ProjectDirectory
    except ImportError as error:
        raise exceptions.ConfigurationError(
            f"[oslo_limit] is set, and names of projects need {error.name}: install cyborg_quota[keystone]."
        ) from None
    return ProjectDirectory.from_conf(conf, within_seconds)
