# SPDX-License-Identifier: Apache-2.0
"""A warning is an error in the tests, with the exceptions that tests/__init__.py lists."""

from __future__ import annotations

import sys
import unittest

from oslotest import base

LIBRARY, OWN = "sqlalchemy.orm", "cyborg_quota.engine"


def warn(category: type[Warning], module: str) -> None:
    """Warn as a line of this module does."""
    exec("import warnings; warnings.warn('old', category)", {"__name__": module, "category": category})


@unittest.skipIf(sys.argv[0].endswith("unittest"), "python -m unittest sets a filter of its own; use stestr")
class TestWarnings(base.BaseTestCase):
    def test_a_warning_of_a_library_is_an_error(self) -> None:
        for category in (UserWarning, RuntimeWarning, FutureWarning):
            self.assertRaises(category, warn, category, LIBRARY)

    def test_a_deprecation_is_an_error_only_where_this_project_uses_it(self) -> None:
        for category in (DeprecationWarning, PendingDeprecationWarning):
            self.assertRaises(category, warn, category, OWN)
            warn(category, LIBRARY)
