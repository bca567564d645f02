-- peek: the buckets as they are, and this server's time.
-- KEYS buckets; ARGV now; reply: now, then per bucket a list (core, dormant, newest, cells …) or nothing
local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local reply = { now }
for place, key in ipairs(KEYS) do
    local value = redis.call('GET', key)
    reply[place + 1] = value and { cmsgpack.unpack(value) } or false
end
return reply
