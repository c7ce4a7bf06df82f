-- function cyborg_quota_reserve_v1

CREATE FUNCTION @schema@.cyborg_quota_reserve_v1(
    p_project text, p_ttl bigint, p_rows text[], p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ 
DECLARE
    charge bigint[];
    charged integer := 0;
    before bigint[];
    after bigint[];
    contended boolean := p_locks = 2;
BEGIN
    IF EXISTS (
        SELECT FROM generate_subscripts(p_rows, 1) AS i CROSS JOIN LATERAL (
            SELECT FROM @schema@.reservations
                WHERE project_id = p_project AND consumer_id = p_rows[i][5] AND live = 1
                LIMIT 1
        ) AS live_rows
    ) THEN
        RETURN 0;
    END IF; 
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        IF p_locks = 1 THEN
            SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = charge[1];
        END IF;
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0
            RETURNING ARRAY[used - charge[4], reserved - charge[3], subtree - charge[5]] INTO after;
        IF NOT FOUND THEN
            IF charged > 0 THEN
                UPDATE @schema@.quota_usages
                    SET reserved = reserved - p_charges[i][3], used = used - p_charges[i][4],
                        subtree = subtree - p_charges[i][5]
                    FROM generate_series(1, charged) AS i WHERE id = p_charges[i][1];
                PERFORM set_config('synchronous_commit', 'off', true);
            END IF;
            RETURN 0;
        END IF;
        charged := charged + 1;
        contended := contended OR (p_locks = 1 AND after IS DISTINCT FROM before);
    END LOOP;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, place, source
    ) SELECT
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8]
    FROM generate_subscripts(p_rows, 1) AS i; 
    IF contended THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN 2;
    END IF;
    RETURN 1;
END
$function$
;

-- function cyborg_quota_settle_v2

CREATE FUNCTION @schema@.cyborg_quota_settle_v2(
    p_uuids text[], p_state text, p_grace bigint, p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ 
DECLARE
    charge bigint[];
    charged integer := 0;
    before bigint[];
    after bigint[];
    contended boolean := p_locks = 2;
    settled integer;
BEGIN 
    IF p_state = 'committed' THEN
        UPDATE @schema@.reservations SET state = 'committed', updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE uuid = ANY (p_uuids) AND CASE WHEN state = 'reserved' AND generation IS NULL
                AND (expire IS NULL OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1;
    ELSE
        UPDATE @schema@.reservations
            SET state = 'rolled_back', updated_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted = true,
                live = NULL, place = NULL, ended_after = (SELECT max(id) FROM @schema@.reservations)
            WHERE uuid = ANY (p_uuids) AND CASE WHEN state = 'reserved' AND generation IS NULL
                AND (expire IS NULL OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1;
    END IF;
    GET DIAGNOSTICS settled = ROW_COUNT;
    IF settled = 0 THEN
        RETURN 0;
    ELSIF settled < cardinality(p_uuids) THEN
        RAISE SQLSTATE 'QU001' USING MESSAGE = 'a reservation is not in flight';
    END IF; 
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        IF p_locks = 1 THEN
            SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = charge[1];
        END IF;
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0
            RETURNING ARRAY[used - charge[4], reserved - charge[3], subtree - charge[5]] INTO after;
        IF NOT FOUND THEN
            RAISE SQLSTATE 'QU001' USING MESSAGE = 'a usage row does not meet the conditions of the charge';
        END IF;
        charged := charged + 1;
        contended := contended OR (p_locks = 1 AND after IS DISTINCT FROM before);
    END LOOP; 
    IF contended THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN 2;
    END IF;
    RETURN 1;
END
$function$
;

-- function cyborg_quota_reserve_one_v1

CREATE FUNCTION @schema@.cyborg_quota_reserve_one_v1(
    p_project text, p_ttl bigint,
    p_uuid text, p_resource text, p_delta integer, p_consumer text, p_group text, p_place integer, p_source text,
    p_id integer, p_generation integer, p_reserved bigint, p_used bigint, p_subtree bigint,
    p_max_held bigint, p_max_subtree bigint, p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ 
DECLARE
    before bigint[];
    after bigint[];
BEGIN
    IF p_locks = 1 THEN
        SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = p_id;
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
        RETURN 0;
    END IF;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, place, source
    ) VALUES (
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_uuid, p_id, p_resource, p_delta, p_consumer, p_group, p_place, p_source
    ); 
    IF p_locks = 0 THEN
        RETURN 1;
    ELSIF p_locks = 1 THEN
        SELECT ARRAY[used - p_used, reserved - p_reserved, subtree - p_subtree] INTO after
            FROM @schema@.quota_usages WHERE id = p_id;
        IF after = before THEN
            RETURN 1;
        END IF;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN 2;
END
$function$
;

-- function cyborg_quota_settle_one_v2

CREATE FUNCTION @schema@.cyborg_quota_settle_one_v2(
    p_uuid text, p_state text, p_grace bigint,
    p_id integer, p_generation integer, p_reserved bigint, p_used bigint, p_subtree bigint,
    p_max_held bigint, p_max_subtree bigint, p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ 
DECLARE
    before bigint[];
    after bigint[];
BEGIN
    IF p_locks = 1 THEN
        SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = p_id;
    END IF; 
    IF p_state = 'committed' THEN
        UPDATE @schema@.reservations SET state = 'committed', updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE uuid = p_uuid AND CASE WHEN state = 'reserved' AND generation IS NULL
                AND (expire IS NULL OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1;
    ELSE
        UPDATE @schema@.reservations
            SET state = 'rolled_back', updated_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted = true,
                live = NULL, place = NULL, ended_after = (SELECT max(id) FROM @schema@.reservations)
            WHERE uuid = p_uuid AND CASE WHEN state = 'reserved' AND generation IS NULL
                AND (expire IS NULL OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1;
    END IF;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
        UPDATE @schema@.quota_usages
            SET reserved = reserved + p_reserved, used = used + p_used, subtree = subtree + p_subtree,
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = p_id AND generation = p_generation
                AND used + reserved <= p_max_held AND subtree <= p_max_subtree
                AND reserved + p_reserved >= 0 AND used + p_used >= 0 AND subtree + p_subtree >= 0;
    IF NOT FOUND THEN
        RAISE SQLSTATE 'QU001' USING MESSAGE = 'a usage row does not meet the conditions of the charge';
    END IF; 
    IF p_locks = 0 THEN
        RETURN 1;
    ELSIF p_locks = 1 THEN
        SELECT ARRAY[used - p_used, reserved - p_reserved, subtree - p_subtree] INTO after
            FROM @schema@.quota_usages WHERE id = p_id;
        IF after = before THEN
            RETURN 1;
        END IF;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN 2;
END
$function$
;

-- function cyborg_quota_claim_v2

CREATE FUNCTION @schema@.cyborg_quota_claim_v2(
    p_project text, p_ttl bigint, p_rows text[], p_claims bigint[], p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ 
DECLARE
    charge bigint[];
    charged integer := 0;
    before bigint[];
    after bigint[];
    contended boolean := p_locks = 2;
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
        RETURN 0;
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
            RETURN 0;
        END IF;
        claimed := claimed + 1;
    END LOOP;
    
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        IF p_locks = 1 THEN
            SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = charge[1];
        END IF;
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0
            RETURNING ARRAY[used - charge[4], reserved - charge[3], subtree - charge[5]] INTO after;
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
            RETURN 0;
        END IF;
        charged := charged + 1;
        contended := contended OR (p_locks = 1 AND after IS DISTINCT FROM before);
    END LOOP;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, place, source, provider_id
    ) SELECT
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8], p_rows[i][9]::integer
    FROM generate_subscripts(p_rows, 1) AS i; 
    IF contended THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN 2;
    END IF;
    RETURN 1;
END
$function$
;

-- function cyborg_quota_give_back_v1

CREATE FUNCTION @schema@.cyborg_quota_give_back_v1(
    p_uuids text[], p_grace bigint, p_freed bigint[], p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ 
DECLARE
    charge bigint[];
    charged integer := 0;
    before bigint[];
    after bigint[];
    contended boolean := p_locks = 2;
    settled integer;
    freed bigint[];
BEGIN
    UPDATE @schema@.reservations
        SET state = 'rolled_back', updated_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted_at = (statement_timestamp() AT TIME ZONE 'UTC'), deleted = true,
            live = NULL, place = NULL, ended_after = (SELECT max(id) FROM @schema@.reservations)
        WHERE uuid = ANY (p_uuids) AND CASE WHEN state = 'reserved' AND generation IS NULL
                AND (expire IS NULL OR expire > (statement_timestamp() AT TIME ZONE 'UTC') - p_grace * interval '1 microsecond') THEN 1 ELSE 0 END = 1;
    GET DIAGNOSTICS settled = ROW_COUNT;
    IF settled = 0 THEN
        RETURN 0;
    ELSIF settled < cardinality(p_uuids) THEN
        RAISE SQLSTATE 'QU001' USING MESSAGE = 'a reservation is not in flight';
    END IF;
    FOREACH freed SLICE 1 IN ARRAY p_freed LOOP
        UPDATE @schema@.inventories SET used = used - freed[2], free = free + freed[2], updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = freed[1] AND used >= freed[2];
        IF NOT FOUND THEN
            RAISE SQLSTATE 'QU001' USING MESSAGE = 'an inventory uses less than a claim';
        END IF;
    END LOOP; 
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        IF p_locks = 1 THEN
            SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = charge[1];
        END IF;
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0
            RETURNING ARRAY[used - charge[4], reserved - charge[3], subtree - charge[5]] INTO after;
        IF NOT FOUND THEN
            RAISE SQLSTATE 'QU001' USING MESSAGE = 'a usage row does not meet the conditions of the charge';
        END IF;
        charged := charged + 1;
        contended := contended OR (p_locks = 1 AND after IS DISTINCT FROM before);
    END LOOP; 
    IF contended THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN 2;
    END IF;
    RETURN 1;
END
$function$
;

-- function cyborg_quota_claim_one_v1

CREATE FUNCTION @schema@.cyborg_quota_claim_one_v1(
    p_project text, p_ttl bigint,
    p_uuid text, p_resource text, p_delta integer, p_consumer text, p_group text, p_place integer, p_source text,
    p_provider integer, p_inventory integer,
    p_id integer, p_generation integer, p_reserved bigint, p_used bigint, p_subtree bigint,
    p_max_held bigint, p_max_subtree bigint, p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ 
DECLARE
    before bigint[];
    after bigint[];
BEGIN
    IF p_locks = 1 THEN
        SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = p_id;
    END IF;
    UPDATE @schema@.inventories SET used = used + p_delta, free = free - p_delta, updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
        WHERE id = p_inventory AND free >= p_delta AND (
            min_unit = p_delta OR (min_unit < p_delta AND max_unit >= p_delta AND mod(p_delta, step_size) = 0)
        );
    IF NOT FOUND THEN
        RETURN 0;
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
        RETURN 0;
    END IF;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, place, source, provider_id
    ) VALUES (
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_uuid, p_id, p_resource, p_delta, p_consumer, p_group, p_place, p_source, p_provider
    ); 
    IF p_locks = 0 THEN
        RETURN 1;
    ELSIF p_locks = 1 THEN
        SELECT ARRAY[used - p_used, reserved - p_reserved, subtree - p_subtree] INTO after
            FROM @schema@.quota_usages WHERE id = p_id;
        IF after = before THEN
            RETURN 1;
        END IF;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN 2;
END
$function$
;

-- function cyborg_quota_claim_in_pod_v2

CREATE FUNCTION @schema@.cyborg_quota_claim_in_pod_v2(
    p_project text, p_ttl bigint, p_rows text[], p_claims bigint[], p_charges bigint[], p_locks integer
) RETURNS integer LANGUAGE plpgsql AS $function$ 
DECLARE
    charge bigint[];
    charged integer := 0;
    before bigint[];
    after bigint[];
    contended boolean := p_locks = 2;
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
        RETURN 0;
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
            RETURN 0;
        END IF;
        claimed := claimed + 1;
    END LOOP;
    
    FOREACH charge SLICE 1 IN ARRAY p_charges LOOP
        IF p_locks = 1 THEN
            SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = charge[1];
        END IF;
        UPDATE @schema@.quota_usages
            SET reserved = reserved + charge[3], used = used + charge[4], subtree = subtree + charge[5],
                updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = charge[1] AND generation = charge[2]
                AND used + reserved <= charge[6] AND subtree <= charge[7]
                AND reserved + charge[3] >= 0 AND used + charge[4] >= 0 AND subtree + charge[5] >= 0
            RETURNING ARRAY[used - charge[4], reserved - charge[3], subtree - charge[5]] INTO after;
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
            RETURN 0;
        END IF;
        charged := charged + 1;
        contended := contended OR (p_locks = 1 AND after IS DISTINCT FROM before);
    END LOOP;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, place, source, provider_id, pod
    ) SELECT
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_rows[i][1], p_rows[i][2]::integer, p_rows[i][3], p_rows[i][4]::integer, p_rows[i][5], p_rows[i][6],
        p_rows[i][7]::smallint, p_rows[i][8], p_rows[i][9]::integer, p_rows[i][10]
    FROM generate_subscripts(p_rows, 1) AS i; 
    IF contended THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN 2;
    END IF;
    RETURN 1;
END
$function$
;

-- function cyborg_quota_claim_anywhere_v1

CREATE FUNCTION @schema@.cyborg_quota_claim_anywhere_v1(
    p_project text, p_ttl bigint,
    p_uuid text, p_resource text, p_delta integer, p_consumer text, p_group text, p_place integer, p_source text,
    p_most_free boolean,
    p_id integer, p_generation integer, p_reserved bigint, p_used bigint, p_subtree bigint,
    p_max_held bigint, p_max_subtree bigint, p_locks integer
) RETURNS integer[] LANGUAGE plpgsql AS $function$ 
DECLARE
    before bigint[];
    after bigint[];
    chosen record;
    equal record;
    first_id integer;
BEGIN
    IF p_locks = 1 THEN
        SELECT ARRAY[used, reserved, subtree]::bigint[] INTO before FROM @schema@.quota_usages WHERE id = p_id;
    END IF;
    IF p_most_free THEN
        SELECT provider_id, id, free INTO chosen FROM @schema@.inventories
            WHERE resource = p_resource AND free >= p_delta AND (
                min_unit = p_delta OR (min_unit < p_delta AND max_unit >= p_delta AND mod(p_delta, step_size) < 1)
            ) AND (SELECT can_host FROM @schema@.resource_providers WHERE id = provider_id) <> 0
            ORDER BY free DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    ELSE
        SELECT provider_id, id, free INTO chosen FROM @schema@.inventories
            WHERE resource = p_resource AND free >= p_delta AND (
                min_unit = p_delta OR (min_unit < p_delta AND max_unit >= p_delta AND mod(p_delta, step_size) < 1)
            ) AND (SELECT can_host FROM @schema@.resource_providers WHERE id = provider_id) <> 0
            ORDER BY free LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        RETURN ARRAY[0];
    END IF;
    first_id := floor(1 + random() * (SELECT max(provider_id) FROM @schema@.inventories));
    SELECT provider_id, id, free INTO equal FROM @schema@.inventories
            WHERE resource = p_resource AND free >= p_delta AND (
                min_unit = p_delta OR (min_unit < p_delta AND max_unit >= p_delta AND mod(p_delta, step_size) < 1)
            ) AND (SELECT can_host FROM @schema@.resource_providers WHERE id = provider_id) <> 0
            AND free = chosen.free AND provider_id >= first_id
            ORDER BY provider_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        chosen := equal;
    END IF;
    IF (SELECT pod FROM @schema@.resource_providers WHERE id = chosen.provider_id) IS NOT NULL THEN
        RETURN ARRAY[0];
    END IF;
    UPDATE @schema@.inventories SET used = used + p_delta, free = free - p_delta, updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
        WHERE id = chosen.id;
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
        UPDATE @schema@.inventories SET used = used - p_delta, free = free + p_delta WHERE id = chosen.id;
        PERFORM set_config('synchronous_commit', 'off', true);
        RETURN ARRAY[0];
    END IF;
    INSERT INTO @schema@.reservations (
        created_at, deleted, project_id, expire, state, live,
        uuid, usage_id, resource, delta, consumer_id, group_id, place, source, provider_id
    ) VALUES (
        (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project, (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1,
        p_uuid, p_id, p_resource, p_delta, p_consumer, p_group, p_place, p_source, chosen.provider_id
    ); 
    IF p_locks = 0 THEN
        RETURN ARRAY[1, chosen.provider_id, chosen.id];
    ELSIF p_locks = 1 THEN
        SELECT ARRAY[used - p_used, reserved - p_reserved, subtree - p_subtree] INTO after
            FROM @schema@.quota_usages WHERE id = p_id;
        IF after = before THEN
            RETURN ARRAY[1, chosen.provider_id, chosen.id];
        END IF;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN ARRAY[2, chosen.provider_id, chosen.id];
END
$function$
;

-- single statement: reserve one row
SELECT WHERE cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,2,0,2,8,50, 0) > 0 -- COMMIT
;

-- single statement: reserve one row without a consumer
SELECT WHERE cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,2,0,2,8,50, 0) > 0 -- COMMIT
;

-- single statement: reserve one row with a source
SELECT WHERE cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,2,0,2,8,50, 0) > 0 -- COMMIT
;

-- single statement: reserve two rows
SELECT WHERE cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50}}', 0) > 0 -- COMMIT
;

-- single statement: reserve in a tree
SELECT WHERE cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50},{2,102,0,0,2,4611686018427387904,60},{3,103,0,0,2,4611686018427387904,60}}', 0) > 0 -- COMMIT
;

