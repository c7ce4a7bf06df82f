# SPDX-License-Identifier: Apache-2.0
"""Loads the plug-in that an option names from the entry points."""

from __future__ import annotations

import warnings
from typing import Any

from stevedore import driver as stevedore_driver
from stevedore import exception as stevedore_exception

from cyborg_quota import exceptions


def load(namespace: str, option: str, name: str) -> Any:
    """The class of the entry point ``name`` in ``namespace``. Raises ConfigurationError, which names ``option``."""
    try:
        with warnings.catch_warnings():
            # The error below reports a missing entry point. Newer releases of stevedore deprecate the argument.
            warnings.simplefilter("ignore", DeprecationWarning)
            return stevedore_driver.DriverManager(namespace, name, warn_on_missing_entrypoint=False).driver
    except stevedore_exception.NoMatches:
        raise exceptions.ConfigurationError(
            f"{option} = {name}: no such entry point in {namespace}. Is the package that provides it installed?"
        ) from None
