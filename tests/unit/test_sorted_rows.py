# SPDX-License-Identifier: Apache-2.0
"""The external merge sort: the result of sorted(), with few rows in memory."""

from __future__ import annotations

import random
import tempfile
from typing import Any
from unittest import mock

from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.integrations.cyborg import sorted_rows
from cyborg_quota.integrations.cyborg.sorted_rows import Row, SortedRows


class TestSortedRows(base.BaseTestCase):
    def sort(self, given: list[Row], run_rows: int) -> list[Row]:
        with mock.patch.object(sorted_rows, "RUN_ROWS", run_rows), SortedRows() as rows:
            for row in given:
                rows.add(row)
            self.assertEqual(len(given) // run_rows, len(rows._runs))
            self.assertLess(len(rows._rows), run_rows)
            first, second = ([row for _, group in rows.groups() for row in group] for _ in range(2))
            files = list(rows._runs)
        self.assertEqual(first, second)
        self.assertEqual([True] * len(files), [file.closed for file in files])
        self.assertEqual([], rows._rows)
        return first

    def test_as_sorted(self) -> None:
        """Stable: rows with the same key keep their order, also those of several files."""
        random.seed(1)
        given: list[Row] = [[f"key {random.randrange(60)}", number] for number in range(1000)]
        for run_rows in (1, 7, 100, 999, 1000, 1001):
            self.assertEqual(sorted(given, key=lambda row: row[0]), self.sort(given, run_rows))

    def test_values(self) -> None:
        """A file keeps them: other alphabets, line ends, the types of JSON."""
        given: list[Row] = [["\u00e9\n\u6f22", None, "a\r\nb", -1, {"gpu": 2**40}], ["b", ["x"], ""], ["\U0001f600"]]
        self.assertEqual(sorted(given, key=lambda row: row[0]), self.sort(given, 1))

    def test_groups(self) -> None:
        with mock.patch.object(sorted_rows, "RUN_ROWS", 2), SortedRows() as rows:
            for key in "babca":
                rows.add([key])
            self.assertEqual([("a", 2), ("b", 2), ("c", 1)], [(key, len(group)) for key, group in rows.groups()])

    def test_no_space(self) -> None:
        """An error that says what to do, and not an OSError, which a command reports as an internal error."""
        opened = tempfile.TemporaryFile

        def full(*args: Any, **options: Any) -> Any:
            file = opened(*args, **options)
            self.addCleanup(file.close)
            return mock.Mock(wraps=file, flush=mock.Mock(side_effect=OSError(28, "No space left")))

        none = mock.Mock(side_effect=FileNotFoundError(2, "No usable temporary directory found"))
        for opening, reason in ((full, "No space left"), (none, "No usable temporary directory found")):
            with (
                mock.patch.object(sorted_rows, "RUN_ROWS", 1),
                mock.patch.object(tempfile, "TemporaryFile", opening),
                SortedRows() as rows,
            ):
                error = self.assertRaises(exceptions.QuotaError, rows.add, ["key"])
            self.assertIn(f"{reason}. Nothing was changed. Set the environment variable TMPDIR", str(error))

    def test_empty(self) -> None:
        self.assertEqual([], self.sort([], 1))
