# SPDX-License-Identifier: Apache-2.0
"""What differs between databases, in one interface. The base class uses portable SQL in several statements.

A dialect has no state: all connections to the same kind of database share one instance. State that belongs to a
connection is kept in ``connection.info``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import sqlalchemy as sa

from cyborg_quota.db import usages
from cyborg_quota.db.inventories import InventoryClaim
from cyborg_quota.db.prepared import chunks
from cyborg_quota.db.reservations import NewReservation
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.db.usages import Posting
from cyborg_quota.types import State

_ROWS_TOGETHER: Final = 16
"""The number of rows of one UPDATE that has a CASE for each column."""


class Dialect:
    """One kind of database.

    Every method has a portable form here, except ``engine_arguments`` and ``configure_connection``.
    """

    name: ClassVar[str]
    """SQLAlchemy's name of the dialect."""
    driver: ClassVar[str]
    """The only supported driver: record 0030 explains why."""
    extra: ClassVar[str] = ""
    """The name of the extra in setup.cfg that installs the driver."""
    has_server: ClassVar[bool] = True
    max_writers: ClassVar[int | None] = None
    """The maximum number of transactions that can write at the same time. None: no limit."""
    update_locks_in_order: ClassVar[bool] = False
    """Whether an UPDATE of several rows locks them in a known order: that of their primary keys."""

    now: ClassVar[str]
    """The SQL of clock.utc_now: the start of the statement in UTC, with microseconds."""
    now_plus: ClassVar[str]
    """That of clock.utc_after, with {} in place of the microseconds."""
    second: ClassVar[str]
    """That of clock.second."""
    insert: ClassVar[Any]
    """The ``insert`` function of the SQLAlchemy dialect, if it has ``on_conflict_do_nothing``."""
    no_single_statements: ClassVar[str] = ""
    """What to log if the server cannot run single-statement transactions, with the reason; "": nothing can be done."""

    # --- Connecting ---

    def engine_arguments(self, url: sa.URL, settings: DatabaseSettings) -> dict[str, Any]:
        """Arguments of ``create_engine``: the isolation level READ COMMITTED, the driver's timeouts."""
        raise NotImplementedError

    def configure_connection(self, engine: sa.Engine, url: sa.URL, settings: DatabaseSettings) -> None:
        """Register what sets up each new connection of ``engine``: the session's settings and time limits."""
        raise NotImplementedError

    def time_limits(
        self, connection: sa.Connection, settings: DatabaseSettings, usual: DatabaseSettings
    ) -> contextlib.AbstractContextManager[None]:
        """Within the context, statements have the time limits of ``settings``.

        It begins inside a transaction, and ends after it. ``usual``: the limits with which the connection was set up.
        """
        return contextlib.nullcontext()

    def read_only_next(self, connection: sa.Connection) -> None:
        """The next transaction of this connection only reads. (Only SQLite overrides this.)"""

    # --- Charges: see usages.py for the conditions and values of a charge ---

    lock_order: ClassVar[staticmethod[[usages.Node], Any]] = staticmethod(usages.deepest_first)
    """The sort key of the order in which every transaction locks usage rows."""

    def charge_together(self, connection: sa.Connection, postings: Sequence[Posting], at: int) -> bool:
        """Charge many rows, which are in lock order, in few statements. False: not possible, or a row was refused.

        The others may be charged then: the caller must roll back, also after an error of the server.
        """
        full = len(postings) - len(postings) % _ROWS_TOGETHER
        parts = [*chunks(postings[:full], _ROWS_TOGETHER), *chunks(postings[full:], 1)]  # (two texts for all sizes)
        return self.update_locks_in_order and all(usages.charge_locked(connection, part, at) for part in parts)

    # --- Single-statement transactions: one round trip instead of four ---

    def can_run_single_statements(self, server: sa.Dialect) -> bool:
        """Whether the server supports them. ``server`` knows its version after the first connection."""
        return False

    def reserve_in_single_statement(
        self,
        connection: sa.Connection,
        rows: Sequence[NewReservation],
        postings: Sequence[Posting],
        claims: Sequence[InventoryClaim] = (),
    ) -> bool | InventoryClaim | None:
        """Insert reservations in flight, of one project and one lifetime, charge their usage rows, and COMMIT.

        ``claims``: what they take from inventories, in the order of the inventories' ids. ``postings`` are in lock
        order, and have the bounds that the limits set. True: done and durable. False or None: nothing was changed,
        because a charge or a claim was refused, a consumer has a live reservation, or this form does not support the
        call; the multi-statement transaction then handles the call and determines the reason. An element of ``claims``:
        its inventory refused it. Nothing was changed, and the multi-statement transaction need not run.
        Raises DBDuplicateEntry if a UUID, or a live reservation of the same consumer, exists.
        """
        return None

    @staticmethod
    def with_indexes(query: sa.Select[Any], _table: Any, *_indexes: str) -> sa.Select[Any]:
        """Return this query with a hint, if needed, to read the table through one of these indexes."""
        return query

    def settle_in_single_statement(
        self,
        connection: sa.Connection,
        uuids: Sequence[str],
        after: State,
        grace: int,
        postings: Sequence[Posting],
    ) -> bool | None:
        """Set reservations in flight that are not overdue to ``after`` (committed or rolled_back), update the counters,
        and COMMIT the transaction.

        They give no capacity back. The result is that of ``reserve_in_single_statement``. ``grace`` is in microseconds.
        """
        return None

    def missing_functions(self, connection: sa.Connection) -> list[str]:
        """The server's functions that this release uses and that do not exist."""
        return []

    def create_functions(self, connection: sa.Connection) -> list[str]:
        """Create the server's functions that are missing. Returns the privileges that the user lacks for it."""
        return []

    def set_autocommit(self, connection: sa.Connection, *, is_on: bool) -> None:
        """Whether each later statement is a transaction of its own. Makes no round trip.

        For SQLAlchemy it is a single transaction until that (connect.CachedConnection). One SQLAlchemy transaction for
        each statement takes a tenth of the client's time.
        """

    # --- Parts of statements ---

    def insert_or_ignore(
        self, connection: sa.Connection, table: sa.Table, values: dict[str, Any], params: dict[str, Any]
    ) -> None:
        """Run an INSERT that does nothing if the row exists. Its row count has no meaning. Needs ``insert``."""
        connection.execute(self.insert(table).values(values).on_conflict_do_nothing(), params)

    def is_on_path(self, owner: sa.ColumnElement[str], path_ids: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """``owner IN (SELECT project_id FROM path)``, written so that the database uses the index of ``owner``."""
        return owner.in_(path_ids)

    def is_first_of_index(self, column: sa.ColumnElement[str], value: str) -> sa.ColumnElement[bool]:
        """``column = value``, written so that an index that begins with the column gives the order of the others."""
        return column == value

    def by_bytes(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
        """The column, sorted and compared by its bytes."""
        return column

    def lock_in_order(self, query: sa.Select[Any], *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """Make ``query`` lock its rows one after the other, sorted by these columns; text is compared by bytes."""
        return query.order_by(*columns).with_for_update()

    def skip_locked(self, server: sa.Dialect, query: sa.Select[Any]) -> sa.Select[Any]:
        """Make ``query`` lock its rows and leave out locked ones; unchanged if ``server`` cannot."""
        return query

    # --- Clusters and durability ---

    def is_galera(self, connection: sa.Connection) -> bool:
        """Whether the server is a node of a Galera cluster."""
        return False

    def sync_with_cluster(self, connection: sa.Connection, settings: DatabaseSettings) -> None:
        """On a Galera node: restart the transaction, and wait until it sees all that any node has committed."""

    def ensure_durable(self, connection: sa.Connection) -> None:
        """Flush all that this transaction sees when it ends, where COMMIT may return before that."""

    def schema_lock(self, connection: sa.Connection) -> contextlib.AbstractContextManager[None]:
        """Exclude other upgrades of the schema until the transaction ends."""
        return contextlib.nullcontext()
