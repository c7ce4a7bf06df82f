-- charge
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND quota_usages.used >= ? AND quota_usages.reserved >= ? AND quota_usages.subtree >= ?
;

-- charge all of one
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND quota_usages.used >= ? AND quota_usages.reserved >= ? AND quota_usages.subtree >= ?
;

-- charge all of three
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND quota_usages.used >= ? AND quota_usages.reserved >= ? AND quota_usages.subtree >= ?
;
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND quota_usages.used >= ? AND quota_usages.reserved >= ? AND quota_usages.subtree >= ?
;
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.used + quota_usages.reserved <= ? AND quota_usages.subtree <= ? AND quota_usages.used >= ? AND quota_usages.reserved >= ? AND quota_usages.subtree >= ?
;

-- charge in bulk: 1

-- charge in bulk: 3

-- charge in bulk: 10
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), reserved=(quota_usages.reserved + ?), used=(quota_usages.used + ?), subtree=(quota_usages.subtree + ?) WHERE quota_usages.id = ? AND quota_usages.generation = ? AND quota_usages.reserved + ? >= 0 AND quota_usages.used + ? >= 0 AND quota_usages.subtree + ? >= 0 AND (? + ? >= 0 OR quota_usages.used + quota_usages.reserved < 2147483647)
;

-- lock a usage row
UPDATE quota_usages SET used=quota_usages.used WHERE quota_usages.id = ? AND quota_usages.generation = ?
;

-- read counters
SELECT quota_usages.project_id, quota_usages.resource, quota_usages.used, quota_usages.reserved, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.project_id IN (__[POSTCOMPILE_project_id_1]) AND quota_usages.resource IN (__[POSTCOMPILE_resource_1])
;

-- insert 1
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), ?, ?, ?, 1, ?)
;

-- insert 5
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), ?, ?, ?, 1, ?), (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), ?, ?, ?, 1, ?), (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), ?, ?, ?, 1, ?), (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), ?, ?, ?, 1, ?)
;
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), ?, ?, ?, 1, ?)
;

-- insert 2 with a source
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place, source) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), ?, ?, ?, 1, ?, ?), (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, cyborg_quota_utc_after(?), ?, ?, ?, 1, ?, ?)
;

-- insert 2 committed
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, expire, state, consumer_id, group_id, live, place) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, NULL, ?, ?, ?, 1, ?), (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, NULL, ?, ?, ?, 1, ?)
;

-- by uuids
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod 
FROM reservations 
WHERE reservations.uuid IN (?, ?, ?, ?)
;

-- by consumer
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after, reservations.created_at, reservations.deleted_at 
FROM reservations 
WHERE reservations.project_id = ? AND reservations.consumer_id = ?
;

-- by group
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod, reservations.ended_after, reservations.created_at, reservations.deleted_at 
FROM reservations 
WHERE reservations.project_id = ? AND reservations.group_id = ?
;

-- live of
SELECT reservations.id, reservations.uuid, reservations.usage_id, reservations.project_id, reservations.resource, reservations.delta, reservations.state, CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END AS overdue, reservations.consumer_id, reservations.provider_id, coalesce(reservations.generation, 0) AS coalesce_1, reservations.pod 
FROM reservations 
WHERE reservations.project_id = ? AND reservations.consumer_id = ? AND reservations.live = 1
;

-- any live
SELECT 1 
FROM reservations 
WHERE reservations.project_id = ? AND reservations.consumer_id IN (?, ?) AND reservations.live = 1
 LIMIT 1 OFFSET ?
;

-- move to committed
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), state=? WHERE reservations.id IN (?, ?) AND CASE WHEN (reservations.state = ?) THEN 1 ELSE 0 END = 1 AND CASE WHEN (? = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END = 1
;

-- move to rolled back
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), deleted_at=cyborg_quota_utc_after(0), deleted=1, state=?, live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = ? AND CASE WHEN (reservations.state = ?) THEN 1 ELSE 0 END = 1 AND CASE WHEN (? = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1
;

-- move to released
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), deleted_at=cyborg_quota_utc_after(0), deleted=1, state=?, live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = ? AND CASE WHEN (reservations.state = ?) THEN 1 ELSE 0 END = 1 AND CASE WHEN (? = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1
;

-- move to expired
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), deleted_at=cyborg_quota_utc_after(0), deleted=1, state=?, live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id = ? AND CASE WHEN (reservations.state = ?) THEN 1 ELSE 0 END = 1 AND CASE WHEN (? = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END = 1
;

-- commit in flight
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), state='committed' WHERE reservations.uuid = ? AND CASE WHEN (reservations.state = 'reserved') THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.generation IS NULL) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END = 1
;

