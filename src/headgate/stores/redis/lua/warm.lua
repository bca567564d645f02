-- The usual case first, spelled out and before anything else is defined: one bucket that exists, is
-- kept under the very terms of the demand, and remembers nothing besides. Everything else, and every
-- refusal, goes on to the general part below, which decides the same.
if #KEYS == 3 then
    local value = redis.call('GET', KEYS[1])
    local cut = value and string.find(value, '|', 1, true)
    if cut and string.sub(value, cut + 1, -3) == ARGV[3] then  -- followed by nothing but ||
        local floor, format = math.floor, string.format
        local now = ARGV[1]
        if now == '' then
            local time = redis.call('TIME')
            now = time[1] * 1000 + floor(time[2] / 1000)
        else
            now = tonumber(now)
        end
        local parts, place, at, longest, usual = {}, 0, 7, 0, true
        for epoch, tokens, low, high in string.gmatch(value, '(%-?%d+) (%-?%d+) (%-?%d+) (%-?%d+)') do
            epoch, tokens = tonumber(epoch), tonumber(tokens)
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
            end
            if a > 0 then
                local life = epoch - now + (capacity - tokens) / a * p
                if life > longest then
                    longest = life
                end
            elseif tokens < capacity then
                longest = 1 / 0
            end
            place = place + 1
            parts[place] = format('%.0f %.0f %.0f %s', epoch, tokens, low, high)
            at = at + 6
        end
        if usual then
            local cells = table.concat(parts, ' ')
            longest = math.ceil(longest * 1.000001) + 300000
            if longest < 100000000000000 then
                redis.call('SET', KEYS[1], cells .. string.sub(value, cut), 'PX', format('%.0f', longest))
            else
                redis.call('SET', KEYS[1], cells .. string.sub(value, cut))
            end
            if ARGV[2] == '1' then
                local hour = floor(now / 3600000)
                local days = floor(hour / 24) + 719468
                local era = floor(days / 146097)
                local day = days - era * 146097
                local year = floor((day - floor(day / 1460) + floor(day / 36524) - floor(day / 146096)) / 365)
                local month = floor((5 * (day - (365 * year + floor(year / 4) - floor(year / 100))) + 2) / 153)
                local row = KEYS[3] .. format('%.0f', (year + era * 400) * 12 + month + 2)
                local stem = format('%.0f:', hour)
                if redis.call('HINCRBY', row, stem, 1) == 1 then
                    redis.call('SADD', KEYS[2] .. ':u', row)
                    redis.call('EXPIRE', row, 34560000)
                    redis.call('EXPIRE', KEYS[2], 34560000)
                    redis.call('EXPIRE', KEYS[2] .. ':u', 34560000)
                end
                for spot = 1, place do
                    local name, wanted = ARGV[1 + spot * 6], ARGV[6 + spot * 6]
                    if wanted ~= '' and wanted ~= '0' then
                        redis.call('HINCRBY', row, stem .. name, wanted)
                    end
                end
            end
            return { 1, format('%.0f', now), cells, '', '', '', '' }
        end
    end
end
