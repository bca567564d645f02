-- page: entities in the order of the index.
-- KEYS    head, index, entities
-- ARGV    from, to, how many at most, length of what stands before the id in an index entry
-- reply   head, then id and text of each

local reply = { head() }
local entries = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
for _, entry in ipairs(entries) do
    local entity_id = string.sub(entry, tonumber(ARGV[4]) + 1)
    reply[#reply + 1] = entity_id
    reply[#reply + 1] = redis.call('HGET', KEYS[3], entity_id)
end
return reply
