# SPDX-License-Identifier: Apache-2.0
"""Databases for measurements."""

from __future__ import annotations

import functools
import os
import pathlib

from tests import fixtures


def fresh_url(backend: str, name: str) -> str:
    """Return an empty database: on SQLite, a file on a disk and not in memory."""
    if backend != "sqlite":
        return fixtures.fresh_url(backend, name)
    path = _directory(os.getpid()) / f"{name}.sqlite"
    for suffix in ("", "-wal", "-shm"):
        pathlib.Path(f"{path}{suffix}").unlink(missing_ok=True)
    return f"sqlite:///{path}"


@functools.cache
def _directory(_pid: int) -> pathlib.Path:
    return fixtures.own_directory(None)