-- roll back in flight
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), deleted_at=cyborg_quota_utc_after(0), deleted=1, state='rolled_back', live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.uuid IN (?, ?) AND CASE WHEN (reservations.state = 'reserved') THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.generation IS NULL) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END = 1
;

-- extend
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), expire=cyborg_quota_utc_after(?) WHERE reservations.id = ? AND CASE WHEN (reservations.state = ?) THEN 1 ELSE 0 END = 1 AND CASE WHEN (? = coalesce(reservations.generation, 0)) THEN 1 ELSE 0 END = 1 AND CASE WHEN (reservations.expire IS NULL OR reservations.expire > cyborg_quota_utc_after(-?)) THEN 1 ELSE 0 END = 1
;

-- amend
UPDATE reservations SET usage_id=?, project_id=?, delta=?, place=coalesce(?, reservations.place), generation=(coalesce(reservations.generation, 0) + 1) WHERE reservations.id = ? AND reservations.state = ? AND ? = coalesce(reservations.generation, 0) AND reservations.delta = ? AND (reservations.state = 'committed' OR reservations.expire IS NULL OR reservations.expire > cyborg_quota_utc_after(-?))
;

-- name
UPDATE reservations SET consumer_id=?, place=? WHERE reservations.id = ? AND reservations.consumer_id IS NULL AND reservations.live = 1 AND ? = coalesce(reservations.generation, 0)
;

-- link
UPDATE reservations SET usage_id=? WHERE reservations.project_id = ? AND reservations.resource = ? AND reservations.live = ?
;

-- overdue
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta, reservations.provider_id, coalesce(reservations.generation, 0) AS generation, reservations.pod 
FROM reservations 
WHERE reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?) ORDER BY reservations.expire
 LIMIT ? OFFSET ?
;

-- overdue from the first
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta, reservations.provider_id, coalesce(reservations.generation, 0) AS generation, reservations.pod 
FROM reservations 
WHERE reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?) ORDER BY reservations.expire, reservations.id
 LIMIT ? OFFSET ?
;
SELECT reservations.expire 
FROM reservations 
WHERE reservations.id = ? AND reservations.expire <= cyborg_quota_utc_after(-?)
;

-- overdue from a position
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta, reservations.provider_id, coalesce(reservations.generation, 0) AS generation, reservations.pod 
FROM reservations 
WHERE reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?) AND reservations.expire >= ? AND (reservations.expire > ? OR reservations.id > ?) ORDER BY reservations.expire, reservations.id
 LIMIT ? OFFSET ?
;
SELECT reservations.expire 
FROM reservations 
WHERE reservations.id = ? AND reservations.expire <= cyborg_quota_utc_after(-?)
;

-- overdue of
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta, reservations.provider_id, coalesce(reservations.generation, 0) AS generation, reservations.pod 
FROM reservations 
WHERE reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?) AND reservations.id IN (?, ?, ?, ?)
;

-- expire
UPDATE reservations SET updated_at=cyborg_quota_utc_after(0), deleted_at=cyborg_quota_utc_after(0), deleted=1, state='expired', live=NULL, place=NULL, ended_after=(SELECT newest.id 
FROM (SELECT max(every_reservation.id) AS id 
FROM reservations AS every_reservation) AS newest) WHERE reservations.id IN (?, ?, ?, ?, ?, ?, ?, ?) AND reservations.state = 'reserved' AND reservations.expire <= cyborg_quota_utc_after(-?) AND ? = coalesce(reservations.generation, 0)
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
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id IN (SELECT path.project_id 
FROM path) UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_2, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ' total'
;

-- sums
SELECT coalesce(sum(CASE WHEN (reservations.state = ? AND reservations.delta > ?) THEN reservations.delta ELSE ? END), ?) AS reserved, coalesce(sum(CASE WHEN (reservations.state = ?) THEN reservations.delta ELSE ? END), ?) AS used 
FROM reservations 
WHERE reservations.state IN (__[POSTCOMPILE_state_3]) AND reservations.usage_id = ?
;

