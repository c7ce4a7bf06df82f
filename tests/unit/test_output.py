# SPDX-License-Identifier: Apache-2.0
"""The log of a test is shown with its failure. A test that passes prints one line."""

from __future__ import annotations

import contextlib
import io
import logging
import unittest

from oslotest import base


class TestLog(base.BaseTestCase):
    def output_of(self, *, fails: bool) -> tuple[str, str]:
        """Return the output of a test that logs: during the test, and with its failure."""

        class Sample(base.BaseTestCase):
            def runTest(self) -> None:
                logging.getLogger("ledger").debug("as seen by nobody")
                self.assertFalse(fails)

        result, output = unittest.TestResult(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            Sample().run(result)
        self.assertEqual(1, result.testsRun)
        return output.getvalue(), "".join(text for _, text in result.failures)

    def test_shown_with_a_failure_only(self) -> None:
        output, failure = self.output_of(fails=True)
        self.assertEqual("", output)
        self.assertIn("DEBUG [ledger] as seen by nobody", failure)
        self.assertEqual(("", ""), self.output_of(fails=False))
