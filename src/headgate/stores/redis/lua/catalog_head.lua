-- What the scripts that read a catalog begin with. KEYS[1] is the head of the namespace.

local function head()
    return redis.call('HMGET', KEYS[1],
        'schema', 'state', 'name', 'version', 'turn', 'created_ms', 'deleted_ms')
end

-- The parent of an entity, and whether it cascades to it. An entity's text begins with + or -, its
-- parent's id and a newline, so that no script has to understand the rest.
local function parent_of(text)
    local sign, parent = string.match(text, '^([+-])([^\n]*)\n')
    return parent ~= '' and parent or nil, sign == '+'
end

-- The text of the plan an entity refers to. Its name is the third line of the entity's text, where
-- there is one; the second is JSON, which has no newline in it.
local function plan_of(text, levels)
    local name = string.match(text, '^[^\n]*\n[^\n]*\n(.+)$')
    return name and redis.call('HGET', levels, '##' .. name)
end
