# SPDX-License-Identifier: Apache-2.0
"""Requirements of tests. A test whose requirement is missing is skipped with the reason, or fails if it is required."""

from __future__ import annotations

import os
import unittest
from typing import NoReturn

from tests.servers.base import Server
from tests.servers.machine import ServerError


def required() -> bool:
    """Return whether a missing requirement is a failure (in CI) or a skip (on a developer's machine)."""
    return any(
        os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("CI", "CYBORG_QUOTA_REQUIRE_SERVERS")
    )


def missing(test: unittest.TestCase, reason: str) -> NoReturn:
    """End the test with this reason. tools/test.sh prints all reasons at its end."""
    if required():
        test.fail(reason)
    test.skipTest(reason)
    raise AssertionError(reason)


def start(test: unittest.TestCase, server: Server) -> None:
    """Start a server for one test, if it is installed. Raises ServerError if it is installed and does not start."""
    test.addCleanup(server.close)
    try:
        server.start()
    except ServerError as error:
        if "is not installed" not in str(error):
            raise
        missing(test, str(error))
