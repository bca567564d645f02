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
