# SPDX-License-Identifier: Apache-2.0
"""Keep any number of values in bounded memory, in a temporary file.

Temporary files are in the directory that the environment variable TMPDIR names (tempfile.gettempdir).
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Final

from cyborg_quota import exceptions

MEMORY_BYTES: Final = 2**20
"""Up to this size, all values are in memory; beyond it, all are in the file."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raise QuotaError if a temporary file cannot be written in this block, which changes nothing else."""
    try:
        yield
    except OSError as error:
        where = "" if tempfile.tempdir is None else f" in {tempfile.tempdir}"
        raise exceptions.QuotaError(
            f"The temporary file{where} cannot be written: {error.strerror}. Nothing was changed. Set the environment "
            "variable TMPDIR to a directory with more space."
        ) from None


def close(file: IO[Any]) -> None:
    """Close a temporary file. What it has in its buffer is not needed, so there is no error if it cannot be written."""
    with contextlib.suppress(OSError):
        file.close()


class Spool(contextlib.AbstractContextManager["Spool"]):
    """Values that JSON can represent, which are read back one by one.

    The file has no name, and is deleted at the end of the ``with`` block or of the process.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 (closed at exit)

    def __exit__(self, *_error: object) -> None:
        close(self._file)

    def put(self, value: Any) -> int:
        """Add a value; returns its offset. Raises QuotaError if the file cannot be written."""
        with writing():
            self._file.seek(0, os.SEEK_END)
            offset = self._file.tell()
            self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
        return offset

    def get(self, offset: int) -> Any:
        """The value at ``offset``."""
        self._file.seek(offset)
        return json.loads(self._file.readline())
