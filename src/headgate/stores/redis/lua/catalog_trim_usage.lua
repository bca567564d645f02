-- trim_usage: the hours before a border are gone from rows of usage.
-- KEYS    rows
-- ARGV    the first hour that stays
-- reply   how many hours went

local border, gone = tonumber(ARGV[1]), 0
for _, row in ipairs(KEYS) do
    local hours = {}
    for _, field in ipairs(redis.call('HKEYS', row)) do
        local hour = string.match(field, '^%-?%d+')
        if tonumber(hour) < border then
            redis.call('HDEL', row, field)
            gone = gone + (hours[hour] and 0 or 1)
            hours[hour] = true
        end
    end
end
return gone
