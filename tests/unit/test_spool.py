# SPDX-License-Identifier: Apache-2.0
"""Values in a temporary file are read back as they were added, and an error of the file is a clear one."""

from __future__ import annotations

import tempfile
from unittest import mock

from oslotest import base

from cyborg_quota import exceptions, spool
from cyborg_quota.spool import Spool

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
        with (
            Spool() as values,
            mock.patch.object(tempfile.SpooledTemporaryFile, "write", side_effect=OSError(28, "No space left")),
        ):
            error = self.assertRaises(exceptions.QuotaError, values.put, {})
        self.assertIn("No space left. Nothing was changed. Set the environment variable TMPDIR", str(error))
