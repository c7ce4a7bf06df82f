# SPDX-License-Identifier: Apache-2.0
"""An error of a temporary file is a clear one."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from unittest import mock

from oslotest import base

from cyborg_quota import exceptions, spool
from tests.small_files import small_files

MAX_BYTES = 2**16


class TestSpool(base.BaseTestCase):
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
    with contextlib.ExitStack() as stack, spool.writing():
        file = tempfile.TemporaryFile()  # noqa: SIM115 (closed at exit)
        stack.callback(spool.close, file)
        file.write(b"x" * 2 * MAX_BYTES)
