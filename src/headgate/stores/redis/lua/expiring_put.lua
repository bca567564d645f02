-- Keeps a text where its version is the one seen ("" for none); its new version, or 0.
-- KEYS: the texts, their ends. ARGV: name, text, end, version seen.
local found = redis.call('HGET', KEYS[1], ARGV[1])
local version = found and string.match(found, '^(%d+) ') or ''
if version ~= ARGV[4] then
  return 0
end
local following = (tonumber(version) or 0) + 1
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s %s', following, ARGV[3], ARGV[2]))
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
return following
