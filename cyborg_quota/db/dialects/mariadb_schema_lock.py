# SPDX-License-Identifier: Apache-2.0
"""MariaDB, Galera clusters of it, and MySQL: exclude other upgrades of the schema."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from oslo_db import exception as oslo_exc

from cyborg_quota import exceptions
from cyborg_quota.db import errors

SCHEMA_LOCK_SECONDS: Final = 600
"""The longest time that one upgrade of the schema waits for another."""

_SYNC_TABLE: Final = "cyborg_quota_sync"
"""This table exists while an upgrade of the schema runs on a Galera cluster."""


@contextlib.contextmanager
def lock_schema(connection: sa.Connection, *, in_cluster: bool) -> Iterator[None]:
    """A lock by name, held by the session that runs the statements.

    The server finishes a statement whose client was killed. A lock of another session would end with the client,
    and the next ``db sync`` would repeat a step that still runs. The lock of this session outlasts a COMMIT, and is
    released after it: otherwise the next ``db sync`` would find no revision, and drop the tables as unfinished.
    """
    name = "CONCAT(LEFT(DATABASE(), 40), '.cyborg_quota')"  # lock names are global to the server
    if connection.exec_driver_sql(f"SELECT GET_LOCK({name}, {SCHEMA_LOCK_SECONDS})").scalar() != 1:
        raise exceptions.DatabaseUnavailable("another db sync still runs", SCHEMA_LOCK_SECONDS)
    try:
        with _lock_schema_in_cluster(connection) if in_cluster else contextlib.nullcontext():
            yield
            connection.exec_driver_sql("COMMIT")
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"SELECT RELEASE_LOCK({name})")


@contextlib.contextmanager
def _lock_schema_in_cluster(connection: sa.Connection) -> Iterator[None]:
    """Exclude upgrades on the cluster's other nodes, where this node's named lock has no effect.

    Galera executes a CREATE TABLE on all nodes at the same position in the total order: only one upgrade succeeds, and
    it then sees all earlier changes. The table's comment names the node. A claim by this node was left by an upgrade
    that was killed or lost its connection, because this session holds the node's lock; this one takes it over. A claim
    by another node may be in use: this upgrade waits for it, and the error after the timeout names the table.
    """
    node = connection.exec_driver_sql("SHOW STATUS LIKE 'wsrep_gcomm_uuid'").one()[1]
    deadline = time.monotonic() + SCHEMA_LOCK_SECONDS
    while True:
        try:
            connection.exec_driver_sql(
                f"CREATE TABLE {_SYNC_TABLE} (id INTEGER NOT NULL PRIMARY KEY) ENGINE=InnoDB COMMENT='{node}'"
            )
            break
        except (oslo_exc.DBError, sa.exc.DBAPIError) as error:
            if not errors.is_existing_table(error):
                raise
        if node and _claimed_by(connection) == node:
            break
        if time.monotonic() > deadline:
            raise exceptions.DatabaseUnavailable(
                f"the table {_SYNC_TABLE} says that a db sync runs on another node; drop it if none does",
                SCHEMA_LOCK_SECONDS,
            )
        time.sleep(0.2)
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"DROP TABLE {_SYNC_TABLE}")


def _claimed_by(connection: sa.Connection) -> str | None:
    """The node that the claim names; None if the claim does not exist."""
    query = "SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = "
    node: str | None = connection.exec_driver_sql(f"{query}'{_SYNC_TABLE}'").scalar()
    return node