-- single statement: reserve without bounds
SELECT WHERE cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,1,0,1,2147483646,4611686018427387904, 0) > 0 -- COMMIT
;

-- single statement: reserve a negative amount
SELECT WHERE cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,0,0,0,4611686018427387904,4611686018427387904, 0) > 0 -- COMMIT
;

-- single statement: reserve too many rows
SELECT WHERE cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50}}', 0) > 0 -- COMMIT
;

-- single statement: commit
SELECT WHERE cyborg_quota_settle_one_v2(%s, 'committed', 0, 1,101,-2,2,0,4611686018427387904,4611686018427387904, 0) > 0 -- COMMIT
;

-- single statement: commit two
SELECT WHERE cyborg_quota_settle_v2(%s, 'committed', 0, '{{1,101,-2,2,0,4611686018427387904,4611686018427387904}}', 0) > 0 -- COMMIT
;

-- single statement: commit two resources
SELECT WHERE cyborg_quota_settle_v2(%s, 'committed', 0, '{{1,101,-2,2,0,4611686018427387904,4611686018427387904},{2,102,-2,2,0,4611686018427387904,4611686018427387904}}', 0) > 0 -- COMMIT
;

-- single statement: roll back
SELECT WHERE cyborg_quota_settle_one_v2(%s, 'rolled_back', 0, 1,101,-2,0,-2,2147483646,4611686018427387904, 0) > 0 -- COMMIT
;

-- single statement: roll back in a tree
SELECT WHERE cyborg_quota_settle_v2(%s, 'rolled_back', 0, '{{1,101,-2,0,-2,2147483646,4611686018427387904},{2,102,0,0,-2,4611686018427387904,4611686018427387904},{3,103,0,0,-2,4611686018427387904,4611686018427387904}}', 0) > 0 -- COMMIT
;

-- single statement: claim capacity
SELECT WHERE cyborg_quota_claim_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 5, 7, 1,101,2,0,2,8,50, 0) > 0 -- COMMIT
;

-- single statement: claim capacity anywhere
SELECT cyborg_quota_claim_anywhere_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, False, 1,101,2,0,2,8,50, 0) -- COMMIT
;

-- single statement: claim capacity where most is free
SELECT cyborg_quota_claim_anywhere_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, True, 1,101,2,0,2,8,50, 0) -- COMMIT
;

