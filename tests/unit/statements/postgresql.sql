-- single statement: reserve one row
SELECT WHERE cyborg_quota_reserve_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: reserve two rows
SELECT WHERE cyborg_quota_reserve_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: reserve in a tree
SELECT WHERE cyborg_quota_reserve_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: commit
SELECT WHERE cyborg_quota_settle_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: commit two
SELECT WHERE cyborg_quota_settle_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: roll back in a tree
SELECT WHERE cyborg_quota_settle_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- single statement: claim capacity
SELECT WHERE cyborg_quota_reserve_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) -- COMMIT
;

-- claim of capacity
UPDATE inventories SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), used=(inventories.used + %(b_total)s), free=(inventories.free - %(b_total)s) WHERE inventories.id = %(b_inventory)s AND inventories.free >= %(b_total)s AND (inventories.min_unit = %(b_amount)s OR inventories.min_unit < %(b_amount)s AND inventories.max_unit >= %(b_amount)s AND %(b_amount)s %% inventories.step_size < 1)
;

-- charge one row
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved_0)s), used=(quota_usages.used + %(b_used_0)s), subtree=(quota_usages.subtree + %(b_subtree_0)s) WHERE quota_usages.id = %(b_id_0)s AND quota_usages.generation = %(b_generation_0)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held_0)s AND quota_usages.subtree <= %(b_max_subtree_0)s AND (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_until_0)s * INTERVAL '1 microsecond') < '1970-01-01' AND quota_usages.reserved + %(b_reserved_0)s >= 0 AND quota_usages.used + %(b_used_0)s >= 0 AND quota_usages.subtree + %(b_subtree_0)s >= 0
;

-- charge together
WITH d AS MATERIALIZED 
(SELECT anon_1.id AS id, anon_1.generation AS generation, anon_1.reserved AS reserved, anon_1.used AS used, anon_1.subtree AS subtree, anon_1.max_held AS max_held, anon_1.max_subtree AS max_subtree, anon_1.until AS until, anon_1.ordinal AS ordinal 
FROM unnest(CAST(%(id)s AS INTEGER[]), CAST(%(generation)s AS INTEGER[]), CAST(%(reserved)s AS BIGINT[]), CAST(%(used)s AS BIGINT[]), CAST(%(subtree)s AS BIGINT[]), CAST(%(max_held)s AS BIGINT[]), CAST(%(max_subtree)s AS BIGINT[]), CAST(%(until)s AS BIGINT[])) WITH ORDINALITY AS anon_1(id, generation, reserved, used, subtree, max_held, max_subtree, until, ordinal), quota_usages 
WHERE quota_usages.id = anon_1.id AND quota_usages.id = ANY (CAST(%(id)s AS INTEGER[])) ORDER BY anon_1.ordinal FOR NO KEY UPDATE OF quota_usages)
 UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + d.reserved), used=(quota_usages.used + d.used), subtree=(quota_usages.subtree + d.subtree) FROM d WHERE quota_usages.id = d.id AND quota_usages.id = ANY (CAST(%(id)s AS INTEGER[])) AND quota_usages.generation = d.generation AND quota_usages.used + quota_usages.reserved <= d.max_held AND quota_usages.subtree <= d.max_subtree AND (statement_timestamp() AT TIME ZONE 'UTC' + -d.until * INTERVAL '1 microsecond') < '1970-01-01' AND quota_usages.reserved + d.reserved >= 0 AND quota_usages.used + d.used >= 0 AND quota_usages.subtree + d.subtree >= 0
;

-- insert 1
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), 'reserved', %(b_consumer_id_0)s, 1, %(b_claim_ordinal_0)s) RETURNING reservations.id
;

-- insert 2
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), 'reserved', %(b_consumer_id_0)s, 1, %(b_claim_ordinal_0)s), ((statement_timestamp() AT TIME ZONE 'UTC'), false, %(b_uuid_1)s, %(b_usage_id_1)s, %(b_project)s, %(b_resource_1)s, %(b_delta_1)s, (statement_timestamp() AT TIME ZONE 'UTC' + %(b_ttl)s * INTERVAL '1 microsecond'), 'reserved', %(b_consumer_id_1)s, 1, %(b_claim_ordinal_1)s)
;

-- by uuids
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod 
FROM reservations 
WHERE reservations.uuid IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s)
;

-- by consumer
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = %(project_id_1)s AND reservations.consumer_id = %(consumer_id_1)s
;

-- by group
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = %(project_id_1)s AND reservations.group_id = %(group_id_1)s UNION ALL SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = %(project_id_1)s AND reservations.group_id >= %(group_id_2)s AND reservations.group_id < %(group_id_3)s
;

-- move to committed
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), state=%(b_after)s WHERE reservations.id IN (%(b_0)s, %(b_1)s) AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_grace)s * INTERVAL '1 microsecond')) THEN 1 ELSE 0 END = 1
;

-- move to rolled back
UPDATE reservations SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted_at=(statement_timestamp() AT TIME ZONE 'UTC'), deleted=true, state=%(b_after)s, live=NULL, claim_ordinal=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = %(b_0)s AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1
;
