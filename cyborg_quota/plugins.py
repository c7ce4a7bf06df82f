# SPDX-License-Identifier: Apache-2.0
"""Loading what an option names from the entry points."""

from __future__ import annotations

import warnings
from typing import Any

from stevedore import driver as stevedore_driver
from stevedore import exception as stevedore_exception

from cyborg_quota import exceptions


def load(namespace: str, option: str, name: str) -> Any:
    """The class behind ``name`` in ``namespace``; ``option`` is named in the ConfigurationError if there is none."""
    try:
        with warnings.catch_warnings():
            # What is missing is said below, in one line. (Newer releases say it elsewhere, and deprecate the option.)
            warnings.simplefilter("ignore", DeprecationWarning)
            return stevedore_driver.DriverManager(namespace, name, warn_on_missing_entrypoint=False).driver
    except stevedore_exception.NoMatches:
        raise exceptions.ConfigurationError(
            f"{option} = {name}: no such entry point in {namespace}. Is the package that brings it installed?"
        ) from None
