# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be written, as on a full disk."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def small_files(max_bytes: int) -> Iterator[None]:
    """In this block, a write beyond this size raises OSError (EFBIG), in any file of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
