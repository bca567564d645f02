-- trim_audit: events from before a moment are gone from a bite of one stream.
-- KEYS    stream
-- ARGV    the moment in ms, where to begin, how many events to look at
-- reply   how many went, where to go on ('' at the end)

local entries = redis.call('XRANGE', KEYS[1], ARGV[2], '+', 'COUNT', ARGV[3])
local border, gone = tonumber(ARGV[1]), 0
for _, entry in ipairs(entries) do
    local made_ms = tonumber(string.match(entry[2][2], '^%d+'))    -- an event's id begins with it
    if made_ms and made_ms < border then
        gone = gone + redis.call('XDEL', KEYS[1], entry[1])
    end
end
if redis.call('XLEN', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[1])
end
local last = #entries == tonumber(ARGV[3]) and entries[#entries][1]
return { gone, last and '(' .. last or '' }
