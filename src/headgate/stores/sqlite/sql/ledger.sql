-- name: usage_get
SELECT counters, events, cascaded FROM usage
WHERE namespace = ? AND window_start_ms = ? AND window_type = ? AND entity_id = ? AND resource = ?

-- name: usage_put
INSERT INTO usage
  (counters, events, cascaded, namespace, window_start_ms, window_type, entity_id, resource)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, window_start_ms, window_type, entity_id, resource) DO UPDATE
SET counters = excluded.counters, events = excluded.events, cascaded = excluded.cascaded

-- name: usage_page
SELECT window_start_ms, window_type, entity_id, resource, counters, events, cascaded FROM usage
WHERE namespace = :namespace
  AND window_start_ms BETWEEN :start_ms AND :last_ms
  AND window_start_ms <= :at_ms
  AND (window_start_ms < :at_ms
       OR (window_type, entity_id, resource) > (:after_type, :after_entity, :after_resource))
  AND (:window_type IS NULL OR window_type = :window_type)
  AND (:resource IS NULL OR resource = :resource)
ORDER BY window_start_ms DESC, window_type, entity_id, resource LIMIT :limit

-- name: usage_page_of_entity
SELECT window_start_ms, window_type, entity_id, resource, counters, events, cascaded FROM usage
WHERE namespace = :namespace AND entity_id = :entity_id
  AND window_start_ms BETWEEN :start_ms AND :last_ms
  AND window_start_ms <= :at_ms
  AND (window_start_ms < :at_ms
       OR (window_type, entity_id, resource) > (:after_type, :after_entity, :after_resource))
  AND (:window_type IS NULL OR window_type = :window_type)
  AND (:resource IS NULL OR resource = :resource)
ORDER BY window_start_ms DESC, window_type, resource LIMIT :limit

-- name: usage_trim
DELETE FROM usage WHERE (namespace, window_start_ms, window_type, entity_id, resource) IN
  (SELECT namespace, window_start_ms, window_type, entity_id, resource FROM usage
   WHERE window_start_ms < ? LIMIT ?)

-- name: audit_add
INSERT OR IGNORE INTO audit (namespace, entity_id, event_id, time_ms, body) VALUES (?, ?, ?, ?, ?)

-- name: audit_page
SELECT event_id, entity_id, body FROM audit
WHERE namespace = ? AND entity_id = ? ORDER BY event_id DESC LIMIT ?

-- name: audit_page_before
SELECT event_id, entity_id, body FROM audit
WHERE namespace = ? AND entity_id = ? AND event_id < ? ORDER BY event_id DESC LIMIT ?

-- name: audit_log
SELECT event_id, entity_id, body FROM audit INDEXED BY audit_by_event
WHERE namespace = ? AND event_id < ? ORDER BY event_id DESC LIMIT ?

-- name: audit_trim
DELETE FROM audit WHERE (namespace, entity_id, event_id) IN
  (SELECT namespace, entity_id, event_id FROM audit WHERE time_ms < ? LIMIT ?)
