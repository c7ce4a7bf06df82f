# SPDX-License-Identifier: Apache-2.0
"""Errors in the input of a command: its arguments, or a line of a file that it reads.

They are defined here, because ``cli`` may import ``replay`` but not the reverse; ``cli.errors`` exports them too.
"""

from __future__ import annotations

from cyborg_quota import exceptions


class BadUsage(exceptions.InvalidRequest):
    """The arguments of a command are invalid or contradict each other."""


class Located(exceptions.QuotaError):
    """An error of the engine, with the file and line that caused it. ``cause`` determines the exit status."""

    def __init__(self, location: str, cause: exceptions.QuotaError) -> None:
        self.cause = cause
        super().__init__(f"{location}: {cause}")