-- children's total
SELECT coalesce(sum(child.subtree), ?) AS coalesce_1 
FROM projects JOIN quota_usages AS child ON child.project_id = projects.project_id 
WHERE projects.parent_id = ? AND child.resource = ?
;

-- figures
SELECT quota_usages.used, quota_usages.reserved, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.id = ?
;

-- end adjustments
SELECT reservations.id 
FROM reservations LEFT OUTER JOIN reservations AS adjusted ON adjusted.id = reservations.adjusts 
WHERE reservations.usage_id = ? AND reservations.state = ? AND reservations.adjusts IS NOT NULL AND (reservations.adjusts = ? OR reservations.adjusts != ? AND (adjusted.id IS NULL OR adjusted.state = ?))
;

-- freed
SELECT coalesce(reservations.adjusts, reservations.id) AS coalesce_1, -sum(reservations.delta) AS anon_1 
FROM reservations 
WHERE reservations.usage_id = ? AND reservations.state = ? AND (reservations.delta < ? OR reservations.adjusts IS NOT NULL) GROUP BY coalesce(reservations.adjusts, reservations.id) 
HAVING sum(reservations.delta) < ?
;

-- excess
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, state, live, adjusts) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, ?, ?, ?)
;

-- set figures
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), reserved=?, used=?, subtree=? WHERE quota_usages.id = ?
;

-- purge
SELECT reservations.id 
FROM reservations 
WHERE reservations.deleted_at <= cyborg_quota_utc_after(-?) ORDER BY reservations.deleted_at
 LIMIT ? OFFSET ?
;

-- foldable usage rows
SELECT reservations.usage_id 
FROM reservations 
WHERE reservations.usage_id > ? AND reservations.state = ? AND reservations.consumer_id IS NULL AND reservations.group_id IS NULL AND reservations.adjusts IS NULL AND coalesce(reservations.updated_at, reservations.created_at) <= cyborg_quota_utc_after(-?) GROUP BY reservations.usage_id 
HAVING count(*) > ? OR min(reservations.delta) < ? ORDER BY reservations.usage_id
 LIMIT ? OFFSET ?
;

-- foldable
SELECT reservations.usage_id, reservations.provider_id, reservations.pod 
FROM reservations 
WHERE reservations.usage_id = ? AND reservations.state = ? AND reservations.consumer_id IS NULL AND reservations.group_id IS NULL AND reservations.adjusts IS NULL AND coalesce(reservations.updated_at, reservations.created_at) <= cyborg_quota_utc_after(-?) GROUP BY reservations.usage_id, reservations.provider_id, reservations.pod 
HAVING count(*) > ? OR min(reservations.delta) < ?
;

-- fold
SELECT reservations.id, reservations.project_id, reservations.resource, reservations.delta 
FROM reservations 
WHERE reservations.usage_id = ? AND reservations.provider_id IS ? AND reservations.pod IS ? AND reservations.id > ? AND reservations.state = ? AND reservations.consumer_id IS NULL AND reservations.group_id IS NULL AND reservations.adjusts IS NULL AND coalesce(reservations.updated_at, reservations.created_at) <= cyborg_quota_utc_after(-?) ORDER BY reservations.id
 LIMIT ? OFFSET ?
