# SPDX-License-Identifier: Apache-2.0
"""The process ends before each statement of a resize, a transfer and a commit with a name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import testscenarios

from cyborg_quota import Inventory, QuotaEngine
from tests import base, hooks

load_tests = testscenarios.load_tests_apply_scenarios

ADMIN = base.ADMIN
KILLED = 9
CALLS: dict[str, Callable[[QuotaEngine, str, str], object]] = {
    "resize": lambda engine, _uuid, name: engine.resize(ADMIN, {"gpu": 3}, "p1", consumer=name),
    "transfer": lambda engine, _uuid, name: engine.transfer(ADMIN, "p2", "p1", consumer=name),
    "known_as": lambda engine, uuid, name: engine.commit(ADMIN, [uuid], known_as=f"{name} known"),
}
AFTER = {"resize": [(0, 3), (0, 0)], "transfer": [(0, 0), (0, 2)], "known_as": [(2, 0), (0, 0)]}


class TestCrash(base.LedgerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine.capacity.add_provider(ADMIN, "n1")
        self.engine.capacity.set_inventories(ADMIN, "n1", {"gpu": Inventory(9)})

    def test_before_each_statement(self) -> None:
        """Nothing or all has taken effect; then the call is repeated."""
        for kind, call in CALLS.items():
            for number in itertools.count():
                name = f"{kind} {number}"
                consumer = None if kind == "known_as" else name
                (uuid,) = self.engine.reserve(ADMIN, {"gpu": 2}, project_id="p1", consumer=consumer, provider="n1")
                is_killed = self.kill(number, lambda: call(self.engine, uuid, name))  # noqa: B023
                self.assert_invariants()
                found = [self.figures("p1"), self.figures("p2")]
                self.assertIn(found, [[(0, 2), (0, 0)], AFTER[kind]] if is_killed else [AFTER[kind]])
                call(self.engine, uuid, name)
                self.assert_invariants()
                self.assertEqual(AFTER[kind], [self.figures("p1"), self.figures("p2")])
                self.engine.release(ADMIN, [uuid])
                if not is_killed:
                    break
            self.assertGreater(number, 3, kind)

    def kill(self, number: int, call: Callable[[], object]) -> bool:
        """Make the call in a child process that ends before its statement with this number. False: it has fewer."""
        self.engine.close()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                sql = hooks.database_of(self.engine).engine
                with hooks.BeforeStatement(sql, number, lambda: os._exit(KILLED)):
                    call()
                status = 0
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.assertIn(status, (0, KILLED))
        return status == KILLED
