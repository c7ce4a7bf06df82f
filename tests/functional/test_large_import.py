# SPDX-License-Identifier: Apache-2.0
"""Imports that move many projects: charges wait for a few statements only, and an import is atomic."""

from __future__ import annotations

import re
from typing import Any

from cyborg_quota import exceptions
from cyborg_quota.limits import changes as limit_changes
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models import Flat
from tests import base, clouds
from tests.functional import test_limits

ROWS_A_STATEMENT = 512


class TestLargeImport(test_limits.LimitsTestCase):
    policy = Flat
    initial = InitialLimits(child=None)

    def add_projects(self, count: int) -> None:
        self.admin.set_limits(base.ADMIN, {"fpga": 10**6, "gpu": 10**6})
        clouds.add_projects(self.sql, 0, count)
        self.projects = count

    def rotate(self, **changes: Any) -> int:
        """Import the moves; returns the number of projects moved."""
        return len(self.admin.import_limits(base.ADMIN, clouds.rotated(self.projects, 1), **changes))

    def turns(self) -> set[int]:
        """Return by how many parents each project has been moved since the start."""
        middles = self.projects // clouds.CHILDREN
        return {
            (int(row.parent_id.removeprefix("mid")) - int(row.project_id.removeprefix("p")) // clouds.CHILDREN)
            % middles
            for row in self.fetch("SELECT project_id, parent_id FROM projects WHERE project_id LIKE 'p%'")
        }

    def test_usage_rows_are_locked_for_a_few_statements(self) -> None:
        """Each row must not cost a round trip while charges wait, and nothing else may be done in that time.

        They wait while the usage rows are locked; each statement is of at most 512 rows.
        """
        self.add_projects(800)
        held = {f"p{number}": number % 7 + 1 for number in range(0, self.projects, 50)}
        for project_id, amount in held.items():
            self.engine.reserve(base.Context(project_id), {"fpga": amount})
        with clouds.captured() as found:
            self.assertEqual(self.projects, self.rotate())
        statements = [statement for statement, _ in found]
        self.assertLessEqual(len(statements), 105)
        locked = statements[next(index for index, statement in enumerate(statements) if changes_usages(statement)) :]
        pieces = 2 * self.projects // ROWS_A_STATEMENT + 1  # (two resources)
        # Locks (on PostgreSQL one list for each of two depths), ended months, amounts of three columns, generations.
        self.assertLessEqual(len(locked), 2 * pieces + 7)
        # (A SET comes after the COMMIT.)
        others = [statement for statement in locked if not re.search("quota_usages|^SET", statement)]
        # The second of the move, which is read once the rows are locked. (SQLite reads it before it changes any.)
        self.assertIn(["2020-01-01" in statement for statement in others], ([True], []))
        self.assert_invariants()
        self.assertEqual({1}, self.turns())
        [(total,)] = self.fetch("SELECT SUM(subtree) FROM quota_usages WHERE project_id = 'mid1'")
        self.assertEqual(held["p0"], total)

    def test_too_many_rows_are_refused(self) -> None:
        """The number of moved projects is bounded, and a dry run reports the error too. Nothing is written."""
        self.add_projects(60)
        name = "MAX_MOVED_ROWS_OF_ONE_WRITER" if self.backend == "sqlite" else "MAX_MOVED_ROWS"
        self.patch(limit_changes, name, 119)
        for dry_run in (True, False):
            text = "60 projects that would be moved have 120 usage rows.* one import may move 119"
            self.assertRaisesRegex(exceptions.LimitRefused, text, self.rotate, dry_run=dry_run)
        self.assertEqual({0}, self.turns())
        self.patch(limit_changes, name, 120)
        self.assertEqual(60, self.rotate())
        self.assertEqual({1}, self.turns())


def changes_usages(statement: str) -> bool:
    """Return whether the statement locks or changes existing usage rows."""
    is_locking = "FROM quota_usages" in statement and "FOR UPDATE" in statement.replace("NO KEY ", "")
    return is_locking or statement.startswith("UPDATE quota_usages")
