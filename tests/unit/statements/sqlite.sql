-- claim of capacity
UPDATE inventories SET updated_at=cyborg_quota_utc_after(0), used=(inventories.used + ?), free=(inventories.free - ?) WHERE inventories.id = ? AND inventories.free >= ? AND (inventories.min_unit = ? OR inventories.min_unit < ? AND inventories.max_unit >= ? AND ? % inventories.step_size < 1)
;

-- charge one row
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND cyborg_quota_utc_after(-?) < '1970-01-01' AND quota_usages.reserved + ? >= 0 AND quota_usages.used + ? >= 0 AND quota_usages.subtree + ? >= 0
;

-- charge together

-- insert 1
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), 'reserved', ?, 1, ?)
;

-- insert 2
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, live, claim_ordinal) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), 'reserved', ?, 1, ?), (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), 'reserved', ?, 1, ?)
;

-- by uuids
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod 
FROM reservations 
WHERE reservations.uuid IN (?, ?, ?, ?)
;

-- by consumer
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = ? AND reservations.consumer_id = ?
;

-- by group
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = ? AND reservations.group_id = ? UNION ALL SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after 
FROM reservations 
WHERE reservations.project_id = ? AND reservations.group_id >= ? AND reservations.group_id < ?
;

-- move to committed
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), state=? WHERE reservations.id IN (?, ?) AND CASE WHEN (reservations.state = ?) THEN 1 ELSE 0 END = 1 AND CASE WHEN (? = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END = 1
;

-- move to rolled back
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), deleted_at=cyborg_quota_utc_after(0), deleted=1, state=?, live=NULL, claim_ordinal=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = ? AND CASE WHEN (reservations.state = ?) THEN 1 ELSE 0 END = 1 AND CASE WHEN (? = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1
;