;
SELECT reservations.id, reservations.delta 
FROM reservations 
WHERE reservations.usage_id = ? AND reservations.state = 'committed' AND reservations.adjusts = ?
;
DELETE FROM reservations WHERE reservations.id IN (?, ?) AND reservations.state = 'committed' AND reservations.consumer_id IS NULL
;
UPDATE quota_usages SET used=quota_usages.used WHERE quota_usages.id = ?
;
SELECT reservations.id, reservations.delta 
FROM reservations 
WHERE reservations.usage_id = ? AND reservations.state = 'committed' AND reservations.adjusts = ?
;
INSERT INTO reservations (created_at, deleted, uuid, usage_id, project_id, resource, delta, state, live, adjusts, provider_id, pod) VALUES (cyborg_quota_utc_after(0), 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
;

-- audit
SELECT quota_usages.project_id, quota_usages.resource, quota_usages.reserved, quota_usages.used, quota_usages.subtree, coalesce(sums.reserved, ?) AS true_reserved, CASE WHEN (adjustments.excess < ? AND (coalesce(sums.used, ?) - coalesce(adjustments.outlived + adjustments.excess, ?)) + coalesce(sums.reserved, ?) > ?) THEN ? - coalesce(sums.reserved, ?) ELSE coalesce(sums.used, ?) - coalesce(adjustments.outlived + adjustments.excess, ?) END AS true_used, CASE WHEN (adjustments.excess < ? AND (coalesce(sums.used, ?) - coalesce(adjustments.outlived + adjustments.excess, ?)) + coalesce(sums.reserved, ?) > ?) THEN ? - coalesce(sums.reserved, ?) ELSE coalesce(sums.used, ?) - coalesce(adjustments.outlived + adjustments.excess, ?) END + coalesce(sums.reserved, ?) + coalesce(children.subtree, ?) AS true_subtree 
FROM quota_usages LEFT OUTER JOIN (SELECT reservations.usage_id AS usage_id, sum(CASE WHEN (reservations.state = ? AND reservations.delta > ?) THEN reservations.delta ELSE ? END) AS reserved, sum(CASE WHEN (reservations.state = ?) THEN reservations.delta ELSE ? END) AS used 
FROM reservations 
WHERE reservations.live = ? GROUP BY reservations.usage_id UNION ALL SELECT quota_usages.id AS id, sum(CASE WHEN (reservations.state = ? AND reservations.delta > ?) THEN reservations.delta ELSE ? END) AS sum_1, sum(CASE WHEN (reservations.state = ?) THEN reservations.delta ELSE ? END) AS sum_2 
FROM reservations LEFT OUTER JOIN resource_providers ON resource_providers.id = reservations.provider_id JOIN quota_usages ON quota_usages.project_id = reservations.project_id AND quota_usages.resource = (? || coalesce(reservations.pod, resource_providers.pod) || ? || reservations.resource) 
WHERE reservations.live = ? AND coalesce(reservations.pod, resource_providers.pod) IS NOT NULL GROUP BY quota_usages.id) AS sums ON sums.usage_id = quota_usages.id LEFT OUTER JOIN (SELECT reservations.usage_id AS usage_id, sum(CASE WHEN (reservations.adjusts != ? AND (adjusted.id IS NULL OR adjusted.state = ?)) THEN reservations.delta ELSE ? END) AS outlived, sum(CASE WHEN (reservations.adjusts = ?) THEN reservations.delta ELSE ? END) AS excess 
FROM reservations LEFT OUTER JOIN reservations AS adjusted ON adjusted.id = reservations.adjusts 
WHERE reservations.state = ? AND reservations.adjusts IS NOT NULL GROUP BY reservations.usage_id) AS adjustments ON adjustments.usage_id = quota_usages.id LEFT OUTER JOIN (SELECT projects.parent_id AS parent_id, child.resource AS resource, sum(child.subtree) AS subtree 
FROM projects JOIN quota_usages AS child ON child.project_id = projects.project_id 
WHERE projects.parent_id IS NOT NULL GROUP BY projects.parent_id, child.resource UNION ALL SELECT ? AS anon_1, child.resource AS resource, sum(child.subtree) AS sum_3 
FROM quota_usages AS child 
WHERE child.in_total IS NOT NULL AND child.project_id != ? GROUP BY child.resource) AS children ON children.parent_id = quota_usages.project_id AND children.resource = quota_usages.resource 
WHERE quota_usages.reserved != coalesce(sums.reserved, ?) OR quota_usages.used != CASE WHEN (adjustments.excess < ? AND (coalesce(sums.used, ?) - coalesce(adjustments.outlived + adjustments.excess, ?)) + coalesce(sums.reserved, ?) > ?) THEN ? - coalesce(sums.reserved, ?) ELSE coalesce(sums.used, ?) - coalesce(adjustments.outlived + adjustments.excess, ?) END OR quota_usages.subtree != CASE WHEN (adjustments.excess < ? AND (coalesce(sums.used, ?) - coalesce(adjustments.outlived + adjustments.excess, ?)) + coalesce(sums.reserved, ?) > ?) THEN ? - coalesce(sums.reserved, ?) ELSE coalesce(sums.used, ?) - coalesce(adjustments.outlived + adjustments.excess, ?) END + coalesce(sums.reserved, ?) + coalesce(children.subtree, ?) UNION ALL SELECT reservations.project_id, reservations.resource, NULL AS anon_2, NULL AS anon__1, NULL AS anon__2, sum(CASE WHEN (reservations.state = ? AND reservations.delta > ?) THEN reservations.delta ELSE ? END) AS sum_1, sum(CASE WHEN (reservations.state = ?) THEN reservations.delta ELSE ? END) AS sum_2, sum(CASE WHEN (reservations.state = ? AND reservations.delta > ?) THEN reservations.delta ELSE ? END) + sum(CASE WHEN (reservations.state = ?) THEN reservations.delta ELSE ? END) AS anon_3 
FROM reservations LEFT OUTER JOIN quota_usages ON quota_usages.id = reservations.usage_id 
WHERE reservations.live = ? AND quota_usages.id IS NULL GROUP BY reservations.project_id, reservations.resource UNION ALL SELECT reservations.project_id, ? || coalesce(reservations.pod, resource_providers.pod) || ? || reservations.resource AS anon_4, NULL AS anon_2, NULL AS anon__1, NULL AS anon__2, sum(CASE WHEN (reservations.state = ? AND reservations.delta > ?) THEN reservations.delta ELSE ? END) AS sum_1, sum(CASE WHEN (reservations.state = ?) THEN reservations.delta ELSE ? END) AS sum_2, sum(CASE WHEN (reservations.state = ? AND reservations.delta > ?) THEN reservations.delta ELSE ? END) + sum(CASE WHEN (reservations.state = ?) THEN reservations.delta ELSE ? END) AS anon_5 
FROM reservations LEFT OUTER JOIN resource_providers ON resource_providers.id = reservations.provider_id LEFT OUTER JOIN quota_usages ON quota_usages.project_id = reservations.project_id AND quota_usages.resource = (? || coalesce(reservations.pod, resource_providers.pod) || ? || reservations.resource) 
WHERE reservations.live = ? AND quota_usages.id IS NULL AND coalesce(reservations.pod, resource_providers.pod) IS NOT NULL GROUP BY reservations.project_id, ? || coalesce(reservations.pod, resource_providers.pod) || ? || reservations.resource UNION ALL SELECT children.parent_id, children.resource, NULL AS anon_2, NULL AS anon__1, NULL AS anon__2, ? AS anon_6, ? AS anon_7, children.subtree 
FROM (SELECT projects.parent_id AS parent_id, child.resource AS resource, sum(child.subtree) AS subtree 
FROM projects JOIN quota_usages AS child ON child.project_id = projects.project_id 
WHERE projects.parent_id IS NOT NULL GROUP BY projects.parent_id, child.resource UNION ALL SELECT ? AS anon_1, child.resource AS resource, sum(child.subtree) AS sum_3 
FROM quota_usages AS child 
WHERE child.in_total IS NOT NULL AND child.project_id != ? GROUP BY child.resource) AS children LEFT OUTER JOIN quota_usages ON quota_usages.project_id = children.parent_id AND quota_usages.resource = children.resource 
WHERE quota_usages.id IS NULL AND children.subtree != ?
;

-- read path
WITH RECURSIVE path(project_id, parent_id, distance) AS 
(SELECT CAST(? AS VARCHAR(255)) AS project_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = CAST(? AS VARCHAR(255))) AS parent_id, 0 AS distance UNION ALL SELECT path.parent_id AS parent_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = path.parent_id) AS anon_1, path.distance + 1 AS anon_2 
FROM path 
WHERE path.parent_id IS NOT NULL AND path.distance < 64)
 SELECT path.project_id, CAST(NULL AS INTEGER) AS id, path.parent_id AS resource, CAST(NULL AS INTEGER) AS generation, (SELECT projects.origin 
FROM projects 
WHERE projects.project_id = path.project_id) AS origin, CAST(NULL AS INTEGER) AS in_total 
FROM path UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_3, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id IN (SELECT path.project_id 
FROM path) UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_3, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ' total'
;

