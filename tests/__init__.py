# SPDX-License-Identifier: Apache-2.0
"""The tests. With any runner (stestr, unittest), the log of a test is shown only if the test fails."""

from __future__ import annotations

import gc
import itertools
import os
import pathlib
import re
import sys
import unittest
import warnings
from collections.abc import Callable
from typing import Any

# oslotest reads these. Without them, the logs of all libraries go to the terminal, from DEBUG on.
os.environ.setdefault("OS_LOG_CAPTURE", "1")
os.environ.setdefault("OS_DEBUG", "1")

# As with PYTHONWARNINGS=error, every warning is an error. (Not by the environment variable, which the programs of other
# environments would read: the conductor of Cyborg would end at the warning of eventlet.) The exceptions:
warnings.filterwarnings("error")
# - What a library uses of Python or of another library is its own to mend: a new release must not stop the tests.
_LIBRARIES = r"(?!(cyborg_quota|tests|benchmarks)(\.|$))"
warnings.filterwarnings("ignore", category=DeprecationWarning, module=_LIBRARIES)
warnings.filterwarnings("ignore", category=PendingDeprecationWarning, module=_LIBRARIES)
# - futurist, which oslo.messaging needs, imports eventlet if it is installed. (Its category is its own, below Warning.)
warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated")
# - What is not closed is reported when it is collected: at any line of any test, where an error would only be printed.
warnings.filterwarnings("ignore", category=ResourceWarning)

# Rarer collections of young objects, which take a tenth of the tests' processor time with Python's thresholds. Old
# objects are collected as often as by default: each engine that is garbage still has a thread.
gc.set_threshold(7_000, 10, 1)
# A forked child does not visit what it inherits: the kernel would copy the pages of all these objects.
os.register_at_fork(after_in_child=gc.freeze)

_ON_EACH_DATABASE = re.compile(r"tests\.(dialects|functional|model|race|specifications)\.")
_MODULE = re.compile(r"tests(\.\w+)*?\.test_\w+(?=\.)")


def load_tests(loader: unittest.TestLoader, _tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """For discovery: import all modules of tests, or only those of the tests that stestr gives to this process.

    Each worker needs a part of the modules; to import all of them takes seconds, and their memory makes forks slower.
    A test of the ledger becomes one for each of the ``scenarios`` of its class, which are usually the databases. (In
    other folders, a module says so itself, by ``load_tests``.)
    """
    import testscenarios  # (a Python without packages makes the environments: python -m tests.cyborgs.environment)
    import testtools

    if (modules := _modules_of(sys.argv)) is None:
        suite = loader.discover(str(pathlib.Path(__file__).parent), pattern or "test*.py")
    else:
        suite = loader.loadTestsFromNames(modules)
    tests = unittest.TestSuite()
    for test in testtools.iterate_tests(suite):
        is_multiplied = _ON_EACH_DATABASE.match(test.id())
        tests.addTests(filter(_runs, testscenarios.generate_scenarios(test) if is_multiplied else [test]))
    return tests


def on_sqlite(method: Callable[..., None]) -> Callable[..., None]:
    """A decorator of a test that runs on SQLite only, of the databases of its class.

    It shows that a check can fail; or what it tests is decided in Python, and other tests execute its statements.
    """
    method.is_on_sqlite = True  # type: ignore[attr-defined]
    return method


def _runs(test: Any) -> bool:
    method = getattr(test, test._testMethodName, None)
    return getattr(test, "backend", "sqlite") == "sqlite" or not hasattr(method, "is_on_sqlite")


def _modules_of(arguments: list[str]) -> list[str] | None:
    """The modules of the tests in the file of ``--load-list``; None if all are wanted."""
    for option, path in itertools.pairwise(arguments):
        if option == "--load-list":
            found = [_MODULE.match(name) for name in pathlib.Path(path).read_text().splitlines()]
            return None if None in found else sorted({match[0] for match in found if match})
    return None
