-- Quotas: how many resets they had, by this server's clock and the caller's calendar.
--
-- A script knows no time zones, so a call says the resets that its quotas have around now. They are its
-- rules, packed, a list per schedule:
--   text     the schedule, as limits have it
--   moments  consecutive resets: none between the first and the last is missing
--   counts   of older buckets: an epoch, and how many resets there are after it and before the first
--            moment; and so on
--   widest   no two resets are further apart
-- Where the rules do not say what has to be known, nothing is written and the reply is which are wanted:
-- WANTED, now, and a list of the schedule and the epoch of each such quota. The caller sends the call again with them.
-- A session needs no rules: it is reset every so many ms after its epoch.

local WANTED = 4
local DEEP = -2251799813685248         -- -2^51: below it what resets brought is added, so sums stay exact
local rules, wanting = {}, {}

local function read_rules(packed)
    if packed and packed ~= '' then
        for _, rule in ipairs(cmsgpack.unpack(packed)) do
            rules[rule[1]] = { moments = rule[2], counts = rule[3], widest = rule[4] }
        end
    end
end

local function session_ms(resets)
    local seconds = string.match(resets, '^session (%d+)s$')
    return seconds and seconds * 1000
end

-- How many of the moments are after an epoch and not after now.
local function listed_resets(moments, epoch, now)
    local passed = 0
    for _, moment in ipairs(moments) do
        if moment > now then
            break
        elseif moment > epoch then
            passed = passed + 1
        end
    end
    return passed
end

-- The same of all resets, where the rule counts those before its first moment; else nil.
local function counted_resets(rule, epoch, passed)
    for at = 1, #rule.counts, 2 do
        if rule.counts[at] == epoch then
            return rule.counts[at + 1] + passed
        end
    end
end

-- How many resets there are between the epoch of a quota's cell and now; nil where that is wanted.
-- Fewer than all are enough where they fill it. A cell that is older than the moments and in debt is
-- moved on to the middle of the first window in them, so that the next call need not count again; not to
-- the reset itself, since other callers' time zones may have that one a little later.
local function resets_of(cell, limit, now)
    local after = session_ms(limit.resets)
    if after then
        local elapsed = math.max(0, now - cell.epoch)
        return (elapsed - elapsed % after) / after
    end
    local rule = rules[limit.resets]
    local moments = rule and rule.moments
    if not rule or now >= moments[#moments] then
        return nil
    end
    local passed = listed_resets(moments, cell.epoch, now)
    if now <= cell.epoch or cell.epoch >= moments[1]
        or cell.tokens + passed * limit.capacity >= limit.capacity then
        return passed
    end
    local all = counted_resets(rule, cell.epoch, passed)
    if all and cell.tokens + all * limit.capacity < limit.capacity then
        local middle = moments[1] + math.floor((moments[2] - moments[1]) / 2)
        cell.epoch = math.min(middle, now)
        passed = listed_resets(moments, cell.epoch, now)
        cell.tokens = cell.tokens + (all - passed) * limit.capacity
        return passed, true
    end
    return all
end

-- What resets have brought each quota since its epoch, into `brought` of its cell.
local function bring(bucket, limits, now)
    for place, limit in ipairs(limits) do
        if limit.resets then
            local cell = bucket.cells[place]
            local passed, moved = resets_of(cell, limit, now)
            if not passed then
                wanting[#wanting + 1] = limit.resets
                wanting[#wanting + 1] = cell.epoch
            end
            local brought = (passed or 0) * limit.capacity
            if cell.tokens < DEEP and brought > 0 and cell.tokens + brought < limit.capacity then
                local after = session_ms(limit.resets)
                cell.epoch = after and cell.epoch + passed * after or now
                cell.tokens, brought = cell.tokens + brought, 0
            end
            cell.brought = brought
            bucket.changed = bucket.changed or moved
        end
    end
end

-- From now on until a quota is full: `missing` is what it lacks now.
local function until_full(cell, limit, missing, now)
    local count = math.ceil(missing / limit.capacity)
    local after = session_ms(limit.resets)
    if after then
        return cell.epoch + (cell.brought / limit.capacity + count) * after - now
    end
    local rule = rules[limit.resets]
    local moments = rule.moments
    local place = listed_resets(moments, -math.huge, now) + count
    local known = math.min(place, #moments)
    return moments[known] + (place - known) * rule.widest - now
end

-- The ms since its epoch that a session which becomes another takes along: passed * new / old, rounded
-- down, in steps whose products stay below 2^53 (ten years are 2^28.3 seconds, and 2^38.3 ms).
local function carried_part(passed, old, new)
    old, new = old / 1000, new / 1000
    local high = math.floor(new / 16384)
    local product = passed * high
    local rest = product % old
    return (product - rest) / old * 16384
        + math.floor((rest * 16384 + passed * (new - high * 16384)) / old)
end
