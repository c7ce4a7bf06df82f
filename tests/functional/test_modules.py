# SPDX-License-Identifier: Apache-2.0
"""A reader can follow a call: a reserve and a commit with filled caches run few functions of few modules."""

from __future__ import annotations

import contextlib
import inspect
import pathlib
import sys
from collections.abc import Iterator
from types import FrameType

import oslotest.base

import cyborg_quota
from cyborg_quota.ledger import reserve
from cyborg_quota.ledger.project_limits import ProjectEnforcer
from cyborg_quota.ledger.reserve import Reserver
from tests import base

PACKAGE = pathlib.Path(cyborg_quota.__file__).parent
MOST_OF_RESERVE = 14, 50
MOST_OF_COMMIT = 10, 35
"""Modules, and functions, where a call is one statement. SQLite sends several, from other modules and functions."""
OF_SEVERAL_STATEMENTS = 7, 30
WARM_UP_CALLS = 3


MOST_LINES = 60
"""Of Reserver.charge and what it calls directly: one screen."""


class TestCharge(oslotest.base.BaseTestCase):
    def test_it_fits_on_one_screen_and_knows_no_rule(self) -> None:
        own = (Reserver.charge, Reserver._attempt, reserve.repeat, reserve._to_pending, ProjectEnforcer.redact)
        text = "".join(map(inspect.getsource, own))
        self.assertLessEqual(text.count("\n"), MOST_LINES)
        self.assertNotRegex(text, "(?i)pod|provider|total")


class TestModules(base.LedgerTestCase):
    @contextlib.contextmanager
    def functions(self) -> Iterator[set[tuple[str, str, int]]]:
        """Collect the functions of the package that run inside the context, with their modules."""
        found: set[tuple[str, str, int]] = set()

        def record(frame: FrameType, event: str, _argument: object) -> None:
            code = frame.f_code
            path = pathlib.Path(code.co_filename)
            if event == "call" and path.is_relative_to(PACKAGE) and not code.co_name.startswith("<"):
                found.add((str(path.relative_to(PACKAGE)), code.co_name, code.co_firstlineno))

        before = sys.getprofile()
        sys.setprofile(record)
        try:
            yield found
        finally:
            sys.setprofile(before)

    def test_warm_calls(self) -> None:
        for number in range(WARM_UP_CALLS):
            self.engine.commit(self.context, self.engine.reserve(self.context, {"gpu": 1}, consumer=f"{number}"))
        with self.functions() as of_reserve:
            uuids = self.engine.reserve(self.context, {"gpu": 1}, consumer="first")
        with self.functions() as of_commit:
            self.engine.commit(self.context, uuids)
        for functions, most in ((of_reserve, MOST_OF_RESERVE), (of_commit, MOST_OF_COMMIT)):
            modules = {module for module, _, _ in functions}
            self.assertLessEqual({"engine.py", "db/database.py"}, modules)
            more = OF_SEVERAL_STATEMENTS if self.backend == "sqlite" else (0, 0)
            self.assertLessEqual(len(modules), most[0] + more[0], sorted(modules))
            self.assertLessEqual(len(functions), most[1] + more[1], sorted(functions))
            self.assertEqual(set(), {name for name in modules if "capacity" in name or "pod" in name})
