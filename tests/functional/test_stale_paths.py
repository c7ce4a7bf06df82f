# SPDX-License-Identifier: Apache-2.0
"""One call charges the paths of two projects, of which this process has read one before and one after a change above.

The other process is another engine: it sets a total limit, or moves the root of both projects.
"""

from __future__ import annotations

import testscenarios

from cyborg_quota import exceptions
from tests import base, fixtures, trees
from tests.base import ADMIN
from tests.functional.test_limits import LimitsTestCase

LIMIT = 10
HELD = 3
"""What a and b hold each."""


class StalePathTestCase(LimitsTestCase):
    """The projects a and b below r; and s, a root with a limit."""

    scenarios = testscenarios.multiply_scenarios(
        fixtures.SCENARIOS,
        [
            (f"{change}, {cached} cached", {"change": change, "cached": cached})
            for change in ("total", "move")
            for cached in "ab"
        ],
    )
    change = cached = ""

    def setUp(self) -> None:
        super().setUp()
        tree = {"r": None, "a": "r", "b": "r", "s": None}
        self.import_tree(tree, {**dict.fromkeys(tree, -1), "s": LIMIT}, gpu=-1)
        self.hold("s", 1)
        self.stale = self.make_limited()
        self.fresh = "ab".replace(self.cached, "")

    def reserve(self, *, by_stale: bool = False) -> list[str]:
        """Reserve in a and in b, and change what is above them. Then the engine ``stale`` has a stale path of one."""
        engine = self.stale if by_stale else self.engine
        uuids = [engine.reserve(base.Context(name), {"gpu": HELD}, consumer=name)[0] for name in "ab"]
        self.read_path(self.cached)
        if self.change == "total":
            self.engine.limits.set_total_limits(ADMIN, {"gpu": LIMIT})
        else:
            trees.move(self.database, "r", "s")
        self.read_path(self.fresh)
        return uuids

    def read_path(self, project_id: str) -> None:
        context = base.Context(project_id)
        self.stale.rollback(context, self.stale.reserve(context, {"gpu": 1}))

    def assert_exact(self, **held: int) -> None:
        """The counters are those of the reservations, and what is still granted is the rest of the limit."""
        self.assert_invariants()
        self.assertEqual([], self.engine.audit(ADMIN))
        self.assertEqual(held, {name: sum(self.figures(name)) for name in held})
        for engine in (self.stale, self.engine):
            for name in "ab":
                fits = engine.headroom(base.Context(name))["gpu"].fits
                self.assertEqual(LIMIT - 1 - sum(held.values()), fits)
                self.assertRaises(exceptions.OverQuota, engine.reserve, base.Context(name), {"gpu": fits + 1})
        self.stale.reserve(base.Context(self.cached), {"gpu": fits})
        self.assertRaises(exceptions.OverQuota, self.engine.reserve, base.Context(self.fresh), {"gpu": 1})
        self.assert_invariants()


class TestSettled(StalePathTestCase):
    """``is_cached``: the engine has made the reservations, and settles them in one statement where it can.

    A commit changes no row above, and is not disturbed.
    """

    scenarios = testscenarios.multiply_scenarios(
        StalePathTestCase.scenarios,
        [
            (call, {"call": call, "is_cached": call.endswith("cached")})
            for call in ("expire", "release", "rollback", "rollback, cached", "commit")
        ],
    )
    call = ""
    is_cached = False

    def test_both_together(self) -> None:
        uuids = self.reserve(by_stale=self.is_cached)
        if self.call == "expire":
            self.make_overdue(*uuids)
            self.assertEqual(2, self.stale.expire(ADMIN))
        else:
            if self.call == "release":
                self.engine.commit(ADMIN, uuids)
            getattr(self.stale, self.call.partition(",")[0])(ADMIN, uuids)
        self.assert_exact(**dict.fromkeys("ab", HELD if self.call == "commit" else 0))


class TestCalls(StalePathTestCase):
    def test_transfer(self) -> None:
        self.reserve()
        self.stale.transfer(ADMIN, "b", "a", consumer="a")
        self.assert_exact(a=0, b=2 * HELD)

    def test_transfer_at_the_limit(self) -> None:
        """The limit above both does not refuse it, although the stale path does not contain this limit."""
        self.reserve()
        self.engine.reserve(base.Context("r"), {"gpu": LIMIT - 1 - 2 * HELD})
        self.stale.transfer(ADMIN, "b", "a", consumer="a")
        self.assertEqual([(0, 0), (0, 2 * HELD)], [self.figures(name) for name in "ab"])
        self.assert_invariants()
