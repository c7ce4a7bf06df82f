# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL: a reserve that takes capacity, and a rollback that gives it back, as one call of a function each.

They are functions of their own, so that those without capacity (postgresql_functions.py) do no more work. The commit of
a claim changes no inventory, and uses the function of a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import sqlalchemy as sa

from cyborg_quota.db.dialects import postgresql_functions as functions
from cyborg_quota.db.inventories import InventoryClaim
from cyborg_quota.db.new_reservations import NewReservation
from cyborg_quota.db.provider_choice import ChosenInventory, ProviderChoice
from cyborg_quota.db.usages import Change
from cyborg_quota.types import RESERVED, ROLLED_BACK

CLAIM: Final = "cyborg_quota_claim_v1"
GIVE_BACK: Final = "cyborg_quota_give_back_v1"
CLAIM_ONE: Final = "cyborg_quota_claim_one_v1"
CLAIM_IN_POD: Final = "cyborg_quota_claim_in_pod_v1"
CLAIM_ANYWHERE: Final = "cyborg_quota_claim_anywhere_v1"

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
_UNDO_CLAIMS: Final = f"""IF claimed > 0 THEN
                UPDATE @schema@.inventories AS claimed_from
                    SET used = claimed_from.used - taken.amount, free = claimed_from.free + taken.amount
                    FROM (
                        SELECT p_claims[i][1] AS id, sum(p_claims[i][3]) AS amount
                            FROM generate_series(1, claimed) AS i GROUP BY p_claims[i][1]
                    ) AS taken
                    WHERE claimed_from.id = taken.id;
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN {functions.REFUSED};"""

# As the function RESERVE, with the claims before the charges, and with the provider as a ninth element of a row.
_CLAIM_V1: Final = f"""
CREATE FUNCTION @schema@.{CLAIM}(
    p_project text, p_ttl bigint, p_rows text[], p_claims bigint[], p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ {functions.DECLARE}
    claim bigint[];
    claimed integer := 0;
BEGIN
    IF {functions.IS_HELD} THEN
        RETURN {functions.REFUSED};
    END IF; {_CLAIM_LOOP.replace("@refused@", _UNDO_CLAIMS)}
    {functions.CHARGE_LOOP.replace("@refused@", functions.UNDO.replace(f"RETURN {functions.REFUSED};", _UNDO_CLAIMS))}
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id
    ) SELECT
        {functions.NOW}, false, p_project, {functions.NOW} + p_ttl * interval '1 microsecond', '{RESERVED}', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8], p_rows[i][9]::integer
    FROM generate_subscripts(p_rows, 1) AS i; {functions.END}
$function$"""

# With the pod as a tenth element of a row: another function, so that claims in no pod pass as few values as before.
_CLAIM_IN_POD_V1: Final = (
    _CLAIM_V1.replace(CLAIM, CLAIM_IN_POD)
    .replace("source, provider_id", "source, provider_id, pod")
    .replace("p_rows[i][9]::integer", "p_rows[i][9]::integer, p_rows[i][10]")
)

# Rolls reservations back. The elements of p_freed: inventory id, amount.
_GIVE_BACK_V1: Final = f"""
CREATE FUNCTION @schema@.{GIVE_BACK}(
    p_uuids text[], p_grace bigint, p_freed bigint[], p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ {functions.DECLARE}
    settled integer;
    freed bigint[];
BEGIN
    UPDATE @schema@.reservations
        SET state = '{ROLLED_BACK}', updated_at = {functions.NOW}, deleted_at = {functions.NOW}, deleted = true,
            live = NULL, claim_ordinal = NULL, ended_after = (SELECT max(id) FROM @schema@.reservations)
        WHERE uuid = ANY (p_uuids) AND {functions.IN_FLIGHT};
    GET DIAGNOSTICS settled = ROW_COUNT;
    IF settled = 0 THEN
        RETURN {functions.REFUSED};
    ELSIF settled < cardinality(p_uuids) THEN
        RAISE SQLSTATE '{functions.REFUSED_STATE}' USING MESSAGE = 'a reservation is not in flight';
    END IF;
    FOREACH freed SLICE 1 IN ARRAY p_freed LOOP
        UPDATE @schema@.inventories SET used = used - freed[2], free = free + freed[2], updated_at = {functions.NOW}
            WHERE id = freed[1] AND used >= freed[2];
        IF NOT FOUND THEN
            RAISE SQLSTATE '{functions.REFUSED_STATE}' USING MESSAGE = 'an inventory uses less than a claim';
        END IF;
    END LOOP; {functions.CHARGE_LOOP.replace("@refused@", functions.FAIL)} {functions.END}
$function$"""

