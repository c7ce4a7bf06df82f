# SPDX-License-Identifier: Apache-2.0
"""Keep any number of values in bounded memory, in a temporary file."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from typing import Any, Final

from cyborg_quota import exceptions

MEMORY_BYTES: Final = 2**20
"""Up to this size, all values are in memory; beyond it, all are in the file."""


def cannot_write(error: OSError) -> exceptions.QuotaError:
    """The error to raise if a temporary file cannot be written. The caller must not have changed anything."""
    directory = f" in {tempfile.tempdir}" if tempfile.tempdir else ""
    return exceptions.QuotaError(
        f"The temporary file{directory} cannot be written: {error.strerror}. Nothing was changed. Set the environment "
        "variable TMPDIR to a directory with more space."
    )


class Spool(contextlib.AbstractContextManager["Spool"]):
    """Values that JSON can represent, which are read back one by one.

    The file has no name, and is deleted at the end of the ``with`` block or of the process. It is in the directory that
    the environment variable TMPDIR names (tempfile.gettempdir).
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 (closed at exit)

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def put(self, value: Any) -> int:
        """Add a value; returns its place. Raises QuotaError if the file cannot be written."""
        try:
            self._file.seek(0, os.SEEK_END)
            place = self._file.tell()
            self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise cannot_write(error) from None
        return place

    def get(self, place: int) -> Any:
        """The value at ``place``."""
        self._file.seek(place)
        return json.loads(self._file.readline())
