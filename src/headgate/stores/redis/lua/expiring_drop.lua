-- Drops a text whose version is the one seen; 1 where this call has done it.
-- KEYS: the texts, their ends. ARGV: name, version seen.
local found = redis.call('HGET', KEYS[1], ARGV[1])
if not found or string.match(found, '^(%d+) ') ~= ARGV[2] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