-- read path state
WITH RECURSIVE path(project_id, parent_id, distance) AS 
(SELECT CAST(? AS VARCHAR(255)) AS project_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = CAST(? AS VARCHAR(255)) AND (projects.origin IS NULL OR projects.origin = ?)) AS parent_id, 0 AS distance UNION ALL SELECT path.parent_id AS parent_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = path.parent_id AND (projects.origin IS NULL OR projects.origin = ?)) AS anon_1, path.distance + 1 AS anon_2 
FROM path 
WHERE path.parent_id IS NOT NULL AND path.distance < 64)
 SELECT 'path' AS kind, path.project_id AS project_id, CAST(NULL AS VARCHAR(255)) AS resource, CAST(path.distance AS BIGINT) AS value_1, CAST(NULL AS BIGINT) AS value_2, CAST(NULL AS BIGINT) AS value_3 
FROM path UNION ALL SELECT 'usage' AS kind, quota_usages.project_id AS project_id, quota_usages.resource AS resource, CAST(quota_usages.used AS BIGINT) AS value_1, CAST(quota_usages.reserved AS BIGINT) AS value_2, CAST(quota_usages.subtree AS BIGINT) AS value_3 
FROM quota_usages 
WHERE quota_usages.project_id IN (SELECT path.project_id 
FROM path) AND quota_usages.resource >= '!' UNION ALL SELECT 'limit' AS kind, project_limits.project_id AS project_id, project_limits.resource AS resource, CAST(project_limits.most AS BIGINT) AS value_1, CAST(NULL AS BIGINT) AS value_2, CAST(NULL AS BIGINT) AS value_3 
FROM project_limits 
WHERE project_limits.project_id IN (SELECT path.project_id 
FROM path) AND project_limits.resource >= '!' UNION ALL SELECT 'override' AS kind, limit_overrides.project_id AS project_id, limit_overrides.resource AS resource, CAST(limit_overrides.most AS BIGINT) AS value_1, CAST(limit_overrides.generation AS BIGINT) AS value_2, CAST(limit_overrides.ordinal AS BIGINT) AS value_3 
FROM limit_overrides 
WHERE limit_overrides.project_id IN (SELECT path.project_id 
FROM path) AND limit_overrides.resource >= '!' AND limit_overrides.starts_at <= cyborg_quota_utc_after(0) AND limit_overrides.ends_at > cyborg_quota_utc_after(0) UNION ALL SELECT 'default' AS kind, CAST(NULL AS VARCHAR(255)) AS project_id, limit_defaults.resource AS resource, CAST(limit_defaults.most AS BIGINT) AS value_1, CAST(NULL AS BIGINT) AS value_2, CAST(NULL AS BIGINT) AS value_3 
FROM limit_defaults UNION ALL SELECT 'total' AS kind, quota_usages.project_id AS project_id, quota_usages.resource AS resource, CAST(limit_totals.most AS BIGINT) AS value_1, CAST(quota_usages.subtree AS BIGINT) AS value_2, CAST(NULL AS BIGINT) AS value_3 
FROM limit_totals JOIN quota_usages ON quota_usages.resource = limit_totals.resource 
WHERE quota_usages.project_id = ' total' AND limit_totals.is_enforced = 1
;

