-- The audit of a whole namespace in the order of its events; those that are there come along.

CREATE INDEX audit_by_event ON audit (namespace, event_id);
