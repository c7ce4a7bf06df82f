# SPDX-License-Identifier: Apache-2.0
"""The schema revision of a database, and its upgrade to the revision that this code needs."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.db import dialects, models
from cyborg_quota.db.database import Connection, Database

if TYPE_CHECKING:
    import alembic.config

LOG = logging.getLogger(__name__)

VERSION_TABLE: Final = "cyborg_quota_alembic_version"
"""Not alembic's default name, which another service may use if it shares the database by mistake."""
_READ_REVISION: Final = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608

REVISIONS: Final = ("0001",)
"""All revisions, newest first. (Reading them through alembic takes longer than a whole command.)"""
HEAD: Final = REVISIONS[0]
"""The revision that this code needs."""


def revision_of(connection: Connection) -> str | None:
    """The database's revision; None if it has no schema of this project. Raises DatabaseForeign."""
    revision = _recorded(connection)
    if revision is None:
        tables = set(sa.inspect(connection).get_table_names())
        present = tables & set(models.metadata.tables)
        # A version table without a revision is left by an interrupted first sync: MariaDB commits each DDL statement.
        if present and VERSION_TABLE not in tables:
            # Another host's first sync may have committed between the two queries: read the revision again.
            revision = _recorded(connection)
            if revision is None:
                raise exceptions.DatabaseForeign(sorted(present))
    return revision


def _recorded(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.exec_driver_sql(_READ_REVISION).scalar()
    return revision


def checked_revision(connection: Connection) -> str:
    """The revision of a database that ``check`` has accepted, in one statement."""
    return str(connection.exec_driver_sql(_READ_REVISION).scalar_one())


def check(connection: Connection) -> None:
    """Raise SchemaError unless this code can work with the database.

    An unknown revision is accepted as a newer one: during an upgrade without an outage, a release runs on
    the schema of the next one.
    """
    revision = revision_of(connection)
    if revision is None:
        raise exceptions.DatabaseNotInitialized
    if revision in REVISIONS[1:]:
        raise exceptions.DatabaseBehind(revision, HEAD)


def sync(database: Database) -> tuple[str | None, str]:
    """Create or upgrade the schema; do nothing if it is current. Returns the revisions before and after.

    Raises DatabaseForeign, and changes nothing, if other tables with this project's table names exist.
    """
    before = database.read(revision_of)
    after = before if before is not None and (before == HEAD or before not in REVISIONS) else HEAD
    if after != before:
        database.write(_upgrade)
    dialect = database.dialect
    if database.read(dialect.missing_functions) and (lacking := database.write(dialect.create_functions)):
        LOG.warning(
            "The user of [database] connection lacks privileges to create the functions of the ledger: %s. Without the"
            " functions, reserve and settle use several statements, which is slower. Grant the privileges, and run"
            " cyborg-quota db sync again.",
            ", ".join(lacking),
        )
    return before, after


def alembic_config(connection: Connection | None = None) -> alembic.config.Config:
    """The alembic configuration of this project's migrations, optionally with the connection to run them on."""
    import alembic.config

    config = alembic.config.Config()
    config.set_main_option("script_location", str(pathlib.Path(__file__).parent / "migrations"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection) -> None:
    """Upgrade under a lock. If two hosts sync concurrently, the second waits, and then has nothing to do."""
    import alembic.command

    with dialects.of(connection).schema_lock(connection):
        if revision_of(connection) is None:
            _drop_unfinished(connection)
        alembic.command.upgrade(alembic_config(connection), "head")


def _drop_unfinished(connection: Connection) -> None:
    """Drop the tables of an interrupted first sync. They are empty, because no program accepts such a schema."""
    present = set(sa.inspect(connection).get_table_names())
    for table in models.metadata.tables.values():
        if table.name in present:
            if connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one():
                raise exceptions.DatabaseForeign([table.name])
            table.drop(connection)
