# SPDX-License-Identifier: Apache-2.0
"""tools/test.sh runs the whole suite: every test in exactly one of the workers."""

from __future__ import annotations

import pathlib
import re

import yaml
from oslotest import base

TESTS = pathlib.Path(__file__).parents[1]
WORKERS = TESTS.parent / "tools/workers.yaml"


class TestWorkers(base.BaseTestCase):
    def test_each_module_has_one(self) -> None:
        patterns = [pattern for worker in yaml.safe_load(WORKERS.read_text()) for pattern in worker["worker"]]
        modules = sorted(TESTS.rglob("test_*.py"))
        self.assertGreater(len(modules), 50)
        for path in modules:
            name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
            found = [pattern for pattern in patterns if re.search(pattern, f"{name}.")]
            self.assertEqual(1, len(found), name)