-- add project
INSERT INTO projects (created_at, project_id, generation) VALUES (cyborg_quota_utc_after(0), ?, ?) ON CONFLICT DO NOTHING
;

-- add usage row
INSERT INTO quota_usages (created_at, project_id, resource, reserved, used, subtree, generation) VALUES (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
;

-- add many usage rows
INSERT INTO quota_usages (created_at, project_id, resource, reserved, used, subtree, generation) VALUES (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?), (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?)
;
INSERT INTO quota_usages (created_at, project_id, resource, reserved, used, subtree, generation) VALUES (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?)
;

-- lock projects
UPDATE projects SET updated_at=cyborg_quota_utc_after(0), generation=(projects.generation + ?) WHERE projects.project_id = ?
;
UPDATE projects SET updated_at=cyborg_quota_utc_after(0), generation=(projects.generation + ?) WHERE projects.project_id = ?
;

-- move
SELECT quota_usages.resource, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.project_id = ?
;
UPDATE projects SET updated_at=cyborg_quota_utc_after(0), generation=(projects.generation + ?) WHERE projects.project_id = ?
;
WITH RECURSIVE path(project_id, parent_id, distance) AS 
(SELECT CAST(? AS VARCHAR(255)) AS project_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = CAST(? AS VARCHAR(255))) AS parent_id, 0 AS distance UNION ALL SELECT path.parent_id AS parent_id, (SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = path.parent_id) AS anon_1, path.distance + 1 AS anon_2 
FROM path 
WHERE path.parent_id IS NOT NULL AND path.distance < 64)
 SELECT path.project_id, CAST(NULL AS INTEGER) AS id, path.parent_id AS resource, CAST(NULL AS INTEGER) AS generation, (SELECT projects.origin 
FROM projects 
WHERE projects.project_id = path.project_id) AS origin, CAST(NULL AS INTEGER) AS in_total 
FROM path UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_3, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id IN (SELECT path.project_id 
FROM path) UNION ALL SELECT quota_usages.project_id, quota_usages.id, quota_usages.resource, quota_usages.generation, CAST(NULL AS VARCHAR(16)) AS anon_3, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.resource IN (__[POSTCOMPILE_b_resources]) AND quota_usages.project_id = ' total'
;
UPDATE quota_usages SET generation=((quota_usages.generation + ?) & 1073741823) WHERE quota_usages.project_id = ?
;
SELECT quota_usages.resource, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.project_id = ?
;
UPDATE projects SET parent_id=?, origin=? WHERE projects.project_id = ?
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
WHERE projects.parent_id IS NOT NULL AND projects.origin IS NOT NULL AND projects.origin = ? ORDER BY projects.project_id
 LIMIT ? OFFSET ?
