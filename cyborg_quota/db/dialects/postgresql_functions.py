# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: a reserve and a settle as one call of a function each.

A transaction of several statements keeps its row locks during the round trips between them. A function has no round
trips, and PostgreSQL keeps the plans of its statements for as long as the connection lives.

A released function is never changed: a new text is a new function, with the next version in its name. ``db sync``
creates the functions. Where they are missing, reserve and settle use the multi-statement transaction.

The functions have the privileges of their caller. They name each table with its schema, so that they do not depend on
the search path.

PostgreSQL keeps the row locks of a transaction until its commit record is flushed to disk. If a row is contended, the
function commits asynchronously, which releases the locks before the flush. A second transaction then flushes the log
before the call returns (``ensure_durable``). Only some calls check for contention. Decision record 0025 explains why
this is safe.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

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

_CONTENDED: Final = "cyborg_quota_contended"
"""Key in ``connection.info``: the ids of contended usage rows, with the time of the last wait for each."""

_CONTENDED_SECONDS: Final = 0.2
_CONTENTION_CHECK_INTERVAL: Final = 4
"""One call in this many, chosen at random, checks contention of a row that is not known as contended.

Random, because counting every fourth call could always skip the same row if calls alternate between rows. The check
adds 5 % to a call.
"""
_MAX_CONTENDED_ROWS: Final = 1000
_ENSURE_DURABLE: Final = "SELECT FROM pg_logical_emit_message(true, 'cyborg_quota', '')"
"""Writes a log record and flushes it, and thus all earlier records. The content of the message has no meaning."""

HOLD_LOCKS: Final = 0
CHECK_CONTENTION: Final = 1
RELEASE_EARLY: Final = 2
"""The values of ``p_locks``. 0: do not check; 1: check for contention; 2: commit asynchronously, which releases the row
locks early. See decision record 0025."""

REFUSED: Final = 0
DONE: Final = 1
DONE_AND_RELEASED: Final = 2
"""The results of all functions. REFUSED: nothing was changed. DONE_AND_RELEASED: committed, but not yet flushed."""

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


# One UPDATE per row, in the order of the array: the caller sorts the rows deepest first (decision record 0002). The row
# is contended if it changes between the two statements: another transaction had locked it.
CHARGE_LOOP: Final = f"""
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        IF p_locks = {CHECK_CONTENTION} THEN
            SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = charge[1];
        END IF;
        {_charge(f"charge[{number}]" for number in range(1, 8))}
            RETURNING ARRAY[used - charge[4], reserved - charge[3], subtree - charge[5]] INTO after;
        IF NOT FOUND THEN
            @refused@
        END IF;
        charged := charged + 1;
        contended := contended OR (p_locks = {CHECK_CONTENTION} AND after IS DISTINCT FROM before);
    END LOOP;"""

# Undo the changes of the rows that were already charged. (An exception handler would make each call a subtransaction.)
# Then commit asynchronously: the net change is nil, so nothing need be flushed.
UNDO: Final = f"""IF charged > 0 THEN
                UPDATE @schema@.quota_usages
                    SET reserved = reserved - p_charges[i][3], used = used - p_charges[i][4],
                        subtree = subtree - p_charges[i][5]
                    FROM generate_series(1, charged) AS i WHERE id = p_charges[i][1];
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN {REFUSED};"""

FAIL: Final = (
    f"RAISE SQLSTATE '{REFUSED_STATE}' USING MESSAGE = 'a usage row does not meet the conditions of the charge';"
)

DECLARE: Final = f"""
DECLARE
    charge bigint[];
    charged integer := 0;
    before bigint[];
    after bigint[];
    contended boolean := p_locks = {RELEASE_EARLY};"""

# Commit asynchronously, so that the row locks are released before the log is flushed. The caller then flushes it.
END: Final = f"""
    IF contended THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN {DONE_AND_RELEASED};
    END IF;
    RETURN {DONE};
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
    p_project text, p_ttl bigint, p_rows text[], p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ {DECLARE}
BEGIN
    IF {IS_HELD} THEN
        RETURN {REFUSED};
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
    p_uuids text[], p_state text, p_grace bigint, p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ {DECLARE}
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
        RETURN {REFUSED};
    ELSIF settled < cardinality(p_uuids) THEN
        RAISE SQLSTATE '{REFUSED_STATE}' USING MESSAGE = 'a reservation is not in flight';
    END IF; {CHARGE_LOOP.replace("@refused@", FAIL)} {END}
$function$"""

