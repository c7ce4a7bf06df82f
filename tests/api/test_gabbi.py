# SPDX-License-Identifier: Apache-2.0
"""The gabbi files of tests/api/gabbits, each against the served application with a cloud of its own."""

from __future__ import annotations

import pathlib
import unittest
from typing import Any

import testscenarios
import yaml
from gabbi import suitemaker
from gabbi.handlers import RESPONSE_HANDLERS

from tests.api import server

load_tests = testscenarios.load_tests_apply_scenarios
FILES = sorted(pathlib.Path(__file__).with_name("gabbits").glob("*.yaml"))


class TestGabbi(server.ApiTestCase):
    scenarios = [(path.stem, {"path": path}) for path in FILES]
    path: pathlib.Path

    def test_file(self) -> None:
        self.make_pod()
        with server.served(self.application) as url:
            host, _, port = url.removeprefix("http://").partition(":")
            handlers = [handler() for handler in RESPONSE_HANDLERS]
            content = yaml.safe_load(self.path.read_text())
            # Otherwise each request loads the certificates of the system.
            content["defaults"]["cert_validate"] = False
            suite = suitemaker.test_suite_from_dict(
                loader=unittest.defaultTestLoader,
                test_base_name=self.path.stem,
                suite_dict=content,
                test_directory=str(self.path.parent),
                host=host,
                port=int(port),
                fixture_module=None,
                intercept=None,
                handlers=handlers,
                test_loader_name=__name__,
            )
            result = unittest.TestResult()
            suite.run(result)
        problems: list[Any] = [*result.failures, *result.errors]
        self.assertEqual([], [f"{test}: {text.strip().splitlines()[-1]}" for test, text in problems])
        self.assertGreater(result.testsRun, 2)
        self.assert_invariants()
