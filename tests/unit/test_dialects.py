# SPDX-License-Identifier: Apache-2.0
"""The dialects: one for each supported URL."""

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


class TestDialects(base.BaseTestCase):
    def test_of_url(self) -> None:
        for url, expected in URLS.items():
            connect_url, dialect = dialects.of_url(sa.make_url(url))
            self.assertIs(expected, type(dialect), url)
            self.assertEqual(dialect.name, connect_url.get_backend_name())
            self.assertEqual(dialect.has_server, bool(dialect.extra), "the extra installs the driver of a server")

    def test_unsupported_drivers(self) -> None:
        for url in ("mysql+mysqlconnector://host/quota", "postgresql+asyncpg://host/quota", "oracle://host/quota"):
            error = self.assertRaises(exceptions.ConfigurationError, dialects.of_url, sa.make_url(url))
            self.assertIn("is not supported", str(error))
