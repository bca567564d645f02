-- name: bucket_get
SELECT terms, hour, events, cells, cascaded FROM buckets
WHERE namespace = ? AND entity_id = ? AND resource = ?

-- name: bucket_add
INSERT INTO buckets
  (terms, hour, events, uncounted, full_at_ms, cells, cascaded, namespace, entity_id, resource)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: bucket_set
UPDATE buckets
SET terms = ?, hour = ?, events = ?, uncounted = ?, full_at_ms = ?, cells = ?, cascaded = ?
WHERE namespace = ? AND entity_id = ? AND resource = ?

-- name: bucket_delete
DELETE FROM buckets WHERE namespace = ? AND entity_id = ? AND resource = ?

-- name: find
SELECT entity_id, resource, terms, hour, events, cells, cascaded FROM buckets
WHERE namespace = :namespace AND (entity_id, resource) > (:after_entity, :after_resource)
  AND uncounted >= :uncounted
ORDER BY entity_id, resource LIMIT :limit

-- name: find_of_entity
SELECT entity_id, resource, terms, hour, events, cells, cascaded FROM buckets
WHERE namespace = :namespace AND entity_id = :entity_id
  AND (+entity_id, +resource) > (:after_entity, :after_resource)
  AND uncounted >= :uncounted
ORDER BY resource LIMIT :limit

-- name: find_of_resource
SELECT entity_id, resource, terms, hour, events, cells, cascaded FROM buckets
INDEXED BY buckets_by_resource
WHERE namespace = :namespace AND resource = :resource AND entity_id >= :after_entity
  AND (+entity_id, +resource) > (:after_entity, :after_resource)
  AND uncounted >= :uncounted
ORDER BY entity_id LIMIT :limit

-- name: find_of_both
SELECT entity_id, resource, terms, hour, events, cells, cascaded FROM buckets
WHERE namespace = :namespace AND entity_id = :entity_id AND resource = :resource
  AND (entity_id, resource) > (:after_entity, :after_resource)
  AND uncounted >= :uncounted
LIMIT :limit

-- name: sweep_look
SELECT namespace, entity_id, resource, full_at_ms FROM buckets
WHERE (namespace, entity_id, resource) > (?, ?, ?)
ORDER BY namespace, entity_id, resource LIMIT ?

-- name: once_get
SELECT expires_ms FROM once WHERE namespace = ? AND name = ?

-- name: once_put
INSERT INTO once (namespace, name, expires_ms) VALUES (?, ?, ?)
ON CONFLICT (namespace, name) DO UPDATE SET expires_ms = excluded.expires_ms

-- name: once_expire
DELETE FROM once WHERE (namespace, name) IN
  (SELECT namespace, name FROM once WHERE expires_ms <= ? ORDER BY expires_ms LIMIT ?)
