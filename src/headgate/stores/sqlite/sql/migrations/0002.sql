-- Listing the buckets of one resource no longer walks through the whole namespace.

CREATE INDEX buckets_by_resource ON buckets (namespace, resource, entity_id);
