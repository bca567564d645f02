-- What came by cascade, from children of an entity: of the running hour in buckets, and in history.
-- JSON: admitted demands, millitokens by limit. NULL is nothing, as in all rows of older versions.

ALTER TABLE buckets ADD COLUMN cascaded TEXT;

ALTER TABLE usage ADD COLUMN cascaded TEXT;
