-- peek: the buckets as they are, and this server's time.
-- KEYS buckets; ARGV now; reply: now, then per bucket its text or nothing
local now = ARGV[1]
if now == '' then
    local time = redis.call('TIME')
    now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
end
local reply = { now }
for place, key in ipairs(KEYS) do
    reply[place + 1] = redis.call('GET', key) or ''
end
return reply
