# SPDX-License-Identifier: Apache-2.0
"""Services that the tests of a process share: each is started once, and so is an attempt that fails."""

from __future__ import annotations

import functools
import os
import unittest
from collections.abc import Callable
from typing import Any, TypeVar

from tests import needs
from tests.installing import NotAvailable

T = TypeVar("T")


def once_per_process(make: Callable[..., T]) -> Callable[..., T]:
    """Return a function that makes an object at its first call in a process; an error is raised again at each call."""
    made: dict[Any, Any] = {}

    @functools.wraps(make)
    def get(*arguments: Any) -> T:
        key = os.getpid(), arguments
        if key not in made:
            try:
                made[key] = make(*arguments)
            except Exception as error:
                made[key] = error
        if isinstance(made[key], Exception):
            raise made[key]
        return made[key]

    return get


def need(test: unittest.TestCase, what: str, make: Callable[..., T], *arguments: Any) -> T:
    """Return what ``make`` returns. If it raises NotAvailable, the test is skipped, or fails where it is required."""
    try:
        return make(*arguments)
    except NotAvailable as reason:
        needs.missing(test, f"no {what}: {reason}")