-- single statement: claim capacity in a tree
SELECT WHERE cyborg_quota_claim_v2(%s, 5, %s, '{{7,2,4}}', '{{1,101,2,0,2,8,50},{2,102,0,0,2,4611686018427387904,60},{3,103,0,0,2,4611686018427387904,60}}', 0) > 0 -- COMMIT
;

-- single statement: give capacity back
SELECT WHERE cyborg_quota_give_back_v1(%s, 0, '{{7,4}}', '{{1,101,-2,0,-2,2147483646,4611686018427387904}}', 0) > 0 -- COMMIT
;

-- single statement, checking for contention: reserve one row
SELECT FROM generate_series(1, cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,2,0,2,8,50, 1)) -- COMMIT
;

-- single statement, checking for contention: reserve one row without a consumer
SELECT FROM generate_series(1, cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,2,0,2,8,50, 1)) -- COMMIT
;

-- single statement, checking for contention: reserve one row with a source
SELECT FROM generate_series(1, cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,2,0,2,8,50, 1)) -- COMMIT
;

-- single statement, checking for contention: reserve two rows
SELECT FROM generate_series(1, cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50}}', 1)) -- COMMIT
;

-- single statement, checking for contention: reserve in a tree
SELECT FROM generate_series(1, cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50},{2,102,0,0,2,4611686018427387904,60},{3,103,0,0,2,4611686018427387904,60}}', 1)) -- COMMIT
;

-- single statement, checking for contention: reserve without bounds
SELECT FROM generate_series(1, cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,1,0,1,2147483646,4611686018427387904, 1)) -- COMMIT
;

-- single statement, checking for contention: reserve a negative amount
SELECT FROM generate_series(1, cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,0,0,0,4611686018427387904,4611686018427387904, 1)) -- COMMIT
;

-- single statement, checking for contention: reserve too many rows
SELECT FROM generate_series(1, cyborg_quota_reserve_v1(%s, 5, %s, '{{1,101,2,0,2,8,50}}', 1)) -- COMMIT
;

-- single statement, checking for contention: commit
SELECT FROM generate_series(1, cyborg_quota_settle_one_v2(%s, 'committed', 0, 1,101,-2,2,0,4611686018427387904,4611686018427387904, 1)) -- COMMIT
;

-- single statement, checking for contention: commit two
SELECT FROM generate_series(1, cyborg_quota_settle_v2(%s, 'committed', 0, '{{1,101,-2,2,0,4611686018427387904,4611686018427387904}}', 1)) -- COMMIT
;

-- single statement, checking for contention: commit two resources
SELECT FROM generate_series(1, cyborg_quota_settle_v2(%s, 'committed', 0, '{{1,101,-2,2,0,4611686018427387904,4611686018427387904},{2,102,-2,2,0,4611686018427387904,4611686018427387904}}', 1)) -- COMMIT
;

-- single statement, checking for contention: roll back
SELECT FROM generate_series(1, cyborg_quota_settle_one_v2(%s, 'rolled_back', 0, 1,101,-2,0,-2,2147483646,4611686018427387904, 1)) -- COMMIT
;

-- single statement, checking for contention: roll back in a tree
SELECT FROM generate_series(1, cyborg_quota_settle_v2(%s, 'rolled_back', 0, '{{1,101,-2,0,-2,2147483646,4611686018427387904},{2,102,0,0,-2,4611686018427387904,4611686018427387904},{3,103,0,0,-2,4611686018427387904,4611686018427387904}}', 1)) -- COMMIT
;

-- single statement, checking for contention: claim capacity
SELECT FROM generate_series(1, cyborg_quota_claim_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 5, 7, 1,101,2,0,2,8,50, 1)) -- COMMIT
;

-- single statement, checking for contention: claim capacity anywhere
SELECT cyborg_quota_claim_anywhere_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, False, 1,101,2,0,2,8,50, 1) -- COMMIT
;

-- single statement, checking for contention: claim capacity where most is free
SELECT cyborg_quota_claim_anywhere_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, True, 1,101,2,0,2,8,50, 1) -- COMMIT
;

-- single statement, checking for contention: claim capacity in a tree
SELECT FROM generate_series(1, cyborg_quota_claim_v2(%s, 5, %s, '{{7,2,4}}', '{{1,101,2,0,2,8,50},{2,102,0,0,2,4611686018427387904,60},{3,103,0,0,2,4611686018427387904,60}}', 1)) -- COMMIT
;

-- single statement, checking for contention: give capacity back
SELECT FROM generate_series(1, cyborg_quota_give_back_v1(%s, 0, '{{7,4}}', '{{1,101,-2,0,-2,2147483646,4611686018427387904}}', 1)) -- COMMIT
;

-- single statement, contended: reserve one row
SELECT WHERE cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,2,0,2,8,50, 2) > 0 -- COMMIT
;
SELECT FROM pg_logical_emit_message(true, 'cyborg_quota', '')
;

-- single statement through a pooler: reserve one row
SET LOCAL statement_timeout = 8000; SELECT WHERE cyborg_quota_reserve_one_v1(%s, 5, %s, %s, 1, %s, %s, 1, %s, 1,101,2,0,2,8,50, 0) > 0 -- COMMIT
;

-- charge
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;

-- charge all of one
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;

-- charge all of three
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;

-- charge in bulk: 1

-- charge in bulk: 3

-- charge in bulk: 10
WITH d AS MATERIALIZED 
(SELECT anon_1.id AS id, anon_1.generation AS generation, anon_1.reserved AS reserved, anon_1.used AS used, anon_1.subtree AS subtree, anon_1.ordinal AS ordinal 
FROM unnest(CAST(%(b_id)s AS INTEGER[]), CAST(%(b_generation)s AS INTEGER[]), CAST(%(b_reserved)s AS BIGINT[]), CAST(%(b_used)s AS BIGINT[]), CAST(%(b_subtree)s AS BIGINT[])) WITH ORDINALITY AS anon_1(id, generation, reserved, used, subtree, ordinal), quota_usages 
WHERE quota_usages.id = anon_1.id AND quota_usages.id = ANY (CAST(%(b_id)s AS INTEGER[])) ORDER BY anon_1.ordinal FOR NO KEY UPDATE OF quota_usages)
 UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + d.reserved), used=(quota_usages.used + d.used), subtree=(quota_usages.subtree + d.subtree) FROM d WHERE quota_usages.id = d.id AND quota_usages.id = ANY (CAST(%(b_id)s AS INTEGER[])) AND quota_usages.generation = d.generation AND quota_usages.reserved + d.reserved >= 0 AND quota_usages.used + d.used >= 0 AND quota_usages.subtree + d.subtree >= 0 AND (d.reserved + d.used >= 0 OR quota_usages.used + quota_usages.reserved < 2147483647)
;

-- lock a usage row
UPDATE quota_usages SET used=quota_usages.used WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s
;

-- read counters
SELECT quota_usages.project_id, quota_usages.resource, quota_usages.used, quota_usages.reserved, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.project_id IN (__[POSTCOMPILE_project_id_1]) AND quota_usages.resource IN (__[POSTCOMPILE_resource_1])
;

-- insert 1
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_0)s, %(b_group_id_0)s, 1, %(b_claim_ordinal_0)s) RETURNING reservations.id
;

-- insert 5
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_0)s, %(b_group_id_0)s, 1, %(b_claim_ordinal_0)s), ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_1)s, %(b_usage_id_1)s, %(b_project)s, %(b_resource_1)s, %(b_delta_1)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_1)s, %(b_group_id_1)s, 1, %(b_claim_ordinal_1)s), ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_2)s, %(b_usage_id_2)s, %(b_project)s, %(b_resource_2)s, %(b_delta_2)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_2)s, %(b_group_id_2)s, 1, %(b_claim_ordinal_2)s), ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_3)s, %(b_usage_id_3)s, %(b_project)s, %(b_resource_3)s, %(b_delta_3)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_3)s, %(b_group_id_3)s, 1, %(b_claim_ordinal_3)s)
;
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_0)s, %(b_group_id_0)s, 1, %(b_claim_ordinal_0)s) RETURNING reservations.id
;

-- insert 2 with a source
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place, source) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_0)s, %(b_group_id_0)s, 1, %(b_claim_ordinal_0)s, %(b_source_0)s), ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_1)s, %(b_usage_id_1)s, %(b_project)s, %(b_resource_1)s, %(b_delta_1)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), %(b_state)s, %(b_consumer_id_1)s, %(b_group_id_1)s, 1, %(b_claim_ordinal_1)s, %(b_source_1)s)
;

-- insert 2 committed
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, NULL, %(b_state)s, %(b_consumer_id_0)s, %(b_group_id_0)s, 1, %(b_claim_ordinal_0)s), ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_1)s, %(b_usage_id_1)s, %(b_project)s, %(b_resource_1)s, %(b_delta_1)s, NULL, %(b_state)s, %(b_consumer_id_1)s, %(b_group_id_1)s, 1, %(b_claim_ordinal_1)s)
;

-- by uuids
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod 
FROM reservations 
WHERE reservations.uuid IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s)
;

-- by consumer
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after, reservations.created_at, reservations.deleted_at 
FROM reservations 
WHERE reservations.project_id = %(b_project)s AND reservations.consumer_id = %(b_name)s
;

-- by group
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after, reservations.created_at, reservations.deleted_at 
FROM reservations 
WHERE reservations.project_id = %(b_project)s AND reservations.group_id = %(b_name)s
;

-- live of
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod 
FROM reservations 
WHERE reservations.project_id = %(b_project)s AND reservations.consumer_id = %(b_0)s AND reservations.live = 1
;

-- any live
SELECT 1 
FROM reservations 
WHERE reservations.id = ANY (array((SELECT live_rows.id 
FROM unnest(ARRAY[%(b_0)s, %(b_1)s]) AS given(name) JOIN LATERAL (SELECT held.id AS id 
FROM reservations AS held 
WHERE held.project_id = %(b_project)s AND held.consumer_id = given.name AND held.live = 1
 LIMIT ALL OFFSET 0) AS live_rows ON true))) 
 LIMIT 1
