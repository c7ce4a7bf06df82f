# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: a reserve and a settle as one call of a function each.

A transaction of several statements keeps its row locks during the round trips between them. A function has no round
trips, and PostgreSQL keeps the plans of its statements for as long as the connection lives.

A released function is never changed: its name contains a version, so that the previous release can use its own beside
it. ``db sync`` creates the functions. Where they are missing, reserve and settle use the multi-statement transaction.

The functions have the privileges of their caller. They name each table with its schema, so that they do not depend on
the search path.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from cyborg_quota.types import COMMITTED, RESERVED, ROLLED_BACK

RESERVE: Final = "cyborg_quota_reserve_v1"
SETTLE: Final = "cyborg_quota_settle_v2"
"""Version 2 leaves out reservations that were resized or transferred, as reservations.settle_in_flight_update."""

HOLD_LOCKS: Final = 0
CHECK_CONTENTION: Final = 1
RELEASE_EARLY: Final = 2
"""The values of ``p_locks``: see decision record 0025."""

REFUSED: Final = 0
DONE: Final = 1
DONE_AND_RELEASED: Final = 2
"""The results of both functions. REFUSED: nothing was changed. DONE_AND_RELEASED: committed, but not yet flushed."""

_REFUSED_STATE: Final = "QU001"
_NOW: Final = "(statement_timestamp() AT TIME ZONE 'UTC')"

# One UPDATE per row, in the order of the array: the caller sorts the rows deepest first (decision record 0002). The row
# is contended if it changes between the two statements: another transaction had locked it.
_CHARGE_LOOP: Final = f"""
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        IF p_locks = {CHECK_CONTENTION} THEN
            SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = charge[1];
        END IF;
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = {_NOW}
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7] AND reserved <= charge[8]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0
            RETURNING ARRAY[used - charge[4], reserved - charge[3], subtree - charge[5]] INTO after;
        IF NOT FOUND THEN
            @refused@
        END IF;
        charged := charged + 1;
        contended := contended OR (p_locks = {CHECK_CONTENTION} AND after IS DISTINCT FROM before);
    END LOOP;"""

# Undo the changes of the rows that were already charged. (An exception handler would make each call a subtransaction.)
_UNDO: Final = f"""IF charged > 0 THEN
                UPDATE @schema@.quota_usages
                    SET reserved = reserved - p_charges[i][3], used = used - p_charges[i][4],
                        subtree = subtree - p_charges[i][5]
                    FROM generate_series(1, charged) AS i WHERE id = p_charges[i][1];
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN {REFUSED};"""

_FAIL: Final = (
    f"RAISE SQLSTATE '{_REFUSED_STATE}' USING MESSAGE = 'a usage row does not meet the conditions of the charge';"
)

_DECLARE: Final = f"""
DECLARE
    charge bigint[];
    charged integer := 0;
    before bigint[];
    after bigint[];
    contended boolean := p_locks = {RELEASE_EARLY};"""

# Commit asynchronously, so that the row locks are released before the log is flushed. The caller then flushes it.
_END: Final = f"""
    IF contended THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN {DONE_AND_RELEASED};
    END IF;
    RETURN {DONE};
END"""

# The elements of a row: UUID, usage_id, resource, delta, consumer, group, place, source. (One lookup per consumer, so
# that each uses a unique key: PostgreSQL would search ``consumer_id = ANY (...)`` by the project alone.)
_RESERVE_V1: Final = f"""
CREATE FUNCTION @schema@.{RESERVE}(
    p_project text, p_ttl bigint, p_rows text[], p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ {_DECLARE}
BEGIN
    IF EXISTS (
        SELECT FROM generate_subscripts(p_rows, 1) AS i CROSS JOIN LATERAL (
            SELECT FROM @schema@.reservations
                WHERE project_id = p_project AND consumer_id = p_rows[i][5] AND live = 1
                LIMIT 1
        ) AS live_rows
    ) THEN
        RETURN {REFUSED};
    END IF; {_CHARGE_LOOP.replace("@refused@", _UNDO)}
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, place, source
    ) SELECT
        {_NOW}, false, p_project, {_NOW} + p_ttl * interval '1 microsecond', '{RESERVED}', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8]
    FROM generate_subscripts(p_rows, 1) AS i; {_END}
$function$"""

# (The CASE keeps ``state`` and ``expire`` out of the index conditions: see decision record 0022.)
_IN_FLIGHT: Final = f"""CASE WHEN state = '{RESERVED}' AND generation IS NULL
                AND (expire IS NULL OR expire > {_NOW} - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1"""

_SETTLE_V2: Final = f"""
CREATE FUNCTION @schema@.{SETTLE}(
    p_uuids text[], p_state text, p_grace bigint, p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ {_DECLARE}
    settled integer;
BEGIN
    IF p_state = '{COMMITTED}' THEN
        UPDATE @schema@.reservations SET state = '{COMMITTED}', updated_at = {_NOW}
            WHERE uuid = ANY (p_uuids) AND {_IN_FLIGHT};
    ELSE
        UPDATE @schema@.reservations
            SET state = '{ROLLED_BACK}', updated_at = {_NOW}, deleted_at = {_NOW}, deleted = true,
                live = NULL, place = NULL, ended_after = (SELECT max(id) FROM @schema@.reservations)
            WHERE uuid = ANY (p_uuids) AND {_IN_FLIGHT};
    END IF;
    GET DIAGNOSTICS settled = ROW_COUNT;
    IF settled = 0 THEN
        RETURN {REFUSED};
    ELSIF settled < cardinality(p_uuids) THEN
        RAISE SQLSTATE '{_REFUSED_STATE}' USING MESSAGE = 'a reservation is not in flight';
    END IF; {_CHARGE_LOOP.replace("@refused@", _FAIL)} {_END}
$function$"""

DEFINITIONS: Final = {RESERVE: _RESERVE_V1, SETTLE: _SETTLE_V2}


def missing(connection: sa.Connection) -> list[str]:
    """The functions of this release that do not exist in the database."""
    return [
        name
        for name in DEFINITIONS
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


def create(connection: sa.Connection) -> list[str]:
    """Create the functions that are missing. Returns the privileges that the user lacks for it, and creates nothing."""
    names = missing(connection)
    if not names:
        return []
    if privileges := missing_privileges(connection):
        return privileges
    schema: str = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    for name in names:
        connection.exec_driver_sql(DEFINITIONS[name].replace("@schema@", schema))
    return []
