# SPDX-License-Identifier: Apache-2.0
"""Which schema a database has, and how to bring it to the one this code needs."""

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
"""Of our own name: alembic's default is taken in a database that a careless hand shares with another service."""

_LOCK_SECONDS: Final = 600
"""How long one sync waits for another."""

_CLAIM_TABLE: Final = "cyborg_quota_sync"
"""Is there while a sync runs on a Galera cluster."""


REVISIONS: Final = ("f5e0", "e4e0", "e3e0", "d3e1", "c3d0", "b2e0", "a1c0")
"""Every revision, the newest first. (alembic knows them too, but takes longer to ask than a command to run.)"""


def head() -> str:
    """The revision this code needs."""
    return REVISIONS[0]


def version(database: Database) -> str | None:
    """The database's revision, None when it has no schema of ours. Raises DatabaseForeign."""
    return database.read(revision_of)


def revision_of(connection: Connection) -> str | None:
    """The same, on a connection."""
    revision = _recorded(connection)
    if revision is None:
        tables = set(sa.inspect(connection).get_table_names())
        present = tables & set(models.metadata.tables)
        # A version table of ours without a revision is a first sync that was cut short: MariaDB commits each DDL.
        if present and VERSION_TABLE not in tables:
            # Or another host's first sync was committed between the two looks.
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

    A revision this code does not know is a newer one: while a cloud is upgraded, the old release goes on beside it.
    """
    revision = revision_of(connection)
    if revision is None:
        raise exceptions.DatabaseNotInitialized
    if revision in REVISIONS[1:]:
        raise exceptions.DatabaseBehind(revision, head())


def sync(database: Database) -> tuple[str | None, str]:
    """Create or upgrade the schema; does nothing where it is current. Returns the revision before and after.

    Raises DatabaseForeign, and changes nothing, where the database holds other tables of our names.
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
    """alembic's view of our migrations, for a connection to run them on."""
    import alembic.config

    config = alembic.config.Config()
    config.set_main_option("script_location", str(pathlib.Path(__file__).parent / "migrations"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection) -> None:
    """Two hosts may sync at once: the second waits, and then finds nothing left to do."""
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
    name = "CONCAT(LEFT(DATABASE(), 40), '.cyborg_quota')"  # scoped by hand: such names are the whole server's
    if connection.exec_driver_sql(f"SELECT GET_LOCK({name}, {_LOCK_SECONDS})").scalar() != 1:
        raise exceptions.DatabaseUnavailable("another db sync does not end", _LOCK_SECONDS)
    try:
        with _claim(connection) if database.is_galera(connection) else contextlib.nullcontext():
            _upgrade(connection)
            connection.exec_driver_sql("COMMIT")
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"SELECT RELEASE_LOCK({name})")


@contextlib.contextmanager
def _claim(connection: Connection) -> Iterator[None]:
    """Keep out the syncs on a cluster's other nodes: they do not see a lock of this one.

    A CREATE TABLE is done on all nodes at one place in the order of everything: one sync succeeds, and then sees all
    that came before it. The table's comment names the node. A claim of this node, whose lock this session holds, was
    left by a sync that was killed or lost its connection, and is taken over. One of another node may be in use: it is
    waited for, and the error names the table.
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
    """The node that the claim names; None when the claim is gone."""
    query = "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = "
    node: str | None = connection.exec_driver_sql(f"{query}'{_CLAIM_TABLE}'").scalar()
    return node


def _drop_unfinished(connection: Connection) -> None:
    """Take away what a first sync that was cut short left behind. Nobody can have used it."""
    present = set(sa.inspect(connection).get_table_names())
    for table in models.metadata.tables.values():
        if table.name in present:
            if connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one():
                raise exceptions.DatabaseForeign([table.name])
            table.drop(connection)
