-- rows: whole hashes of one slot.
-- KEYS    hashes
-- reply   fields and values of each
local reply = {}
for place, key in ipairs(KEYS) do
    reply[place] = redis.call('HGETALL', key)
end
return reply
