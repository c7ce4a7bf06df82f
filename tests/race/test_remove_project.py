# SPDX-License-Identifier: Apache-2.0
"""A project is removed while it is charged for the first time: each call is interrupted before each of its statements.

A random race of two processes violates I9 in at most 1 of 10 rounds. Here one call is stopped before each of its
statements in turn, and the other call runs until it ends or waits for a lock; so the result does not depend on chance.
"""

from __future__ import annotations

from cyborg_quota import exceptions
from cyborg_quota.limits.models import Flat
from tests import base, hooks
from tests.functional import test_limits
from tests.race.interleaving import interleave


class TestRemoveProject(test_limits.LimitsTestCase):
    policy = Flat

    def setUp(self) -> None:
        super().setUp()
        self.set(None, -1)
        self.make_tree({"top": None})
        self.hold("top", 1)
        # Another host: with its own connections, and its own cache of paths.
        self.other = self.make_limited()
        self.other.get_usages(base.ADMIN)

    def remove(self, project_id: str) -> None:
        """(Refused if the project holds something.)"""
        try:
            self.admin.remove_project(base.ADMIN, project_id)
        except exceptions.ProjectRefused as error:
            self.assertIn("holds resources", str(error))

    def reserve(self, project_id: str) -> list[str]:
        return self.other.reserve(base.Context(project_id), {"gpu": 1})

    def add(self, project_id: str) -> None:
        self.make_tree({project_id: "top"})
        self.admin.set_limit(base.ADMIN, "gpu", -1, project_id)

    def test_charged_while_it_is_removed(self) -> None:
        for _ in interleave(hooks.database_of(self.engine).engine, self.add, self.remove, self.reserve):
            self.assert_invariants()

    def test_removed_while_it_is_charged(self) -> None:
        """The reserve succeeds each time: the removed project is known again, as a root."""
        for _ in interleave(hooks.database_of(self.other).engine, self.add, self.reserve, self.remove):
            self.assert_invariants()


class TestRemoveMetered(TestRemoveProject):
    """The project, a root, has used something: its usage row stays when it is removed."""

    def add(self, project_id: str) -> None:
        self.make_tree({project_id: None})
        self.admin.set_limit(base.ADMIN, "gpu", -1, project_id)
        context = base.Context(project_id)
        self.other.rollback(context, self.other.reserve(context, {"gpu": 1}))
        columns = "metered = metered + 7, meter_base = meter_base + 7"
        self.execute(f"UPDATE quota_usages SET {columns} WHERE project_id = '{project_id}'")
        self.assert_invariants()
