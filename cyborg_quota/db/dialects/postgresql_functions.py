# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: a reserve and a settle as one call of a function each.

A transaction of several statements keeps its row locks during the round trips between them. A function has no round
trips, and PostgreSQL keeps the plans of its statements for as long as the connection lives.

A released function is never changed: a new text is a new function, with the next version in its name. ``db sync``
creates the functions. Where they are missing, reserve and settle use the multi-statement transaction.

The functions have the privileges of their caller. They name each table with its schema, so that they do not depend on
the search path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from cyborg_quota.db import usages
from cyborg_quota.db.new_reservations import NewReservation
from cyborg_quota.db.usages import Change
from cyborg_quota.types import COMMITTED, RESERVED, ROLLED_BACK, State

RESERVE: Final = "cyborg_quota_reserve_v1"
SETTLE: Final = "cyborg_quota_settle_v1"
"""SETTLE leaves out reservations that were resized or transferred: see settle_in_flight_update."""

TRANSACTION_SETTINGS: Final = "cyborg_quota_transaction_settings"
"""Key in ``connection.info``, for a connection behind a pooler in transaction mode: its SET statements.

Each transaction may run on another server connection. A function call is sent after these SET statements; the server
runs them in one transaction.
"""

_ENSURE_DURABLE: Final = "SELECT FROM pg_logical_emit_message(true, 'cyborg_quota', '')"
"""Writes a log record and flushes it, and thus all earlier records. The content of the message has no meaning."""

REFUSED_STATE: Final = "QU001"
"""Our own SQLSTATE: roll back."""

NOW: Final = "(statement_timestamp() AT TIME ZONE 'UTC')"

_CHARGE_COLUMNS: Final = (
    "id", "generation", "reserved", "used", "subtree", "max_held", "max_subtree",
)  # fmt: skip
"""The values of a charge, as ``charge_values`` returns them."""


def _charge(expressions: Iterable[str]) -> str:
    """The UPDATE of a charge, with an expression for each of _CHARGE_COLUMNS."""
    of = dict(zip(_CHARGE_COLUMNS, expressions, strict=True))
    return f"""UPDATE @schema@.quota_usages
            SET reserved = reserved + {of["reserved"]}, used = used + {of["used"]}, subtree = subtree + {of["subtree"]},
                updated_at = {NOW}
            WHERE id = {of["id"]} AND generation = {of["generation"]}
                AND used + reserved <= {of["max_held"]} AND subtree <= {of["max_subtree"]}
                AND reserved + {of["reserved"]} >= 0 AND used + {of["used"]} >= 0 AND subtree + {of["subtree"]} >= 0"""


# One UPDATE per row, in the order of the array: the caller sorts the rows deepest first (decision record 0002).
CHARGE_LOOP: Final = f"""
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        {_charge(f"charge[{number}]" for number in range(1, 8))};
        IF NOT FOUND THEN
            @refused@
        END IF;
        charged := charged + 1;
    END LOOP;"""

# Undo the changes of the rows that were already charged. (An exception handler would make each call a subtransaction.)
# Then commit asynchronously: the net change is nil, so nothing need be flushed.
UNDO: Final = """IF charged > 0 THEN
                UPDATE @schema@.quota_usages
                    SET reserved = reserved - p_charges[i][3], used = used - p_charges[i][4],
                        subtree = subtree - p_charges[i][5]
                    FROM generate_series(1, charged) AS i WHERE id = p_charges[i][1];
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN false;"""

FAIL: Final = (
    f"RAISE SQLSTATE '{REFUSED_STATE}' USING MESSAGE = 'a usage row does not meet the conditions of the charge';"
)

DECLARE: Final = """
DECLARE
    charge bigint[];
    charged integer := 0;"""

END: Final = """
    RETURN true;
END"""

# Whether a consumer of the rows has live reservations. (One lookup per consumer, so that each uses a unique key:
# PostgreSQL would search ``consumer_id = ANY (...)`` by the project alone.)
IS_HELD: Final = """EXISTS (
        SELECT FROM generate_subscripts(p_rows, 1) AS i CROSS JOIN LATERAL (
            SELECT FROM @schema@.reservations
                WHERE project_id = p_project AND consumer_id = p_rows[i][5] AND live = 1
                LIMIT 1
        ) AS live_rows
    )"""

# The elements of a row: UUID, usage_id, resource, delta, consumer, group, claim_ordinal, source.
_RESERVE_V1: Final = f"""
CREATE FUNCTION @schema@.{RESERVE}(
    p_project text, p_ttl bigint, p_rows text[], p_charges bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$ {DECLARE}
BEGIN
    IF {IS_HELD} THEN
        RETURN false;
    END IF; {CHARGE_LOOP.replace("@refused@", UNDO)}
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source
    ) SELECT
        {NOW}, false, p_project, {NOW} + p_ttl * interval '1 microsecond', '{RESERVED}', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8]
    FROM generate_subscripts(p_rows, 1) AS i; {END}
$function$"""

# (The CASE keeps ``state`` and ``expire`` out of the index conditions: see decision record 0022.)
IN_FLIGHT: Final = f"""CASE WHEN state = '{RESERVED}' AND generation IS NULL
                AND (expire IS NULL OR expire > {NOW} - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1"""