;

-- move to committed
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), state=%(b_after)s WHERE reservations.id IN (%(b_0)s, %(b_1)s) AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END = 1
;

-- move to rolled back
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted=true, state=%(b_after)s, live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = %(b_0)s AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1
;

-- move to released
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted=true, state=%(b_after)s, live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = %(b_0)s AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1
;

-- move to expired
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted=true, state=%(b_after)s, live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = %(b_0)s AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END = 1
;

-- commit in flight
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), state='committed' WHERE reservations.uuid = %(b_0)s AND CASE WHEN (reservations.state = 'reserved') THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.generation IS NULL) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END = 1
;

-- roll back in flight
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted=true, state='rolled_back', live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.uuid IN (%(b_0)s, %(b_1)s) AND CASE WHEN (reservations.state = 'reserved') THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.generation IS NULL) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END = 1
;

-- extend
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), expire=(statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond') WHERE reservations.id = %(b_0)s AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END = 1
;

-- amend
UPDATE reservations SET usage_id=%(b_usage_id)s, project_id=%(b_project)s, delta=%(b_delta)s, place=coalesce(%(b_ordinal)s, reservations.place), generation=(coalesce(reservations.generation, 0) + 1) WHERE reservations.id = %(b_id)s AND reservations.state = %(b_before)s AND %(b_generation)s = coalesce(reservations.generation, 0) AND reservations.delta = %(b_delta_before)s AND (reservations.state = 'committed' OR reservations.expire IS NULL OR reservations.expire > (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond'))
;

-- name
UPDATE reservations SET consumer_id=%(b_consumer)s, place=%(b_ordinal)s WHERE reservations.id = %(b_id)s AND reservations.consumer_id IS NULL AND reservations.live = 1 AND %(b_generation)s = coalesce(reservations.generation, 0)
;

-- link
UPDATE reservations SET usage_id=%(b_usage_id)s WHERE reservations.project_id = %(b_project)s AND reservations.resource = %(b_resource)s AND reservations.live = %(live_1)s
;

-- overdue
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta, reservations.provider_id, coalesce(reservations.generation, 0) AS generation, reservations.pod 
FROM reservations 
WHERE reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond') ORDER BY reservations.expire 
 LIMIT %(b_limit)s
;

-- overdue from the first
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta, reservations.provider_id, coalesce(reservations.generation, 0) AS generation, reservations.pod 
FROM reservations 
WHERE reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond') ORDER BY reservations.expire, reservations.id 
 LIMIT %(b_limit)s
;
SELECT reservations.expire 
FROM reservations 
WHERE reservations.id = %(b_id)s AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')
;

-- overdue from a position
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta, reservations.provider_id, coalesce(reservations.generation, 0) AS generation, reservations.pod 
FROM reservations 
WHERE reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond') AND reservations.expire >= %(b_expire)s AND (reservations.expire > %(b_expire)s OR reservations.id > %(b_id)s) ORDER BY reservations.expire, reservations.id 
 LIMIT %(b_limit)s
;
SELECT reservations.expire 
FROM reservations 
WHERE reservations.id = %(b_id)s AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')
;

-- overdue of
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta, reservations.provider_id, coalesce(reservations.generation, 0) AS generation, reservations.pod 
FROM reservations 
WHERE reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond') AND reservations.id IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s)
;

-- expire
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted=true, state='expired', live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s, %(b_4)s, %(b_5)s, %(b_6)s, %(b_7)s) AND reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond') AND %(b_generation)s = coalesce(reservations.generation, 0)
;

-- read paths
WITH RECURSIVE path(project_id, parent_id) AS 
(SELECT projects.project_id AS project_id, CAST(projects.parent_id AS VARCHAR(255)) AS parent_id 
FROM projects 
WHERE projects.project_id IN (__[POSTCOMPILE_b_projects]) UNION SELECT path.parent_id AS parent_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = path.parent_id) AS anon_1 
FROM path 
WHERE path.parent_id IS NOT NULL)
 SELECT path.project_id, CAST(NULL AS INTEGER) AS id, path.parent_id AS resource, CAST(NULL AS INTEGER) AS generation, (SELECT projects.origin 
FROM projects 
WHERE projects.project_id = path.project_id) AS origin, CAST(NULL AS INTEGER) AS in_total 
FROM path UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_2, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ANY (array((SELECT path.project_id 
FROM path))) UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_2, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ' total'
;

-- sums
SELECT coalesce(sum(CASE WHEN (reservations.state = %(state_1)s AND reservations.delta > %(delta_1)s) THEN reservations.delta ELSE %(param_1)s END), %(coalesce_1)s) AS reserved, coalesce(sum(CASE WHEN (reservations.state = %(state_2)s) THEN reservations.delta ELSE %(param_2)s END), %(coalesce_2)s) AS used 
FROM reservations 
WHERE reservations.state IN (__[POSTCOMPILE_state_3]) AND reservations.usage_id = %(b_id)s
;

-- children's total
SELECT coalesce(sum(child.subtree), %(coalesce_2)s) AS coalesce_1 
FROM projects JOIN quota_usages AS child ON child.project_id = projects.project_id 
WHERE projects.parent_id = %(b_project)s AND child.resource = %(b_resource)s
;

-- figures
SELECT quota_usages.used, quota_usages.reserved, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.id = %(b_id)s
;

-- end adjustments
SELECT reservations.id 
FROM reservations LEFT OUTER JOIN reservations AS adjusted ON adjusted.id = reservations.adjusts 
WHERE reservations.usage_id = %(b_id)s AND reservations.state = %(state_1)s AND reservations.adjusts IS NOT NULL AND (reservations.adjusts = %(adjusts_1)s OR reservations.adjusts != %(adjusts_2)s AND (adjusted.id IS NULL OR adjusted.state = %(state_2)s))
;

-- freed
SELECT coalesce(reservations.adjusts, reservations.id) AS coalesce_1, -sum(reservations.delta) AS anon_1 
FROM reservations 
WHERE reservations.usage_id = %(b_id)s AND reservations.state = %(state_1)s AND (reservations.delta < %(delta_1)s OR reservations.adjusts IS NOT NULL) GROUP BY coalesce(reservations.adjusts, reservations.id) 
HAVING sum(reservations.delta) < %(sum_1)s
;

-- excess
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, state, live, adjusts) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(uuid)s, %(usage_id)s, %(project_id)s, %(resource)s, %(delta)s, %(state)s, %(live)s, %(adjusts)s)
;

-- set figures
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=%(b_reserved)s, used=%(b_used)s, subtree=%(b_subtree)s WHERE quota_usages.id = %(b_id)s
;

-- purge
SELECT reservations.id 
FROM reservations 
WHERE reservations.deleted_at <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_age)s * INTERVAL '1 microsecond') ORDER BY reservations.deleted_at 
 LIMIT %(b_limit)s
;

-- foldable usage rows
SELECT reservations.usage_id 
FROM reservations 
WHERE reservations.usage_id > %(b_after)s AND reservations.state = %(state_1)s AND reservations.consumer_id IS NULL AND reservations.group_id IS NULL AND reservations.adjusts IS NULL AND coalesce(reservations.updated_at, reservations.created_at) <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_age)s * INTERVAL '1 microsecond') GROUP BY reservations.usage_id 
HAVING count(*) > %(count_1)s OR min(reservations.delta) < %(min_1)s ORDER BY reservations.usage_id 
 LIMIT %(b_limit)s
;

-- foldable
SELECT reservations.usage_id, reservations.provider_id, reservations.pod 
FROM reservations 
WHERE reservations.usage_id = %(b_usage_id)s AND reservations.state = %(state_1)s AND reservations.consumer_id IS NULL AND reservations.group_id IS NULL AND reservations.adjusts IS NULL AND coalesce(reservations.updated_at, reservations.created_at) <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_age)s * INTERVAL '1 microsecond') GROUP BY reservations.usage_id, reservations.provider_id, reservations.pod 
HAVING count(*) > %(count_1)s OR min(reservations.delta) < %(min_1)s
;

-- fold
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta 
FROM reservations 
WHERE reservations.usage_id = %(b_usage_id)s AND reservations.provider_id IS NOT DISTINCT FROM %(b_provider_id)s AND reservations.pod IS NOT DISTINCT FROM %(b_pod)s AND reservations.id > %(b_after)s AND reservations.state = %(state_1)s AND reservations.consumer_id IS NULL AND reservations.group_id IS NULL AND reservations.adjusts IS NULL AND coalesce(reservations.updated_at, reservations.created_at) <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_age)s * INTERVAL '1 microsecond') ORDER BY reservations.id 
 LIMIT %(b_limit)s
;
SELECT reservations.id, reservations.delta 
FROM reservations 
WHERE reservations.usage_id = %(b_usage_id)s AND reservations.state = 'committed' AND reservations.adjusts = %(b_0)s
;
DELETE FROM reservations WHERE reservations.id IN (%(b_0)s, %(b_1)s) AND reservations.state = 'committed' AND reservations.consumer_id IS NULL
;
UPDATE quota_usages SET used=quota_usages.used WHERE quota_usages.id = %(b_usage_id)s
;
SELECT reservations.id, reservations.delta 
FROM reservations 
WHERE reservations.usage_id = %(b_usage_id)s AND reservations.state = 'committed' AND reservations.adjusts = %(b_0)s
;
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, state, live, adjusts, provider_id, pod) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(uuid)s, %(usage_id)s, %(project_id)s, %(resource)s, %(delta)s, %(state)s, %(live)s, %(adjusts)s, %(provider_id)s, %(pod)s)
;

