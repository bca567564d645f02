-- The index of a namespace's buckets: which there are, in the order of their names.
--
-- It is a sorted set with every score 0, which makes it an ordered list of texts. Each bucket has two
-- entries, `e#entity#resource` and `r#resource#entity`, so that the buckets of an entity are
-- neighbours and those of a resource, too. No name holds a `#`.
-- A script in a cluster reaches the keys of one slot only. So there the index has a part in each slot,
-- which lists the buckets of that slot.
-- A bucket that expires leaves its entries behind. A page drops those it meets, and each new bucket
-- draws two entries by lot and drops them if they are stale: an index that nobody ever reads has about
-- as many stale entries as live ones, not all that ever were.

local function entries_of(key)         -- of hg:b:{namespace#entity}#resource
    local entity, resource = string.match(key, '#(.-)}#(.*)')
    return 'e#' .. entity .. '#' .. resource, 'r#' .. resource .. '#' .. entity
end

-- The key of an entry's bucket, if that exists; else the bucket is no longer listed.
local function live_bucket(index, entry)
    local kind, entity, resource = string.match(entry, '(.)#(.-)#(.*)')
    if kind == 'r' then
        entity, resource = resource, entity
    end
    local key = 'hg:b:' .. string.match(index, '{.-#') .. entity .. '}#' .. resource
    if redis.call('EXISTS', key) == 1 then
        return key
    end
    redis.call('ZREM', index, entries_of(key))
end
