-- Texts whose end came before a moment, the earliest first: name, text, name, text, …
-- KEYS: the texts, their ends. ARGV: the moment, how many.
local names = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
local found = {}
for _, name in ipairs(names) do
  found[#found + 1] = name
  found[#found + 1] = redis.call('HGET', KEYS[1], name)
end
return found