;

-- count by origin
SELECT projects.origin, count(*) AS edges 
FROM projects 
WHERE projects.parent_id IS NOT NULL AND projects.origin IS NOT NULL GROUP BY projects.origin
;

-- children
SELECT projects.project_id 
FROM projects 
WHERE projects.parent_id = ? AND projects.origin IS NULL
;

-- subtree
SELECT projects.project_id 
FROM projects 
WHERE projects.parent_id IN (__[POSTCOMPILE_parent_id_1]) AND projects.origin IS NULL
;

-- parent
SELECT projects.parent_id 
FROM projects 
WHERE projects.project_id = ? AND projects.origin IS NULL
;

-- add and move many
INSERT INTO projects (created_at, project_id, parent_id, generation) VALUES (cyborg_quota_utc_after(0), ?, ?, ?)
;
SELECT projects.project_id, projects.parent_id 
FROM projects
;
SELECT quota_usages.id, quota_usages.resource, quota_usages.generation, quota_usages.in_total 
FROM quota_usages 
WHERE quota_usages.project_id = ' total'
;
UPDATE projects SET updated_at=cyborg_quota_utc_after(0), generation=(projects.generation + 1) WHERE projects.project_id IN (?, ?, ?, ?)
;
SELECT projects.project_id, projects.parent_id 
FROM projects
;
SELECT quota_usages.id, quota_usages.project_id, quota_usages.resource 
FROM quota_usages 
WHERE quota_usages.project_id IN (?, ?, ?, ?)
;
INSERT INTO quota_usages (created_at, project_id, resource, reserved, used, subtree, generation) VALUES (cyborg_quota_utc_after(0), ?, ?, ?, ?, ?, ?)
;
SELECT quota_usages.id, quota_usages.project_id, quota_usages.resource 
FROM quota_usages 
WHERE quota_usages.project_id = ?
;
UPDATE projects SET parent_id=CASE projects.project_id WHEN ? THEN ? END, origin=NULL WHERE projects.project_id = ?
;
SELECT quota_usages.id, quota_usages.subtree 
FROM quota_usages 
WHERE quota_usages.id IN (?, ?, ?, ?) ORDER BY quota_usages.id
;
UPDATE quota_usages SET updated_at=cyborg_quota_utc_after(0), subtree=(quota_usages.subtree + CASE quota_usages.id WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? WHEN ? THEN ? END) WHERE quota_usages.id IN (?, ?, ?, ?)
;
UPDATE quota_usages SET generation=((quota_usages.generation + ?) & 1073741823) WHERE quota_usages.id = ?
;

-- count usage rows
SELECT quota_usages.id, quota_usages.project_id, quota_usages.resource 
FROM quota_usages 
WHERE quota_usages.project_id IN (?, ?)
;

-- serialize tree changes
UPDATE fences SET generation=(fences.generation + ?) WHERE fences.name = ?
;
INSERT INTO fences (name, generation) VALUES (?, ?) ON CONFLICT DO NOTHING
;
UPDATE fences SET generation=(fences.generation + ?) WHERE fences.name = ?
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
UPDATE limit_defaults SET updated_at=cyborg_quota_utc_after(0), most=? WHERE limit_defaults.resource = ?
;

