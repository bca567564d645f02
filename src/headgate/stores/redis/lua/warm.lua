-- The usual case first, spelled out and before anything else is defined: one bucket that exists, is
-- kept under the very terms of the demand, and remembers nothing besides. Everything else, and every
-- refusal, goes on to the general part below, which decides the same.
--
-- What this is made of is what was measured (ADR 14): each call to Redis costs half a microsecond, a
-- number that a command is given 150 ns (it is printed), a reply in a table 300 ns more than in a
-- string, a new table 100 ns or more. So numbers are read and written in place, and no table is made.
local KEYS, ARGV, call, fields = KEYS, ARGV, redis.call, struct.unpack
local done, done_at, unlisted, unrowed, uncounted   -- the reply, and what is left to do for it
if #KEYS == 3 then
    local demand = ARGV[2]                              -- see demand_of
    local kept, offset, field, how, count, at = fields('>I4c0Bc0I2c0BB', demand)
    local value = how > 0 and call('GET', KEYS[1])
    if value and string.sub(value, 1, #kept) == kept then
        local now, hour = fields('>dd', ARGV[1])
        if now < 0 then
            local time = call('TIME')
            local micros = time[2] + 0
            now = time[1] * 1000 + (micros - micros % 1000) / 1000
        end
        local cell, numbers, usual, aged = #kept + 1, '', true, false
        local full_before, full = 0, 0                  -- when the last limit was to be full, and is now
        for _ = 1, count do
            local capacity, a, p, wanted, epoch, tokens, low, high
            capacity, a, p, wanted, at = fields('>dddd', demand, at)
            epoch, tokens, low, high, cell = fields('>xdxdxdxd', value, cell)
            local ends                                  -- when the window of a quota does
            if a < 0 then                               -- see demand_of
                ends = p < 0 and epoch - p or p
                if epoch < -a or epoch > now or now >= ends or tokens < 0
                    or p < 0 and tokens >= capacity then
                    usual = false
                    break
                end
                a, p = 0, 9007199254740992              -- until then it is a limit without refill
            end
            if tokens < capacity then
                local moment = ends or epoch + (capacity - tokens) / a * p  -- infinite at rate 0
                if moment > full_before then
                    full_before = moment
                end
            end
            if wanted >= 0 then
                local elapsed = now - epoch
                local rest, part = elapsed % p, a % p   -- x - x % y is floor(x / y) * y without a call
                local product = rest * part
                local arrived = rest * ((a - part) / p) + (product - product % p) / p
                local day = epoch - epoch % 86400000
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
                aged = aged or epoch - epoch % 86400000 ~= day
            end
            if tokens < capacity then
                local moment = ends or epoch + (capacity - tokens) / a * p
                if moment > full then
                    full = moment
                end
            end
            numbers = numbers .. struct.pack('>BdBdBdBd', 203, epoch, 203, tokens, 203, low, 203, high)
        end
        if usual then
            local life = full - now
            if life > 0 and full - full % 240000 == full_before - full_before % 240000 then
                -- The end was set last to five minutes after a moment in these same four minutes.
                call('SETRANGE', KEYS[1], offset, numbers)
            elseif life < 100000000000000 then
                life = math.ceil(math.max(life, 10) * 1.000001) + 300000
                call('SET', KEYS[1], kept .. numbers, 'PX', life)
            else
                call('SET', KEYS[1], kept .. numbers)
            end
            if not aged and life > 8640000000 then      -- 100 days; see keep_listed
                local left = call('PTTL', KEYS[2])
                aged = left ~= -1 and left < life + 17280000000
            end
            unlisted = aged and life
            if hour >= 0 and now >= hour and now < hour + 3600000 then  -- the hour the caller knows
                unrowed = call('HINCRBY', KEYS[3], field, '1') == 1
                if how == 2 then                        -- not one token of each: see count
                    local list = { cmsgpack.unpack(string.sub(demand, at)) }
                    for spot = 3, 3 * count, 3 do
                        local wanted = list[spot + 2]
                        if wanted ~= '' and wanted ~= '0' then
                            call('HINCRBY', KEYS[3], field .. list[spot], wanted)
                        end
                    end
                end
            else
                uncounted = hour >= 0
            end
            done, done_at = struct.pack('>d', now) .. numbers, now
            if not (unlisted or unrowed or uncounted) then
                return done
            end
        end
    end
end
