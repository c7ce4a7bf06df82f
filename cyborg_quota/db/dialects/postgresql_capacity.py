# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: a reserve that takes capacity, as one call of a function.

These are functions of their own, so that those without capacity (postgresql_functions.py) do no more work. The commit
of a claim changes no inventory, and uses the function of a commit. A call of one reservation and one usage row, which
is the usual call without a project tree, has a function with single values as parameters and without loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import sqlalchemy as sa

from cyborg_quota.db.dialects import postgresql_functions as functions
from cyborg_quota.db.inventories import InventoryClaim
from cyborg_quota.db.new_reservations import NewReservation
from cyborg_quota.db.usages import Change
from cyborg_quota.types import RESERVED

CLAIM: Final = "cyborg_quota_claim_v1"
CLAIM_ONE: Final = "cyborg_quota_claim_one_v1"

# The elements of a claim: inventory id, amount of each claim, total. The conditions are those of
# inventories.claim_update. Claims of different amounts in one inventory are several elements with the same id.
_CLAIM_LOOP: Final = f"""
    FOREACH claim SLICE 1 IN ARRAY p_claims LOOP
        UPDATE @schema@.inventories SET used = used + claim[3], free = free - claim[3], updated_at = {functions.NOW}
            WHERE id = claim[1] AND free >= claim[3] AND (
                min_unit = claim[2] OR (min_unit < claim[2] AND max_unit >= claim[2] AND mod(claim[2], step_size) = 0)
            );
        IF NOT FOUND THEN
            @refused@
        END IF;
        claimed := claimed + 1;
    END LOOP;"""

# UPDATE ... FROM changes a row only once, even if several rows match it. Therefore the claims are summed by inventory.
_UNDO_CLAIMS: Final = """IF claimed > 0 THEN
                UPDATE @schema@.inventories AS claimed_from
                    SET used = claimed_from.used - taken.amount, free = claimed_from.free + taken.amount
                    FROM (
                        SELECT p_claims[i][1] AS id, sum(p_claims[i][3]) AS amount
                            FROM generate_series(1, claimed) AS i GROUP BY p_claims[i][1]
                    ) AS taken
                    WHERE claimed_from.id = taken.id;
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN false;"""

# As the function RESERVE, with the claims before the charges, and with the provider as a ninth element of a row.
_CLAIM_V1: Final = f"""
CREATE FUNCTION @schema@.{CLAIM}(
    p_project text, p_ttl bigint, p_rows text[], p_claims bigint[], p_charges bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$ {functions.DECLARE}
    claim bigint[];
    claimed integer := 0;
BEGIN
    IF {functions.IS_HELD} THEN
        RETURN false;
    END IF; {_CLAIM_LOOP.replace("@refused@", _UNDO_CLAIMS)}
    {functions.CHARGE_LOOP.replace("@refused@", functions.UNDO.replace("RETURN false;", _UNDO_CLAIMS))}
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id
    ) SELECT
        {functions.NOW}, false, p_project, {functions.NOW} + p_ttl * interval '1 microsecond', '{RESERVED}', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8], p_rows[i][9]::integer
    FROM generate_subscripts(p_rows, 1) AS i; {functions.END}
$function$"""

# One reservation, one inventory and one usage row. PL/pgSQL prepares each expression for its first execution in a
# transaction, which takes about a microsecond: so this function has few of them.
_CLAIM_ONE_V1: Final = f"""
CREATE FUNCTION @schema@.{CLAIM_ONE}(
    p_project text, p_ttl bigint,
    p_uuid text, p_resource text, p_delta integer, p_consumer text, p_group text, p_ordinal integer, p_source text,
    p_provider integer, p_inventory integer,
    p_id integer, p_generation integer, p_reserved bigint, p_used bigint, p_subtree bigint,
    p_max_held bigint, p_max_subtree bigint
) RETURNS boolean LANGUAGE plpgsql AS $function$
BEGIN
    UPDATE @schema@.inventories SET used = used + p_delta, free = free - p_delta, updated_at = {functions.NOW}
        WHERE id = p_inventory AND free >= p_delta AND (
            min_unit = p_delta OR (min_unit < p_delta AND max_unit >= p_delta AND mod(p_delta, step_size) = 0)
        );
    IF NOT FOUND THEN
        RETURN false;
    END IF;
        {functions.CHARGE_ONE}
                AND (
                    SELECT 1 FROM @schema@.reservations
                        WHERE project_id = p_project AND consumer_id = p_consumer AND live = 1
                        LIMIT 1
                ) IS NULL;
    IF NOT FOUND THEN
        UPDATE @schema@.inventories SET used = used - p_delta, free = free + p_delta WHERE id = p_inventory;
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN false;
    END IF;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id
    ) VALUES (
        {functions.NOW}, false, p_project, {functions.NOW} + p_ttl * interval '1 microsecond', '{RESERVED}', 1,
        p_uuid, p_id, p_resource, p_delta, p_consumer, p_group, p_ordinal, p_source, p_provider
    ); {functions.END}
$function$"""

DEFINITIONS: Final = {
    CLAIM: _CLAIM_V1,
    CLAIM_ONE: _CLAIM_ONE_V1,
}


def claim(
    connection: sa.Connection,
    rows: Sequence[NewReservation],
    changes: Sequence[Change],
    claims: Sequence[InventoryClaim],
) -> bool:
    """Reserve with capacity, with the claims and the changes in lock order. False: it changed nothing."""
    first = rows[0]
    if len(rows) == len(changes) == len(claims) == 1:
        arguments = (
            f"%s, {first.ttl_microseconds}, %s, %s, {first.delta}, %s, %s, {first.claim_ordinal or 'NULL'}, %s,"
            f" {first.provider_id}, {claims[0].inventory_id}, {functions.charge_values(changes[0])}"
        )
        values = (first.project_id, first.uuid, first.resource, first.consumer, first.group, first.source)
        return functions.call_function(connection, CLAIM_ONE, arguments, values)
    listed = functions.array([functions.reservation_text(row, row.provider_id) for row in rows])
    arguments = f"%s, {first.ttl_microseconds}, %s, {_integers(claims)}, {functions.charge_array(changes)}"
    return functions.call_function(connection, CLAIM, arguments, (first.project_id, listed))


def _integers(rows: Iterable[Iterable[int]]) -> str:
    """An array of two dimensions as a literal."""
    return f"'{functions.array([functions.array([str(number) for number in row]) for row in rows])}'"
