# SPDX-License-Identifier: Apache-2.0
"""The schema revision of a database, and its upgrade to the revision that this code needs."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from oslo_db import exception as oslo_exc

from cyborg_quota import exceptions
from cyborg_quota.db import errors, models
from cyborg_quota.db.database import Connection, Database

if TYPE_CHECKING:
    import alembic.config

VERSION_TABLE: Final = "cyborg_quota_alembic_version"
"""Not alembic's default name, which another service may use if it shares the database by mistake."""

_LOCK_SECONDS: Final = 600
"""The longest time that one sync waits for another."""

_CLAIM_TABLE: Final = "cyborg_quota_sync"
"""This table exists while a sync runs on a Galera cluster."""


REVISIONS: Final = ("b6e2", "a6e1", "f5e0", "e4e0", "e3e0", "d3e1", "c3d0", "b2e0", "a1c0")
"""All revisions, newest first. (Reading them through alembic takes longer than a whole command.)"""


def head() -> str:
    """The revision this code needs."""
    return REVISIONS[0]


def version(database: Database) -> str | None:
    """The database's revision; None if it has no schema of this project. Raises DatabaseForeign."""
    return database.read(revision_of)


def revision_of(connection: Connection) -> str | None:
    """Like ``version``, on an open connection."""
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
    revision: str | None = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()
    return revision


def check(connection: Connection) -> None:
    """Raise SchemaError unless this code can work with the database.

    An unknown revision is accepted as a newer one: during a rolling upgrade, the old release runs on the new schema.
    """
    revision = revision_of(connection)
    if revision is None:
        raise exceptions.DatabaseNotInitialized
    if revision in REVISIONS[1:]:
        raise exceptions.DatabaseBehind(revision, head())


def sync(database: Database) -> tuple[str | None, str]:
    """Create or upgrade the schema; do nothing if it is current. Returns the revisions before and after.

    Raises DatabaseForeign, and changes nothing, if other tables with this project's table names exist.
    """
    before = version(database)
    if before is not None and (before == head() or before not in REVISIONS):
        return before, before
    if database.is_mysql:
        database.write(lambda connection: _upgrade_locked(connection, database))
    else:
        database.write(_upgrade)
    return before, head()


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

    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(6216302001)"))
    if revision_of(connection) is None:
        _drop_unfinished(connection)
    alembic.command.upgrade(alembic_config(connection), "head")


def _upgrade_locked(connection: Connection, database: Database) -> None:
    """Upgrade under a MySQL lock by name, held by the session that runs the statements.

    The server finishes a statement whose client was killed. A lock of another session would end with the client, and
    the next ``db sync`` would repeat a step that still runs. Such a lock outlasts a COMMIT, and is released after it:
    otherwise the next ``db sync`` would find no revision, and drop the tables as unfinished.
    """
    name = "CONCAT(LEFT(DATABASE(), 40), '.cyborg_quota')"  # lock names are global to the server
    if connection.exec_driver_sql(f"SELECT GET_LOCK({name}, {_LOCK_SECONDS})").scalar() != 1:
        raise exceptions.DatabaseUnavailable("another db sync still runs", _LOCK_SECONDS)
    try:
        with _claim(connection) if database.is_galera(connection) else contextlib.nullcontext():
            _upgrade(connection)
            connection.exec_driver_sql("COMMIT")
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"SELECT RELEASE_LOCK({name})")


@contextlib.contextmanager
def _claim(connection: Connection) -> Iterator[None]:
    """Exclude syncs on the cluster's other nodes, where this node's named lock has no effect.

    Galera executes a CREATE TABLE on all nodes at the same position in the total order: only one sync succeeds, and it
    then sees all earlier changes. The table's comment names the node. A claim by this node was left by a sync that was
    killed or lost its connection, because this session holds the node's lock; this sync takes it over. A claim by
    another node may be in use: this sync waits for it, and the error after the timeout names the table.
    """
    node = connection.exec_driver_sql("SHOW STATUS LIKE 'wsrep_gcomm_uuid'").one()[1]
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            connection.exec_driver_sql(
                f"CREATE TABLE {_CLAIM_TABLE} (id INTEGER NOT NULL PRIMARY KEY) ENGINE=InnoDB COMMENT='{node}'"
            )
            break
        except (oslo_exc.DBError, sa.exc.DBAPIError) as error:
            if not errors.is_existing_table(error):
                raise
        if node and _claimed_by(connection) == node:
            break
        if time.monotonic() > deadline:
            raise exceptions.DatabaseUnavailable(
                f"the table {_CLAIM_TABLE} says that a db sync runs on another node; drop it if none does",
                _LOCK_SECONDS,
            )
        time.sleep(0.2)
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"DROP TABLE {_CLAIM_TABLE}")


def _claimed_by(connection: Connection) -> str | None:
    """The node that the claim names; None if the claim does not exist."""
    query = "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = "
    node: str | None = connection.exec_driver_sql(f"{query}'{_CLAIM_TABLE}'").scalar()
    return node


def _drop_unfinished(connection: Connection) -> None:
    """Drop the tables of an interrupted first sync. They are empty, because no program accepts such a schema."""
    present = set(sa.inspect(connection).get_table_names())
    for table in models.metadata.tables.values():
        if table.name in present:
            if connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one():
                raise exceptions.DatabaseForeign([table.name])
            table.drop(connection)
