# SPDX-License-Identifier: Apache-2.0
"""The history of limits after an upgrade of a database, and beside a release that writes no history."""

from __future__ import annotations

from typing import Any

import alembic.command
import sqlalchemy as sa
import testscenarios

from cyborg_quota import QuotaEngine
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from cyborg_quota.ledger.driver import DbQuotaDriver
from cyborg_quota.ledger.settings import DriverSettings
from cyborg_quota.limits.database import DatabaseLimitDriver
from cyborg_quota.limits.limit_tree import InitialLimits
from cyborg_quota.limits.models.flat import Flat
from tests import base, fixtures

load_tests = testscenarios.load_tests_apply_scenarios


class TestUpgrade(base.BackendTestCase):
    """A database of the previous release, and that release beside this one."""

    def setUp(self) -> None:
        super().setUp()
        self.url = fixtures.fresh_url(self.backend, "history")
        self.sql = sa.create_engine(self.url, poolclass=sa.NullPool)
        with self.sql.begin() as connection:
            alembic.command.upgrade(schema.alembic_config(connection), "f5e0")

    def change(self, *statements: str) -> None:
        """As the previous release does, which takes the fence first."""
        bump = "UPDATE fences SET generation = generation + 1 WHERE name = 'limits'"
        with self.sql.begin() as connection:
            for statement in (bump, *statements):
                connection.execute(sa.text(statement))

    def sync(self) -> Any:
        database = Database(fixtures.settings(self.url))
        self.addCleanup(database.close)
        schema.sync(database)
        engine = QuotaEngine(
            DbQuotaDriver(
                DriverSettings(database=fixtures.settings(self.url)), DatabaseLimitDriver(Flat(), InitialLimits())
            )
        )
        engine.register_resources(["fpga", "gpu"])
        self.addCleanup(engine.close)
        return engine.administration

    @staticmethod
    def differences(admin: Any) -> list[tuple[Any, ...]]:
        found = admin.verify_limit_history(base.ADMIN)
        return [(one.project_id, one.resource, one.recorded, one.actual) for one in found]

    def test_the_history_begins_with_a_checkpoint(self) -> None:
        self.change(
            "INSERT INTO fences (name, generation) VALUES ('limits', 41)",
            "INSERT INTO limit_defaults (resource, most) VALUES ('gpu', 5), ('fpga', -1)",
            "INSERT INTO project_limits (project_id, resource, most) VALUES ('p', 'gpu', 4611686018427387904)",
            "INSERT INTO projects (project_id, parent_id, origin, generation) VALUES"
            " ('p', NULL, NULL, 0), ('c', 'p', NULL, 0), ('k', 'domain', 'keystone', 0)",
        )
        admin = self.sync()
        entries = admin.limit_history(base.ADMIN)
        self.assertEqual({("checkpoint", "migration", "db sync")}, {(e.action, e.operation, e.actor) for e in entries})
        self.assertEqual([f"42-{number}" for number in range(6)], [entry.id for entry in reversed(entries)])
        self.assertEqual(
            {
                (None, None, None), (None, "gpu", 5), (None, "fpga", -1), ("p", "gpu", 2**62), ("c", None, "p"),
                ("k", None, "domain"),
            },
            {(entry.project_id, entry.resource, entry.after) for entry in entries},
        )  # fmt: skip
        self.assertEqual([], admin.verify_limit_history(base.ADMIN))
        admin.set_limit(base.ADMIN, "gpu", 6)
        self.assertEqual("43-0", admin.limit_history(base.ADMIN, limit=1)[0].id)
        self.assertEqual([], admin.verify_limit_history(base.ADMIN))

    def test_changes_of_the_previous_release_are_reported(self) -> None:
        admin = self.sync()
        self.assertEqual([], admin.limit_history(base.ADMIN))
        admin.set_limits(base.ADMIN, {"gpu": 5, "fpga": 6}, "p")
        admin.add_project(base.ADMIN, "p")
        self.change("UPDATE project_limits SET most = 7 WHERE resource = 'gpu'")
        self.change("DELETE FROM project_limits WHERE resource = 'fpga'")
        self.change("INSERT INTO projects (project_id, parent_id, generation) VALUES ('c', 'p', 0)")
        self.assertEqual([("p", "fpga", 6, None), ("p", "gpu", 5, 7), ("c", None, None, "p")], self.differences(admin))
        admin.set_limit(base.ADMIN, "gpu", 8, "p")
        admin.remove_project(base.ADMIN, "c")
        self.assertEqual([("p", "gpu", 5, 7), ("c", None, None, "p"), ("p", "fpga", 6, None)], self.differences(admin))
        admin.checkpoint_limits(base.ADMIN)
        self.assertEqual([], admin.verify_limit_history(base.ADMIN))
