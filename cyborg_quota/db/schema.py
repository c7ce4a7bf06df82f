# SPDX-License-Identifier: Apache-2.0
"""Which schema a database has, and how to bring it to the one this code needs."""

from __future__ import annotations

import pathlib
from typing import Any, Final

import alembic.command
import alembic.config
import alembic.migration
import alembic.script
import sqlalchemy as sa

from cyborg_quota import exceptions
from cyborg_quota.db import models
from cyborg_quota.db.api import Connection, Database

VERSION_TABLE: Final = "cyborg_quota_alembic_version"
"""Of our own name: alembic's default is taken in a database that a careless hand shares with another service."""


def _config(connection: Connection | None = None) -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(pathlib.Path(__file__).parent / "migrations"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision this code needs."""
    revision = _scripts().get_current_head()
    assert revision is not None, "the package ships at least one revision"
    return revision


def _scripts() -> alembic.script.ScriptDirectory:
    return alembic.script.ScriptDirectory.from_config(_config())


def version(database: Database) -> str | None:
    """The database's revision, None when it has no schema of ours. Raises DatabaseForeign."""
    return database.read(revision_of)


def revision_of(connection: Connection) -> str | None:
    context = alembic.migration.MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    revision = context.get_current_revision()
    if revision is None:
        tables = set(sa.inspect(connection).get_table_names())
        present = tables & set(models.metadata.tables)
        # A version table of ours without a revision is a first sync that was cut short: MariaDB commits each DDL.
        if present and VERSION_TABLE not in tables:
            raise exceptions.DatabaseForeign(sorted(present))
    return revision


def check(connection: Connection) -> None:
    """Raise SchemaError unless this code can work with the database.

    A revision this code does not know is a newer one: while a cloud is upgraded, the old release goes on beside it.
    """
    revision = revision_of(connection)
    if revision is None:
        raise exceptions.DatabaseNotInitialized
    known = [script.revision for script in _scripts().walk_revisions()]  # newest first
    if revision in known[1:]:
        raise exceptions.DatabaseBehind(revision, known[0])


def sync(database: Database) -> tuple[str | None, str]:
    """Create or upgrade the schema; does nothing where it is current. Returns the revision before and after.

    Raises DatabaseForeign, and changes nothing, where the database holds other tables of our names.
    """
    before = version(database)
    known = {script.revision for script in _scripts().walk_revisions()}
    if before is not None and (before == head() or before not in known):
        return before, before
    database.write(_upgrade)
    return before, head()


def _upgrade(connection: Connection) -> None:
    # Two hosts may sync at once: the second waits here, and then finds nothing left to do.
    with _alone(connection):
        if revision_of(connection) is None:
            _drop_unfinished(connection)
        alembic.command.upgrade(_config(connection), "head")


def _drop_unfinished(connection: Connection) -> None:
    """Take away what a first sync that was cut short left behind. Nobody can have used it."""
    present = set(sa.inspect(connection).get_table_names())
    for table in models.metadata.tables.values():
        if table.name in present:
            if connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one():
                raise exceptions.DatabaseForeign([table.name])
            table.drop(connection)


class _alone:
    """A lock by name, for as long as one connection's upgrade takes. (SQLite's writers are alone anyway.)"""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_mysql = connection.dialect.name in ("mysql", "mariadb")

    def __enter__(self) -> None:
        if self._is_mysql:
            # Scoped by hand: GET_LOCK's names are the whole server's.
            self._connection.execute(sa.text("SELECT GET_LOCK(CONCAT(LEFT(DATABASE(), 40), '.cyborg_quota'), 600)"))
        elif self._connection.dialect.name == "postgresql":
            self._connection.execute(sa.text("SELECT pg_advisory_xact_lock(6216302001)"))

    def __exit__(self, *_exc: Any) -> None:
        if self._is_mysql:
            self._connection.execute(sa.text("SELECT RELEASE_LOCK(CONCAT(LEFT(DATABASE(), 40), '.cyborg_quota'))"))
