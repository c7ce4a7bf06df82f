# SPDX-License-Identifier: Apache-2.0
"""An error of a temporary file is a clear one."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from unittest import mock

from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.cli import replay_export
from cyborg_quota.replay import export
from tests.small_files import small_files

MAX_BYTES = 2**16


class TestTemporaryFile(base.BaseTestCase):
    def test_no_space(self) -> None:
        """The error is that of the write: closing the file writes what is left in its buffer, and fails again."""
        with small_files(MAX_BYTES):
            error = self.assertRaises(exceptions.QuotaError, write_file)
        self.assertIn("File too large. Nothing was changed. Set the environment variable TMPDIR", str(error))

    def test_no_directory(self) -> None:
        with mock.patch.object(tempfile, "tempdir", None), mock.patch.object(tempfile, "gettempdir", side_effect=GONE):
            error = self.assertRaises(exceptions.QuotaError, write_file)
        self.assertIn("The temporary file cannot be written: No such file or directory. Nothing", str(error))


GONE = OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def write_file() -> None:
    with (
        mock.patch.object(replay_export, "open_database", lambda *_, **__: contextlib.nullcontext()),
        mock.patch.object(export, "write", lambda _database, file, *_: file.write("x" * 2 * MAX_BYTES)),
        replay_export.exported(None, None),
    ):
        pass