# The usual call: one reservation, one inventory and one usage row. As in postgresql_functions.py, with few expressions.
_CLAIM_ONE_V1: Final = f"""
CREATE FUNCTION @schema@.{CLAIM_ONE}(
    p_project text, p_ttl bigint,
    p_uuid text, p_resource text, p_delta integer, p_consumer text, p_group text, p_ordinal integer, p_source text,
    p_provider integer, p_inventory integer,
    {functions.CHARGE_PARAMETERS}, p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ {functions.BEFORE_ONE}
    UPDATE @schema@.inventories SET used = used + p_delta, free = free - p_delta, updated_at = {functions.NOW}
        WHERE id = p_inventory AND free >= p_delta AND (
            min_unit = p_delta OR (min_unit < p_delta AND max_unit >= p_delta AND mod(p_delta, step_size) = 0)
        );
    IF NOT FOUND THEN
        RETURN {functions.REFUSED};
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
        RETURN {functions.REFUSED};
    END IF;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id
    ) VALUES (
        {functions.NOW}, false, p_project, {functions.NOW} + p_ttl * interval '1 microsecond', '{RESERVED}', 1,
        p_uuid, p_id, p_resource, p_delta, p_consumer, p_group, p_ordinal, p_source, p_provider
    ); {functions.END_ONE}
$function$"""

_CHOICE_VARIABLES: Final = """    chosen record;
    equal record;
    first_id integer;
BEGIN"""

# (Not "= 0" and "= 1": see inventories.fits_units and can_host.)
_FITS: Final = """WHERE resource = p_resource AND free >= p_delta AND (
                min_unit = p_delta OR (min_unit < p_delta AND max_unit >= p_delta AND mod(p_delta, step_size) < 1)
            ) AND (SELECT can_host FROM @schema@.resource_providers WHERE id = provider_id) <> 0"""


def _choose(order: str) -> str:
    """The query that locks the best inventory (provider_choice.best_query)."""
    return f"""SELECT provider_id, id, free INTO chosen FROM @schema@.inventories
            {_FITS}
            ORDER BY {order} LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;"""


_DONE_ANYWHERE: Final = f"ARRAY[{functions.DONE}, chosen.provider_id, chosen.id]"
_RELEASED_ANYWHERE: Final = f"ARRAY[{functions.DONE_AND_RELEASED}, chosen.provider_id, chosen.id]"

