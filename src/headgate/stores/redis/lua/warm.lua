-- The usual case first, spelled out and before anything else is defined: one bucket that exists, is
-- kept under the very terms of the demand, and remembers nothing besides. Everything else, and every
-- refusal, goes on to the general part below, which decides the same.
--
-- What this is made of is what was measured (ADR 14): each call to Redis costs half a microsecond, each
-- argument 50 ns, a number that a command is given 150 ns (it is printed), a new table 100 ns or more.
local KEYS, ARGV, call = KEYS, ARGV, redis.call
local done, unlisted, unrowed, uncounted   -- the reply, and what is left to do for it
if #KEYS == 3 then
    local demand = { cmsgpack.unpack(ARGV[2]) }         -- see demand_of
    local value = demand[3] < 2 and call('GET', KEYS[1])  -- what cascaded is counted apart, below
    local cells = value and { cmsgpack.unpack(value) }
    if cells and cells[1] == demand[1] and cells[2] == '' and cells[3] == 0 then
        local now, counting, hour, month, stem = cmsgpack.unpack(ARGV[1])
        if not now then
            local time = call('TIME')
            local micros = time[2] + 0
            now = time[1] * 1000 + (micros - micros % 1000) / 1000
        end
        local at, usual, aged = 6, true, false
        local full_before, full = 0, 0                  -- when the last limit was to be full, and is now
        for cell = 4, #cells, 4 do
            local epoch, tokens, low = cells[cell], cells[cell + 1], cells[cell + 2]
            local capacity, a, p, wanted = demand[at + 1], demand[at + 2], demand[at + 3], demand[at + 5]
            if tokens < capacity then
                local moment = epoch + (capacity - tokens) / a * p  -- infinite at rate 0
                if moment > full_before then
                    full_before = moment
                end
            end
            if wanted ~= '' then
                wanted = wanted + 0
                local elapsed = now - epoch
                local rest, part = elapsed % p, a % p   -- x - x % y is floor(x / y) * y without a call
                local product = rest * part
                local arrived = rest * ((a - part) / p) + (product - product % p) / p
                tokens = tokens + (elapsed - rest) / p * a
                if tokens + arrived >= capacity then
                    epoch, tokens, arrived = now, capacity, 0
                else
                    epoch = now - rest
                end
                low = low + wanted
                if elapsed < 0 or wanted > tokens + arrived or low >= 1000000000000000 then
                    usual = false
                    break
                end
                tokens = tokens - wanted
                aged = aged or epoch - epoch % 86400000 ~= cells[cell] - cells[cell] % 86400000
                cells[cell], cells[cell + 1], cells[cell + 2] = epoch, tokens, low
            end
            if tokens < capacity then
                local moment = epoch + (capacity - tokens) / a * p
                if moment > full then
                    full = moment
                end
            end
            at = at + 6
        end
        if usual then
            local packed, life = cmsgpack.pack(unpack(cells)), full - now
            if life > 0 and full - full % 240000 == full_before - full_before % 240000 then
                -- The end was set last to five minutes after a moment in these same four minutes.
                call('SET', KEYS[1], packed, 'KEEPTTL')
            elseif life < 100000000000000 then
                life = math.ceil(math.max(life, 10) * 1.000001) + 300000
                call('SET', KEYS[1], packed, 'PX', life)
            else
                call('SET', KEYS[1], packed)
            end
            if not aged and life > 8640000000 then      -- 100 days; see keep_listed
                local left = call('PTTL', KEYS[2])
                aged = left ~= -1 and left < life + 17280000000
            end
            unlisted = aged and life
            local since = now - hour
            if counting == 1 and since >= 0 and since < 3600000 then  -- the hour the caller knows
                local row, ones, events = KEYS[3] .. month, demand[5], 1
                if ones ~= '' then                      -- one token of each: see count
                    events = call('HINCRBY', row, stem .. ones, '1')
                else
                    events = call('HINCRBY', row, stem, '1')
                    for spot = 6, at - 6, 6 do
                        local wanted = demand[spot + 5]
                        if wanted ~= '' and wanted ~= '0' then
                            call('HINCRBY', row, stem .. demand[spot], wanted)
                        end
                    end
                end
                unrowed = events == 1 and row
            else
                uncounted = counting == 1
            end
            cells[1], cells[2] = 5, now                 -- the reply: the same table, at no cost
            if not (unlisted or unrowed or uncounted) then
                return cells
            end
            done = cells
        end
    end
end
