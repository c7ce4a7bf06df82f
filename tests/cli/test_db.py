# SPDX-License-Identifier: Apache-2.0
"""db sync, version and purge, through the command line."""

from __future__ import annotations

import time

import sqlalchemy as sa

from cyborg_quota.db import schema
from tests.cli import base


class DatabaseTest(base.CliTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.directory / "new.sqlite"
        self.new = f"sqlite:///{self.file}"

    def test_sync_twice(self) -> None:
        self.configure(url=self.new)
        self.assertEqual({"revision": None, "needed": schema.head()}, self.good("db", "version"))
        self.assertEqual({"from_revision": None, "to_revision": schema.head()}, self.good("db", "sync"))
        self.assertEqual({"from_revision": schema.head(), "to_revision": schema.head()}, self.good("db", "sync"))
        self.assertEqual({"revision": schema.head(), "needed": schema.head()}, self.good("db", "version"))
        self.assertEqual([], self.good("usage", "list"))

    def test_every_command_names_the_command_that_makes_the_tables(self) -> None:
        self.configure(url=self.new)
        trace = self.directory / "trace.csv"
        trace.write_text("time,event,consumer,project,resource,amount\n0,reserve,c,p,gpu,1\n")
        for argv in (
            ["usage", "list"],
            ["usage", "audit"],
            ["check", "--project", "p", "gpu=1"],
            ["reserve", "--project", "p", "gpu=1"],
            ["expire"],
            ["db", "purge"],
            ["replay", str(trace)],
        ):
            self.assertIn("cyborg-quota db sync", self.refused(1, *argv))

    def test_tables_of_another_program_are_not_changed(self) -> None:
        with sa.create_engine(self.new, poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.text("CREATE TABLE reservations (id INTEGER, stranger TEXT)"))
        self.configure(url=self.new)
        self.assertIn("Nothing was changed", self.refused(1, "db", "sync"))
        inspector = sa.inspect(sa.create_engine(self.new, poolclass=sa.NullPool))
        self.assertEqual(["reservations"], inspector.get_table_names())

    def test_purge(self) -> None:
        uuid = self.good("reserve", "--project", "p1", "gpu=1")[0]["uuid"]
        self.good("rollback", uuid)
        self.assertEqual({"purged": 0}, self.good("db", "purge"))
        self.assertEqual({"purged": 0}, self.good("db", "purge", "--older-than", "1"))
        time.sleep(0.01)
        self.assertEqual({"purged": 1}, self.good("db", "purge", "--older-than", "0"))
        self.assertEqual([], self.good("reservation", "list"))

    def test_purge_takes_its_age_from_the_configuration(self) -> None:
        self.configure("[quota]\npurge_age = 0")
        self.good("rollback", self.good("reserve", "--project", "p1", "gpu=1")[0]["uuid"])
        time.sleep(0.01)
        self.assertEqual({"purged": 1}, self.good("db", "purge"))

    def test_purge_of_a_bad_age(self) -> None:
        for bad in ("-1", "x", "1.5", "36501", "9" * 30):
            self.misused("db", "purge", "--older-than", bad)

    def test_a_database_that_does_not_answer(self) -> None:
        self.configure("[quota]\nretry_seconds = 0.1", url="mysql+pymysql://quota:Pass%20word1@127.0.0.1:1/quota")
        line = self.refused(1, "usage", "list")
        self.assertIn("The database is unavailable", line)
        for argv in (
            ["usage", "list"],
            ["--debug", "db", "sync"],
            ["-vv", "db", "version"],
            ["usage", "list", "--help"],
        ):
            ended = self.call(*argv)
            self.assertNotIn("word1", ended.out + ended.err)

    def test_a_missing_directory(self) -> None:
        self.configure("[quota]\nretry_seconds = 0.1", url=f"sqlite:///{self.directory}/none/x.sqlite")
        self.assertIn("unable to open database file", self.refused(1, "db", "sync"))
