-- name: namespace_get
SELECT id, name, state, created_ms, deleted_ms, version FROM namespaces WHERE id = ?

-- name: namespace_active
SELECT id, name, state, created_ms, deleted_ms, version FROM namespaces
WHERE name = ? AND state = 'active'

-- name: namespaces
SELECT id, name, state, created_ms, deleted_ms, version FROM namespaces

-- name: namespace_add
INSERT INTO namespaces (id, name, state, version, created_ms) VALUES (?, ?, 'active', 0, ?)

-- name: namespace_state
UPDATE namespaces SET state = ?, deleted_ms = ? WHERE id = ?

-- name: namespace_changed
UPDATE namespaces SET version = version + 1 WHERE id = ? RETURNING version

-- name: namespace_delete
DELETE FROM namespaces WHERE id = ?

-- name: entity_get
SELECT id, parent_id, plan, version, body FROM entities WHERE namespace = ? AND id = ?

-- name: entity_put
INSERT INTO entities (namespace, id, parent_id, plan, version, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, id) DO UPDATE
SET parent_id = excluded.parent_id, plan = excluded.plan, version = excluded.version,
    body = excluded.body

-- name: entity_delete
DELETE FROM entities WHERE namespace = ? AND id = ?

-- name: children
SELECT id, parent_id, plan, version, body FROM entities INDEXED BY entities_by_parent
WHERE namespace = ? AND parent_id = ?

-- name: entities
SELECT id, parent_id, plan, version, body FROM entities
WHERE namespace = ? AND id > ? ORDER BY id LIMIT ?

-- name: entities_of_parent
SELECT id, parent_id, plan, version, body FROM entities INDEXED BY entities_by_parent
WHERE namespace = ? AND parent_id = ? AND id > ? ORDER BY id LIMIT ?

-- name: stored_get
SELECT body FROM stored WHERE namespace = ? AND entity_id = ? AND resource = ?

-- name: stored_put
INSERT INTO stored (namespace, entity_id, resource, limited, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (namespace, entity_id, resource) DO UPDATE
SET limited = excluded.limited, body = excluded.body

-- name: stored_delete
DELETE FROM stored WHERE namespace = ? AND entity_id = ? AND resource = ?

-- name: levels_of_entity
SELECT resource FROM stored WHERE namespace = ? AND entity_id = ?

-- name: resources
SELECT DISTINCT resource FROM stored
WHERE namespace = ? AND resource <> '' AND entity_id = '' AND limited = 1 ORDER BY resource

-- name: resources_of_entities
SELECT DISTINCT resource FROM stored
WHERE namespace = ? AND resource <> '' AND entity_id <> '' AND limited = 1 ORDER BY resource

-- name: limited_entities
SELECT entity_id FROM stored INDEXED BY stored_by_resource
WHERE namespace = ? AND resource = ? AND entity_id > ? AND limited = 1
ORDER BY entity_id LIMIT ?

-- name: plan_get
SELECT body, 0 FROM plans WHERE namespace = ? AND name = ?

-- name: plan_count
SELECT count(*) FROM entities INDEXED BY entities_by_plan WHERE namespace = ? AND plan = ?

-- name: plan_put
INSERT INTO plans (namespace, name, body) VALUES (?, ?, ?)
ON CONFLICT (namespace, name) DO UPDATE SET body = excluded.body

-- name: plan_delete
DELETE FROM plans WHERE namespace = ? AND name = ?

-- name: plans
SELECT body, (SELECT count(*) FROM entities INDEXED BY entities_by_plan
              WHERE namespace = plans.namespace AND plan = plans.name)
FROM plans WHERE namespace = ? AND name > ? ORDER BY name LIMIT ?

-- name: entities_on_plan
SELECT id, parent_id, plan, version, body FROM entities INDEXED BY entities_by_plan
WHERE namespace = ? AND plan = ? AND id > ? ORDER BY id LIMIT ?

-- name: purge_plans
DELETE FROM plans WHERE (namespace, name) IN
  (SELECT namespace, name FROM plans WHERE namespace = ? LIMIT ?)

-- name: purge_buckets
DELETE FROM buckets WHERE (namespace, entity_id, resource) IN
  (SELECT namespace, entity_id, resource FROM buckets WHERE namespace = ? LIMIT ?)

-- name: purge_entities
DELETE FROM entities WHERE (namespace, id) IN
  (SELECT namespace, id FROM entities WHERE namespace = ? LIMIT ?)

-- name: purge_stored
DELETE FROM stored WHERE (namespace, entity_id, resource) IN
  (SELECT namespace, entity_id, resource FROM stored WHERE namespace = ? LIMIT ?)

-- name: purge_usage
DELETE FROM usage WHERE (namespace, window_start_ms, window_type, entity_id, resource) IN
  (SELECT namespace, window_start_ms, window_type, entity_id, resource FROM usage
   WHERE namespace = ? LIMIT ?)

-- name: purge_audit
DELETE FROM audit WHERE (namespace, entity_id, event_id) IN
  (SELECT namespace, entity_id, event_id FROM audit WHERE namespace = ? LIMIT ?)

-- name: purge_once
DELETE FROM once WHERE (namespace, name) IN
  (SELECT namespace, name FROM once WHERE namespace = ? LIMIT ?)

-- name: purge_drawer
DELETE FROM drawer WHERE (namespace, name) IN
  (SELECT namespace, name FROM drawer WHERE namespace = ? LIMIT ?)

-- name: notes_get
SELECT body FROM notes WHERE id = 1

-- name: notes_put
INSERT INTO notes (id, body) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body
