-- single statement: reserve one row
PREPARE cyborg_quota_a6729f395dce759d288c FROM 'BEGIN NOT ATOMIC IF NOT EXISTS (SELECT 1 
FROM reservations AS holder 
WHERE holder.project_id = ? AND holder.consumer_id = ? AND holder.live = 1) THEN INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES (UTC_TIMESTAMP(6), false, ?, ?, ?, ?, ?, (UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), ''reserved'', ?, 1, ?); IF ROW_COUNT() = 1 THEN UPDATE quota_usages SET updated_at=UTC_TIMESTAMP(6), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND (UTC_TIMESTAMP(6) + INTERVAL -? MICROSECOND) < ''1970-01-01'' AND quota_usages.reserved + ? >= 0 AND quota_usages.used + ? >= 0 AND quota_usages.subtree + ? >= 0; IF ROW_COUNT() = 1 THEN COMMIT; ELSE ROLLBACK; SELECT 2; END IF; ELSE ROLLBACK; SELECT 1; END IF; ELSE ROLLBACK; SELECT 0; END IF; END'
;
EXECUTE cyborg_quota_a6729f395dce759d288c USING %s, %s, %s, 1, %s, %s, 1, 5, %s, 1, 2, 0, 2, 1, 101, 6, 48, 9007199254740992, 2, 0, 2 -- COMMIT
;

-- single statement: reserve two rows
PREPARE cyborg_quota_7a0f99a9704be0cf7d56 FROM 'BEGIN NOT ATOMIC IF NOT EXISTS (SELECT 1 
FROM reservations AS holder 
WHERE holder.project_id = ? AND holder.consumer_id IN (?, ?) AND holder.live = 1) THEN INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES (UTC_TIMESTAMP(6), false, ?, ?, ?, ?, ?, (UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), ''reserved'', ?, 1, ?), (UTC_TIMESTAMP(6), false, ?, ?, ?, ?, ?, (UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), ''reserved'', ?, 1, ?); IF ROW_COUNT() = 2 THEN UPDATE quota_usages SET updated_at=UTC_TIMESTAMP(6), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND (UTC_TIMESTAMP(6) + INTERVAL -? MICROSECOND) < ''1970-01-01'' AND quota_usages.reserved + ? >= 0 AND quota_usages.used + ? >= 0 AND quota_usages.subtree + ? >= 0; IF ROW_COUNT() = 1 THEN COMMIT; ELSE ROLLBACK; SELECT 2; END IF; ELSE ROLLBACK; SELECT 1; END IF; ELSE ROLLBACK; SELECT 0; END IF; END'
;
EXECUTE cyborg_quota_7a0f99a9704be0cf7d56 USING %s, %s, %s, %s, 1, %s, %s, 1, 5, %s, 1, %s, 1, %s, %s, 1, 5, %s, 2, 2, 0, 2, 1, 101, 6, 48, 9007199254740992, 2, 0, 2 -- COMMIT
;

-- single statement: reserve in a tree
PREPARE cyborg_quota_5e1cda908e6b5a3fa252 FROM 'BEGIN NOT ATOMIC IF NOT EXISTS (SELECT 1 
FROM reservations AS holder 
WHERE holder.project_id = ? AND holder.consumer_id = ? AND holder.live = 1) THEN INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES (UTC_TIMESTAMP(6), false, ?, ?, ?, ?, ?, (UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), ''reserved'', ?, 1, ?); IF ROW_COUNT() = 1 THEN UPDATE quota_usages SET updated_at=UTC_TIMESTAMP(6), reserved=(quota_usages.reserved + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END), used=(quota_usages.used + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END), subtree=(quota_usages.subtree + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END) WHERE quota_usages.id IN (?, ?, ?) AND quota_usages.generation = CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END AND quota_usages.used + quota_usages.reserved <= CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END AND quota_usages.subtree <= CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END AND (UTC_TIMESTAMP(6) + INTERVAL -CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END MICROSECOND) < ''1970-01-01'' AND quota_usages.reserved + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END >= 0 AND quota_usages.used + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END >= 0 AND quota_usages.subtree + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END >= 0; IF ROW_COUNT() = 3 THEN COMMIT; ELSE ROLLBACK; SELECT 2; END IF; ELSE ROLLBACK; SELECT 1; END IF; ELSE ROLLBACK; SELECT 0; END IF; END'
;
EXECUTE cyborg_quota_5e1cda908e6b5a3fa252 USING %s, %s, %s, 1, %s, %s, 1, 5, %s, 1, 1, 2, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0, 1, 2, 2, 2, 3, 2, 1, 2, 3, 1, 101, 2, 102, 3, 103, 1, 6, 2, 4611686018427387904, 3, 4611686018427387904, 1, 48, 2, 58, 3, 58, 1, 9007199254740992, 2, 9007199254740992, 3, 9007199254740992, 1, 2, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0, 1, 2, 2, 2, 3, 2 -- COMMIT
;

