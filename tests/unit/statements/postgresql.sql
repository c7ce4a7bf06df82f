-- function cyborg_quota_reserve_v1

CREATE FUNCTION @schema@.cyborg_quota_reserve_v1(
    p_project text, p_ttl bigint, p_rows text[], p_charges bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$ 
DECLARE
    charge bigint[];
    charged integer := 0;
BEGIN
    IF EXISTS (
        SELECT FROM generate_subscripts(p_rows, 1) AS i CROSS JOIN LATERAL (
            SELECT FROM @schema@.reservations
                WHERE project_id = p_project AND consumer_id = p_rows[i][5] AND live = 1
                LIMIT 1
        ) AS live_rows
    ) THEN
        RETURN false;
    END IF; 
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0;
        IF NOT FOUND THEN
            IF charged > 0 THEN
                UPDATE @schema@.quota_usages
                    SET reserved = reserved - p_charges[i][3], used = used - p_charges[i][4],
                        subtree = subtree - p_charges[i][5]
                    FROM generate_series(1, charged) AS i WHERE id = p_charges[i][1];
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN false;
        END IF;
        charged := charged + 1;
    END LOOP;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source
    ) SELECT
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8]
    FROM generate_subscripts(p_rows, 1) AS i; 
    RETURN true;
END
$function$
;

-- function cyborg_quota_settle_v1

