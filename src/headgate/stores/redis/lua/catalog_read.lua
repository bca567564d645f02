-- read: replies to several commands of one slot, all of one moment.
-- KEYS    keys of the commands, each once
-- ARGV    commands: how many parts, then name, place of the key, arguments
-- reply   one per command

local reply, at = {}, 1
while at <= #ARGV do
    local count = tonumber(ARGV[at])
    local parts = { unpack(ARGV, at + 1, at + count) }
    parts[2] = KEYS[tonumber(parts[2])]
    reply[#reply + 1] = redis.call(unpack(parts))
    at = at + count + 1
end
return reply
