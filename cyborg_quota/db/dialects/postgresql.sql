-- The functions of a reserve and of a settle. `cyborg-quota db sync` creates those that are missing.
--
-- Each definition ends with a line of one semicolon. @schema@ is the schema of the tables: the functions name it, so that
-- they do not depend on the search path. They have the privileges of their caller.

-- Charge usage rows, one after the other: the caller has sorted them in lock order (PostgreSQL guarantees no lock order
-- within an UPDATE of several rows). The time is that of clock_timestamp(): statement_timestamp() is from before all waits
-- for locks. p_at is the second of the call (meters.py). Returns the number of rows that were charged before one was refused.
CREATE FUNCTION @schema@.cyborg_quota_charge_v1(
    p_ids integer[], p_generations integer[], p_reserved bigint[], p_used bigint[], p_subtree bigint[],
    p_max_held bigint[], p_max_subtree bigint[], p_max_metered bigint[], p_ahead bigint[], p_until bigint[], p_at bigint
) RETURNS integer LANGUAGE plpgsql AS $function$
BEGIN
    FOR i IN 1 .. cardinality(p_ids) LOOP
        UPDATE @schema@.quota_usages
            SET reserved = reserved + p_reserved[i], used = used + p_used[i], subtree = subtree + p_subtree[i],
                metered = metered - p_subtree[i] * p_at, updated_at = (statement_timestamp() AT TIME ZONE 'UTC')
            WHERE id = p_ids[i] AND generation = p_generations[i]
                AND used + reserved <= p_max_held[i] AND subtree + promised <= p_max_subtree[i]
                AND metered + subtree * (p_at + p_ahead[i]) <= p_max_metered[i] AND p_at < month_ends
                AND clock_timestamp() - p_until[i] * interval '1 microsecond' < '1970-01-01 UTC'
                AND reserved + p_reserved[i] >= 0 AND used + p_used[i] >= 0 AND subtree + p_subtree[i] >= 0;
        IF NOT FOUND THEN
            RETURN i - 1;
        END IF;
    END LOOP;
    RETURN cardinality(p_ids);
END
$function$
;

-- Reserve: take capacity from inventories, charge usage rows, insert reservations. False: nothing was changed.
CREATE FUNCTION @schema@.cyborg_quota_reserve_v1(
    p_project text, p_ttl bigint,
    p_uuids text[], p_usage_ids integer[], p_resources text[], p_deltas integer[], p_consumers text[], p_groups text[],
    p_ordinals smallint[], p_sources text[], p_providers integer[],
    p_inventories integer[], p_units bigint[], p_amounts bigint[],
    p_ids integer[], p_generations integer[], p_reserved bigint[], p_used bigint[], p_subtree bigint[],
    p_max_held bigint[], p_max_subtree bigint[], p_max_metered bigint[], p_ahead bigint[], p_until bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$
DECLARE
    at bigint := floor(extract(epoch FROM statement_timestamp() - '2020-01-01 UTC'));
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
            p_ids, p_generations, p_reserved, p_used, p_subtree, p_max_held, p_max_subtree, p_max_metered, p_ahead, p_until, at
        );
    END IF;
    IF charged = cardinality(p_ids) THEN
        INSERT INTO @schema@.reservations (
            created_at, deleted, project_id, expire, state, live, meter,
            uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id
        ) SELECT
            (statement_timestamp() AT TIME ZONE 'UTC'), false, p_project,
            (statement_timestamp() AT TIME ZONE 'UTC') + p_ttl * interval '1 microsecond', 'reserved', 1, -new_rows.delta * at,
            new_rows.*
        FROM unnest(
            p_uuids, p_usage_ids, p_resources, p_deltas, p_consumers, p_groups, p_ordinals, p_sources, p_providers
        ) AS new_rows(uuid, usage_id, resource, delta, consumer_id, group_id, claim_ordinal, source, provider_id);
        RETURN true;
    END IF;
    -- Undo what was done. (An exception handler would make each call a subtransaction.) Then commit asynchronously: the
    -- net change is nil, so nothing need be flushed.
    IF charged > 0 THEN
        UPDATE @schema@.quota_usages
            SET reserved = reserved - p_reserved[i], used = used - p_used[i], subtree = subtree - p_subtree[i],
                metered = metered + p_subtree[i] * at
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

-- Commit or roll back reservations in flight that were neither resized nor transferred. False: none is in flight, and
-- nothing was changed. SQLSTATE QU001: some are not, or a usage row does not meet the conditions of its charge.
-- (The CASE keeps `state` and `expire` out of the index conditions: see decision record 0022.)
CREATE FUNCTION @schema@.cyborg_quota_settle_v1(
    p_uuids text[], p_state text, p_grace bigint,
    p_ids integer[], p_generations integer[], p_reserved bigint[], p_used bigint[], p_subtree bigint[],
    p_max_held bigint[], p_max_subtree bigint[], p_max_metered bigint[], p_ahead bigint[], p_until bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $function$
DECLARE
    at bigint := floor(extract(epoch FROM statement_timestamp() - '2020-01-01 UTC'));
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
                live = NULL, claim_ordinal = NULL, meter = meter + delta * at, ended_after = (SELECT max(id) FROM @schema@.reservations)
            WHERE uuid = ANY (p_uuids) AND CASE
                WHEN state = 'reserved' AND generation IS NULL AND meter + delta * at >= 0 AND (
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
        p_ids, p_generations, p_reserved, p_used, p_subtree, p_max_held, p_max_subtree, p_max_metered, p_ahead, p_until, at
    ) THEN
        RAISE SQLSTATE 'QU001' USING MESSAGE = 'a usage row does not meet the conditions of the charge';
    END IF;
    RETURN true;
END
$function$
;
