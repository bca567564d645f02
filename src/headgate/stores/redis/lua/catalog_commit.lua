-- commit: the writes, if everything they were decided on still reads the same.
-- KEYS    [1] the hash whose field `version` counts changes; then keys of the commands
-- ARGV    1 to move the version on; number of guards; guards; writes. A command is: how many parts,
--         then name, place of the key, arguments. A guard is: expected reply ('' = none), command.
--         A written text that begins with @ and a newline gets the version in place of the @, and
--         so does the second line of a text that is @ alone. JSON has no newline in it.
-- reply   the version, or nothing if something had changed

local at = 3

local function command()
    local count = tonumber(ARGV[at])
    local parts = { unpack(ARGV, at + 1, at + count) }
    parts[2] = KEYS[tonumber(parts[2])]
    at = at + count + 1
    return parts
end

for _ = 1, tonumber(ARGV[2]) do
    local expected = ARGV[at]
    at = at + 1
    local found = redis.call(unpack(command()))
    if tostring(found or '') ~= expected then
        return false
    end
end

local version = redis.call('HGET', KEYS[1], 'version') or '0'
if ARGV[1] == '1' then
    version = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'version', 1))
end
while at <= #ARGV do
    local parts = command()
    for place, part in ipairs(parts) do
        if string.sub(part, 1, 2) == '@\n' then
            parts[place] = version .. string.sub(part, 2)
        else
            local at_sign = string.find(part, '\n@\n', 1, true)
            if at_sign then
                parts[place] = string.sub(part, 1, at_sign) .. version .. string.sub(part, at_sign + 2)
            end
        end
    end
    redis.call(unpack(parts))
end
return tonumber(version)
