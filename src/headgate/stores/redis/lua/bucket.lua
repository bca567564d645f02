-- What consume and adjust share: the arithmetic of a bucket in integers that a double holds exactly.
--
-- A bucket is one string, packed: core, dormant, newest, then per limit epoch, tokens and consumed
-- (low and high part). It is MessagePack in which every number is a double and takes nine bytes, so that
-- the numbers can be written in place (warm.lua). Earlier versions wrote the shortest form: both are read.
--   core     the terms its callers ask for, as their client wrote them (JSON)
--   dormant  limits it remembers besides, as JSON, or nothing
--   newest   the newest version it has met, where the core is an override and has none; else 0
-- Rates come reduced: a millitokens every p milliseconds, gcd(a, p) = 1, p * p <= 2^53, so that no
-- product below leaves the exact range. An epoch moves only by whole periods, which loses nothing.

local MOST = 4503599627370496          -- 2^52: levels and debts stay within it
local UNIT = 1000000000000000          -- consumed = high * UNIT + low
local HOUR = 3600000
local MARGIN = 300000                  -- a bucket outlives the moment it is full by five minutes
local FOREVER = 100000000000000        -- past this a bucket is kept without end
local USAGE_SECONDS = 34560000         -- 400 days
local DAY = 86400000
local LISTED = 34560000000             -- 400 days: how much longer an index lives than what it lists

local CROWDED = 'HEADGATE a bucket remembers 32 limits; give each set of limits a resource of its own'

local floor = math.floor

local function text(number)            -- never %.14g, which rounds
    return string.format('%.0f', number)
end

local function clock(given)
    if given ~= '' then
        return tonumber(given)
    end
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + floor(tonumber(time[2]) / 1000)
end

local function gcd(a, b)
    while b > 0 do
        a, b = b, a % b
    end
    return a
end

-- The state at a moment: epoch and tokens moved on by whole periods, and what arrived since. At the
-- brim nothing is under way, so a new epoch begins. Where the clock stands before the epoch nothing
-- is moved and less than nothing has arrived. A quota's epoch stays, as resets are counted from it.
local function settled(cell, now, limit)
    local epoch, tokens, a, p = cell.epoch, cell.tokens, limit.a, limit.p
    if limit.resets then
        if tokens + cell.brought >= limit.capacity then
            return math.max(now, epoch), limit.capacity, 0
        end
        return epoch, tokens, cell.brought
    end
    local elapsed = now - epoch
    local periods = floor(elapsed / p)
    local rest = elapsed - periods * p
    local whole = floor(a / p)
    local arrived = rest * whole + floor(rest * (a - whole * p) / p)
    if periods < 0 then
        return epoch, tokens, periods * a + arrived
    end
    tokens = tokens + periods * a
    if tokens + arrived >= limit.capacity then  -- also where the product was too large to be exact
        return now, limit.capacity, 0
    end
    return epoch + periods * p, tokens, arrived
end

local function level(cell, now, limit)
    local _, tokens, arrived = settled(cell, now, limit)
    return tokens + arrived
end

local function spend(cell, amount)
    local low = cell.low + amount
    local carry = floor(low / UNIT)
    cell.low = low - carry * UNIT
    cell.high = cell.high + carry
end

-- What is consumed of a limit: as much as is wanted, unless an adjustment counts it apart.
local function spent(limit)
    return limit.counted or limit.wanted
end

-- Limits as JSON has them: [name, capacity, amount, period, soft], and a quota's schedule
local function limits_of(specs)
    local found = {}
    for place, spec in ipairs(specs) do
        local divisor = gcd(spec[4], spec[3])
        found[place] = {
            name = spec[1], capacity = spec[2], amount = spec[3], period = spec[4],
            a = spec[3] / divisor, p = spec[4] / divisor, soft = spec[5], resets = spec[6],
        }
    end
    return found
end

local function read(value)
    local packed = { cmsgpack.unpack(value) }
    local cells = {}
    for at = 4, #packed, 4 do
        cells[#cells + 1] = {
            epoch = packed[at], tokens = packed[at + 1], low = packed[at + 2], high = packed[at + 3],
        }
    end
    return { core = packed[1], dormant = packed[2], newest = packed[3], cells = cells }
end