-- single statement: commit
PREPARE cyborg_quota_a056ca4865b42bce63db FROM 'BEGIN NOT ATOMIC UPDATE reservations SET updated_at=UTC_TIMESTAMP(6), state=''committed'' WHERE reservations.uuid = ? AND CASE WHEN (reservations.state = ''reserved'') THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.generation IS NULL) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (UTC_TIMESTAMP(6) + INTERVAL -? MICROSECOND)) THEN 1 ELSE 0 END = 1; IF ROW_COUNT() = 1 THEN UPDATE quota_usages SET updated_at=UTC_TIMESTAMP(6), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND (UTC_TIMESTAMP(6) + INTERVAL -? MICROSECOND) < ''1970-01-01'' AND quota_usages.reserved + ? >= 0 AND quota_usages.used + ? >= 0 AND quota_usages.subtree + ? >= 0; IF ROW_COUNT() = 1 THEN COMMIT; ELSE ROLLBACK; SELECT 2; END IF; ELSE ROLLBACK; SELECT 1; END IF; END'
;
EXECUTE cyborg_quota_a056ca4865b42bce63db USING %s, 0, -2, 2, 0, 1, 101, 4611686018427387904, 4611686018427387904, 9007199254740992, -2, 2, 0 -- COMMIT
;

-- single statement: commit two
PREPARE cyborg_quota_c17364777d21356de200 FROM 'BEGIN NOT ATOMIC UPDATE reservations SET updated_at=UTC_TIMESTAMP(6), state=''committed'' WHERE reservations.uuid IN (?, ?) AND CASE WHEN (reservations.state = ''reserved'') THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.generation IS NULL) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (UTC_TIMESTAMP(6) + INTERVAL -? MICROSECOND)) THEN 1 ELSE 0 END = 1; IF ROW_COUNT() = 2 THEN UPDATE quota_usages SET updated_at=UTC_TIMESTAMP(6), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND (UTC_TIMESTAMP(6) + INTERVAL -? MICROSECOND) < ''1970-01-01'' AND quota_usages.reserved + ? >= 0 AND quota_usages.used + ? >= 0 AND quota_usages.subtree + ? >= 0; IF ROW_COUNT() = 1 THEN COMMIT; ELSE ROLLBACK; SELECT 2; END IF; ELSE ROLLBACK; SELECT 1; END IF; END'
;
EXECUTE cyborg_quota_c17364777d21356de200 USING %s, %s, 0, -2, 2, 0, 1, 101, 4611686018427387904, 4611686018427387904, 9007199254740992, -2, 2, 0 -- COMMIT
;

