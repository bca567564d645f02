-- each: several decisions in one call, each for itself, in their order; `decide` is the script consume.
-- KEYS    those of all decisions, one after another
-- ARGV    the one that consume begins with, then per decision: how many demands it has, and these
--         One that wants rules (see resets.lua) is decided after the others, by a call of its own.
-- reply   what consume replies, per decision; an error of one is its own, unless it is the server's:
--         then no write of this call was done, and it fails as a whole

local OF_SERVER = { READONLY = true, OOM = true, MISCONF = true, NOREPLICAS = true, MASTERDOWN = true }

local replies, key, at = {}, 0, 2
while at <= #ARGV do
    local keys, args, demands = {}, { ARGV[1] }, tonumber(ARGV[at])
    for place = 1, demands * 3 do
        keys[place] = KEYS[key + place]
    end
    for place = 1, demands do
        args[place + 1] = ARGV[at + place]
    end
    local fine, reply = pcall(decide, keys, args)
    if not fine then
        local text = type(reply) == 'table' and reply.err or tostring(reply)
        local code, rest = string.match(text, '(%u%u+)( .*)')  -- Redis 6 puts the place before it
        if code and OF_SERVER[code] then
            return redis.error_reply(code .. rest)
        end
        reply = redis.error_reply(text)
    end
    replies[#replies + 1] = reply
    key, at = key + #keys, at + #args
end
return replies