-- The bucket as it is stored.
local function stored(bucket)
    local parts = {
        struct.pack('>BI4', 219, #bucket.core), bucket.core,
        struct.pack('>BI4', 219, #bucket.dormant), bucket.dormant,
        struct.pack('>Bd', 203, bucket.newest),
    }
    for _, cell in ipairs(bucket.cells) do
        parts[#parts + 1] = struct.pack(
            '>BdBdBdBd', 203, cell.epoch, 203, cell.tokens, 203, cell.low, 203, cell.high)
    end
    return table.concat(parts)
end

-- The bucket as a list, as callers get it.
local function listed(bucket, core)
    local list = { core, bucket.dormant, bucket.newest }
    for _, cell in ipairs(bucket.cells) do
        list[#list + 1] = cell.epoch
        list[#list + 1] = cell.tokens
        list[#list + 1] = cell.low
        list[#list + 1] = cell.high
    end
    return list
end

-- A demand, packed. First what the usual case looks at (warm.lua), by struct:
--   kept     what a bucket under these terms begins with: core, nothing dormant, no newest
--   offset   how long that is, as text
--   field    where its usage is counted (see count)
--   how      1 or 2 if the usual case may decide it; 2 if its limits are counted each for itself
--   count    how many limits there are, and per limit capacity, a, p, wanted (-1 if nothing is). Of a
--            quota a is the last reset the caller knows, negative, and p the next; of a session -1 and
--            how long it is, negative
-- Then MessagePack: version, own, and per limit name, soft, wanted (text, '' if nothing is). `soft` is 1 if
-- so, +2 if it is a quota: behind the limits follow the schedules of these. `own` is 1 if so, +2 if all of
-- it came by cascade, +4 if a part did: then that part of each limit follows.
-- Returns it, and what follows: a list and the place in it.
local function demand_of(packed)
    local kept, _, _, _, count, first = struct.unpack('>I4c0Bc0I2c0BB', packed)
    local list = { cmsgpack.unpack(string.sub(packed, first + 32 * count)) }
    local own = list[2]
    local demand = { core = (cmsgpack.unpack(kept)), version = list[1], own = own % 2 == 1 }
    local limits, at, quotas = {}, 3, {}
    for place = 1, count do
        local capacity, a, p = struct.unpack('>ddd', packed, first + 32 * (place - 1))
        local kind = list[at + 1]
        limits[place] = {
            name = list[at], capacity = capacity, a = a, p = p,
            soft = kind % 2 == 1, wanted = tonumber(list[at + 2]),
        }
        at = at + 3
        if kind >= 2 then
            quotas[#quotas + 1] = limits[place]
        end
    end
    for _, limit in ipairs(quotas) do
        limit.a, limit.p, limit.resets = 0, 1, list[at]
        at = at + 1
    end
    demand.limits = limits
    if own >= 4 then
        demand.cascaded = {}
        for _, limit in ipairs(limits) do
            demand.cascaded[limit.name] = tonumber(list[at])
            at = at + 1
        end
    elseif own >= 2 then
        demand.cascaded = true
    end
    return demand, list, at
end

local function full_cell(limit, now)
    return { epoch = now, tokens = limit.capacity, low = 0, high = 0, brought = 0 }
end

local function opened(demand, now)
    local bucket = {
        cells = {}, core = demand.core, dormant = '', newest = 0, limits = demand.limits, new = true,
    }
    for place, limit in ipairs(demand.limits) do
        bucket.cells[place] = full_cell(limit, now)
    end
    bring(bucket, bucket.limits, now)
    return bucket
end

-- The wanted amounts in the order of the limits a bucket is kept under.
local function line_up(limits, demand)
    local wanted = {}
    for _, limit in ipairs(demand.limits) do
        wanted[limit.name] = limit.wanted
    end
    for _, limit in ipairs(limits) do
        limit.wanted = wanted[limit.name]
    end
end

-- The level goes along, cut at the new brim, and so does what is under way, as the time it takes at
-- the new pace. A clock before the epoch counts as being at it.
local function carried(cell, now, old, new)
    local moment = math.max(now, cell.epoch)
    local epoch, tokens, arrived = settled(cell, moment, old)
    local height = tokens + arrived
    local after = { epoch = moment, tokens = height, low = cell.low, high = cell.high, brought = 0 }
    if height >= old.capacity or height >= new.capacity then
        after.tokens = math.min(height, new.capacity)
    elseif old.resets or new.resets then         -- a calendar has nothing under way, a session has
        local was = old.resets and session_ms(old.resets)
        local is = new.resets and session_ms(new.resets)
        if was and is then
            after.epoch = moment - carried_part((moment - epoch) % was, was, is)
        end
    elseif old.amount == new.amount and old.period == new.period then
        after.epoch, after.tokens = epoch, tokens
    elseif new.a > 0 then
        local rest, part = moment - epoch, old.a % old.p
        local under_way = rest * part % old.p
        after.epoch = moment - floor(floor(under_way * new.p / old.p) / new.a)
    end
    return after
end

local function spec_text(limit)        -- cjson.encode would round to 14 digits
    return '["' .. limit.name .. '",' .. text(limit.capacity) .. ',' .. text(limit.amount) .. ','
        .. text(limit.period) .. ',' .. (limit.soft and 'true' or 'false')
        .. (limit.resets and ',"' .. limit.resets .. '"' or '') .. ']'
end

local function remember(bucket, kept, room, now)
    if #kept > room then
        local worth = {}
        for _, entry in ipairs(kept) do
            if level(entry.cell, now, entry.limit) < entry.limit.capacity then
                worth[#worth + 1] = entry
            end
        end
        kept = worth
    end
    bucket.crowded = #kept > room
    local specs = {}
    for place, entry in ipairs(kept) do
        specs[place] = spec_text(entry.limit)
        bucket.cells[#bucket.cells + 1] = entry.cell
        bucket.limits[#bucket.limits + 1] = entry.limit
    end
    bucket.dormant = #specs > 0 and '[' .. table.concat(specs, ',') .. ']' or ''
end

-- The bucket under the terms that count: an override or the newest version. Whoever comes with an
-- older version is decided by what the bucket holds (outdated).
local function keep_under(bucket, demand, now)
    local held, asked = cjson.decode(bucket.core), cjson.decode(demand.core)
    local old = limits_of(held.specs)
    local rest = bucket.dormant ~= '' and limits_of(cjson.decode(bucket.dormant)) or {}
    for _, limit in ipairs(rest) do
        old[#old + 1] = limit
    end
    bring(bucket, old, now)
    local newest = math.max(bucket.newest, held.version)
    if not demand.own and demand.version < newest then
        bucket.limits = old
        bucket.outdated = true
        line_up(old, demand)
        return bucket
    end
    local before = {}
    for place, limit in ipairs(old) do
        before[limit.name] = { limit = limit, cell = bucket.cells[place], place = place }
    end
    local after = { cells = {}, core = demand.core, limits = {}, newest = 0, changed = true }
    if demand.own then
        after.newest = newest
    end
    local new = limits_of(asked.specs)
    for place, limit in ipairs(new) do
        limit.wanted = demand.limits[place].wanted
        after.limits[place] = limit
        local entry = before[limit.name]
        before[limit.name] = nil
        if entry then
            local same = entry.limit.amount == limit.amount and entry.limit.period == limit.period
                and entry.limit.capacity == limit.capacity and entry.limit.resets == limit.resets
            after.cells[place] = same and entry.cell or carried(entry.cell, now, entry.limit, limit)
        else
            after.cells[place] = full_cell(limit, now)
        end
    end
    bring(after, new, now)
    local kept = {}
    for _, limit in ipairs(old) do
        if before[limit.name] then
            kept[#kept + 1] = before[limit.name]
        end
    end
    remember(after, kept, 32 - #new, now)
    return after
end

local function found_at(key, demand, now)
    local value = redis.call('GET', key)
    if not value then
        return opened(demand, now)
    end
    local bucket = read(value)
    for _, cell in ipairs(bucket.cells) do
        if cell.epoch > now + HOUR then                  -- see after_clock_step in record.py
            cell.epoch, bucket.changed = now, true
        end
    end
    if bucket.core ~= demand.core then
        return keep_under(bucket, demand, now)
    end
    bucket.limits = demand.limits
    if bucket.dormant ~= '' then       -- remembered limits follow those that are asked for
        bucket.limits = { unpack(demand.limits) }
        for _, limit in ipairs(limits_of(cjson.decode(bucket.dormant))) do
            bucket.limits[#bucket.limits + 1] = limit
        end
    end
    bring(bucket, bucket.limits, now)
    return bucket
end

-- How long the bucket carries information; nil: for ever.
local function lifetime(bucket, now)
    local longest = 0
    for place, limit in ipairs(bucket.limits) do
        local cell = bucket.cells[place]
        local missing = limit.capacity - cell.tokens - (limit.resets and cell.brought or 0)
        if missing > 0 and limit.resets then
            longest = math.max(longest, until_full(cell, limit, missing, now))
        elseif missing > 0 then
            if limit.a == 0 then
                return nil
            end
            longest = math.max(longest, cell.epoch - now + missing / limit.a * limit.p)
        end
    end
    local whole = math.ceil(longest * 1.000001) + MARGIN
    return whole < FOREVER and whole or nil
end

-- A cell has a new state. An epoch follows the takes within a period, which is at most 27 hours, so
-- the first take of a day or two shows in it; see keep_listed.
local function move(bucket, cell, epoch, tokens)
    if floor(epoch / DAY) ~= floor(cell.epoch / DAY) then
        bucket.aged = true
    end
    if epoch ~= cell.epoch then
        cell.brought = 0
    end
    cell.epoch, cell.tokens = epoch, tokens
end

-- The index outlives each bucket it lists, or a bucket would be lost to get_buckets and delete_entity.
-- Every bucket in use comes here at least every other day, and at each take if it lives longer than 100
-- days, so an index that is set to live 400 days longer and is renewed when half of that is gone never
-- ends too early. An index that lists a bucket without an end has none either.
local function keep_listed(index, key, life)
    local left = redis.call('PTTL', index)               -- -1: it has no end, -2: there is none
    local by_entity, by_resource = entries_of(key)
    if redis.call('ZADD', index, 0, by_entity, 0, by_resource) > 0 then
        for _, entry in ipairs(redis.call('ZRANDMEMBER', index, 2)) do
            live_bucket(index, entry)
        end
    end
    if left == -1 then
        return
    elseif not life then
        redis.call('PERSIST', index)
    elseif left < life + LISTED / 2 then
        redis.call('PEXPIRE', index, text(life + LISTED))
    end
end

local function save(key, index, bucket, now)
    local value = stored(bucket)
    local life = lifetime(bucket, now)
    if life then
        redis.call('SET', key, value, 'PX', text(life))
    else
        redis.call('SET', key, value)
    end
    if bucket.new or bucket.changed or bucket.aged or not life or life > LISTED / 4 then
        keep_listed(index, key, life)
    end
end

-- Months since year 0 of an hour since 1970 (civil calendar, UTC).
local function month_of(hour)
    local days = floor(hour / 24) + 719468
    local era = floor(days / 146097)
    local day = days - era * 146097
    local year = floor((day - floor(day / 1460) + floor(day / 36524) - floor(day / 146096)) / 365)
    local left = day - (365 * year + floor(year / 4) - floor(year / 100))
    local month = floor((5 * left + 2) / 153)            -- 0 is March
    return (year + era * 400) * 12 + month + 2           -- January is 0
end

local function list_row(row)
    local rows = 'hg:i:' .. string.match(row, '{.-}') .. ':u'
    redis.call('SADD', rows, row)
    redis.call('EXPIRE', row, USAGE_SECONDS)
    redis.call('EXPIRE', rows, USAGE_SECONDS)
end

-- Usage: one hash per bucket and month, fields "hour:limit" and "hour:" for admitted demands. The
-- first of an hour lists the row with its entity. What came by cascade is in them and, apart, in
-- "hour:>limit" and "hour:>". `cascaded` is true where all of it did, else by limit how much. The usual
-- case counts demands of one token of each limit in one field instead, "hour:!limit#limit". `near` is the
-- row of any month of this bucket.
local function count(near, limits, events, now, cascaded)
    local hour = floor(now / HOUR)
    local row = string.match(near, '.*#') .. text(month_of(hour))
    local stem = text(hour) .. ':'
    if redis.call('HINCRBY', row, stem, events) == events then
        list_row(row)
    end
    for _, limit in ipairs(limits) do
        if limit.wanted and spent(limit) ~= 0 then
            redis.call('HINCRBY', row, stem .. limit.name, text(spent(limit)))
        end
        local part = cascaded and limit.wanted and (cascaded == true and spent(limit) or cascaded[limit.name])
        if part and part ~= 0 then
            redis.call('HINCRBY', row, stem .. '>' .. limit.name, text(part))
        end
    end
    if cascaded == true and events ~= 0 then
        redis.call('HINCRBY', row, stem .. '>', events)
    end
end