-- single statement: roll back in a tree
PREPARE cyborg_quota_3a1e2d72aae869c28b13 FROM 'BEGIN NOT ATOMIC UPDATE reservations SET updated_at=UTC_TIMESTAMP(6), deleted_at=UTC_TIMESTAMP(6), deleted=true, state=''rolled_back'', live=NULL, claim_ordinal=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.uuid = ? AND CASE WHEN (reservations.state = ''reserved'') THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.generation IS NULL) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (UTC_TIMESTAMP(6) + INTERVAL -? MICROSECOND)) THEN 1 ELSE 0 END = 1; IF ROW_COUNT() = 1 THEN UPDATE quota_usages SET updated_at=UTC_TIMESTAMP(6), reserved=(quota_usages.reserved + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END), used=(quota_usages.used + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END), subtree=(quota_usages.subtree + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END) WHERE quota_usages.id IN (?, ?, ?) AND quota_usages.generation = CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END AND quota_usages.used + quota_usages.reserved <= CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END AND quota_usages.subtree <= CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END AND (UTC_TIMESTAMP(6) + INTERVAL -CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END MICROSECOND) < ''1970-01-01'' AND quota_usages.reserved + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END >= 0 AND quota_usages.used + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END >= 0 AND quota_usages.subtree + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END >= 0; IF ROW_COUNT() = 3 THEN COMMIT; ELSE ROLLBACK; SELECT 2; END IF; ELSE ROLLBACK; SELECT 1; END IF; END'
;
EXECUTE cyborg_quota_3a1e2d72aae869c28b13 USING %s, 0, 1, -2, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0, 1, -2, 2, -2, 3, -2, 1, 2, 3, 1, 101, 2, 102, 3, 103, 1, 4611686018427387904, 2, 4611686018427387904, 3, 4611686018427387904, 1, 4611686018427387904, 2, 4611686018427387904, 3, 4611686018427387904, 1, 9007199254740992, 2, 9007199254740992, 3, 9007199254740992, 1, -2, 2, 0, 3, 0, 1, 0, 2, 0, 3, 0, 1, -2, 2, -2, 3, -2 -- COMMIT
;

-- single statement: claim capacity
PREPARE cyborg_quota_6e856239ce9225d44a3f FROM 'BEGIN NOT ATOMIC IF NOT EXISTS (SELECT 1 
FROM reservations AS holder 
WHERE holder.project_id = ? AND holder.consumer_id = ? AND holder.live = 1) THEN INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal, provider_id) VALUES (UTC_TIMESTAMP(6), false, ?, ?, ?, ?, ?, (UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND), ''reserved'', ?, 1, ?, ?); IF ROW_COUNT() = 1 THEN UPDATE inventories SET updated_at=UTC_TIMESTAMP(6), used=(inventories.used + ?), free=(inventories.free - ?) WHERE inventories.id = ? AND inventories.free >= ? AND (inventories.min_unit = ? OR inventories.min_unit < ? AND inventories.max_unit >= ? AND ? %% inventories.step_size < 1); IF ROW_COUNT() = 1 THEN UPDATE quota_usages SET updated_at=UTC_TIMESTAMP(6), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND (UTC_TIMESTAMP(6) + INTERVAL -? MICROSECOND) < ''1970-01-01'' AND quota_usages.reserved + ? >= 0 AND quota_usages.used + ? >= 0 AND quota_usages.subtree + ? >= 0; IF ROW_COUNT() = 1 THEN COMMIT; ELSE ROLLBACK; SELECT 3; END IF; ELSE ROLLBACK; SELECT 2; END IF; ELSE ROLLBACK; SELECT 1; END IF; ELSE ROLLBACK; SELECT 0; END IF; END'
;
EXECUTE cyborg_quota_6e856239ce9225d44a3f USING %s, %s, %s, 1, %s, %s, 1, 5, %s, 1, 5, 4, 4, 7, 4, 2, 2, 2, 2, 2, 0, 2, 1, 101, 6, 48, 9007199254740992, 2, 0, 2 -- COMMIT
;

-- claim of capacity
UPDATE inventories SET updated_at=UTC_TIMESTAMP(6), used=(inventories.used + %(b_total)s), free=(inventories.free - %(b_total)s) WHERE inventories.id = %(b_inventory)s AND inventories.free >= %(b_total)s AND (inventories.min_unit = %(b_amount)s OR inventories.min_unit < %(b_amount)s AND inventories.max_unit >= %(b_amount)s AND %(b_amount)s %% inventories.step_size < 1)
;

-- charge one row
UPDATE quota_usages SET updated_at=UTC_TIMESTAMP(6), reserved=(quota_usages.reserved + %(b_reserved_0)s), used=(quota_usages.used + %(b_used_0)s), subtree=(quota_usages.subtree + %(b_subtree_0)s) WHERE quota_usages.id = %(b_id_0)s AND quota_usages.generation = %(b_generation_0)s AND quota_usages.used + quota_usages.reserved <= %(b_max_held_0)s AND quota_usages.subtree <= %(b_max_subtree_0)s AND (UTC_TIMESTAMP(6) + INTERVAL -%(b_until_0)s MICROSECOND) < '1970-01-01' AND quota_usages.reserved + %(b_reserved_0)s >= 0 AND quota_usages.used + %(b_used_0)s >= 0 AND quota_usages.subtree + %(b_subtree_0)s >= 0
;

