# SPDX-License-Identifier: Apache-2.0
"""The supported databases: one class for each. (contributor/databases.rst says what is elsewhere.)"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from cyborg_quota import exceptions
from cyborg_quota.db.clock import second, utc_after
from cyborg_quota.db.dialects.base import Dialect
from cyborg_quota.db.dialects.mariadb import MariaDB
from cyborg_quota.db.dialects.postgresql import PostgreSQL
from cyborg_quota.db.dialects.sqlite import SQLite

__all__ = ["Dialect", "of", "of_url"]

_DIALECTS: Final[dict[str, Dialect]] = {dialect.name: dialect for dialect in (SQLite(), MariaDB(), PostgreSQL())}


@compiles(utc_after)
def _utc_after(element: utc_after, compiler: Any, **kw: Any) -> str:
    dialect = _DIALECTS[compiler.dialect.name]
    return dialect.now_plus.format(compiler.process(element.clauses, **kw)) if len(element.clauses) else dialect.now


@compiles(second)
def _second(_element: second, compiler: Any, **_kw: Any) -> str:
    return _DIALECTS[compiler.dialect.name].second


def of(connection: sa.Connection) -> Dialect:
    """The dialect of an open connection."""
    return _DIALECTS[connection.dialect.name]


def of_url(url: sa.URL) -> tuple[sa.URL, Dialect]:
    """The dialect for a URL, and the URL to connect to. Raises ConfigurationError for an unsupported driver."""
    backend, separator, driver = url.drivername.partition("+")
    if backend == "mariadb":
        # oslo.db translates no errors of SQLAlchemy's dialect `mariadb`.
        url = url.set(drivername=f"mysql{separator}{driver}")
    backend, driver = url.get_backend_name(), url.get_driver_name()
    dialect = _DIALECTS.get(backend)
    if dialect is None or dialect.driver != driver:
        raise exceptions.ConfigurationError(
            f"[database] connection uses the driver {backend}+{driver}, which is not supported."
            " Begin it with sqlite://, mysql+pymysql:// or postgresql+psycopg2://."
        )
    return url, dialect