CREATE FUNCTION @schema@.cyborg_quota_settle_v1(
    p_uuids text[], p_state text, p_grace bigint, p_charges bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$ 
DECLARE
    charge bigint[];
    charged integer := 0;
    settled integer;
BEGIN
    IF p_state = 'committed' THEN
        UPDATE @schema@.reservations SET state = 'committed', updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE uuid = ANY (p_uuids) AND CASE WHEN state = 'reserved' AND generation IS NULL
                AND (expire IS NULL OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1;
    ELSE
        UPDATE @schema@.reservations
            SET state = 'rolled_back', updated_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted = true,
                live = NULL, claim_ordinal = NULL, ended_after = (SELECT max(id) FROM @schema@.reservations)
            WHERE uuid = ANY (p_uuids) AND CASE WHEN state = 'reserved' AND generation IS NULL
                AND (expire IS NULL OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1;
    END IF;
    GET DIAGNOSTICS settled = ROW_COUNT;
    IF settled = 0 THEN
        RETURN false;
    ELSIF settled < cardinality(p_uuids) THEN
        RAISE SQLSTATE 'QU001' USING MESSAGE = 'a reservation is not in flight';
    END IF; 
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0;
        IF NOT FOUND THEN
            RAISE SQLSTATE 'QU001' USING MESSAGE = 'a usage row does not meet the conditions of the charge';
        END IF;
        charged := charged + 1;
    END LOOP; 
    RETURN true;
END
$function$
;

-- function cyborg_quota_claim_v1

CREATE FUNCTION @schema@.cyborg_quota_claim_v1(
    p_project text, p_ttl bigint, p_rows text[], p_claims bigint[], p_charges bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$ 
DECLARE
    charge bigint[];
    charged integer := 0;
    claim bigint[];
    claimed integer := 0;
BEGIN
    IF EXISTS (
        SELECT FROM generate_subscripts(p_rows, 1) AS i CROSS JOIN LATERAL (
            SELECT FROM @schema@.reservations
                WHERE project_id = p_project AND consumer_id = p_rows[i][5] AND live = 1
                LIMIT 1
        ) AS live_rows
    ) THEN
        RETURN false;
    END IF; 
    FOREACH claim SLICE 1 IN ARRAY p_claims LOOP
        UPDATE @schema@.inventories SET used = used + claim[3], free = free - claim[3], updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = claim[1] AND free >= claim[3] AND (
                min_unit = claim[2] OR (min_unit < claim[2] AND max_unit >= claim[2] AND mod(claim[2], step_size) = 0)
            );
        IF NOT FOUND THEN
            IF claimed > 0 THEN
                UPDATE @schema@.inventories AS claimed_from
                    SET used = claimed_from.used - taken.amount, free = claimed_from.free + taken.amount
                    FROM (
                        SELECT p_claims[i][1] AS id, sum(p_claims[i][3]) AS amount
                            FROM generate_series(1, claimed) AS i GROUP BY p_claims[i][1]
                    ) AS taken
                    WHERE claimed_from.id = taken.id;
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN false;
        END IF;
        claimed := claimed + 1;
    END LOOP;
    
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0;
        IF NOT FOUND THEN
            IF charged > 0 THEN
                UPDATE @schema@.quota_usages
                    SET reserved = reserved - p_charges[i][3], used = used - p_charges[i][4],
                        subtree = subtree - p_charges[i][5]
                    FROM generate_series(1, charged) AS i WHERE id = p_charges[i][1];
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            IF claimed > 0 THEN
                UPDATE @schema@.inventories AS claimed_from
                    SET used = claimed_from.used - taken.amount, free = claimed_from.free + taken.amount
                    FROM (
                        SELECT p_claims[i][1] AS id, sum(p_claims[i][3]) AS amount
                            FROM generate_series(1, claimed) AS i GROUP BY p_claims[i][1]
                    ) AS taken
                    WHERE claimed_from.id = taken.id;
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN false;
        END IF;
        charged := charged + 1;
    END LOOP;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id
    ) SELECT
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8], p_rows[i][9]::integer
    FROM generate_subscripts(p_rows, 1) AS i; 
    RETURN true;
END
$function$
;

-- function cyborg_quota_claim_one_v1

CREATE FUNCTION @schema@.cyborg_quota_claim_one_v1(
    p_project text, p_ttl bigint,
    p_uuid text, p_resource text, p_delta integer, p_consumer text, p_group text, p_ordinal integer, p_source text,
    p_provider integer, p_inventory integer,
    p_id integer, p_generation integer, p_reserved bigint, p_used bigint, p_subtree bigint,
    p_max_held bigint, p_max_subtree bigint
) RETURNS boolean LANGUAGE plpgsql AS $function$
BEGIN
    UPDATE @schema@.inventories SET used = used + p_delta, free = free - p_delta, updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
        WHERE id = p_inventory AND free >= p_delta AND (
            min_unit = p_delta OR (min_unit < p_delta AND max_unit >= p_delta AND mod(p_delta, step_size) = 0)
        );
    IF NOT FOUND THEN
        RETURN false;
    END IF;
        UPDATE @schema@.quota_usages
            SET reserved = reserved + p_reserved, used = used + p_used, subtree = subtree + p_subtree,
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = p_id AND generation = p_generation
                AND used + reserved <= p_max_held AND subtree <= p_max_subtree
                AND reserved + p_reserved >= 0 AND used + p_used >= 0 AND subtree + p_subtree >= 0
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
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_uuid, p_id, p_resource, p_delta, p_consumer, p_group, p_ordinal, p_source, p_provider
    ); 
    RETURN true;
END
$function$
;

-- single statement: reserve one row
SELECT WHERE cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50}}') -- COMMIT
;

-- single statement: reserve two rows
SELECT WHERE cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50}}') -- COMMIT
;

-- single statement: reserve in a tree
SELECT WHERE cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50},{2,102,0,0,2,4611686018427387904,60},{3,103,0,0,2,4611686018427387904,60}}') -- COMMIT
;

-- single statement: commit
SELECT WHERE cyborg_quota_settle_v1(%s, 'committed', 0, '{{1,101,-2,2,0,4611686018427387904,4611686018427387904}}') -- COMMIT
;

-- single statement: commit two
SELECT WHERE cyborg_quota_settle_v1(%s, 'committed', 0, '{{1,101,-2,2,0,4611686018427387904,4611686018427387904}}') -- COMMIT
;

-- single statement: roll back in a tree
SELECT WHERE cyborg_quota_settle_v1(%s, 'rolled_back', 0, '{{1,101,-2,0,-2,4611686018427387904,4611686018427387904},{2,102,0,0,-2,4611686018427387904,4611686018427387904},{3,103,0,0,-2,4611686018427387904,4611686018427387904}}') -- COMMIT
;

-- single statement: claim capacity
SELECT WHERE cyborg_quota_claim_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 5, 7, 1,101,2,0,2,8,50) -- COMMIT
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