-- charge together
UPDATE quota_usages, (SELECT 1 AS id, 101 AS generation, 2 AS reserved, 0 AS used, 2 AS subtree, 6 AS max_held, 48 AS max_subtree, 9007199254740992 AS until UNION ALL VALUES (2, 102, 0, 0, 2, 4611686018427387904, 58, 9007199254740992), (3, 103, 0, 0, 2, 4611686018427387904, 58, 9007199254740992)) AS d SET quota_usages.updated_at=UTC_TIMESTAMP(6), quota_usages.reserved=(quota_usages.reserved + d.reserved), quota_usages.used=(quota_usages.used + d.used), quota_usages.subtree=(quota_usages.subtree + d.subtree) WHERE quota_usages.id = d.id AND quota_usages.generation = d.generation AND quota_usages.used + quota_usages.reserved <= d.max_held AND quota_usages.subtree <= d.max_subtree AND (UTC_TIMESTAMP(6) + INTERVAL -d.until MICROSECOND) < '1970-01-01' AND quota_usages.reserved + d.reserved >= 0 AND quota_usages.used + d.used >= 0 AND quota_usages.subtree + d.subtree >= 0
;

-- insert 1
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES (UTC_TIMESTAMP(6), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (UTC_TIMESTAMP(6) + INTERVAL %(b_ttl)s MICROSECOND), 'reserved', %(b_consumer_id_0)s, 1, %(b_claim_ordinal_0)s)
;

-- insert 2
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES (UTC_TIMESTAMP(6), false, %(b_uuid_0)s, %(b_usage_id_0)s, %(b_project)s, %(b_resource_0)s, %(b_delta_0)s, (UTC_TIMESTAMP(6) + INTERVAL %(b_ttl)s MICROSECOND), 'reserved', %(b_consumer_id_0)s, 1, %(b_claim_ordinal_0)s), (UTC_TIMESTAMP(6), false, %(b_uuid_1)s, %(b_usage_id_1)s, %(b_project)s, %(b_resource_1)s, %(b_delta_1)s, (UTC_TIMESTAMP(6) + INTERVAL %(b_ttl)s MICROSECOND), 'reserved', %(b_consumer_id_1)s, 1, %(b_claim_ordinal_1)s)
;

-- by uuids
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (UTC_TIMESTAMP(6) + INTERVAL -%(b_grace)s MICROSECOND)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod 
FROM reservations 
WHERE reservations.uuid IN (%(b_0)s, %(b_1)s, %(b_2)s, %(b_3)s)
;

-- by consumer
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (UTC_TIMESTAMP(6) + INTERVAL -%(b_grace)s MICROSECOND)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = %(project_id_1)s AND reservations.consumer_id = %(consumer_id_1)s
;

-- by group
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (UTC_TIMESTAMP(6) + INTERVAL -%(b_grace)s MICROSECOND)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = %(project_id_1)s AND reservations.group_id = %(group_id_1)s UNION ALL SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= (UTC_TIMESTAMP(6) + INTERVAL -%(b_grace)s MICROSECOND)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = %(project_id_1)s AND reservations.group_id >= %(group_id_2)s AND reservations.group_id < %(group_id_3)s
;

-- move to committed
UPDATE reservations SET updated_at=UTC_TIMESTAMP(6), state=%(b_after)s WHERE reservations.id IN (%(b_0)s, %(b_1)s) AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > (UTC_TIMESTAMP(6) + INTERVAL -%(b_grace)s MICROSECOND)) THEN 1 ELSE 0 END = 1
;

-- move to rolled back
UPDATE reservations SET updated_at=UTC_TIMESTAMP(6), deleted_at=UTC_TIMESTAMP(6), deleted=true, state=%(b_after)s, live=NULL, claim_ordinal=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = %(b_0)s AND CASE WHEN (reservations.state = %(b_before)s) THEN 1 ELSE 0 END = 1 AND CASE WHEN (%(b_generation)s = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1
;
