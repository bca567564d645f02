-- adjust: debits may go into debt, credits stop at the brim; nothing is refused.
-- KEYS    once marker, then per demand: bucket, index, what its usage rows begin with
-- ARGV    now, 1 to count usage, 1 if metered, lifetime of the marker in ms ('' = none), events to
--         add to usage, then two per demand: 1 if it only gives back, +2 if what each of its limits
--         adds to the consumption follows in it; and the demand (see demand_of); last the rules, if
--         there are any (see resets.lua)
-- reply   1 if applied, 0 if the marker was there, or which rules are wanted

local now = clock(ARGV[1])
local counting, metered = ARGV[2] == '1', ARGV[3] == '1'
local buckets, demands = {}, {}
read_rules(ARGV[6 + (#KEYS - 1) / 3 * 2])

local function count_apart(bucket, demand, list, first)
    local counted = {}
    for place, limit in ipairs(demand.limits) do
        counted[limit.name] = tonumber(list[first + place - 1])
    end
    for _, limit in ipairs(bucket.limits) do
        limit.counted = counted[limit.name]
    end
end

for place = 1, (#KEYS - 1) / 3 do
    local how = tonumber(ARGV[place * 2 + 4])
    local only_credits = how % 2 == 1
    local demand, list, rest = demand_of(ARGV[place * 2 + 5])
    local bucket = found_at(KEYS[place * 3 - 1], demand, now)
    if bucket.crowded then
        return redis.error_reply(CROWDED)
    end
    if how > 1 then
        count_apart(bucket, demand, list, rest)
    end
    if bucket.new and only_credits then
        bucket = false                 -- a bucket that is gone is full: nothing to give back
    end
    buckets[place] = bucket
    demands[place] = demand
end

if #wanting > 0 then
    return { WANTED, now, wanting }
end

for _, bucket in ipairs(buckets) do
    for place, limit in ipairs(bucket and bucket.limits or {}) do
        if limit.wanted then
            local cell = bucket.cells[place]
            local epoch, tokens, arrived = settled(cell, now, limit)
            tokens = tokens - limit.wanted
            if tokens + arrived >= limit.capacity then
                epoch, tokens = math.max(now, epoch), limit.capacity
            elseif tokens < -MOST then
                return redis.error_reply('HEADGATE the debt is larger than Redis counts exactly')
            end
            cell.after = { epoch, tokens }
        end
    end
end

if ARGV[4] ~= '' then
    local marked = redis.call('GET', KEYS[1])
    if marked and tonumber(marked) > now then
        return 0
    end
    redis.call('SET', KEYS[1], text(now + tonumber(ARGV[4])), 'PX', ARGV[4])
end

for place, bucket in ipairs(buckets) do
    if bucket then
        for spot, cell in ipairs(bucket.cells) do
            if cell.after then
                move(bucket, cell, cell.after[1], cell.after[2])
                if metered then
                    spend(cell, spent(bucket.limits[spot]))
                end
            end
        end
        save(KEYS[place * 3 - 1], KEYS[place * 3], bucket, now)
        if counting and metered then
            count(KEYS[place * 3 + 1], bucket.limits, tonumber(ARGV[5]), now, demands[place].cascaded)
        end
    end
end
return 1
