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
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_until)s * INTERVAL '1 microsecond') < '1970-01-01' AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;

-- charge in a tree
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_until)s * INTERVAL '1 microsecond') < '1970-01-01' AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_until)s * INTERVAL '1 microsecond') < '1970-01-01' AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
;
UPDATE quota_usages SET updated_at=(statement_timestamp() AT TIME ZONE 'UTC'), reserved=(quota_usages.reserved + %(b_reserved)s), used=(quota_usages.used + %(b_used)s), subtree=(quota_usages.subtree + %(b_subtree)s) WHERE quota_usages.id = %(b_id)s AND quota_usages.generation = %(b_generation)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held)s AND quota_usages.subtree <= %(b_max_subtree)s AND (statement_timestamp() AT TIME ZONE 'UTC' + -%(b_until)s * INTERVAL '1 microsecond') < '1970-01-01' AND quota_usages.used >= %(b_min_used)s AND quota_usages.reserved >= %(b_min_reserved)s AND quota_usages.subtree >= %(b_min_subtree)s
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
