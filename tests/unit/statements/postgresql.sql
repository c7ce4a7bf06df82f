-- function cyborg_quota_charge_v1
CREATE FUNCTION @schema@.cyborg_quota_charge_v1(
    p_ids integer[], p_generations integer[], p_reserved bigint[], p_used bigint[], p_subtree bigint[],
    p_max_held bigint[], p_max_subtree bigint[]
) RETURNS integer LANGUAGE plpgsql AS $function$
BEGIN
    FOR i IN 1 .. cardinality(p_ids) LOOP
        UPDATE @schema@.quota_usages
            SET reserved = reserved + p_reserved[i], used = used + p_used[i], subtree = subtree + p_subtree[i],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = p_ids[i] AND generation = p_generations[i]
                AND used + reserved <= p_max_held[i] AND subtree <= p_max_subtree[i]
                AND reserved + p_reserved[i] >= 0 AND used + p_used[i] >= 0 AND subtree + p_subtree[i] >= 0;
        IF NOT FOUND THEN
            RETURN i - 1;
        END IF;
    END LOOP;
    RETURN cardinality(p_ids);
END
$function$
;

-- function cyborg_quota_reserve_v1
CREATE FUNCTION @schema@.cyborg_quota_reserve_v1(
    p_project text, p_ttl bigint,
    p_uuids text[], p_usage_ids integer[], p_resources text[], p_deltas integer[], p_consumers text[], p_groups text[],
    p_ordinals smallint[], p_sources text[], p_providers integer[],
    p_inventories integer[], p_units bigint[], p_amounts bigint[],
    p_ids integer[], p_generations integer[], p_reserved bigint[], p_used bigint[], p_subtree bigint[],
    p_max_held bigint[], p_max_subtree bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$
DECLARE
    claimed integer := 0;
    charged integer := 0;
BEGIN
    -- Whether a consumer has a live claim. (One lookup per consumer, so that each uses a unique key: PostgreSQL would
    -- search `consumer_id = ANY (...)` by the project alone.)
    IF EXISTS (
        SELECT FROM unnest(p_consumers) AS given(name) CROSS JOIN LATERAL (
            SELECT FROM @schema@.reservations
                WHERE project_id = p_project AND consumer_id = given.name AND live = 1
                LIMIT 1
        ) AS live_rows
    ) THEN
        RETURN false;
    END IF;
    -- Claims of different amounts in one inventory are several elements with the same id.
    WHILE claimed < cardinality(p_inventories) LOOP
        UPDATE @schema@.inventories
            SET used = used + p_amounts[claimed + 1], free = free - p_amounts[claimed + 1],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = p_inventories[claimed + 1] AND free >= p_amounts[claimed + 1] AND (
                min_unit = p_units[claimed + 1] OR (
                    min_unit < p_units[claimed + 1] AND max_unit >= p_units[claimed + 1]
                    AND mod(p_units[claimed + 1], step_size) = 0
                )
            );
        EXIT WHEN NOT FOUND;
        claimed := claimed + 1;
    END LOOP;
    IF claimed = cardinality(p_inventories) THEN
        charged := @schema@.cyborg_quota_charge_v1(
            p_ids, p_generations, p_reserved, p_used, p_subtree, p_max_held, p_max_subtree
        );
    END IF;
    IF charged = cardinality(p_ids) THEN
        INSERT INTO @schema@.reservations (
            created_at, deleted, project_id, expire, state, live,
            uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id
        ) SELECT
            (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project,
            (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1, new_rows.*
        FROM unnest(
            p_uuids, p_usage_ids, p_resources, p_deltas, p_consumers, p_groups, p_ordinals, p_sources, p_providers
        ) AS new_rows;
        RETURN true;
    END IF;
    -- Undo what was done. (An exception handler would make each call a subtransaction.) Then commit asynchronously: the
    -- net change is nil, so nothing need be flushed.
    IF charged > 0 THEN
        UPDATE @schema@.quota_usages
            SET reserved = reserved - p_reserved[i], used = used - p_used[i], subtree = subtree - p_subtree[i]
            FROM generate_series(1, charged) AS i WHERE id = p_ids[i];
    END IF;
    -- UPDATE ... FROM changes a row only once, even if several elements match it. So they are summed by inventory.
    IF claimed > 0 THEN
        UPDATE @schema@.inventories AS claimed_from
            SET used = claimed_from.used - taken.amount, free = claimed_from.free + taken.amount
            FROM (
                SELECT p_inventories[i] AS id, sum(p_amounts[i]) AS amount
                    FROM generate_series(1, claimed) AS i GROUP BY p_inventories[i]
            ) AS taken
            WHERE claimed_from.id = taken.id;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN false;
END
$function$
;

-- function cyborg_quota_settle_v1
CREATE FUNCTION @schema@.cyborg_quota_settle_v1(
    p_uuids text[], p_state text, p_grace bigint,
    p_ids integer[], p_generations integer[], p_reserved bigint[], p_used bigint[], p_subtree bigint[],
    p_max_held bigint[], p_max_subtree bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$
DECLARE
    settled integer;
BEGIN
    IF p_state = 'committed' THEN
        UPDATE @schema@.reservations SET state = p_state, updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE uuid = ANY (p_uuids) AND CASE
                WHEN state = 'reserved' AND generation IS NULL AND (
                    expire IS NULL
                    OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond'
                ) THEN 1 ELSE 0 END = 1;
    ELSE
        UPDATE @schema@.reservations
            SET state = p_state, updated_at = (statement_timestamp() AT TIME ZONE 'UTC'),
                deleted_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted = true,
                live = NULL, claim_ordinal = NULL, ended_after = (SELECT max(id) FROM @schema@.reservations)
            WHERE uuid = ANY (p_uuids) AND CASE
                WHEN state = 'reserved' AND generation IS NULL AND (
                    expire IS NULL
                    OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond'
                ) THEN 1 ELSE 0 END = 1;
    END IF;
    GET DIAGNOSTICS settled = ROW_COUNT;
    IF settled = 0 THEN
        RETURN false;
    ELSIF settled < cardinality(p_uuids) THEN
        RAISE SQLSTATE 'QU001' USING MESSAGE = 'a reservation is not in flight';
    ELSIF cardinality(p_ids) > @schema@.cyborg_quota_charge_v1(
        p_ids, p_generations, p_reserved, p_used, p_subtree, p_max_held, p_max_subtree
    ) THEN
        RAISE SQLSTATE 'QU001' USING MESSAGE = 'a usage row does not meet the conditions of the charge';
    END IF;
    RETURN true;
END
$function$
;

-- single statement: reserve one row
SELECT WHERE cyborg_quota_reserve_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: reserve two rows
SELECT WHERE cyborg_quota_reserve_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: reserve in a tree
SELECT WHERE cyborg_quota_reserve_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: commit
SELECT WHERE cyborg_quota_settle_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: commit two
SELECT WHERE cyborg_quota_settle_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: roll back in a tree
SELECT WHERE cyborg_quota_settle_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: claim capacity
SELECT WHERE cyborg_quota_reserve_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- claim of capacity
UPDATE inventories SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), used=(inventories.used + %(b_total)s), free=(inventories.free - %(b_total)s) WHERE inventories.id = %(b_inventory)s AND inventories.free >= %(b_total)s AND (inventories.min_unit = %(b_amount)s OR inventories.min_unit < %(b_amount)s AND inventories.max_unit >= %(b_amount)s AND %(b_amount)s %% inventories.step_size < 1)
;

-- charge one row
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;

-- charge in a tree
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;

-- insert 1
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, claim_ordinal) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_0)s, %(b_group_id_0)s, 1, %(b_claim_ordinal_0)s) RETURNING reservations.id
;

-- insert 2
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, claim_ordinal) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_0)s, %(b_group_id_0)s, 1, %(b_claim_ordinal_0)s), ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_1)s, %(b_usage_id_1)s, %(b_project)s, %(b_resource_1)s, %(b_delta_1)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_1)s, %(b_group_id_1)s, 1, %(b_claim_ordinal_1)s)
;

-- by uuids
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod 
FROM reservations 
WHERE reservations.uuid IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s)
;

-- by consumer
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = %(b_project)s AND reservations.consumer_id = %(b_name)s
;

-- by group
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = %(b_project)s AND reservations.group_id = %(b_name)s
;

-- move to committed
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), state=%(b_after)s WHERE reservations.id IN (%(b_0)s, %(b_1)s) AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END = 1
;

-- move to rolled back
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted=true, state=%(b_after)s, live=NULL, claim_ordinal=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = %(b_0)s AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1
;
