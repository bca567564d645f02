-- Plans, and the entities that refer to one.

CREATE TABLE plans (
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  body      TEXT NOT NULL,      -- JSON: name, limits, resources, version
  PRIMARY KEY (namespace, name)
) WITHOUT ROWID;

ALTER TABLE entities ADD COLUMN plan TEXT;

CREATE INDEX entities_by_plan ON entities (namespace, plan, id) WHERE plan IS NOT NULL;
