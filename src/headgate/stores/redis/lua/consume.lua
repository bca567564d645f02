-- consume: all demands or none.
-- KEYS    per demand: bucket, index of the namespace's buckets, usage row of the month the caller knows
-- ARGV    two numbers: now (-1: this server's clock), and when the hour began that the caller knows (-1:
--         usage is not counted), and behind them the rules of quotas, if there are any (see
--         resets.lua); then a demand each (see demand_of)
-- reply   code (1 allowed, +2 outdated), now, then per demand a list: core, dormant, newest, cells …,
--         and last the passed soft limits; core is empty where it is what the demand came with.
--         Where rules are wanted it is those instead.
--         In the usual case a string instead: now, and the cells as they are stored.

if done then                           -- the usual case, and the first of its hour or day
    if unlisted then
        keep_listed(KEYS[2], KEYS[1], unlisted < FOREVER and unlisted or nil)
    end
    if unrowed then
        list_row(KEYS[3])
    end
    if uncounted then
        count(KEYS[3], demand_of(ARGV[2]).limits, 1, done_at)
    end
    return done
end

local given, hour = struct.unpack('>dd', ARGV[1])
local now, counting = clock(given >= 0 and given or ''), hour >= 0
local buckets, demands, outdated = {}, {}, false
read_rules(string.sub(ARGV[1], 17))
for place = 1, #KEYS / 3 do
    demands[place] = demand_of(ARGV[place + 1])
    buckets[place] = found_at(KEYS[place * 3 - 2], demands[place], now)
    outdated = outdated or buckets[place].outdated
    if buckets[place].crowded then
        return redis.error_reply(CROWDED)
    end
end
if #wanting > 0 then
    return { WANTED, now, wanting }
end

-- What taking would leave, by place; and which soft limits were passed. Nothing if it is refused.
local function take(bucket)
    local left, passed = {}, {}
    for place, limit in ipairs(bucket.limits) do
        local wanted = limit.wanted
        if wanted then
            local cell = bucket.cells[place]
            local epoch, tokens, arrived = settled(cell, now, limit)
            if wanted <= tokens + arrived then
                left[place] = { epoch, tokens - wanted }
            elseif limit.soft then
                left[place] = { cell.epoch, cell.tokens }
                passed[#passed + 1] = place
            else
                return nil
            end
        end
    end
    return left, table.concat(passed, ' ')
end

local left, passed, refused = {}, {}, false
for place, bucket in ipairs(buckets) do
    left[place], passed[place] = take(bucket)
    if not left[place] then
        refused = true
        break
    end
end

local function taken(place, bucket)
    for spot, change in pairs(left[place]) do
        local cell = bucket.cells[spot]
        move(bucket, cell, change[1], change[2])
        spend(cell, bucket.limits[spot].wanted)
    end
    if counting then
        count(KEYS[place * 3], bucket.limits, 1, now, demands[place].cascaded)
    end
end

local reply = { (refused and 0 or 1) + (outdated and 2 or 0), now }
for place, bucket in ipairs(buckets) do
    if not refused then
        taken(place, bucket)
    end
    if not refused or bucket.changed then
        save(KEYS[place * 3 - 2], KEYS[place * 3 - 1], bucket, now)
    end
    local list = listed(bucket, bucket.core ~= demands[place].core and bucket.core or '')
    list[#list + 1] = refused and '' or passed[place]
    reply[place + 2] = list
end
return reply