-- set overrides
INSERT INTO project_limits (created_at, project_id, resource, most) VALUES (cyborg_quota_utc_after(0), ?, ?, ?)
;
DELETE FROM project_limits WHERE project_limits.project_id = ? AND project_limits.resource = ?
;

-- claim of capacity
UPDATE inventories SET updated_at=cyborg_quota_utc_after(0), used=(inventories.used + ?), free=(inventories.free - ?) WHERE inventories.id = ? AND inventories.free >= ? AND (inventories.min_unit = ? OR inventories.min_unit < ? AND inventories.max_unit >= ? AND ? % inventories.step_size < 1)
;

-- adopted capacity
UPDATE inventories SET updated_at=cyborg_quota_utc_after(0), used=(inventories.used + ?), free=(inventories.free - ?) WHERE inventories.id = ?
;

-- candidates, least free
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = ? AND inventory_0.free >= ? AND (inventory_0.min_unit = ? OR inventory_0.min_unit < ? AND inventory_0.max_unit >= ? AND ? % inventory_0.step_size < 1) AND inventory_1.resource = ? AND inventory_1.free >= ? AND (inventory_1.min_unit = ? OR inventory_1.min_unit < ? AND inventory_1.max_unit >= ? AND ? % inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) != 0 ORDER BY inventory_0.free
 LIMIT ? OFFSET ?
;

-- candidates, most free
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = ? AND inventory_0.free >= ? AND (inventory_0.min_unit = ? OR inventory_0.min_unit < ? AND inventory_0.max_unit >= ? AND ? % inventory_0.step_size < 1) AND inventory_1.resource = ? AND inventory_1.free >= ? AND (inventory_1.min_unit = ? OR inventory_1.min_unit < ? AND inventory_1.max_unit >= ? AND ? % inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) != 0 ORDER BY inventory_0.free DESC
 LIMIT ? OFFSET ?
;

-- candidates, provider
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = ? AND inventory_0.free >= ? AND (inventory_0.min_unit = ? OR inventory_0.min_unit < ? AND inventory_0.max_unit >= ? AND ? % inventory_0.step_size < 1) AND inventory_1.resource = ? AND inventory_1.free >= ? AND (inventory_1.min_unit = ? OR inventory_1.min_unit < ? AND inventory_1.max_unit >= ? AND ? % inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) != 0 ORDER BY inventory_0.provider_id
 LIMIT ? OFFSET ?
;

-- equally good candidates
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = ? AND inventory_0.free >= ? AND (inventory_0.min_unit = ? OR inventory_0.min_unit < ? AND inventory_0.max_unit >= ? AND ? % inventory_0.step_size < 1) AND inventory_1.resource = ? AND inventory_1.free >= ? AND (inventory_1.min_unit = ? OR inventory_1.min_unit < ? AND inventory_1.max_unit >= ? AND ? % inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) != 0 AND inventory_0.free = ? AND inventory_0.provider_id >= CAST((SELECT min(inventories.provider_id) AS min_1 
FROM inventories) + ((SELECT max(inventories.provider_id) AS max_1 
FROM inventories) - (SELECT min(inventories.provider_id) AS min_1 
FROM inventories)) * (? / (1048576.0 + 0.0)) AS BIGINT) ORDER BY inventory_0.provider_id
 LIMIT ? OFFSET ?
;

-- candidates of a pod
SELECT inventory_0.provider_id, inventory_0.id, inventory_0.free, inventory_1.id AS id_1, inventory_1.free AS free_1, (SELECT resource_providers.pod 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id) AS pod 
FROM inventories AS inventory_0 JOIN inventories AS inventory_1 ON inventory_1.provider_id = inventory_0.provider_id 
WHERE inventory_0.resource = ? AND inventory_0.free >= ? AND (inventory_0.min_unit = ? OR inventory_0.min_unit < ? AND inventory_0.max_unit >= ? AND ? % inventory_0.step_size < 1) AND inventory_1.resource = ? AND inventory_1.free >= ? AND (inventory_1.min_unit = ? OR inventory_1.min_unit < ? AND inventory_1.max_unit >= ? AND ? % inventory_1.step_size < 1) AND (SELECT resource_providers.can_host 
FROM resource_providers 
WHERE resource_providers.id = inventory_0.provider_id AND resource_providers.pod = ?) != 0 ORDER BY inventory_0.free
 LIMIT ? OFFSET ?
;
