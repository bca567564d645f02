-- add_usage: an hour of usage that was counted elsewhere is added to its row.
-- KEYS    row, the entity's list of usage rows
-- ARGV    field, amount, field, amount, …
-- reply   nothing

local USAGE_SECONDS = 34560000         -- 400 days, as where decisions count

for place = 1, #ARGV, 2 do
    redis.call('HINCRBY', KEYS[1], ARGV[place], ARGV[place + 1])
end
redis.call('SADD', KEYS[2], KEYS[1])
for _, key in ipairs(KEYS) do
    redis.call('EXPIRE', key, USAGE_SECONDS)
end
