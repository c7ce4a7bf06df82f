# SPDX-License-Identifier: Apache-2.0
"""Services that the tests of a process share: each is started once, and so is an attempt that fails."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import tempfile
import unittest
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import fixtures as fx

from tests import fixtures, needs
from tests.installing import NotAvailable
from tests.servers import machine

T = TypeVar("T")
F = TypeVar("F", bound=fx.Fixture)


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


def lasting(made: F, prefix: str, otherwise: pathlib.Path) -> F:
    """Set up a fixture until this process ends.

    Its files are in a directory of their own: those of a test are deleted at its end. See machine.private_directory.
    """
    workdir, lock = machine.private_directory(prefix, otherwise)
    with mock.patch.object(tempfile, "tempdir", str(workdir)):
        made.setUp()

    def end() -> None:
        made.cleanUp()
        shutil.rmtree(workdir, ignore_errors=True)
        lock.close()

    fixtures.at_exit(end)
    return made


def need(test: unittest.TestCase, what: str, make: Callable[..., T], *arguments: Any) -> T:
    """Return what ``make`` returns. If it raises NotAvailable, the test is skipped, or fails where it is required."""
    try:
        return make(*arguments)
    except NotAvailable as reason:
        needs.missing(test, f"no {what}: {reason}")
