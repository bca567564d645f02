-- kin: entities and everybody above them, whether they cascade or not, and a plan.
-- KEYS    head, entities, levels
-- ARGV    how many generations at most, the plan's name ('' = none), entity ids
-- reply   head, text of the plan, then id and text (or nothing) of each, once

local reply, seen = { head(), redis.call('HGET', KEYS[3], '##' .. ARGV[2]) }, {}
for place = 3, #ARGV do
    local entity_id = ARGV[place]
    for _ = 1, tonumber(ARGV[1]) do
        local text = redis.call('HGET', KEYS[2], entity_id)
        if not seen[entity_id] then    -- met before is no reason to stop: it may lie lower now
            seen[entity_id] = true
            reply[#reply + 1] = entity_id
            reply[#reply + 1] = text
        end
        entity_id = text and parent_of(text)
        if not entity_id then
            break
        end
    end
end
return reply
