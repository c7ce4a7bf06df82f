# SPDX-License-Identifier: Apache-2.0
"""Values in a temporary file are read back as they were added, and an error of the file is a clear one."""

from __future__ import annotations

import errno
import os
import tempfile
from unittest import mock

from oslotest import base

from cyborg_quota import exceptions, spool
from cyborg_quota.spool import Spool
from tests.small_files import small_files

MAX_BYTES = 2**16
VALUES = ({"gpu": {"é\n": 1}}, {}, [], {"": {"x" * 100: 2**40}}, None)


class TestSpool(base.BaseTestCase):
    def test_in_memory_and_in_a_file(self) -> None:
        for memory_bytes in (1, 2**20):
            with mock.patch.object(spool, "MEMORY_BYTES", memory_bytes), Spool() as values:
                places = []
                for value in VALUES:
                    places.append(values.put(value))
                    self.assertEqual(list(VALUES[: len(places)]), [values.get(place) for place in places])

    def test_no_space(self) -> None:
        """The error is that of the write: closing the file writes what is left in its buffer, and fails again."""

        def fill_spool() -> None:
            with mock.patch.object(spool, "MEMORY_BYTES", 1), Spool() as values:
                values.put("x" * 2 * MAX_BYTES)

        with small_files(MAX_BYTES):
            error = self.assertRaises(exceptions.QuotaError, fill_spool)
        self.assertIn("File too large. Nothing was changed. Set the environment variable TMPDIR", str(error))

    def test_no_directory(self) -> None:
        with mock.patch.object(tempfile, "tempdir", None), mock.patch.object(tempfile, "gettempdir", side_effect=GONE):
            error = self.assertRaises(exceptions.QuotaError, write_file)
        self.assertIn("The temporary file cannot be written: No such file or directory. Nothing", str(error))


GONE = OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def write_file() -> None:
    with spool.writing(), tempfile.TemporaryFile():
        pass
