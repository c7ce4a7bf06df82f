# SPDX-License-Identifier: Apache-2.0
"""The schema: its creation, the databases that are refused, and the check of other tables."""

from __future__ import annotations

import multiprocessing
import pathlib
import shutil
from unittest import mock

import alembic.config
import alembic.script
import fixtures as pyfixtures
import sqlalchemy as sa

from cyborg_quota import QuotaEngine, exceptions
from cyborg_quota.db import models, schema
from tests import base, fixtures, forked, hooks

NEXT_REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "f2f1"
down_revision = "{head}"


def upgrade():
    op.add_column("projects", sa.Column("name_of_next_year", sa.Integer))
"""
CYBORG = {
    "quota_usages": (
        "CREATE TABLE quota_usages (created_at DATE, updated_at DATE, id INTEGER PRIMARY KEY,"
        " project_id VARCHAR(255), user_id VARCHAR(255), resource VARCHAR(255) NOT NULL,"
        " in_use INTEGER NOT NULL, reserved INTEGER NOT NULL, until_refresh INTEGER)",
        "INSERT INTO quota_usages (id, project_id, resource, in_use, reserved) VALUES (1, 'p1', 'gpu', 4, 1)",
    ),
    "reservations": (
        "CREATE TABLE reservations (id INTEGER PRIMARY KEY, uuid VARCHAR(36) NOT NULL,"
        " usage_id INTEGER NOT NULL, project_id VARCHAR(255), resource VARCHAR(255), delta INTEGER,"
        " expire DATE)",
    ),
    "projects": ("CREATE TABLE projects (id INTEGER PRIMARY KEY, title VARCHAR(20))",),
}


class SchemaTestCase(base.BackendTestCase):
    """Tests with an empty database, without a schema."""

    def setUp(self) -> None:
        super().setUp()
        self.url = fixtures.fresh_url(self.backend, "schema")
        self.database = fixtures.open_database(self, self.url)
        self.sql = sa.create_engine(self.url, poolclass=sa.NullPool)

    def make_engine(self) -> QuotaEngine:
        return fixtures.open_engine(self, self.url)

    def assert_works(self) -> None:
        engine = self.make_engine()
        engine.commit(base.ADMIN, engine.reserve(base.ADMIN, {"gpu": 1}))
        self.assertEqual([], engine.audit(base.ADMIN))

    def shape(self) -> dict[str, object]:
        """Return every table, with its columns, keys, checks and rows."""
        return fixtures.schema_of(self.sql) | hooks.tables(self.sql)


class TestSync(SchemaTestCase):
    """A new schema, a current one, a newer one, an incomplete one."""

    def test_new_and_current(self) -> None:
        found = self.database.read(schema.revision_of), schema.sync(self.database)
        self.assertEqual((None, (None, schema.HEAD)), found)
        self.assert_works()
        before = self.shape()

        self.assertEqual((schema.HEAD, schema.HEAD), schema.sync(self.database))

        self.assertEqual(before, self.shape())
        self.assertEqual(1, len(before["reservations"]))

    def test_not_initialized(self) -> None:
        engine = self.make_engine()
        for call in (engine.reserve, engine.check):
            self.assertRaisesRegex(
                exceptions.DatabaseNotInitialized, "cyborg-quota db sync", call, base.ADMIN, {"gpu": 1}
            )
        self.assertEqual([], sa.inspect(self.sql).get_table_names())
        schema.sync(self.database)
        engine.reserve(base.ADMIN, {"gpu": 1})

    def test_newer_than_this_code(self) -> None:
        fixtures.create_schema(self.url)
        with self.sql.begin() as connection:
            connection.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = 'f00d'")
        self.assert_works()
        self.assertEqual(("f00d", "f00d"), schema.sync(self.database))

    def test_behind(self) -> None:
        present = schema.HEAD
        fixtures.create_schema(self.url)
        self.assert_works()
        with self._next_release():
            engine = self.make_engine()
            error = self.assertRaises(exceptions.DatabaseBehind, engine.reserve, base.ADMIN, {"gpu": 1})
            self.assertEqual((present, "f2f1"), (error.revision, error.head))
            self.assertIn("cyborg-quota db sync", str(error))

            self.assertEqual((present, "f2f1"), schema.sync(self.database))

            engine.reserve(base.ADMIN, {"gpu": 1})
        columns = {column["name"] for column in sa.inspect(self.sql).get_columns("projects")}
        self.assertIn("name_of_next_year", columns)
        self.assert_works()  # this release with the next release's schema

    def _next_release(self) -> mock._patch:  # type: ignore[type-arg]
        """Return the migrations with one more revision."""
        directory = pathlib.Path(self.useFixture(pyfixtures.TempDir()).path) / "migrations"
        shutil.copytree(pathlib.Path(schema.__file__).parent / "migrations", directory)
        (directory / "versions/f2f1_next.py").write_text(NEXT_REVISION.format(head=schema.HEAD))
        make_config = schema.alembic_config

        def config(connection: sa.Connection | None = None) -> alembic.config.Config:
            made = make_config(connection)
            made.set_main_option("script_location", str(directory))
            return made

        return mock.patch.multiple(schema, alembic_config=config, HEAD="f2f1", REVISIONS=("f2f1", *schema.REVISIONS))

    def test_every_revision_is_known(self) -> None:
        """The list of revisions is equal to the scripts."""
        scripts = alembic.script.ScriptDirectory.from_config(schema.alembic_config())
        self.assertEqual(list(schema.REVISIONS), [script.revision for script in scripts.walk_revisions()])

    def test_some_tables_without_a_version(self) -> None:
        """Empty ones, of an interrupted sync, are made again; tables with rows of unknown origin are not dropped."""
        fixtures.create_schema(self.url)
        with self.sql.begin() as connection:
            connection.exec_driver_sql("DROP TABLE replays")
            connection.exec_driver_sql("DROP TABLE projects")
            connection.exec_driver_sql(f"DELETE FROM {schema.VERSION_TABLE}")
        self.assertRaises(exceptions.DatabaseNotInitialized, self.make_engine().reserve, base.ADMIN, {"gpu": 1})
        self.assertEqual((None, schema.HEAD), schema.sync(self.database))
        self.assert_works()
        with self.sql.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM {schema.VERSION_TABLE}")
        before = self.shape()
        self.assertRaises(exceptions.DatabaseForeign, schema.sync, self.database)
        self.assertEqual(before, self.shape())

    def test_several_concurrently(self) -> None:
        """One makes the tables; the others wait until that is committed, and change nothing."""
        start = multiprocessing.get_context("fork").Barrier(4)
        children = [forked.start(lambda: (start.wait(), fixtures.create_schema(self.url))) for _ in range(4)]
        self.assertEqual([0] * 4, [forked.wait(pid) for pid in children])
        self.assert_works()


class TestForeignTables(SchemaTestCase):
    """Tables of another program with our names are refused, and not changed."""

    def assert_refused(self, *tables: str) -> None:
        with self.sql.begin() as connection:
            for statement in (statement for table in tables for statement in CYBORG[table]):
                connection.exec_driver_sql(statement)
        before, bytes_before = self.shape(), self.file_bytes()
        engine = self.make_engine()
        for call, args in (
            (schema.sync, (self.database,)),
            (self.database.read, (schema.revision_of,)),
            (engine.reserve, (base.ADMIN, {"gpu": 1})),
            (engine.get_usages, (base.ADMIN,)),
            (engine.audit, (base.ADMIN,)),
            (engine.expire, (base.ADMIN,)),
        ):
            error = self.assertRaises(exceptions.DatabaseForeign, call, *args)
            self.assertEqual(sorted(tables), error.tables)
            for words in (*tables, "separate database", "[database] connection"):
                self.assertIn(words, str(error))
        self.database.close()
        engine.close()
        self.assertEqual((before, bytes_before), (self.shape(), self.file_bytes()))

    def file_bytes(self) -> bytes | None:
        return pathlib.Path(str(sa.make_url(self.url).database)).read_bytes() if self.backend == "sqlite" else None

    def test_cyborg(self) -> None:
        """Both tables of Cyborg, or a single one of the names."""
        for tables in (("quota_usages", "reservations"), ("quota_usages",), ("reservations",), ("projects",)):
            self.assert_refused(*tables)
            with self.sql.begin() as connection:
                for table in tables:
                    connection.exec_driver_sql(f"DROP TABLE {table}")

    def test_other_tables_are_ignored(self) -> None:
        with self.sql.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
            connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('cyborg')")
        schema.sync(self.database)
        self.assertEqual([("cyborg",)], hooks.tables(self.sql)["alembic_version"])
        self.assert_works()


class TestModels(SchemaTestCase):
    """Models and migrations agree, also about the names of constraints and the CHECKs.

    (test_migrations.TestModels compares the rest, with oslo.db's ModelsMigrationsSync.)
    """

    def test_constraints_and_their_names(self) -> None:
        fixtures.create_schema(self.url)
        migrated = fixtures.schema_of(self.sql)
        with self.sql.begin() as connection:
            models.metadata.drop_all(connection)
            models.metadata.create_all(connection)
        self.assertEqual(migrated, fixtures.schema_of(self.sql))
        self.assertIn("ck_quota_usages_used", str(migrated["quota_usages, get_multi_check_constraints"]))
