# SPDX-License-Identifier: Apache-2.0
"""The credentials of an option group, as an auth plugin of keystoneauth1."""

from __future__ import annotations

from typing import Any

from keystoneauth1 import exceptions as ksa
from keystoneauth1 import loading
from oslo_config import cfg

from cyborg_quota import exceptions


def load_auth(conf: cfg.ConfigOpts, group: str) -> Any:
    """The auth plugin that the options of ``group`` select. Raises ConfigurationError. No I/O."""
    try:
        auth = loading.load_auth_from_conf_options(conf, group)
    except ksa.MissingRequiredOptions as error:
        missing = ", ".join(option.dest for option in error.options)
        raise exceptions.ConfigurationError(f"[{group}] lacks {missing}.") from None
    except cfg.Error:
        # The message of oslo.config quotes the text after the $, usually of a password.
        raise exceptions.ConfigurationError(f"[{group}] names another option: write $$ for a $.") from None
    except ksa.NoMatchingPlugin:
        raise exceptions.ConfigurationError(
            f"[{group}] auth_type = {conf[group].auth_type}: keystoneauth1 has no such plugin."
        ) from None
    if auth is None:
        raise exceptions.ConfigurationError(f"[{group}] lacks auth_type: set it to password.")
    return auth
