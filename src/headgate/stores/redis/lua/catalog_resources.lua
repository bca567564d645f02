-- resources: those for which some entity has limits; one step of the index per resource.
-- KEYS    head, index
-- reply   head, then the resources in order

local reply = { head() }
local from = '[r#'
while true do
    local entry = redis.call('ZRANGEBYLEX', KEYS[2], from, '(r$', 'LIMIT', 0, 1)[1]
    if not entry then
        return reply
    end
    local resource = string.match(entry, '^r#([^#]*)#')
    reply[#reply + 1] = resource
    from = '(r#' .. resource .. '$'    -- $ follows #, so this lies past every entity
end