-- audit
SELECT quota_usages.project_id, quota_usages.resource, quota_usages.reserved, quota_usages.used, quota_usages.subtree, coalesce(sums.reserved, %(coalesce_1)s) AS true_reserved, CASE WHEN (adjustments.excess < %(excess_1)s AND (coalesce(sums.used, %(coalesce_2)s) - coalesce(adjustments.outlived + adjustments.excess, %(coalesce_3)s)) + coalesce(sums.reserved, %(coalesce_1)s) > %(param_1)s) THEN %(coalesce_4)s - coalesce(sums.reserved, %(coalesce_1)s) ELSE coalesce(sums.used, %(coalesce_2)s) - coalesce(adjustments.outlived + adjustments.excess, %(coalesce_3)s) END AS true_used, CASE WHEN (adjustments.excess < %(excess_1)s AND (coalesce(sums.used, %(coalesce_2)s) - coalesce(adjustments.outlived + adjustments.excess, %(coalesce_3)s)) + coalesce(sums.reserved, %(coalesce_1)s) > %(param_1)s) THEN %(coalesce_4)s - coalesce(sums.reserved, %(coalesce_1)s) ELSE coalesce(sums.used, %(coalesce_2)s) - coalesce(adjustments.outlived + adjustments.excess, %(coalesce_3)s) END + coalesce(sums.reserved, %(coalesce_1)s) + coalesce(children.subtree, %(coalesce_5)s) AS true_subtree 
FROM quota_usages LEFT OUTER JOIN (SELECT reservations.usage_id AS usage_id, sum(CASE WHEN (reservations.state = %(state_1)s AND reservations.delta > %(delta_1)s) THEN reservations.delta ELSE %(param_2)s END) AS reserved, sum(CASE WHEN (reservations.state = %(state_2)s) THEN reservations.delta ELSE %(param_3)s END) AS used 
FROM reservations 
WHERE reservations.live = %(live_1)s GROUP BY reservations.usage_id UNION ALL SELECT quota_usages.id AS id, sum(CASE WHEN (reservations.state = %(state_1)s AND reservations.delta > %(delta_1)s) THEN reservations.delta ELSE %(param_2)s END) AS sum_1, sum(CASE WHEN (reservations.state = %(state_2)s) THEN reservations.delta ELSE %(param_3)s END) AS sum_2 
FROM reservations LEFT OUTER JOIN resource_providers ON resource_providers.id = reservations.provider_id JOIN quota_usages ON quota_usages.project_id = reservations.project_id AND quota_usages.resource = (%(param_4)s || coalesce(reservations.pod, resource_providers.pod) || %(param_5)s || reservations.resource) 
WHERE reservations.live = %(live_2)s AND coalesce(reservations.pod, resource_providers.pod) IS NOT NULL GROUP BY quota_usages.id) AS sums ON sums.usage_id = quota_usages.id LEFT OUTER JOIN (SELECT reservations.usage_id AS usage_id, sum(CASE WHEN (reservations.adjusts != %(adjusts_1)s AND (adjusted.id IS NULL OR adjusted.state = %(state_3)s)) THEN reservations.delta ELSE %(param_6)s END) AS outlived, sum(CASE WHEN (reservations.adjusts = %(adjusts_2)s) THEN reservations.delta ELSE %(param_7)s END) AS excess 
FROM reservations LEFT OUTER JOIN reservations AS adjusted ON adjusted.id = reservations.adjusts 
WHERE reservations.state = %(state_4)s AND reservations.adjusts IS NOT NULL GROUP BY reservations.usage_id) AS adjustments ON adjustments.usage_id = quota_usages.id LEFT OUTER JOIN (SELECT projects.parent_id AS parent_id, child.resource AS resource, sum(child.subtree) AS subtree 
FROM projects JOIN quota_usages AS child ON child.project_id = projects.project_id 
WHERE projects.parent_id IS NOT NULL GROUP BY projects.parent_id, child.resource UNION ALL SELECT %(param_8)s AS anon_1, child.resource AS resource, sum(child.subtree) AS sum_3 
FROM quota_usages AS child 
WHERE child.in_total IS NOT NULL AND child.project_id != %(project_id_1)s GROUP BY child.resource) AS children ON children.parent_id = quota_usages.project_id AND children.resource = quota_usages.resource 
WHERE quota_usages.reserved != coalesce(sums.reserved, %(coalesce_1)s) OR quota_usages.used != CASE WHEN (adjustments.excess < %(excess_1)s AND (coalesce(sums.used, %(coalesce_2)s) - coalesce(adjustments.outlived + adjustments.excess, %(coalesce_3)s)) + coalesce(sums.reserved, %(coalesce_1)s) > %(param_1)s) THEN %(coalesce_4)s - coalesce(sums.reserved, %(coalesce_1)s) ELSE coalesce(sums.used, %(coalesce_2)s) - coalesce(adjustments.outlived + adjustments.excess, %(coalesce_3)s) END OR quota_usages.subtree != CASE WHEN (adjustments.excess < %(excess_1)s AND (coalesce(sums.used, %(coalesce_2)s) - coalesce(adjustments.outlived + adjustments.excess, %(coalesce_3)s)) + coalesce(sums.reserved, %(coalesce_1)s) > %(param_1)s) THEN %(coalesce_4)s - coalesce(sums.reserved, %(coalesce_1)s) ELSE coalesce(sums.used, %(coalesce_2)s) - coalesce(adjustments.outlived + adjustments.excess, %(coalesce_3)s) END + coalesce(sums.reserved, %(coalesce_1)s) + coalesce(children.subtree, %(coalesce_5)s) UNION ALL SELECT reservations.project_id, reservations.resource, NULL AS anon_2, NULL AS anon__1, NULL AS anon__2, sum(CASE WHEN (reservations.state = %(state_1)s AND reservations.delta > %(delta_1)s) THEN reservations.delta ELSE %(param_2)s END) AS sum_1, sum(CASE WHEN (reservations.state = %(state_2)s) THEN reservations.delta ELSE %(param_3)s END) AS sum_2, sum(CASE WHEN (reservations.state = %(state_1)s AND reservations.delta > %(delta_1)s) THEN reservations.delta ELSE %(param_2)s END) + sum(CASE WHEN (reservations.state = %(state_2)s) THEN reservations.delta ELSE %(param_3)s END) AS anon_3 
FROM reservations LEFT OUTER JOIN quota_usages ON quota_usages.id = reservations.usage_id 
WHERE reservations.live = %(live_3)s AND quota_usages.id IS NULL GROUP BY reservations.project_id, reservations.resource UNION ALL SELECT reservations.project_id, %(param_4)s || coalesce(reservations.pod, resource_providers.pod) || %(param_5)s || reservations.resource AS anon_4, NULL AS anon_2, NULL AS anon__1, NULL AS anon__2, sum(CASE WHEN (reservations.state = %(state_1)s AND reservations.delta > %(delta_1)s) THEN reservations.delta ELSE %(param_2)s END) AS sum_1, sum(CASE WHEN (reservations.state = %(state_2)s) THEN reservations.delta ELSE %(param_3)s END) AS sum_2, sum(CASE WHEN (reservations.state = %(state_1)s AND reservations.delta > %(delta_1)s) THEN reservations.delta ELSE %(param_2)s END) + sum(CASE WHEN (reservations.state = %(state_2)s) THEN reservations.delta ELSE %(param_3)s END) AS anon_5 
FROM reservations LEFT OUTER JOIN resource_providers ON resource_providers.id = reservations.provider_id LEFT OUTER JOIN quota_usages ON quota_usages.project_id = reservations.project_id AND quota_usages.resource = (%(param_4)s || coalesce(reservations.pod, resource_providers.pod) || %(param_5)s || reservations.resource) 
WHERE reservations.live = %(live_4)s AND quota_usages.id IS NULL AND coalesce(reservations.pod, resource_providers.pod) IS NOT NULL GROUP BY reservations.project_id, %(param_4)s || coalesce(reservations.pod, resource_providers.pod) || %(param_5)s || reservations.resource UNION ALL SELECT children.parent_id, children.resource, NULL AS anon_2, NULL AS anon__1, NULL AS anon__2, %(param_9)s AS anon_6, %(param_10)s AS anon_7, children.subtree 
FROM (SELECT projects.parent_id AS parent_id, child.resource AS resource, sum(child.subtree) AS subtree 
FROM projects JOIN quota_usages AS child ON child.project_id = projects.project_id 
WHERE projects.parent_id IS NOT NULL GROUP BY projects.parent_id, child.resource UNION ALL SELECT %(param_8)s AS anon_1, child.resource AS resource, sum(child.subtree) AS sum_3 
FROM quota_usages AS child 
WHERE child.in_total IS NOT NULL AND child.project_id != %(project_id_1)s GROUP BY child.resource) AS children LEFT OUTER JOIN quota_usages ON quota_usages.project_id = children.parent_id AND quota_usages.resource = children.resource 
WHERE quota_usages.id IS NULL AND children.subtree != %(subtree_1)s
;

-- read path
WITH RECURSIVE path(project_id, parent_id, distance) AS 
(SELECT CAST(%(b_project)s AS VARCHAR(255)) AS project_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = CAST(%(b_project)s AS VARCHAR(255))) AS parent_id, 0 AS distance UNION ALL SELECT path.parent_id AS parent_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = path.parent_id) AS anon_1, path.distance + 1 AS anon_2 
FROM path 
WHERE path.parent_id IS NOT NULL AND path.distance < 64)
 SELECT path.project_id, CAST(NULL AS INTEGER) AS id, path.parent_id AS resource, CAST(NULL AS INTEGER) AS generation, (SELECT projects.origin 
FROM projects 
WHERE projects.project_id = path.project_id) AS origin, CAST(NULL AS INTEGER) AS in_total 
FROM path UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_3, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ANY (array((SELECT path.project_id 
FROM path))) UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_3, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ' total'
;

-- read path state
WITH RECURSIVE path(project_id, parent_id, distance) AS 
(SELECT CAST(%(b_project)s AS VARCHAR(255)) AS project_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = CAST(%(b_project)s AS VARCHAR(255)) AND (projects.origin IS NULL OR projects.origin = %(b_origin)s)) AS parent_id, 0 AS distance UNION ALL SELECT path.parent_id AS parent_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = path.parent_id AND (projects.origin IS NULL OR projects.origin = %(b_origin)s)) AS anon_1, path.distance + 1 AS anon_2 
FROM path 
WHERE path.parent_id IS NOT NULL AND path.distance < 64)
 SELECT 'path' AS kind, path.project_id AS project_id, CAST(NULL AS VARCHAR(255)) AS resource, CAST(path.distance AS BIGINT) AS value_1, CAST(NULL AS BIGINT) AS value_2, CAST(NULL AS BIGINT) AS value_3 
