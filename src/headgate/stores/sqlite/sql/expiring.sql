-- name: add
INSERT INTO drawer (text, until_ms, namespace, name, version) VALUES (?, ?, ?, ?, 1)
ON CONFLICT (namespace, name) DO NOTHING

-- name: change
UPDATE drawer SET text = ?, until_ms = ?, version = version + 1
WHERE namespace = ? AND name = ? AND version = ?

-- name: get
SELECT text, until_ms, version FROM drawer WHERE namespace = ? AND name = ?

-- name: drop
DELETE FROM drawer WHERE namespace = ? AND name = ? AND version = ?

-- name: due
SELECT name, text, until_ms, version FROM drawer
WHERE namespace = ? AND until_ms < ? ORDER BY until_ms, name LIMIT ?