# As CLAIM_ONE, but the server chooses the inventory: see provider_choice.py. Returns the result, the provider and the
# inventory. The chosen row is locked and fits, so that its UPDATE needs no condition but the id. A claim in a pod is
# refused, because the caller must charge the usage rows of the pod.
_CLAIM_ANYWHERE_V1: Final = f"""
CREATE FUNCTION @schema@.{CLAIM_ANYWHERE}(
    p_project text, p_ttl bigint,
    p_uuid text, p_resource text, p_delta integer, p_consumer text, p_group text, p_ordinal integer, p_source text,
    p_most_free boolean,
    {functions.CHARGE_PARAMETERS}, p_locks integer
) RETURNS integer[] LANGUAGE plpgsql AS $function$ {functions.BEFORE_ONE.replace("BEGIN", _CHOICE_VARIABLES)}
    IF p_most_free THEN
        {_choose("free DESC")}
    ELSE
        {_choose("free")}
    END IF;
    IF NOT FOUND THEN
        RETURN ARRAY[{functions.REFUSED}];
    END IF;
    first_id := floor(1 + random() * (SELECT max(provider_id) FROM @schema@.inventories));
    SELECT provider_id, id, free INTO equal FROM @schema@.inventories
            {_FITS}
            AND free = chosen.free AND provider_id >= first_id
            ORDER BY provider_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        chosen := equal;
    END IF;
    IF (SELECT pod FROM @schema@.resource_providers WHERE id = chosen.provider_id) IS NOT NULL THEN
        RETURN ARRAY[{functions.REFUSED}];
    END IF;
    UPDATE @schema@.inventories SET used = used + p_delta, free = free - p_delta, updated_at = {functions.NOW}
        WHERE id = chosen.id;
        {functions.CHARGE_ONE}
                AND (
                    SELECT 1 FROM @schema@.reservations
                        WHERE project_id = p_project AND consumer_id = p_consumer AND live = 1
                        LIMIT 1
                ) IS NULL;
    IF NOT FOUND THEN
        UPDATE @schema@.inventories SET used = used - p_delta, free = free + p_delta WHERE id = chosen.id;
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN ARRAY[{functions.REFUSED}];
    END IF;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id
    ) VALUES (
        {functions.NOW}, false, p_project, {functions.NOW} + p_ttl * interval '1 microsecond', '{RESERVED}', 1,
        p_uuid, p_id, p_resource, p_delta, p_consumer, p_group, p_ordinal, p_source, chosen.provider_id
    ); {functions.end_one(_DONE_ANYWHERE, _RELEASED_ANYWHERE)}
$function$"""

DEFINITIONS: Final = {
    CLAIM: _CLAIM_V1,
    GIVE_BACK: _GIVE_BACK_V1,
    CLAIM_ONE: _CLAIM_ONE_V1,
    CLAIM_IN_POD: _CLAIM_IN_POD_V1,
    CLAIM_ANYWHERE: _CLAIM_ANYWHERE_V1,
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
        return functions.call_function(connection, CLAIM_ONE, arguments, values, changes)
    has_pod = any(row.pod is not None for row in rows)
    pods = [(row.pod,) if has_pod else () for row in rows]
    texts = [functions.reservation_text(row, row.provider_id, *pod) for row, pod in zip(rows, pods, strict=True)]
    listed = functions.array(texts)
    arguments = f"%s, {first.ttl_microseconds}, %s, {_integers(claims)}, {functions.charge_array(changes)}"
    name = CLAIM_IN_POD if has_pod else CLAIM
    return functions.call_function(connection, name, arguments, (first.project_id, listed), changes)


def claim_anywhere(
    connection: sa.Connection, row: NewReservation, change: Change, choice: ProviderChoice
) -> ChosenInventory | None:
    """Reserve at the inventory that the server chooses. None: it changed nothing."""
    arguments = (
        f"%s, {row.ttl_microseconds}, %s, %s, {row.delta}, %s, %s, {row.claim_ordinal or 'NULL'}, %s,"
        f" {choice.order == 'most free'}, {functions.charge_values(change)}"
    )
    values = (row.project_id, row.uuid, row.resource, row.consumer, row.group, row.source)
    found = functions.call_with_result(connection, CLAIM_ANYWHERE, arguments, values, [change])
    return ChosenInventory(*found) if found else None


def give_back(
    connection: sa.Connection,
    uuids: Sequence[str],
    grace: int,
    changes: Sequence[Change],
    freed: Sequence[tuple[int, int]],
) -> bool:
    """Roll back, with the inventories and the changes in lock order. False: it changed nothing."""
    listed = functions.array([functions.array_element(uuid) for uuid in sorted(uuids)])
    arguments = f"%s, {grace}, {_integers(freed)}, {functions.charge_array(changes)}"
    return functions.call_function(connection, GIVE_BACK, arguments, (listed,), changes)


def _integers(rows: Iterable[Iterable[int]]) -> str:
    """An array of two dimensions as a literal."""
    return f"'{functions.array([functions.array([str(number) for number in row]) for row in rows])}'"