FROM path UNION ALL SELECT 'usage' AS kind, quota_usages.project_id AS project_id, quota_usages.resource AS resource, CAST(quota_usages.used AS BIGINT) AS value_1, CAST(quota_usages.reserved AS BIGINT) AS value_2, CAST(quota_usages.subtree AS BIGINT) AS value_3 
FROM quota_usages 
WHERE quota_usages.project_id = ANY (array((SELECT path.project_id 
FROM path))) AND quota_usages.resource NOT LIKE %(resource_1)s UNION ALL SELECT 'limit' AS kind, project_limits.project_id AS project_id, project_limits.resource AS resource, CAST(project_limits.most AS BIGINT) AS value_1, CAST(NULL AS BIGINT) AS value_2, CAST(NULL AS BIGINT) AS value_3 
FROM project_limits 
WHERE project_limits.project_id = ANY (array((SELECT path.project_id 
FROM path))) AND project_limits.resource NOT LIKE %(resource_2)s UNION ALL SELECT 'override' AS kind, limit_overrides.project_id AS project_id, limit_overrides.resource AS resource, CAST(limit_overrides.most AS BIGINT) AS value_1, CAST(limit_overrides.generation AS BIGINT) AS value_2, CAST(limit_overrides.ordinal AS BIGINT) AS value_3 
FROM limit_overrides 
WHERE limit_overrides.project_id = ANY (array((SELECT path.project_id 
FROM path))) AND limit_overrides.resource NOT LIKE %(resource_3)s AND limit_overrides.starts_at <= (statement_timestamp() AT TIME ZONE 'UTC') AND limit_overrides.ends_at > (statement_timestamp() AT TIME ZONE 'UTC') UNION ALL SELECT 'default' AS kind, CAST(NULL AS VARCHAR(255)) AS project_id, limit_defaults.resource AS resource, CAST(limit_defaults.most AS BIGINT) AS value_1, CAST(NULL AS BIGINT) AS value_2, CAST(NULL AS BIGINT) AS value_3 
FROM limit_defaults UNION ALL SELECT 'total' AS kind, quota_usages.project_id AS project_id, quota_usages.resource AS resource, CAST(limit_totals.most AS BIGINT) AS value_1, CAST(quota_usages.subtree AS BIGINT) AS value_2, CAST(NULL AS BIGINT) AS value_3 
FROM limit_totals JOIN quota_usages ON quota_usages.resource = limit_totals.resource 
WHERE quota_usages.project_id = ' total' AND limit_totals.is_enforced = 1
;

-- add project
INSERT INTO projects (created_at, project_id, generation) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project)s, %(generation)s) ON CONFLICT DO NOTHING
;

-- add usage row
INSERT INTO quota_usages (created_at, project_id, resource, reserved, used, subtree, generation) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project)s, %(b_resource)s, %(reserved)s, %(used)s, %(subtree)s, %(b_generation)s) ON CONFLICT DO NOTHING RETURNING quota_usages.id
;

