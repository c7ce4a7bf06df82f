# SPDX-License-Identifier: Apache-2.0
"""A reader can follow a call: a reserve and a commit with filled caches run code of few modules."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Iterator
from types import FrameType

import testscenarios

import cyborg_quota
from tests import base

load_tests = testscenarios.load_tests_apply_scenarios

PACKAGE = pathlib.Path(cyborg_quota.__file__).parent
MAX_MODULES = 20
WARM_UP_CALLS = 3


class TestModules(base.LedgerTestCase):
    @contextlib.contextmanager
    def modules(self) -> Iterator[set[str]]:
        """Collect the modules of the package whose code runs inside the context."""
        found: set[str] = set()

        def record(frame: FrameType, event: str, _argument: object) -> None:
            path = pathlib.Path(frame.f_code.co_filename)
            if event == "call" and path.is_relative_to(PACKAGE):
                found.add(str(path.relative_to(PACKAGE)))

        before = sys.getprofile()
        sys.setprofile(record)
        try:
            yield found
        finally:
            sys.setprofile(before)

    def test_warm_calls(self) -> None:
        for _ in range(WARM_UP_CALLS):
            self.engine.rollback(self.context, self.engine.reserve(self.context, {"gpu": 1}, consumer="first"))
        with self.modules() as of_reserve:
            uuids = self.engine.reserve(self.context, {"gpu": 1}, consumer="first")
        with self.modules() as of_commit:
            self.engine.commit(self.context, uuids)
        self.assertIn("engine.py", of_reserve)
        self.assertIn("db/database.py", of_reserve)
        for modules in (of_reserve, of_commit):
            self.assertLessEqual(len(modules), MAX_MODULES, sorted(modules))
