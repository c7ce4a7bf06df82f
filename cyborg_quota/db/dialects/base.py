# SPDX-License-Identifier: Apache-2.0
"""What differs between databases, in one interface. The base class uses portable SQL in several statements.

A dialect has no state: all connections to the same kind of database share one instance. State that belongs to a
connection is kept in ``connection.info``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import sqlalchemy as sa

from cyborg_quota.db import new_reservations, usages
from cyborg_quota.db.new_reservations import NewReservation
from cyborg_quota.db.settings import DatabaseSettings
from cyborg_quota.db.usages import Change, ChargeShape
from cyborg_quota.types import State

MAX_ROWS: Final = 16
"""The most reservations of one single-statement transaction."""

MAX_CHANGES: Final = 8
"""The most usage rows of one single-statement transaction."""

MIN_BULK_ROWS: Final = 8
"""From this number of usage rows, the statement of ``charge_bulk`` is faster than one statement for each row."""


class Dialect:
    """One kind of database. Every method has a portable form here, except ``insert_or_ignore``."""

    name: ClassVar[str]
    """SQLAlchemy's name of the dialect."""
    driver: ClassVar[str]
    """The only supported driver: record 0030 explains why."""
    extra: ClassVar[str] = ""
    """The name of the extra in setup.cfg that installs the driver."""
    has_server: ClassVar[bool] = True
    max_writers: ClassVar[int | None] = None
    """The most transactions that can write at the same time. None: no limit."""
    locks_by_id: ClassVar[bool] = False
    """Whether every transaction locks usage rows by id, instead of deepest first and then by name."""
    update_locks_in_order: ClassVar[bool] = False
    """Whether an UPDATE of several rows locks them in a known order: that of their keys."""

    # --- Connecting ---

    def engine_arguments(self, url: sa.URL, settings: DatabaseSettings) -> dict[str, Any]:
        """Arguments of ``create_engine``: the isolation level READ COMMITTED, the driver's timeouts."""
        raise NotImplementedError

    def configure_connection(self, engine: sa.Engine, url: sa.URL, settings: DatabaseSettings) -> None:
        """Register what sets up each new connection of ``engine``: the session's settings and time limits."""
        raise NotImplementedError

    def read_only_next(self, connection: sa.Connection) -> None:
        """The next transaction of this connection only reads. (Only SQLite makes a difference.)"""

    def was_interrupted(self, error: BaseException) -> bool:
        """Whether the error replaces an exception that a signal handler raised inside a statement."""
        return False

    # --- Charges: see usages.py for the conditions and values of a charge ---

    def lock_order(self, change: Change) -> tuple[Any, ...]:
        """The sort key of the order in which every transaction locks usage rows."""
        return change.node.lock_order

    def in_lock_order(self, changes: Iterable[Change]) -> list[Change]:
        return sorted(changes, key=self.lock_order)

    def charge_all(self, connection: sa.Connection, changes: Sequence[Change]) -> bool:
        """Charge every row in lock order. False: a row refused, and the caller must roll back the transaction."""
        return all(usages.charge(connection, change) for change in self.in_lock_order(changes))

    def charge_bulk(self, connection: sa.Connection, changes: Sequence[Change]) -> bool | None:
        """Charge rows without limits, in one statement. False: a row refused, and the caller must roll back.

        None: not supported for this number of rows, and nothing was written. The caller charges each row.
        """
        return None

    # --- Single-statement transactions: one round trip instead of four ---

    def can_run_single_statements(self, server: sa.Dialect) -> bool:
        """Whether the server supports them. ``server`` knows its version after the first connection."""
        return False

    def supports_single_statement(self, usage_rows: int) -> bool:
        """Whether a transaction that charges this number of usage rows can be a single statement."""
        return False

    def reserve_in_one(
        self, connection: sa.Connection, rows: Sequence[NewReservation], changes: Sequence[Change]
    ) -> bool | None:
        """Insert reservations in flight, of one project and one lifetime, charge their usage rows, and commit.

        ``changes`` have the bounds that the limits set. True: done and durable. False or None: nothing was changed,
        because a row refused, a consumer has a live reservation, or this form does not support the call; the
        multi-statement transaction then handles the call and determines the reason.
        Raises DBDuplicateEntry if a UUID, or a live reservation of the same consumer, exists.
        """
        return None

    def settle_in_one(
        self, connection: sa.Connection, uuids: Sequence[str], after: State, grace: int, changes: Sequence[Change]
    ) -> bool | None:
        """Commit or roll back reservations in flight that are not overdue, update the counters, and commit.

        The result is that of ``reserve_in_one``. ``grace`` is in microseconds.
        """
        return None

    def warn_not_prepared(self, reason: str) -> None:
        """Log that the server has lost a prepared statement, if the operator can prevent this."""

    def enter_autocommit(self, connection: sa.Connection) -> None:
        """Make each later statement a transaction of its own. Makes no round trip.

        SQLAlchemy sees a single transaction until ``leave_autocommit``. One SQLAlchemy transaction for each statement
        takes a tenth of the client's time.
        """
        connection.begin()

    def leave_autocommit(self, connection: sa.Connection, *, is_failed: bool) -> None:
        """Return to multi-statement transactions. ``is_failed``: the last statement may have left one open."""
        if is_failed:
            connection.rollback()
        else:
            connection.commit()

    def reset_autocommit(self, connection: sa.Connection) -> None:
        """Turn off the autocommit mode of the driver, as on a new connection."""

    # --- Parts of statements ---

    def insert_or_ignore(
        self, connection: sa.Connection, table: sa.Table, values: dict[str, Any], params: dict[str, Any]
    ) -> None:
        """Run an INSERT that does nothing if the row exists. Its row count has no meaning."""
        raise NotImplementedError

    def is_on_path(self, owner: sa.ColumnElement[str], path_ids: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """``owner IN (SELECT project_id FROM path)``, written so that the database uses the index of ``owner``."""
        return owner.in_(path_ids)

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


class ReserveForm(NamedTuple):
    """What the text of a single-statement reserve depends on."""

    size: int
    has_consumers: bool
    has_source: bool
    shapes: tuple[ChargeShape, ...]


def reserve_form(
    rows: Sequence[NewReservation], changes: Sequence[Change]
) -> tuple[ReserveForm, dict[str, Any]] | None:
    """The form of a reserve and its parameters; None if it has too many rows."""
    if not 0 < len(rows) <= MAX_ROWS or not 0 < len(changes) <= MAX_CHANGES:
        return None
    first = rows[0]
    parameters: dict[str, Any] = {"b_project": first.project_id, "b_ttl": first.ttl_microseconds}
    has_source = new_reservations.have_source(rows)
    has_consumers = new_reservations.add_row_values(parameters, rows, has_source=has_source)
    return ReserveForm(len(rows), has_consumers, has_source, _add_changes(parameters, changes)), parameters


class SettleForm(NamedTuple):
    """What the text of a single-statement commit or rollback depends on."""

    size: int
    after: State
    shapes: tuple[ChargeShape, ...]


def settle_form(
    uuids: Sequence[str], after: State, grace: int, changes: Sequence[Change]
) -> tuple[SettleForm, dict[str, Any]] | None:
    """The form of a commit or rollback and its parameters; None if it has too many rows."""
    if not 0 < len(uuids) <= MAX_ROWS or not 0 < len(changes) <= MAX_CHANGES:
        return None
    parameters: dict[str, Any] = {"b_grace": grace}
    for index, uuid in enumerate(sorted(uuids)):
        parameters[f"b_{index}"] = uuid
    return SettleForm(len(uuids), after, _add_changes(parameters, changes)), parameters


def _add_changes(parameters: dict[str, Any], changes: Sequence[Change]) -> tuple[ChargeShape, ...]:
    """Add the parameters of the changes to ``parameters``. Returns the shapes of the changes."""
    shapes = []
    for index, change in enumerate(changes):
        parameters.update(usages.arguments(change, f"_{index}"))
        shapes.append(usages.charge_shape(change))
    return tuple(shapes)


def reserve_values(form: ReserveForm, state: State) -> list[dict[str, sa.ColumnElement[Any]]]:
    """The values of the rows that a single-statement reserve inserts."""
    shared = new_reservations.shared_values(sa.literal_column(f"'{state}'"))
    return [{**shared, **new_reservations.row_values(index, has_source=form.has_source)} for index in range(form.size)]
