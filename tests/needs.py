# SPDX-License-Identifier: Apache-2.0
"""What a test needs of the machine. Without it, it skips and says why; where it is required, it fails."""

from __future__ import annotations

import os
import unittest
from typing import NoReturn

from tests.servers.base import Server
from tests.servers.machine import ServerError


def required() -> bool:
    """Whether what is missing is a failure (CI), and not a skip (a newcomer's machine)."""
    return any(
        os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("CI", "CYBORG_QUOTA_REQUIRE_SERVERS")
    )


def missing(test: unittest.TestCase, reason: str) -> NoReturn:
    """End the test, for this reason. tools/test.sh tells all reasons at its end."""
    if required():
        test.fail(reason)
    test.skipTest(reason)
    raise AssertionError(reason)


def start(test: unittest.TestCase, server: Server) -> None:
    """Start a server for the test alone, if it is installed. Raises ServerError where it is, and does not start."""
    test.addCleanup(server.close)
    try:
        server.start()
    except ServerError as error:
        if "is not installed" not in str(error):
            raise
        missing(test, str(error))
