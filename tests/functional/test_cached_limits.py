# SPDX-License-Identifier: Apache-2.0
"""When a change of a limit has returned, no charge is granted by the earlier limit (L2): limits are cached by path.

``other`` is another process: an engine with a cache of its own, which has read the limits before the change.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import threading
import time
from collections.abc import Callable
from unittest import mock

from cyborg_quota import exceptions
from cyborg_quota.db import change_log, charges, projects
from cyborg_quota.types import ResourceKey
from tests import base, fixtures, hooks
from tests.base import ADMIN
from tests.functional.test_limits import LimitsTestCase

LEAF = base.Context("leaf")
KEY = ResourceKey("gpu")


def without_renewal() -> contextlib.ExitStack:
    """The naive form: limits are written, and no generation is renewed."""
    stack = contextlib.ExitStack()
    for name in ("renew", "renew_roots"):
        stack.enter_context(mock.patch.object(charges, name))
    return stack


class CachedLimitsTestCase(LimitsTestCase):
    provider: str | None = None

    def setUp(self) -> None:
        super().setUp()
        self.add_provider("node", gpu=999)
        self.import_tree({"root": None, "leaf": "root", "small": None}, {"root": 99, "leaf": 9, "small": 9}, gpu=-1)
        for project_id in ("root", "small"):
            self.hold(project_id, 6)
        self.other = self.make_limited()
        for context in (LEAF, base.Context("flat")):
            self.other.rollback(context, self.other.reserve(context, {"gpu": 1}))

    def limit(self, limit: int, project_id: str | None = None) -> Callable[[], object]:
        """A call that sets a limit."""
        return lambda: self.admin.set_limit(ADMIN, "gpu", limit, project_id)

    def override(self, limit: int, start: float | None, end: float, project_id: str = "leaf") -> None:
        """Make an override. ``start`` (None: now), ``end``: in seconds from now."""
        now, second = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(seconds=1)
        begin = None if start is None else now + start * second
        self.admin.set_overrides(ADMIN, {"gpu": limit}, project_id, now + end * second, start=begin)

    def is_granted(self, amount: int, project_id: str = "leaf") -> bool:
        """Whether the other process grants a reserve, which is then rolled back."""
        context = base.Context(project_id)
        try:
            self.other.rollback(context, self.other.reserve(context, {"gpu": amount}, provider=self.provider))
        except exceptions.OverQuota:
            return False
        return True


class TestChanges(CachedLimitsTestCase):
    def changes(self) -> dict[str, tuple[Callable[[], object], str]]:
        """Changes after which 4 do not fit, and the project that is charged."""
        document = {"projects": [{"id": "flat", "limits": {"gpu": 3}}]}
        return {
            "own": (self.limit(3, "leaf"), "leaf"),
            "parent": (self.limit(9, "root"), "leaf"),
            "default": (self.limit(3), "flat"),
            "document": (lambda: self.admin.import_limits(ADMIN, document), "flat"),
            "override": (lambda: self.override(3, None, 999), "leaf"),
            "override of the parent": (lambda: self.override(9, None, 999, "root"), "leaf"),
            "total": (lambda: self.engine.limits.set_total_limits(ADMIN, {"gpu": 15}), "leaf"),
            "lower total": (lambda: self.engine.limits.set_total_limits(ADMIN, {"gpu": 15}), "flat"),
            "move": (lambda: self.admin.move_project(ADMIN, "leaf", "small"), "leaf"),
        }

    def prepare(self, name: str) -> None:
        """Remove the limits of other changes, and let the other process read the path."""
        with contextlib.suppress(exceptions.QuotaError):
            self.engine.limits.unset_total_limits(ADMIN, ["gpu"])
        for override in self.admin.list_overrides(ADMIN)[0]:
            self.admin.cancel_overrides(ADMIN, [override.id])
        self.admin.import_limits(
            ADMIN,
            {
                "defaults": {"gpu": -1},
                "projects": [
                    {"id": "root", "limits": {"gpu": 99}, "children": [{"id": "leaf", "limits": {"gpu": 9}}]},
                    {"id": "flat", "limits": {"gpu": None}},
                ],
            },
        )
        if name == "lower total":
            self.engine.limits.set_total_limits(ADMIN, {"gpu": 99})
        self.assertTrue(self.is_granted(4) and self.is_granted(4, "flat"), name)

    def test_each(self) -> None:
        """Also if a claim names a provider."""
        for provider, (name, (change, project_id)) in itertools.product((None, "node"), self.changes().items()):
            self.provider = provider
            self.prepare(name)
            change()
            self.assertEqual((False, True), (self.is_granted(4, project_id), self.is_granted(3, project_id)), name)
            self.assert_invariants()

    def test_without_renewal_the_earlier_limit_is_used(self) -> None:
        """The control: of all changes but a move and a new total, which change the path itself.

        A change of a default that was killed before it renewed the rows of the roots is completed by the same call.
        """
        for name, (change, project_id) in self.changes().items():
            if name not in ("move", "total"):
                self.prepare(name)
                with without_renewal():
                    change()
                self.assertTrue(self.is_granted(4, project_id), name)
                if name == "default":
                    change()
                    self.assertFalse(self.is_granted(4, project_id))

    def test_a_limit_is_raised_or_set(self) -> None:
        """Also where the other process has read that there is no limit."""
        for limit, granted in ((2, False), (4, True)):
            self.limit(limit, "leaf")()
            self.assertEqual(granted, self.is_granted(4))
        self.admin.unset_limit(ADMIN, "gpu")
        for context in (base.Context("flat"), base.Context("unseen")):
            self.assertRaises(exceptions.LimitNotSet, self.other.reserve, context, {"gpu": 1})
        self.limit(1, "flat")()
        self.assertTrue(self.is_granted(1, "flat"))

    def test_an_override_begins_and_ends(self) -> None:
        """By the clock of the database; nothing is written at these moments."""
        self.limit(5, "leaf")()
        self.override(8, 2, 6)
        self.assertEqual((True, False), (self.is_granted(5), self.is_granted(6)))
        seen = [False]
        began = time.monotonic()
        while time.monotonic() < began + 30 and seen[-2:] != [True, False]:
            is_granted = self.is_granted(8)
            if is_granted != seen[-1]:
                seen.append(is_granted)
            time.sleep(0.05)
        self.assertEqual([False, True, False], seen)

    def test_an_entry_is_read_again_after_a_minute(self) -> None:
        """Whatever else may have gone wrong."""
        self.execute("UPDATE project_limits SET hard_limit = 3 WHERE project_id = 'leaf'")
        self.assertTrue(self.is_granted(4))
        later = time.monotonic() + 61
        with mock.patch("cyborg_quota.db.path_state.time.monotonic", lambda: later):
            self.assertFalse(self.is_granted(4))


class TestMeanwhile(CachedLimitsTestCase):
    """A limit changes during a charge; or while the first usage row of a project is inserted, and its path is read.

    (SQLite has one writer.)
    """

    scenarios = fixtures.SCENARIOS[1:]

    def test_in_the_middle_of_a_charge(self) -> None:
        """The limit is lowered between the look-up and the charge of another process."""
        statement = {"mariadb": "EXECUTE", "postgresql": "SELECT WHERE cyborg_quota_reserve"}[self.backend]
        with hooks.Interleaved(self.other, statement, self.limit(9, "root")):
            self.assertFalse(self.is_granted(4))
        self.assert_invariants()

    def read_during(self, project_id: str, *, how_long: float) -> None:
        """The other process reads the path of a new project before the COMMIT of the change, or waits ``how_long``."""
        reader = threading.Thread(target=self.other._driver._paths.get, args=(project_id, [KEY]))
        with hooks.Meanwhile(charges, "renew", lambda: (reader.start(), reader.join(how_long)), after=True):
            self.limit(3, project_id)()
        reader.join()

    def test_the_insertion_waits_for_a_limit_of_the_project(self) -> None:
        """The control: without the lock of the project, it keeps the earlier limit."""
        self.read_during("new", how_long=0.5)
        self.assertEqual((False, True), (self.is_granted(4, "new"), self.is_granted(3, "new")))
        naive = mock.Mock(wraps=projects, lock_and_add=lambda *_: None)
        with mock.patch.object(charges, "projects", naive):
            self.read_during("naive", how_long=20)
        self.assertTrue(self.is_granted(4, "naive"))

    def read_before_the_commit_of_a_default(self, project_id: str) -> None:
        paths = self.other._driver._paths
        with hooks.Meanwhile(change_log, "record", lambda: paths.get(project_id, [KEY])):
            self.limit(3)()

    def test_a_default_is_renewed_in_a_new_root(self) -> None:
        """The control: without its renewal, it keeps the earlier default."""
        self.read_before_the_commit_of_a_default("new")
        self.assertEqual((False, True), (self.is_granted(4, "new"), self.is_granted(3, "new")))
        self.limit(-1)()
        with mock.patch.object(charges, "renew_roots"):
            self.read_before_the_commit_of_a_default("naive")
        self.assertTrue(self.is_granted(4, "naive"))
