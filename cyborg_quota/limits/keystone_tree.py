# SPDX-License-Identifier: Apache-2.0
"""Reads the tree of Keystone's projects."""

from __future__ import annotations

from collections.abc import Callable

from oslo_config import cfg

from cyborg_quota import exceptions


def read_parents(conf: cfg.ConfigOpts, progress: Callable[[int], None]) -> dict[str, str | None]:
    """The parent of each project of Keystone; None for a domain. [oslo_limit] has the credentials.

    With the limit driver keystone and the enforcement model strict_two_level, the parent is the domain. Raises
    ConfigurationError, ProjectLookupFailed.
    """
    try:
        from cyborg_quota.limits import keystone, keystone_client, keystone_session
        from cyborg_quota.limits.cache import LimitSourceError
    except ImportError as error:
        raise exceptions.ConfigurationError(
            f"The projects of Keystone need {error.name}: install cyborg_quota[keystone]."
        ) from None
    keystone_session.register_opts(conf)
    keystone_session.check_credentials(conf)
    client = keystone_client.KeystoneClient(conf)
    try:
        is_two_level = conf.limits.driver == "keystone" and client.model() == keystone.STRICT_TWO_LEVEL
        return client.parents(is_two_level=is_two_level, progress=progress)
    except LimitSourceError as error:
        raise exceptions.ProjectLookupFailed(error.reason) from None