-- add many usage rows
INSERT INTO quota_usages (created_at, project_id, resource, reserved, used, subtree, generation) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_0)s, %(b_resource_0)s, %(b_reserved_0)s, %(b_used_0)s, %(b_subtree_0)s, %(b_generation_0)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_1)s, %(b_resource_1)s, %(b_reserved_1)s, %(b_used_1)s, %(b_subtree_1)s, %(b_generation_1)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_2)s, %(b_resource_2)s, %(b_reserved_2)s, %(b_used_2)s, %(b_subtree_2)s, %(b_generation_2)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_3)s, %(b_resource_3)s, %(b_reserved_3)s, %(b_used_3)s, %(b_subtree_3)s, %(b_generation_3)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_4)s, %(b_resource_4)s, %(b_reserved_4)s, %(b_used_4)s, %(b_subtree_4)s, %(b_generation_4)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_5)s, %(b_resource_5)s, %(b_reserved_5)s, %(b_used_5)s, %(b_subtree_5)s, %(b_generation_5)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_6)s, %(b_resource_6)s, %(b_reserved_6)s, %(b_used_6)s, %(b_subtree_6)s, %(b_generation_6)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_7)s, %(b_resource_7)s, %(b_reserved_7)s, %(b_used_7)s, %(b_subtree_7)s, %(b_generation_7)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_8)s, %(b_resource_8)s, %(b_reserved_8)s, %(b_used_8)s, %(b_subtree_8)s, %(b_generation_8)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_9)s, %(b_resource_9)s, %(b_reserved_9)s, %(b_used_9)s, %(b_subtree_9)s, %(b_generation_9)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_10)s, %(b_resource_10)s, %(b_reserved_10)s, %(b_used_10)s, %(b_subtree_10)s, %(b_generation_10)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_11)s, %(b_resource_11)s, %(b_reserved_11)s, %(b_used_11)s, %(b_subtree_11)s, %(b_generation_11)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_12)s, %(b_resource_12)s, %(b_reserved_12)s, %(b_used_12)s, %(b_subtree_12)s, %(b_generation_12)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_13)s, %(b_resource_13)s, %(b_reserved_13)s, %(b_used_13)s, %(b_subtree_13)s, %(b_generation_13)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_14)s, %(b_resource_14)s, %(b_reserved_14)s, %(b_used_14)s, %(b_subtree_14)s, %(b_generation_14)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_15)s, %(b_resource_15)s, %(b_reserved_15)s, %(b_used_15)s, %(b_subtree_15)s, %(b_generation_15)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_16)s, %(b_resource_16)s, %(b_reserved_16)s, %(b_used_16)s, %(b_subtree_16)s, %(b_generation_16)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_17)s, %(b_resource_17)s, %(b_reserved_17)s, %(b_used_17)s, %(b_subtree_17)s, %(b_generation_17)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_18)s, %(b_resource_18)s, %(b_reserved_18)s, %(b_used_18)s, %(b_subtree_18)s, %(b_generation_18)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_19)s, %(b_resource_19)s, %(b_reserved_19)s, %(b_used_19)s, %(b_subtree_19)s, %(b_generation_19)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_20)s, %(b_resource_20)s, %(b_reserved_20)s, %(b_used_20)s, %(b_subtree_20)s, %(b_generation_20)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_21)s, %(b_resource_21)s, %(b_reserved_21)s, %(b_used_21)s, %(b_subtree_21)s, %(b_generation_21)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_22)s, %(b_resource_22)s, %(b_reserved_22)s, %(b_used_22)s, %(b_subtree_22)s, %(b_generation_22)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_23)s, %(b_resource_23)s, %(b_reserved_23)s, %(b_used_23)s, %(b_subtree_23)s, %(b_generation_23)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_24)s, %(b_resource_24)s, %(b_reserved_24)s, %(b_used_24)s, %(b_subtree_24)s, %(b_generation_24)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_25)s, %(b_resource_25)s, %(b_reserved_25)s, %(b_used_25)s, %(b_subtree_25)s, %(b_generation_25)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_26)s, %(b_resource_26)s, %(b_reserved_26)s, %(b_used_26)s, %(b_subtree_26)s, %(b_generation_26)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_27)s, %(b_resource_27)s, %(b_reserved_27)s, %(b_used_27)s, %(b_subtree_27)s, %(b_generation_27)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_28)s, %(b_resource_28)s, %(b_reserved_28)s, %(b_used_28)s, %(b_subtree_28)s, %(b_generation_28)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_29)s, %(b_resource_29)s, %(b_reserved_29)s, %(b_used_29)s, %(b_subtree_29)s, %(b_generation_29)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_30)s, %(b_resource_30)s, %(b_reserved_30)s, %(b_used_30)s, %(b_subtree_30)s, %(b_generation_30)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_31)s, %(b_resource_31)s, %(b_reserved_31)s, %(b_used_31)s, %(b_subtree_31)s, %(b_generation_31)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_32)s, %(b_resource_32)s, %(b_reserved_32)s, %(b_used_32)s, %(b_subtree_32)s, %(b_generation_32)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_33)s, %(b_resource_33)s, %(b_reserved_33)s, %(b_used_33)s, %(b_subtree_33)s, %(b_generation_33)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_34)s, %(b_resource_34)s, %(b_reserved_34)s, %(b_used_34)s, %(b_subtree_34)s, %(b_generation_34)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_35)s, %(b_resource_35)s, %(b_reserved_35)s, %(b_used_35)s, %(b_subtree_35)s, %(b_generation_35)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_36)s, %(b_resource_36)s, %(b_reserved_36)s, %(b_used_36)s, %(b_subtree_36)s, %(b_generation_36)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_37)s, %(b_resource_37)s, %(b_reserved_37)s, %(b_used_37)s, %(b_subtree_37)s, %(b_generation_37)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_38)s, %(b_resource_38)s, %(b_reserved_38)s, %(b_used_38)s, %(b_subtree_38)s, %(b_generation_38)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_39)s, %(b_resource_39)s, %(b_reserved_39)s, %(b_used_39)s, %(b_subtree_39)s, %(b_generation_39)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_40)s, %(b_resource_40)s, %(b_reserved_40)s, %(b_used_40)s, %(b_subtree_40)s, %(b_generation_40)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_41)s, %(b_resource_41)s, %(b_reserved_41)s, %(b_used_41)s, %(b_subtree_41)s, %(b_generation_41)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_42)s, %(b_resource_42)s, %(b_reserved_42)s, %(b_used_42)s, %(b_subtree_42)s, %(b_generation_42)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_43)s, %(b_resource_43)s, %(b_reserved_43)s, %(b_used_43)s, %(b_subtree_43)s, %(b_generation_43)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_44)s, %(b_resource_44)s, %(b_reserved_44)s, %(b_used_44)s, %(b_subtree_44)s, %(b_generation_44)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_45)s, %(b_resource_45)s, %(b_reserved_45)s, %(b_used_45)s, %(b_subtree_45)s, %(b_generation_45)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_46)s, %(b_resource_46)s, %(b_reserved_46)s, %(b_used_46)s, %(b_subtree_46)s, %(b_generation_46)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_47)s, %(b_resource_47)s, %(b_reserved_47)s, %(b_used_47)s, %(b_subtree_47)s, %(b_generation_47)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_48)s, %(b_resource_48)s, %(b_reserved_48)s, %(b_used_48)s, %(b_subtree_48)s, %(b_generation_48)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_49)s, %(b_resource_49)s, %(b_reserved_49)s, %(b_used_49)s, %(b_subtree_49)s, %(b_generation_49)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_50)s, %(b_resource_50)s, %(b_reserved_50)s, %(b_used_50)s, %(b_subtree_50)s, %(b_generation_50)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_51)s, %(b_resource_51)s, %(b_reserved_51)s, %(b_used_51)s, %(b_subtree_51)s, %(b_generation_51)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_52)s, %(b_resource_52)s, %(b_reserved_52)s, %(b_used_52)s, %(b_subtree_52)s, %(b_generation_52)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_53)s, %(b_resource_53)s, %(b_reserved_53)s, %(b_used_53)s, %(b_subtree_53)s, %(b_generation_53)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_54)s, %(b_resource_54)s, %(b_reserved_54)s, %(b_used_54)s, %(b_subtree_54)s, %(b_generation_54)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_55)s, %(b_resource_55)s, %(b_reserved_55)s, %(b_used_55)s, %(b_subtree_55)s, %(b_generation_55)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_56)s, %(b_resource_56)s, %(b_reserved_56)s, %(b_used_56)s, %(b_subtree_56)s, %(b_generation_56)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_57)s, %(b_resource_57)s, %(b_reserved_57)s, %(b_used_57)s, %(b_subtree_57)s, %(b_generation_57)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_58)s, %(b_resource_58)s, %(b_reserved_58)s, %(b_used_58)s, %(b_subtree_58)s, %(b_generation_58)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_59)s, %(b_resource_59)s, %(b_reserved_59)s, %(b_used_59)s, %(b_subtree_59)s, %(b_generation_59)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_60)s, %(b_resource_60)s, %(b_reserved_60)s, %(b_used_60)s, %(b_subtree_60)s, %(b_generation_60)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_61)s, %(b_resource_61)s, %(b_reserved_61)s, %(b_used_61)s, %(b_subtree_61)s, %(b_generation_61)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_62)s, %(b_resource_62)s, %(b_reserved_62)s, %(b_used_62)s, %(b_subtree_62)s, %(b_generation_62)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_63)s, %(b_resource_63)s, %(b_reserved_63)s, %(b_used_63)s, %(b_subtree_63)s, %(b_generation_63)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_64)s, %(b_resource_64)s, %(b_reserved_64)s, %(b_used_64)s, %(b_subtree_64)s, %(b_generation_64)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_65)s, %(b_resource_65)s, %(b_reserved_65)s, %(b_used_65)s, %(b_subtree_65)s, %(b_generation_65)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_66)s, %(b_resource_66)s, %(b_reserved_66)s, %(b_used_66)s, %(b_subtree_66)s, %(b_generation_66)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_67)s, %(b_resource_67)s, %(b_reserved_67)s, %(b_used_67)s, %(b_subtree_67)s, %(b_generation_67)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_68)s, %(b_resource_68)s, %(b_reserved_68)s, %(b_used_68)s, %(b_subtree_68)s, %(b_generation_68)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_69)s, %(b_resource_69)s, %(b_reserved_69)s, %(b_used_69)s, %(b_subtree_69)s, %(b_generation_69)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_70)s, %(b_resource_70)s, %(b_reserved_70)s, %(b_used_70)s, %(b_subtree_70)s, %(b_generation_70)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_71)s, %(b_resource_71)s, %(b_reserved_71)s, %(b_used_71)s, %(b_subtree_71)s, %(b_generation_71)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_72)s, %(b_resource_72)s, %(b_reserved_72)s, %(b_used_72)s, %(b_subtree_72)s, %(b_generation_72)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_73)s, %(b_resource_73)s, %(b_reserved_73)s, %(b_used_73)s, %(b_subtree_73)s, %(b_generation_73)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_74)s, %(b_resource_74)s, %(b_reserved_74)s, %(b_used_74)s, %(b_subtree_74)s, %(b_generation_74)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_75)s, %(b_resource_75)s, %(b_reserved_75)s, %(b_used_75)s, %(b_subtree_75)s, %(b_generation_75)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_76)s, %(b_resource_76)s, %(b_reserved_76)s, %(b_used_76)s, %(b_subtree_76)s, %(b_generation_76)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_77)s, %(b_resource_77)s, %(b_reserved_77)s, %(b_used_77)s, %(b_subtree_77)s, %(b_generation_77)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_78)s, %(b_resource_78)s, %(b_reserved_78)s, %(b_used_78)s, %(b_subtree_78)s, %(b_generation_78)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_79)s, %(b_resource_79)s, %(b_reserved_79)s, %(b_used_79)s, %(b_subtree_79)s, %(b_generation_79)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_80)s, %(b_resource_80)s, %(b_reserved_80)s, %(b_used_80)s, %(b_subtree_80)s, %(b_generation_80)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_81)s, %(b_resource_81)s, %(b_reserved_81)s, %(b_used_81)s, %(b_subtree_81)s, %(b_generation_81)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_82)s, %(b_resource_82)s, %(b_reserved_82)s, %(b_used_82)s, %(b_subtree_82)s, %(b_generation_82)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_83)s, %(b_resource_83)s, %(b_reserved_83)s, %(b_used_83)s, %(b_subtree_83)s, %(b_generation_83)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_84)s, %(b_resource_84)s, %(b_reserved_84)s, %(b_used_84)s, %(b_subtree_84)s, %(b_generation_84)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_85)s, %(b_resource_85)s, %(b_reserved_85)s, %(b_used_85)s, %(b_subtree_85)s, %(b_generation_85)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_86)s, %(b_resource_86)s, %(b_reserved_86)s, %(b_used_86)s, %(b_subtree_86)s, %(b_generation_86)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_87)s, %(b_resource_87)s, %(b_reserved_87)s, %(b_used_87)s, %(b_subtree_87)s, %(b_generation_87)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_88)s, %(b_resource_88)s, %(b_reserved_88)s, %(b_used_88)s, %(b_subtree_88)s, %(b_generation_88)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_89)s, %(b_resource_89)s, %(b_reserved_89)s, %(b_used_89)s, %(b_subtree_89)s, %(b_generation_89)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_90)s, %(b_resource_90)s, %(b_reserved_90)s, %(b_used_90)s, %(b_subtree_90)s, %(b_generation_90)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_91)s, %(b_resource_91)s, %(b_reserved_91)s, %(b_used_91)s, %(b_subtree_91)s, %(b_generation_91)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_92)s, %(b_resource_92)s, %(b_reserved_92)s, %(b_used_92)s, %(b_subtree_92)s, %(b_generation_92)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_93)s, %(b_resource_93)s, %(b_reserved_93)s, %(b_used_93)s, %(b_subtree_93)s, %(b_generation_93)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_94)s, %(b_resource_94)s, %(b_reserved_94)s, %(b_used_94)s, %(b_subtree_94)s, %(b_generation_94)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_95)s, %(b_resource_95)s, %(b_reserved_95)s, %(b_used_95)s, %(b_subtree_95)s, %(b_generation_95)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_96)s, %(b_resource_96)s, %(b_reserved_96)s, %(b_used_96)s, %(b_subtree_96)s, %(b_generation_96)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_97)s, %(b_resource_97)s, %(b_reserved_97)s, %(b_used_97)s, %(b_subtree_97)s, %(b_generation_97)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_98)s, %(b_resource_98)s, %(b_reserved_98)s, %(b_used_98)s, %(b_subtree_98)s, %(b_generation_98)s), ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_99)s, %(b_resource_99)s, %(b_reserved_99)s, %(b_used_99)s, %(b_subtree_99)s, %(b_generation_99)s)
;
INSERT INTO quota_usages (created_at, project_id, resource, reserved, used, subtree, generation) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_0)s, %(b_resource_0)s, %(b_reserved_0)s, %(b_used_0)s, %(b_subtree_0)s, %(b_generation_0)s)
;

-- lock projects
UPDATE projects SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), generation=(projects.generation + %(generation_1)s) WHERE projects.project_id = %(b_project)s
;
UPDATE projects SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), generation=(projects.generation + %(generation_1)s) WHERE projects.project_id = %(b_project)s
;

-- move
SELECT quota_usages.resource, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.project_id = %(b_project)s
;
UPDATE projects SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), generation=(projects.generation + %(generation_1)s) WHERE projects.project_id = %(b_project)s
;
WITH RECURSIVE path(project_id, parent_id, distance) AS 
(SELECT CAST(%(b_project)s AS VARCHAR(255)) AS project_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = CAST(%(b_project)s AS VARCHAR(255))) AS parent_id, 0 AS distance UNION ALL SELECT path.parent_id AS parent_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = path.parent_id) AS anon_1, path.distance + 1 AS anon_2 
FROM path 
WHERE path.parent_id IS NOT NULL AND path.distance < 64)
 SELECT path.project_id, CAST(NULL AS INTEGER) AS id, path.parent_id AS resource, CAST(NULL AS INTEGER) AS generation, (SELECT projects.origin 
FROM projects 
WHERE projects.project_id = path.project_id) AS origin, CAST(NULL AS INTEGER) AS in_total 
FROM path UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_3, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ANY (array((SELECT path.project_id 
FROM path))) UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_3, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ' total'
;
UPDATE quota_usages SET generation=((quota_usages.generation + %(b_step)s) & 1073741823) WHERE quota_usages.project_id = %(b_project)s
;
SELECT quota_usages.resource, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.project_id = %(b_project)s
;
UPDATE projects SET parent_id=%(b_parent)s, origin=%(b_origin)s WHERE projects.project_id = %(b_project)s
;

