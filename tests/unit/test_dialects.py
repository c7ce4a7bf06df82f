# SPDX-License-Identifier: Apache-2.0
"""The dialects: one for each supported URL, and what each of them must define."""

from __future__ import annotations

import sqlalchemy as sa
from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.db import dialects
from cyborg_quota.db.dialects.base import Dialect
from cyborg_quota.db.dialects.mariadb import MariaDB
from cyborg_quota.db.dialects.postgresql import PostgreSQL
from cyborg_quota.db.dialects.sqlite import SQLite

URLS: dict[str, type[Dialect]] = {
    "sqlite://": SQLite,
    "sqlite:////var/lib/quota.sqlite": SQLite,
    "mysql+pymysql://user@host/quota": MariaDB,
    "mariadb+pymysql://user@host/quota": MariaDB,
    "postgresql+psycopg2://user@host/quota": PostgreSQL,
}
REQUIRED = ("name", "driver", "engine_arguments", "configure_connection", "insert_or_ignore")
"""What the base class does not define."""


class TestDialects(base.BaseTestCase):
    def test_of_url(self) -> None:
        for url, expected in URLS.items():
            connect_url, dialect = dialects.of_url(sa.make_url(url))
            self.assertIs(expected, type(dialect), url)
            self.assertEqual(dialect.name, connect_url.get_backend_name())

    def test_unsupported_drivers(self) -> None:
        for url in ("mysql+mysqlconnector://host/quota", "postgresql+asyncpg://host/quota", "oracle://host/quota"):
            error = self.assertRaises(exceptions.ConfigurationError, dialects.of_url, sa.make_url(url))
            self.assertIn("is not supported", str(error))

    def test_each_defines_what_has_no_portable_form(self) -> None:
        for dialect in set(URLS.values()):
            self.assertLessEqual(set(REQUIRED), set(vars(dialect)), dialect)

    def test_a_server_has_an_extra_that_installs_its_driver(self) -> None:
        for dialect in set(URLS.values()):
            self.assertEqual(dialect.has_server, bool(dialect.extra), dialect)

    def test_the_base_class_has_a_form_for_everything_else(self) -> None:
        """Only the required methods raise NotImplementedError; optional forms are absent."""
        portable = Dialect()
        self.assertFalse(portable.charge_together(None, [], 0))  # type: ignore[arg-type]
        self.assertIsNone(portable.reserve_in_single_statement(None, [], []))  # type: ignore[arg-type]
        self.assertIsNone(portable.settle_in_single_statement(None, [], "committed", 0, []))  # type: ignore[arg-type]
        self.assertFalse(portable.is_galera(None))  # type: ignore[arg-type]
