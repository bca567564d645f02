-- No ';' inside a statement: migrations are cut there.
-- Names are never empty, so '' stands for "no name" in keys.

CREATE TABLE buckets (
  namespace  TEXT NOT NULL,
  entity_id  TEXT NOT NULL,
  resource   TEXT NOT NULL,
  terms      TEXT NOT NULL,     -- JSON: version, own, number of core specs, specs, sources
  hour       INTEGER NOT NULL,
  events     INTEGER NOT NULL,
  uncounted  INTEGER NOT NULL,  -- 1 while usage history lacks something the bucket knows
  full_at_ms INTEGER,           -- from when on the row carries no information, NULL is never
  cells      TEXT NOT NULL,     -- JSON: integers of any size
  PRIMARY KEY (namespace, entity_id, resource)
) WITHOUT ROWID;

CREATE INDEX buckets_by_resource ON buckets (namespace, resource, entity_id);

CREATE TABLE once (
  namespace  TEXT NOT NULL,
  name       TEXT NOT NULL,
  expires_ms INTEGER NOT NULL,
  PRIMARY KEY (namespace, name)
) WITHOUT ROWID;

CREATE INDEX once_by_expiry ON once (expires_ms);

CREATE TABLE namespaces (
  id         TEXT NOT NULL PRIMARY KEY,
  name       TEXT NOT NULL,
  state      TEXT NOT NULL,     -- active, deleted, or purging
  version    INTEGER NOT NULL,  -- counts the changes of its configuration
  created_ms INTEGER NOT NULL,
  deleted_ms INTEGER
) WITHOUT ROWID;

CREATE UNIQUE INDEX namespaces_active ON namespaces (name) WHERE state = 'active';

CREATE TABLE entities (
  namespace TEXT NOT NULL,
  id        TEXT NOT NULL,
  parent_id TEXT,
  version   INTEGER NOT NULL,
  body      TEXT NOT NULL,      -- JSON: name, cascade, metadata, mode, created_ms
  PRIMARY KEY (namespace, id)
) WITHOUT ROWID;

CREATE INDEX entities_by_parent ON entities (namespace, parent_id, id);

CREATE TABLE stored (
  namespace TEXT NOT NULL,
  entity_id TEXT NOT NULL,
  resource  TEXT NOT NULL,
  limited   INTEGER NOT NULL,   -- 1 if it holds limits
  body      TEXT NOT NULL,      -- JSON: limits, version, on_unavailable, mode
  PRIMARY KEY (namespace, entity_id, resource)
) WITHOUT ROWID;

CREATE INDEX stored_by_resource ON stored (namespace, resource, entity_id) WHERE limited = 1;

CREATE TABLE usage (
  namespace       TEXT NOT NULL,
  window_start_ms INTEGER NOT NULL,
  window_type     TEXT NOT NULL,
  entity_id       TEXT NOT NULL,
  resource        TEXT NOT NULL,
  counters        TEXT NOT NULL,  -- JSON: millitokens by limit
  events          INTEGER NOT NULL,
  PRIMARY KEY (namespace, window_start_ms DESC, window_type, entity_id, resource)
) WITHOUT ROWID;

CREATE INDEX usage_by_entity
  ON usage (namespace, entity_id, window_start_ms DESC, window_type, resource);

CREATE INDEX usage_by_age ON usage (window_start_ms);

CREATE TABLE audit (
  namespace TEXT NOT NULL,
  entity_id TEXT NOT NULL,
  event_id  TEXT NOT NULL,
  time_ms   INTEGER NOT NULL,
  body      TEXT NOT NULL,      -- JSON: timestamp, action, principal, resource, details
  PRIMARY KEY (namespace, entity_id, event_id)
) WITHOUT ROWID;

CREATE INDEX audit_by_age ON audit (time_ms);

CREATE TABLE notes (
  id   INTEGER PRIMARY KEY CHECK (id = 1),
  body TEXT NOT NULL
);

-- Small texts with an end, such as leases over the wire.

CREATE TABLE drawer (
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  text      TEXT NOT NULL,
  until_ms  INTEGER NOT NULL,
  version   INTEGER NOT NULL,
  PRIMARY KEY (namespace, name)
) WITHOUT ROWID;

CREATE INDEX drawer_by_end ON drawer (namespace, until_ms, name);