# The charge of a function for one usage row, with its check for contention.
BEFORE_ONE: Final = f"""
DECLARE
    before bigint[];
    after bigint[];
BEGIN
    IF p_locks = {CHECK_CONTENTION} THEN
        SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = p_id;
    END IF;"""
CHARGE_ONE: Final = _charge(f"p_{name}" for name in _CHARGE_COLUMNS)
END_ONE: Final = f"""
    IF p_locks = {HOLD_LOCKS} THEN
        RETURN {DONE};
    ELSIF p_locks = {CHECK_CONTENTION} THEN
        SELECT ARRAY[used - p_used, reserved - p_reserved, subtree - p_subtree] INTO after
            FROM @schema@.quota_usages WHERE id = p_id;
        IF after = before THEN
            RETURN {DONE};
        END IF;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN {DONE_AND_RELEASED};
END"""

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
    return call_function(connection, RESERVE, arguments, (first.project_id, listed), changes)


def settle(
    connection: sa.Connection, uuids: Sequence[str], after: State, grace: int, changes: Sequence[Change]
) -> bool:
    """Commit or roll back in one call of a function, with the changes in lock order. False: it changed nothing."""
    listed = array([array_element(uuid) for uuid in sorted(uuids)])
    return call_function(connection, SETTLE, f"%s, '{after}', {grace}, {charge_array(changes)}", (listed,), changes)


def call_function(
    connection: sa.Connection, function: str, arguments: str, values: tuple[str | None, ...], changes: Sequence[Change]
) -> bool:
    """Call a function that is a transaction of its own. False: it changed nothing.

    ``arguments``: all arguments of the function but the last, as SQL with ``%s`` for each of ``values``.
    """
    info = connection.info
    usage_id = changes[-1].node.usage_id
    locks = _choose_locks(info, usage_id)
    call = f"{function}({arguments}, {locks})"
    # The function's result is returned as the row count, because SQLAlchemy is slower with columns. The form with
    # generate_series is 10 % slower on the server, so it is used only for the contention check.
    # (The comment shows in a server log or a network trace that the statement commits.)
    is_checked = locks == CHECK_CONTENTION
    text = f"SELECT FROM generate_series(1, {call}) -- COMMIT" if is_checked else f"SELECT WHERE {call} > 0 -- COMMIT"
    if (settings := info.get(TRANSACTION_SETTINGS)) is not None:
        text = f"{settings}; {text}"
    result: int = connection.exec_driver_sql(text, values).rowcount
    # (Without the check, the row count does not tell whether the locks were released.)
    released_early = result == DONE_AND_RELEASED if is_checked else locks == RELEASE_EARLY
    _end_call(connection, usage_id, locks, is_done=result > 0, released_early=released_early)
    return result > 0


def _choose_locks(info: dict[str, Any], usage_id: int) -> int:
    """The value of ``p_locks`` for a charge of this usage row."""
    waited_at = info.setdefault(_CONTENDED, {}).get(usage_id)
    if waited_at is not None and time.monotonic() - waited_at < _CONTENDED_SECONDS:
        return RELEASE_EARLY
    if waited_at is not None or random.random() * _CONTENTION_CHECK_INTERVAL < 1:
        return CHECK_CONTENTION
    return HOLD_LOCKS


def _end_call(connection: sa.Connection, usage_id: int, locks: int, *, is_done: bool, released_early: bool) -> None:
    """Flush what was committed asynchronously, and remember whether the usage row is contended."""
    if is_done and released_early:
        ensure_durable(connection)
    if locks == CHECK_CONTENTION:
        contended: dict[int, float] = connection.info[_CONTENDED]
        if released_early:
            if len(contended) >= _MAX_CONTENDED_ROWS:
                contended.clear()
            contended[usage_id] = time.monotonic()
        else:
            contended.pop(usage_id, None)


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
