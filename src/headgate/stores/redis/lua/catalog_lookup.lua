-- lookup: the levels of an entity and of the parents it cascades to, all of one moment.
-- KEYS    head, entities, levels
-- ARGV    entity, resource, the resource of an entity's defaults, how many generations at most
-- reply   head, level of the resource, level of the system, then per generation: id, entity, its
--         level for the resource, its default level, its plan

local function level(entity_id, resource)
    return redis.call('HGET', KEYS[3], entity_id .. '#' .. resource)
end

local reply = { head(), level('', ARGV[2]), level('', '') }
local entity_id = ARGV[1]
for _ = 1, tonumber(ARGV[4]) do
    local text = redis.call('HGET', KEYS[2], entity_id)
    reply[#reply + 1] = entity_id
    reply[#reply + 1] = text
    reply[#reply + 1] = level(entity_id, ARGV[2])
    reply[#reply + 1] = level(entity_id, ARGV[3])
    reply[#reply + 1] = text and plan_of(text, KEYS[3]) or false
    if not text then
        break
    end
    local parent, cascades = parent_of(text)
    if not (parent and cascades) then
        break
    end
    entity_id = parent
end
return reply