_SETTLE_V1: Final = f"""
CREATE FUNCTION @schema@.{SETTLE}(
    p_uuids text[], p_state text, p_grace bigint, p_charges bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$ {DECLARE}
    settled integer;
BEGIN
    IF p_state = '{COMMITTED}' THEN
        UPDATE @schema@.reservations SET state = '{COMMITTED}', updated_at = {NOW}
            WHERE uuid = ANY (p_uuids) AND {IN_FLIGHT};
    ELSE
        UPDATE @schema@.reservations
            SET state = '{ROLLED_BACK}', updated_at = {NOW}, deleted_at = {NOW}, deleted = true,
                live = NULL, claim_ordinal = NULL, ended_after = (SELECT max(id) FROM @schema@.reservations)
            WHERE uuid = ANY (p_uuids) AND {IN_FLIGHT};
    END IF;
    GET DIAGNOSTICS settled = ROW_COUNT;
    IF settled = 0 THEN
        RETURN false;
    ELSIF settled < cardinality(p_uuids) THEN
        RAISE SQLSTATE '{REFUSED_STATE}' USING MESSAGE = 'a reservation is not in flight';
    END IF; {CHARGE_LOOP.replace("@refused@", FAIL)} {END}
$function$"""

CHARGE_ONE: Final = _charge(f"p_{name}" for name in _CHARGE_COLUMNS)
"""The charge of a function for one usage row."""

DEFINITIONS: Final = {
    RESERVE: _RESERVE_V1,
    SETTLE: _SETTLE_V1,
}


def missing(connection: sa.Connection, definitions: Mapping[str, str]) -> list[str]:
    """Those of these functions that do not exist in the database."""
    return [
        name
        for name in definitions
        if connection.exec_driver_sql("SELECT to_regproc(%s) IS NULL", (name,)).scalar_one()
    ]


def missing_privileges(connection: sa.Connection) -> list[str]:
    """The privileges that the user lacks to create functions, as GRANT writes them."""
    schema, can_create = connection.exec_driver_sql(
        "SELECT quote_ident(current_schema()), has_schema_privilege(current_schema(), 'CREATE')"
    ).one()
    can_use_language = connection.exec_driver_sql(
        "SELECT has_language_privilege(oid, 'USAGE') FROM pg_language WHERE lanname = 'plpgsql'"
    ).scalar()
    privileges = {f"CREATE ON SCHEMA {schema}": can_create, "USAGE ON LANGUAGE plpgsql": can_use_language}
    return [privilege for privilege, has in privileges.items() if not has]


def create(connection: sa.Connection, definitions: Mapping[str, str]) -> list[str]:
    """Create those of these functions that are missing. Returns the privileges that the user lacks for it.

    If any is missing, nothing is created.
    """
    names = missing(connection, definitions)
    if not names:
        return []
    if privileges := missing_privileges(connection):
        return privileges
    schema: str = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    for name in names:
        connection.exec_driver_sql(definitions[name].replace("@schema@", schema))
    return []


def reserve(connection: sa.Connection, rows: Sequence[NewReservation], changes: Sequence[Change]) -> bool:
    """Reserve in one call of a function, with the changes in lock order. False: it changed nothing."""
    first = rows[0]
    listed = array([reservation_text(row) for row in rows])
    arguments = f"%s, {first.ttl_microseconds}, %s, {charge_array(changes)}"
    return call_function(connection, RESERVE, arguments, (first.project_id, listed))


def settle(
    connection: sa.Connection, uuids: Sequence[str], after: State, grace: int, changes: Sequence[Change]
) -> bool:
    """Commit or roll back in one call of a function, with the changes in lock order. False: it changed nothing."""
    listed = array([array_element(uuid) for uuid in sorted(uuids)])
    return call_function(connection, SETTLE, f"%s, '{after}', {grace}, {charge_array(changes)}", (listed,))


def call_function(
    connection: sa.Connection, function: str, arguments: str, values: tuple[str | None, ...]
) -> bool:
    """Call a function that is a transaction of its own. False: it changed nothing.

    ``arguments``: its arguments as SQL, with ``%s`` for each of ``values``.
    """
    # The function's result is returned as the row count, because SQLAlchemy is slower with columns. (The comment shows
    # in a server log or a network trace that the statement commits.)
    text = f"SELECT WHERE {function}({arguments}) -- COMMIT"
    if (settings := connection.info.get(TRANSACTION_SETTINGS)) is not None:
        text = f"{settings}; {text}"
    return connection.exec_driver_sql(text, values).rowcount > 0


def charge_values(change: Change) -> str:
    """The values of _CHARGE_COLUMNS, separated by commas."""
    node = change.node
    numbers = (node.usage_id, node.generation, change.reserved, change.used, change.subtree, *usages.bounds(change))
    return ",".join([str(number) for number in numbers])


def charge_array(changes: Sequence[Change]) -> str:
    """The array ``p_charges`` as a literal."""
    return f"'{{{','.join([f'{{{charge_values(change)}}}' for change in changes])}}}'"


def reservation_text(row: NewReservation, *more: int | str | None) -> str:
    """A new reservation as the function expects it, with further elements."""
    values = (row.uuid, row.usage_id, row.resource, row.delta, row.consumer, row.group, row.claim_ordinal, row.source)
    return array([array_element(value) for value in (*values, *more)])


def array(elements: Iterable[str]) -> str:
    """PostgreSQL's text of an array. (psycopg2's ARRAY[...] takes the client and the server longer.)"""
    return f"{{{','.join(elements)}}}"


def array_element(value: str | int | None) -> str:
    """An element in the text of an array."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def ensure_durable(connection: sa.Connection) -> None:
    """Flush everything that this transaction can see to disk when it ends."""
    connection.exec_driver_sql(_ENSURE_DURABLE)
