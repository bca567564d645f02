-- plans: in the order of the index, each with how many entities refer to it.
-- KEYS    head, index, levels
-- ARGV    from, to, how many at most
-- reply   head, then text and count of each

local reply = { head() }
local entries = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
for _, entry in ipairs(entries) do
    local name = string.sub(entry, 3)
    reply[#reply + 1] = redis.call('HGET', KEYS[3], '##' .. name)
    reply[#reply + 1] = redis.call('ZLEXCOUNT', KEYS[2],
        '[m#' .. name .. '#', '(m#' .. name .. '$')
end
return reply
