# SPDX-License-Identifier: Apache-2.0
"""tools/test.sh runs the whole suite: every test in exactly one of the workers, or with those of Horizon."""

from __future__ import annotations

import pathlib
import re
import unittest

import fixtures as fx
import yaml
from oslotest import base

import tests
from tests.cli import test_units
from tests.unit import test_names

TESTS = pathlib.Path(__file__).parents[1]
WORKERS = TESTS.parent / "tools/workers.yaml"


class TestWorkers(base.BaseTestCase):
    def test_each_module_has_one(self) -> None:
        patterns = [pattern for worker in yaml.safe_load(WORKERS.read_text()) for pattern in worker["worker"]]
        patterns += re.findall(r"stestr run --combine .* '(.+)'", (WORKERS.parent / "test.sh").read_text())
        modules = sorted(TESTS.rglob("test_*.py"))
        self.assertGreater(len(modules), 50)
        for path in modules:
            name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
            found = [pattern for pattern in patterns if re.search(pattern, f"{name}.")]
            self.assertEqual(1, len(found), name)


class TestLoading(base.BaseTestCase):
    """What the discovery loads for the arguments of a process."""

    NAMED = ("tests.unit.test_names", "tests.cli.test_units")
    TESTS = ("tests.unit.test_names.TestX.test_a", "tests.cli.test_units.TestY.test_b(postgresql,1.5)")

    def modules(self, *lines: str) -> list[str] | None:
        path = pathlib.Path(self.useFixture(fx.TempDir()).path) / "list"
        path.write_text("".join(f"{line}\n" for line in lines))
        return tests._modules_of(["run", "discover", "--load-list", str(path)])

    def test_the_modules_of_the_given_tests(self) -> None:
        self.assertEqual(sorted(self.NAMED), self.modules(*self.TESTS, *self.TESTS))

    def test_everything_without_a_list_and_for_a_name_that_is_not_understood(self) -> None:
        self.assertIsNone(tests._modules_of(["run", "discover", "--list"]))
        self.assertIsNone(self.modules(*self.TESTS, "unittest.loader._FailedTest.odd"))

    def test_the_tests_are_those_of_the_modules(self) -> None:
        path = pathlib.Path(self.useFixture(fx.TempDir()).path) / "list"
        path.write_text("\n".join(self.TESTS))
        self.useFixture(fx.MonkeyPatch("sys.argv", ["run", "--load-list", str(path)]))
        loader = unittest.TestLoader()
        suite = tests.load_tests(loader, unittest.TestSuite(), None)
        expected = sum(loader.loadTestsFromModule(module).countTestCases() for module in (test_names, test_units))
        self.assertEqual(expected, suite.countTestCases())
