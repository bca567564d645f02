-- The usual case first, spelled out and before anything else is defined: one bucket that exists, is
-- kept under the very terms of the demand, and remembers nothing besides. Everything else, and every
-- refusal, goes on to the general part below, which decides the same.
local done, unlisted                   -- unlisted: the life of a bucket that is to be listed again
if #KEYS == 3 and ARGV[8] < '2' then    -- what cascaded is counted apart, by the general part
    local value = redis.call('GET', KEYS[1])
    local cells = value and { cmsgpack.unpack(value) }
    if cells and cells[1] == ARGV[6] and cells[2] == '' and cells[3] == 0 then
        local floor = math.floor
        local now = ARGV[1]
        if now == '' then
            local time = redis.call('TIME')
            now = time[1] * 1000 + floor(time[2] / 1000)
        else
            now = tonumber(now)
        end
        local reply, at, longest, usual, aged = { 5, now }, 10, 0, true, false
        for cell = 4, #cells, 4 do
            local epoch, tokens, low = cells[cell], cells[cell + 1], cells[cell + 2]
            local capacity, a, p = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
            local wanted = tonumber(ARGV[at + 5])
            if wanted then
                local elapsed = now - epoch
                local periods = floor(elapsed / p)
                local rest = elapsed - periods * p
                local whole = floor(a / p)
                local arrived = rest * whole + floor(rest * (a - whole * p) / p)
                tokens = tokens + periods * a
                if tokens + arrived >= capacity then
                    epoch, tokens, arrived = now, capacity, 0
                else
                    epoch = epoch + periods * p
                end
                low = low + wanted
                if periods < 0 or wanted > tokens + arrived or low >= 1000000000000000 then
                    usual = false
                    break
                end
                tokens = tokens - wanted
                aged = aged or floor(epoch / 86400000) ~= floor(cells[cell] / 86400000)
                cells[cell], cells[cell + 1], cells[cell + 2] = epoch, tokens, low
            end
            if tokens < capacity then
                local life = epoch - now + (capacity - tokens) / a * p    -- infinite at rate 0
                if life > longest then
                    longest = life
                end
            end
            reply[cell - 1], reply[cell], reply[cell + 1], reply[cell + 2] = epoch, tokens, low, cells[cell + 3]
            at = at + 6
        end
        if usual then
            if longest < 100000000000000 then
                longest = math.ceil(longest * 1.000001) + 300000
                redis.call('SET', KEYS[1], cmsgpack.pack(unpack(cells)), 'PX', longest)
            else
                redis.call('SET', KEYS[1], cmsgpack.pack(unpack(cells)))
            end
            if not aged and longest > 8640000000 then      -- 100 days; see keep_listed
                local left = redis.call('PTTL', KEYS[2])
                aged = left ~= -1 and left < longest + 17280000000
            end
            local since = now - ARGV[3]
            if aged then
                unlisted = longest
            elseif ARGV[2] == '0' then
                return reply
            elseif since >= 0 and since < 3600000 then  -- the hour is the one the caller knows
                local row, stem = KEYS[3] .. ARGV[4], ARGV[5]
                if redis.call('HINCRBY', row, stem, 1) > 1 then
                    for spot = 10, at - 6, 6 do
                        local wanted = ARGV[spot + 5]
                        if wanted ~= '' and wanted ~= '0' then
                            redis.call('HINCRBY', row, stem .. ARGV[spot], wanted)
                        end
                    end
                    return reply
                end
                redis.call('HINCRBY', row, stem, -1)     -- the first of its hour: lists it, too
            end
            done = reply
        end
    end
end
