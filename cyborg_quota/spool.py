# SPDX-License-Identifier: Apache-2.0
"""Errors of temporary files.

They are in the directory that the environment variable TMPDIR names (tempfile.gettempdir).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from cyborg_quota import exceptions


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