-- edges
SELECT projects.project_id, projects.parent_id 
FROM projects
;

-- limiting edges
SELECT projects.project_id, CASE WHEN (projects.origin IS NULL) THEN projects.parent_id END AS parent_id 
FROM projects 
WHERE projects.project_id IN (__[POSTCOMPILE_project_id_1])
;

-- edges with an origin
SELECT projects.project_id, projects.parent_id 
FROM projects 
WHERE projects.parent_id IS NOT NULL AND projects.origin IS NOT NULL AND projects.origin = %(origin_1)s ORDER BY projects.project_id 
 LIMIT %(param_1)s
;

-- count by origin
SELECT projects.origin, count(*) AS edges 
FROM projects 
WHERE projects.parent_id IS NOT NULL AND projects.origin IS NOT NULL GROUP BY projects.origin
;

-- children
SELECT projects.project_id 
FROM projects 
WHERE projects.parent_id = %(b_project)s AND projects.origin IS NULL
;

-- subtree
SELECT projects.project_id 
FROM projects 
WHERE projects.parent_id IN (__[POSTCOMPILE_parent_id_1]) AND projects.origin IS NULL
;

-- parent
SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = %(b_project)s AND projects.origin IS NULL
;

-- add and move many
INSERT INTO projects (created_at, project_id, parent_id, generation) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_0)s, %(b_parent_id_0)s, %(b_generation_0)s)
;
SELECT projects.project_id, projects.parent_id 
FROM projects
;
SELECT quota_usages.id, quota_usages.resource, quota_usages.generation, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.project_id = ' total'
;
SELECT projects.project_id 
FROM projects 
WHERE projects.project_id IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s) ORDER BY projects.project_id COLLATE "C" FOR NO KEY UPDATE
;
UPDATE projects SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), generation=(projects.generation + 1) WHERE projects.project_id IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s)
;
SELECT projects.project_id, projects.parent_id 
FROM projects
;
SELECT quota_usages.id, quota_usages.project_id, quota_usages.resource 
FROM quota_usages 
WHERE quota_usages.project_id IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s)
;
INSERT INTO quota_usages (created_at, project_id, resource, reserved, used, subtree, generation) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_0)s, %(b_resource_0)s, %(b_reserved_0)s, %(b_used_0)s, %(b_subtree_0)s, %(b_generation_0)s)
;
SELECT quota_usages.id, quota_usages.project_id, quota_usages.resource 
FROM quota_usages 
WHERE quota_usages.project_id = %(b_0)s
;
UPDATE projects SET parent_id=CASE projects.project_id WHEN %(b_0)s THEN %(b_value_0)s END, origin=NULL WHERE projects.project_id = %(b_0)s
;
SELECT quota_usages.id, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.id IN (%(b_0)s, %(b_1)s) ORDER BY quota_usages.project_id COLLATE "C", quota_usages.resource COLLATE "C" FOR NO KEY UPDATE
;
SELECT quota_usages.id, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.id IN (%(b_0)s, %(b_1)s) ORDER BY quota_usages.project_id COLLATE "C", quota_usages.resource COLLATE "C" FOR NO KEY UPDATE
;
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), subtree=(quota_usages.subtree + CASE quota_usages.id WHEN %(b_0)s THEN %(b_value_0)s WHEN %(b_1)s THEN %(b_value_1)s WHEN %(b_2)s THEN %(b_value_2)s WHEN %(b_3)s THEN %(b_value_3)s END) WHERE quota_usages.id IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s)
;
UPDATE quota_usages SET generation=((quota_usages.generation + %(b_step)s) & 1073741823) WHERE quota_usages.id = %(b_0)s
;

-- count usage rows
SELECT quota_usages.id, quota_usages.project_id, quota_usages.resource 
FROM quota_usages 
WHERE quota_usages.project_id IN (%(b_0)s, %(b_1)s)
;

-- serialize tree changes
UPDATE fences SET generation=(fences.generation + %(generation_1)s) WHERE fences.name = %(name_1)s
;
INSERT INTO fences (name, generation) VALUES (%(name)s, %(generation)s) ON CONFLICT DO NOTHING
;
UPDATE fences SET generation=(fences.generation + %(generation_1)s) WHERE fences.name = %(name_1)s
;

-- read limits
SELECT limit_defaults.resource, limit_defaults.most 
FROM limit_defaults
;
SELECT project_limits.project_id, project_limits.resource, project_limits.most 
FROM project_limits
;
SELECT projects.project_id, CASE WHEN (projects.origin IS NULL) THEN projects.parent_id END AS parent_id 
FROM projects
;

-- set a default
UPDATE limit_defaults SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), most=%(most)s WHERE limit_defaults.resource = %(resource_1)s
;

-- set overrides
INSERT INTO project_limits (created_at, project_id, resource, most) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), %(b_project_id_0)s, %(b_resource_0)s, %(b_most_0)s)
;
DELETE FROM project_limits WHERE project_limits.project_id = %(project_id_1)s AND project_limits.resource = %(resource_1)s
;

-- claim of capacity
UPDATE inventories SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), used=(inventories.used + %(b_total)s), free=(inventories.free - %(b_total)s) WHERE inventories.id = %(b_inventory)s AND inventories.free >= %(b_total)s AND (inventories.min_unit = %(b_amount)s OR inventories.min_unit < %(b_amount)s AND inventories.max_unit >= %(b_amount)s AND %(b_amount)s %% inventories.step_size < 1)
;

-- adopted capacity
UPDATE inventories SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), used=(inventories.used + %(b_total)s), free=(inventories.free - %(b_total)s) WHERE inventories.id = %(b_inventory)s
;

-- candidates, least free
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = %(b_resource_0)s AND inventory_0.free >= %(b_amount_0)s AND (inventory_0.min_unit = %(b_amount_0)s OR inventory_0.min_unit < %(b_amount_0)s AND inventory_0.max_unit >= %(b_amount_0)s AND %(b_amount_0)s %% inventory_0.step_size < 1) AND inventory_1.resource = %(b_resource_1)s AND inventory_1.free >= %(b_amount_1)s AND (inventory_1.min_unit = %(b_amount_1)s OR inventory_1.min_unit < %(b_amount_1)s AND inventory_1.max_unit >= %(b_amount_1)s AND %(b_amount_1)s %% inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) != 0 ORDER BY inventory_0.free 
 LIMIT %(b_limit)s
;

-- candidates, most free
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = %(b_resource_0)s AND inventory_0.free >= %(b_amount_0)s AND (inventory_0.min_unit = %(b_amount_0)s OR inventory_0.min_unit < %(b_amount_0)s AND inventory_0.max_unit >= %(b_amount_0)s AND %(b_amount_0)s %% inventory_0.step_size < 1) AND inventory_1.resource = %(b_resource_1)s AND inventory_1.free >= %(b_amount_1)s AND (inventory_1.min_unit = %(b_amount_1)s OR inventory_1.min_unit < %(b_amount_1)s AND inventory_1.max_unit >= %(b_amount_1)s AND %(b_amount_1)s %% inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) != 0 ORDER BY inventory_0.free DESC 
 LIMIT %(b_limit)s
;

-- candidates, provider
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = %(b_resource_0)s AND inventory_0.free >= %(b_amount_0)s AND (inventory_0.min_unit = %(b_amount_0)s OR inventory_0.min_unit < %(b_amount_0)s AND inventory_0.max_unit >= %(b_amount_0)s AND %(b_amount_0)s %% inventory_0.step_size < 1) AND inventory_1.resource = %(b_resource_1)s AND inventory_1.free >= %(b_amount_1)s AND (inventory_1.min_unit = %(b_amount_1)s OR inventory_1.min_unit < %(b_amount_1)s AND inventory_1.max_unit >= %(b_amount_1)s AND %(b_amount_1)s %% inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) != 0 ORDER BY inventory_0.provider_id 
 LIMIT %(b_limit)s
;

-- equally good candidates
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = %(b_resource_0)s AND inventory_0.free >= %(b_amount_0)s AND (inventory_0.min_unit = %(b_amount_0)s OR inventory_0.min_unit < %(b_amount_0)s AND inventory_0.max_unit >= %(b_amount_0)s AND %(b_amount_0)s %% inventory_0.step_size < 1) AND inventory_1.resource = %(b_resource_1)s AND inventory_1.free >= %(b_amount_1)s AND (inventory_1.min_unit = %(b_amount_1)s OR inventory_1.min_unit < %(b_amount_1)s AND inventory_1.max_unit >= %(b_amount_1)s AND %(b_amount_1)s %% inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) != 0 AND inventory_0.free = %(b_free)s AND inventory_0.provider_id >= CAST((SELECT min(inventories.provider_id) AS min_1 
FROM inventories) + ((SELECT max(inventories.provider_id) AS max_1 
FROM inventories) - (SELECT min(inventories.provider_id) AS min_1 
FROM inventories)) * (%(b_start)s / CAST(1048576.0 AS NUMERIC)) AS BIGINT) ORDER BY inventory_0.provider_id 
 LIMIT %(b_limit)s
;

-- candidates of a pod
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = %(b_resource_0)s AND inventory_0.free >= %(b_amount_0)s AND (inventory_0.min_unit = %(b_amount_0)s OR inventory_0.min_unit < %(b_amount_0)s AND inventory_0.max_unit >= %(b_amount_0)s AND %(b_amount_0)s %% inventory_0.step_size < 1) AND inventory_1.resource = %(b_resource_1)s AND inventory_1.free >= %(b_amount_1)s AND (inventory_1.min_unit = %(b_amount_1)s OR inventory_1.min_unit < %(b_amount_1)s AND inventory_1.max_unit >= %(b_amount_1)s AND %(b_amount_1)s %% inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id AND resource_providers.pod = %(b_pod)s) != 0 ORDER BY inventory_0.free 
 LIMIT %(b_limit)s
;
